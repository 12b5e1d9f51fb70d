//! How samples are cut from text, paired and masked: the part of a task's config that is about data.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::{CorpusError, DataError};
use crate::mask::Masking;

/// Use it as it is or flattened into a config of your own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PretrainConfig {
    /// Tokens of a sample at most, with the special ones.
    pub max_seq_length: usize,
    /// Pair two segments, and tell whether the second follows the first. Without it a sample is one segment.
    pub next_sentence: bool,
    /// How many of the samples are cut short on purpose, at a random length, so that the network sees all lengths.
    pub short_seq_prob: f64,
    /// Where samples are cut depends on it, in all epochs alike; masks and pairs do not, they come from the run's seed.
    pub cut_seed: u64,
    pub masking: Masking,
    /// Batches are padded to a multiple of it: some devices are faster then.
    pub pad_to_multiple: usize,
    /// How much memory stored samples may take, those for training and for validation together; beyond, they are unpacked
    /// into files.
    pub memory_mib: usize,
    /// Where those files go; by default a directory `.unpacked` beside the shards.
    pub unpack_dir: Option<PathBuf>,
    /// How many ids the model knows. Stored samples with others are refused; text brings its own vocabulary.
    pub vocabulary: Option<usize>,
}

impl Default for PretrainConfig {
    fn default() -> Self {
        PretrainConfig {
            max_seq_length: 128,
            next_sentence: true,
            short_seq_prob: 0.1,
            cut_seed: 1,
            masking: Masking::default(),
            pad_to_multiple: 8,
            memory_mib: 1024,
            unpack_dir: None,
            vocabulary: None,
        }
    }
}

/// The shortest and the longest that samples may be made: room for two segments, and 16 bits for a position.
const LENGTHS: std::ops::RangeInclusive<usize> = 16..=u16::MAX as usize;

impl PretrainConfig {
    pub fn check(&self) -> Result<(), DataError> {
        let bad = |name, problem: String| Err(CorpusError::BadSetting { name, problem }.into());
        if !LENGTHS.contains(&self.max_seq_length) {
            let problem = format!("{} is not between {} and {}", self.max_seq_length, LENGTHS.start(), LENGTHS.end());
            return bad("max_seq_length", problem);
        }
        if !(0.0..=1.0).contains(&self.short_seq_prob) {
            return bad("short_seq_prob", format!("{} is not between 0 and 1", self.short_seq_prob));
        }
        if !(self.masking.probability > 0.0 && self.masking.probability < 1.0) {
            return bad("masking.probability", format!("{} is not between 0 and 1", self.masking.probability));
        }
        if !(1..=64).contains(&self.pad_to_multiple) {
            return bad("pad_to_multiple", format!("{} is not between 1 and 64", self.pad_to_multiple));
        }
        Ok(())
    }

    /// `[CLS]`, and a `[SEP]` after each segment.
    pub(super) fn special_tokens(&self) -> usize {
        if self.next_sentence { 3 } else { 2 }
    }

    /// How many tokens of text a sample has at most.
    pub(super) fn most_text(&self) -> usize {
        self.max_seq_length - self.special_tokens()
    }

    /// The width of a batch whose longest sample has so many tokens.
    pub(super) fn padded(&self, tokens: usize) -> usize {
        let width = tokens.next_multiple_of(self.pad_to_multiple.max(1));
        // No wider than the model's positions, unless a sample is.
        if width > self.max_seq_length { tokens.max(self.max_seq_length) } else { width }
    }
}
