//! Step-by-step generation for several sentences and hypotheses, with cached keys and values. Beam
//! search ([`crate::beam`]) selects the tokens.

use burn::tensor::{Int, Tensor, TensorData};

use super::decoder::LayerCache;
use super::layer::KeyValue;
use super::{Transformer, TransformerInput};

/// The state of a generation.
pub struct Decoding<'a> {
    model: &'a Transformer,
    caches: Vec<LayerCache>,
    /// Masks the padding of the source.
    padding: Option<Tensor<4>>,
    positions: usize,
}

impl<'a> Decoding<'a> {
    /// Encodes the source sentences.
    pub fn new(model: &'a Transformer, source: &TransformerInput) -> Self {
        let memory = model.encode(source, &[]);
        let caches = model.model.decoder.start_caches(&memory);
        Decoding { model, caches, padding: source.padding.clone(), positions: 0 }
    }

    /// Appends a token to each hypothesis and returns the logits [hypothesis, word] of the next
    /// token. The hypotheses of a sentence are adjacent, and each sentence has the same number of
    /// them.
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

    /// Replaces the hypotheses by these, which may repeat.
    pub fn reorder(&mut self, hypotheses: &[usize]) {
        let at = self.index(hypotheses);
        for cache in &mut self.caches {
            cache.past = cache.past.take().map(|past| rows(past, &at));
        }
    }

    /// Keeps only these sentences. Call [`Decoding::reorder`] to select their hypotheses.
    pub fn keep_sentences(&mut self, sentences: &[usize]) {
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

fn rows(key_value: KeyValue, at: &Tensor<1, Int>) -> KeyValue {
    KeyValue { key: key_value.key.select(0, at.clone()), value: key_value.value.select(0, at.clone()) }
}
