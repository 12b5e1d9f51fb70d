//! Generating: some sentences, so many hypotheses of each, one further token at a time. What was computed for the tokens before
//! is kept. Which tokens to take is decided elsewhere ([`crate::beam`]).

use burn::tensor::{Int, Tensor, TensorData};

use super::decoder::Cache;
use super::layer::Attended;
use super::{Sequences, Transformer};

pub struct Decoding<'a> {
    model: &'a Transformer,
    caches: Vec<Cache>,
    /// Hides the padding of the source.
    padding: Option<Tensor<4>>,
    positions: usize,
}

impl<'a> Decoding<'a> {
    pub fn new(model: &'a Transformer, source: &Sequences) -> Self {
        let memory = model.encode(source, &[]);
        Decoding { model, caches: model.model.decoder.look_at(&memory), padding: source.padding.clone(), positions: 0 }
    }

    /// Appends a token to each hypothesis, and gives the logits [hypothesis, word] of what comes next. Hypotheses of a sentence
    /// follow each other, as many of each.
    pub fn step(&mut self, tokens: &[u32]) -> Tensor<2> {
        let Decoding { model, caches, padding, positions } = self;
        let device = model.final_logits_bias.val().device();
        let ids: Vec<i32> = tokens.iter().map(|&token| token as i32).collect();
        let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [tokens.len(), 1]), &device);
        let decoder = &model.model.decoder;
        let hidden = decoder.step(model.target_words(), ids, model.scale, *positions, caches, padding.as_ref());
        *positions += 1;
        let [rows, _, width] = hidden.dims();
        model.logits(hidden.reshape([rows, width]))
    }

    /// Goes on with these hypotheses, some perhaps twice, in this order.
    pub fn choose(&mut self, hypotheses: &[usize]) {
        let at = self.index(hypotheses);
        for cache in &mut self.caches {
            cache.seen = cache.seen.take().map(|seen| rows(seen, &at));
        }
    }

    /// Goes on with these sentences only; which hypotheses are theirs is told by [`Decoding::choose`].
    pub fn keep(&mut self, sentences: &[usize]) {
        let at = self.index(sentences);
        for cache in &mut self.caches {
            cache.source = rows(cache.source.clone(), &at);
        }
        self.padding = self.padding.take().map(|padding| padding.select(0, at));
    }

    fn index(&self, rows: &[usize]) -> Tensor<1, Int> {
        let rows: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
        Tensor::from_data(&rows[..], &self.model.final_logits_bias.val().device())
    }
}

fn rows(attended: Attended, at: &Tensor<1, Int>) -> Attended {
    Attended { key: attended.key.select(0, at.clone()), value: attended.value.select(0, at.clone()) }
}
