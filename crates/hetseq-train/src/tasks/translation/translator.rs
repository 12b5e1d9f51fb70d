//! Sentences in, hypotheses out: a batch of token ids through the model and the beam. Called by validation and by `generate`.

use burn::tensor::Device;
use hetseq_kernels::best_of_rows;
use hetseq_models::beam::{self, BeamSettings, Continue, Hypothesis};
use hetseq_models::transformer::{Decoding, Sequences, Transformer, TransformerConfig};

/// A source sentence, and how long its translation may become.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sentence {
    /// With the end.
    pub(crate) source: Vec<u32>,
    /// The most tokens of the translation, its end included, if the model has so many positions.
    pub(crate) limit: usize,
}

impl Sentence {
    /// Translations are hardly ever longer than twice the source and some.
    pub(crate) fn new(source: Vec<u32>) -> Self {
        let limit = 2 * source.len() + 10;
        Sentence { source, limit }
    }
}

pub(crate) fn settings(model: &TransformerConfig, beam: usize, length_penalty: f64) -> BeamSettings {
    BeamSettings {
        beam,
        length_penalty,
        start: model.decoder_start_token_id as u32,
        end: model.eos_token_id as u32,
        banned: Some(model.pad_token_id as u32),
    }
}

/// All as one batch, so they had better be of similar length. Sentences must not be empty, nor longer than the model has positions.
pub(crate) fn translate(
    model: &Transformer,
    config: &TransformerConfig,
    sentences: &[Sentence],
    settings: &BeamSettings,
    device: &Device,
) -> Vec<Vec<Hypothesis>> {
    if sentences.is_empty() {
        return Vec::new();
    }
    let lengths: Vec<usize> = sentences.iter().map(|sentence| sentence.source.len()).collect();
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let row = |sentence: &Sentence| {
        let ids = sentence.source.iter().map(|&id| id as i32);
        let padding = std::iter::repeat_n(config.pad_token_id as i32, longest - sentence.source.len());
        ids.chain(padding).collect::<Vec<i32>>()
    };
    let tokens: Vec<i32> = sentences.iter().flat_map(row).collect();
    let source = Sequences::new(&tokens, &lengths, device);
    let limits = sentences.iter().map(|sentence| sentence.limit.min(config.max_position_embeddings));
    beam::search(&mut Step(Decoding::new(model, &source)), &limits.collect::<Vec<_>>(), settings)
}

struct Step<'a>(Decoding<'a>);

impl Continue for Step<'_> {
    fn step(&mut self, tokens: &[u32], count: usize) -> Vec<Vec<(u32, f32)>> {
        best_of_rows(self.0.step(tokens), count)
    }

    fn choose(&mut self, rows: &[usize], sentences: Option<&[usize]>) {
        self.0.choose(rows);
        if let Some(sentences) = sentences {
            self.0.keep(sentences);
        }
    }
}
