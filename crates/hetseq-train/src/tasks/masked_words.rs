//! `masked-words`: BERT in fixed geometries on made-up tokens. It needs no data and there is nothing to learn: it is for trying
//! out machines, how fast they are and how they share. `hetseq bench step --config NAME` times it, and it is the same work as that
//! of `scripts/bench/masked_words.py`, which it is held against.

use burn::tensor::Device;
use hetseq_data::{Costs, PretrainBatch};
use hetseq_models::bert::{Bert, BertConfig};
use hetseq_random::Key;
use serde::{Deserialize, Serialize};

use crate::task::{Outcome, Pass, Samples, Task, TaskError, Which};
use crate::tasks::bert;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MaskedWordsConfig {
    /// `tiny`, `small`, `base2` or `base`.
    pub geometry: String,
    /// In an epoch.
    #[serde(default = "many")]
    pub samples: usize,
}

fn many() -> usize {
    1 << 16
}

/// A model and the shape of its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Geometry {
    words: usize,
    width: usize,
    layers: usize,
    heads: usize,
    /// Of one sequence.
    tokens: usize,
    /// Of the tokens of one sequence.
    masked: usize,
    /// In one update, when it is timed.
    sequences: usize,
}

/// By name, as typed.
#[rustfmt::skip]
const GEOMETRIES: [(&str, Geometry); 4] = [
    ("tiny", Geometry { words: 512, width: 64, layers: 2, heads: 2, tokens: 32, masked: 5, sequences: 4 }),
    ("small", Geometry { words: 30_522, width: 256, layers: 4, heads: 4, tokens: 128, masked: 20, sequences: 16 }),
    ("base2", Geometry { words: 30_522, width: 768, layers: 2, heads: 12, tokens: 128, masked: 20, sequences: 8 }),
    ("base", Geometry { words: 30_522, width: 768, layers: 12, heads: 12, tokens: 128, masked: 20, sequences: 8 }),
];

pub fn names() -> [&'static str; GEOMETRIES.len()] {
    GEOMETRIES.map(|(name, _)| name)
}

/// As many as the update of a geometry has when it is timed.
pub(crate) fn usual_sequences(name: &str) -> Option<usize> {
    find(name).map(|geometry| geometry.sequences)
}

fn find(name: &str) -> Option<Geometry> {
    GEOMETRIES.iter().find(|(known, _)| *known == name).map(|(_, geometry)| *geometry)
}

impl Geometry {
    fn model(&self) -> BertConfig {
        BertConfig {
            vocab_size: self.words,
            hidden_size: self.width,
            num_hidden_layers: self.layers,
            num_attention_heads: self.heads,
            intermediate_size: 4 * self.width,
            hidden_dropout_prob: 0.0,
            attention_probs_dropout_prob: 0.0,
            ..BertConfig::default()
        }
    }
}

/// Sentences are not asked for.
pub struct MaskedWords {
    geometry: Geometry,
    samples: usize,
}

impl Task for MaskedWords {
    const NAME: &'static str = "masked-words";
    type Config = MaskedWordsConfig;
    type Model = Bert;
    type Batch = PretrainBatch;

    fn open(config: &MaskedWordsConfig) -> Result<Self, TaskError> {
        let MaskedWordsConfig { geometry: name, samples } = config;
        let unknown = || format!("no geometry is called {name}: there are {}", names().join(", "));
        let geometry = find(name).ok_or_else(|| TaskError::Other(unknown()))?;
        geometry.model().validate().map_err(|error| TaskError::Other(error.to_string()))?;
        Ok(MaskedWords { geometry, samples: *samples })
    }

    fn fingerprint(&self) -> String {
        format!("{:?} x {}", self.geometry, self.samples)
    }

    /// Nothing is learnt, so there is nothing to validate.
    fn costs(&self, which: Which) -> Costs {
        let samples = if which == Which::Train { self.samples } else { 0 };
        Costs::Uniform { samples, tokens: self.geometry.tokens as u32 }
    }

    fn model(&self, device: &Device) -> Bert {
        Bert::new(&self.geometry.model(), device)
    }

    fn collate(&self, samples: &Samples<'_>) -> Result<PretrainBatch, TaskError> {
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
        Ok(batch)
    }

    fn counts(&self, batch: &PretrainBatch) -> Vec<u64> {
        vec![batch.masked_ids.len() as u64]
    }

    fn forward(&self, model: &Bert, batch: &PretrainBatch, pass: &Pass) -> Outcome {
        bert::forward(model, batch, pass, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_geometry_is_a_model_and_a_batch() {
        for name in names() {
            let geometry = find(name).unwrap();
            let config = MaskedWordsConfig { geometry: name.to_owned(), samples: 100 };
            let task = MaskedWords::open(&config).unwrap();
            let ids: Vec<u32> = (0..geometry.sequences as u32).collect();
            let batch = task.collate(&Samples::new(Which::Train, &ids, Key::root(1))).unwrap();
            let tokens = geometry.sequences * geometry.tokens;
            assert_eq!((batch.input_ids.len(), batch.segment_ids.len()), (tokens, tokens));
            assert!(
                batch.input_ids.iter().chain(&batch.masked_ids).all(|&id| (0..geometry.words as i32).contains(&id))
            );
            let mut places = batch.masked_positions.clone();
            places.sort_unstable();
            places.dedup();
            assert_eq!(places.len(), geometry.sequences * geometry.masked, "no place is masked twice");
            assert!(places.iter().all(|&at| (0..tokens as i32).contains(&at)));
            assert_eq!(task.counts(&batch), [batch.masked_ids.len() as u64]);
        }
        let huge = MaskedWordsConfig { geometry: "huge".to_owned(), samples: 100 };
        assert!(MaskedWords::open(&huge).err().unwrap().to_string().contains("there are tiny, small, base2, base"));
    }
}
