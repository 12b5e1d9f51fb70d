//! `synthetic-bert`: BERT in fixed sizes on random tokens. It needs no data and learns nothing: use
//! it to try out and time machines, and to see how they share work.
//!
//! `hetseq bench step --config NAME` times it. `scripts/bench/synthetic_bert.py` does the same work
//! in PyTorch, for comparison.

use burn::tensor::Device;
use hetseq_data::{Batch, PretrainBatch, SampleLengths};
use hetseq_models::bert::{Bert, BertConfig};
use hetseq_random::Key;
use serde::{Deserialize, Serialize};

use crate::task::{ForwardContext, Samples, Split, StepOutput, Task, TaskData, TaskError};
use crate::tasks::bert;

/// The `[task]` table of `synthetic-bert`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyntheticBertConfig {
    /// `tiny`, `small`, `base2` or `base`.
    pub geometry: String,
    /// Samples per epoch.
    #[serde(default = "default_samples")]
    pub samples: usize,
    /// Of hidden states and of attention's weights.
    #[serde(default)]
    pub dropout: f64,
}

fn default_samples() -> usize {
    1 << 16
}

/// The size of a model and of its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Geometry {
    words: usize,
    width: usize,
    layers: usize,
    heads: usize,
    /// Tokens per sequence.
    tokens: usize,
    /// Masked tokens per sequence.
    masked: usize,
    /// Sequences per update in `bench step`.
    sequences: usize,
}

/// The geometries by name.
#[rustfmt::skip]
const GEOMETRIES: [(&str, Geometry); 4] = [
    ("tiny", Geometry { words: 512, width: 64, layers: 2, heads: 2, tokens: 32, masked: 5, sequences: 4 }),
    ("small", Geometry { words: 30_522, width: 256, layers: 4, heads: 4, tokens: 128, masked: 20, sequences: 16 }),
    ("base2", Geometry { words: 30_522, width: 768, layers: 2, heads: 12, tokens: 128, masked: 20, sequences: 8 }),
    ("base", Geometry { words: 30_522, width: 768, layers: 12, heads: 12, tokens: 128, masked: 20, sequences: 8 }),
];

/// The names of all geometries.
pub fn names() -> [&'static str; GEOMETRIES.len()] {
    GEOMETRIES.map(|(name, _)| name)
}

/// Default number of sequences per update in `bench step`.
pub(crate) fn default_sequences(name: &str) -> Option<usize> {
    find(name).map(|geometry| geometry.sequences)
}

fn find(name: &str) -> Option<Geometry> {
    GEOMETRIES.iter().find(|(known, _)| *known == name).map(|(_, geometry)| *geometry)
}

impl Geometry {
    fn model(&self, dropout: f64) -> BertConfig {
        BertConfig {
            vocab_size: self.words,
            hidden_size: self.width,
            num_hidden_layers: self.layers,
            num_attention_heads: self.heads,
            intermediate_size: 4 * self.width,
            hidden_dropout_prob: dropout,
            attention_probs_dropout_prob: dropout,
            ..BertConfig::default()
        }
    }
}

/// The task. It predicts masked tokens, without next-sentence prediction.
pub struct SyntheticBert {
    geometry: Geometry,
    samples: usize,
    dropout: f64,
}

impl TaskData for SyntheticBert {
    fn fingerprint(&self) -> String {
        format!("{:?} x {}", self.geometry, self.samples)
    }

    /// There are no validation samples, because nothing is learned.
    fn lengths(&self, split: Split) -> SampleLengths {
        let samples = if split == Split::Train { self.samples } else { 0 };
        SampleLengths::Uniform { samples, tokens: self.geometry.tokens as u32 }
    }

    fn collate(&self, samples: &Samples<'_>) -> Result<Batch, TaskError> {
        let Geometry { words, tokens, masked, .. } = self.geometry;
        let mut batch = PretrainBatch {
            batch: samples.ids.len(),
            seq: tokens,
            input_ids: Vec::new(),
            segment_ids: Vec::new(),
            lengths: vec![tokens as i32; samples.ids.len()],
            masked_positions: Vec::new(),
            masked_ids: Vec::new(),
            next_sentence: None,
        };
        for (&id, row) in samples.ids.iter().zip(0..) {
            let draw = |key: Key, count| (0..count as u64).map(move |i| key.below(i, words as u64) as i32);
            batch.input_ids.extend(draw(samples.key(id).name("tokens"), tokens));
            batch.segment_ids.extend((0..tokens).map(|position| i32::from(position >= tokens / 2)));
            let mut positions: Vec<i32> = (0..tokens as i32).collect();
            samples.key(id).name("masked").shuffle(&mut positions);
            batch.masked_positions.extend(positions[..masked].iter().map(|position| row * tokens as i32 + position));
            batch.masked_ids.extend(draw(samples.key(id).name("labels"), masked));
        }
        Ok(batch.into())
    }
}

impl Task for SyntheticBert {
    const NAME: &'static str = "synthetic-bert";
    type Config = SyntheticBertConfig;
    type Model = Bert;

    fn open(config: &SyntheticBertConfig) -> Result<Self, TaskError> {
        let SyntheticBertConfig { geometry: name, samples, dropout } = config;
        let unknown = || format!("unknown geometry {name}; available: {}", names().join(", "));
        let geometry = find(name).ok_or_else(|| TaskError::Other(unknown()))?;
        geometry.model(*dropout).validate().map_err(|error| TaskError::Other(error.to_string()))?;
        Ok(SyntheticBert { geometry, samples: *samples, dropout: *dropout })
    }

    fn model(&self, device: &Device) -> Bert {
        Bert::new(&self.geometry.model(self.dropout), device)
    }

    fn forward(&self, model: &Bert, batch: &Batch, ctx: &ForwardContext) -> Result<StepOutput, TaskError> {
        bert::forward(model, batch, ctx, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_geometry_gives_a_valid_model_and_batch() {
        for name in names() {
            let geometry = find(name).unwrap();
            let config = SyntheticBertConfig { geometry: name.to_owned(), samples: 100, dropout: 0.0 };
            let task = SyntheticBert::open(&config).unwrap();
            let ids: Vec<u32> = (0..geometry.sequences as u32).collect();
            let batch = task.collate(&Samples::new(Split::Train, &ids, Key::root(1))).unwrap();
            let tokens = geometry.sequences * geometry.tokens;
            let ints = |name| batch.i32s(name).unwrap();
            assert_eq!((ints("input_ids").len(), ints("segment_ids").len()), (tokens, tokens));
            let mut ids = ints("input_ids").iter().chain(ints("masked_ids"));
            assert!(ids.all(|&id| (0..geometry.words as i32).contains(&id)));
            let mut positions = ints("masked_positions").to_vec();
            positions.sort_unstable();
            positions.dedup();
            assert_eq!(positions.len(), geometry.sequences * geometry.masked, "no position is masked twice");
            assert!(positions.iter().all(|&at| (0..tokens as i32).contains(&at)));
            assert_eq!(batch.counts(), [ints("masked_ids").len() as u64]);
        }
        let huge = SyntheticBertConfig { geometry: "huge".to_owned(), samples: 100, dropout: 0.0 };
        assert!(SyntheticBert::open(&huge).err().unwrap().to_string().contains("available: tiny, small, base2, base"));
    }
}
