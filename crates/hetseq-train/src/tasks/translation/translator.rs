//! Translates a batch of token ids with beam search. Called by validation and by `generate`.

use burn::tensor::Device;
use hetseq_kernels::top_k_of_rows;
use hetseq_models::beam::{self, BeamModel, BeamSettings, Hypothesis};
use hetseq_models::transformer::{Decoding, Transformer, TransformerConfig, TransformerInput};

/// A source sentence and the length limit of its translation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sentence {
    /// Token ids, including the end token.
    pub(crate) source: Vec<u32>,
    /// Maximum tokens of the translation, including its end. The model's positions are a further
    /// limit.
    pub(crate) limit: usize,
}

impl Sentence {
    /// Sets the limit to twice the source length plus ten: translations are rarely longer.
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

/// Translates all sentences as one batch, so they should have similar lengths. Sentences must be
/// neither empty nor longer than the model's positions.
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
    let source = TransformerInput::new(&tokens, &lengths, device);
    let limits = sentences.iter().map(|sentence| sentence.limit.min(config.max_position_embeddings));
    beam::search(&mut ModelStep(Decoding::new(model, &source)), &limits.collect::<Vec<_>>(), settings)
}

struct ModelStep<'a>(Decoding<'a>);

impl BeamModel for ModelStep<'_> {
    fn step(&mut self, tokens: &[u32], count: usize) -> Vec<Vec<(u32, f32)>> {
        top_k_of_rows(self.0.step(tokens), count)
    }

    fn reorder(&mut self, rows: &[usize], sentences: Option<&[usize]>) {
        self.0.reorder(rows);
        if let Some(sentences) = sentences {
            self.0.keep_sentences(sentences);
        }
    }
}
