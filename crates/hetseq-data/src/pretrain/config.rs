//! Settings for cutting text into samples, pairing and masking: the data part of a task's config.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::{CorpusError, DataError};
use crate::mask::Masking;

/// Data settings of BERT pre-training. A task can use them directly or flatten them into its
/// config.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PretrainConfig {
    /// The largest number of tokens in a sample, special tokens included.
    pub max_seq_length: usize,
    /// Next-sentence prediction: a sample has two segments and a label that says whether the second
    /// follows the first. Without it a sample is one segment.
    pub next_sentence: bool,
    /// The fraction of samples that are made short on purpose, with a random length, so that the
    /// model sees all lengths.
    pub short_seq_prob: f64,
    /// The seed of the cuts, which are the same in all epochs. Masks and pairs use the run's seed.
    pub cut_seed: u64,
    pub masking: Masking,
    /// Batches are padded to a multiple of this, which is faster on some devices.
    pub pad_to_multiple: usize,
    /// The memory limit of stored samples, training and validation together. Above it they are
    /// unpacked into files.
    pub memory_mib: usize,
    /// The directory of those files; by default `.unpacked` in the directory of the shards.
    pub unpack_dir: Option<PathBuf>,
    /// The vocabulary size of the model. Stored samples with larger ids are refused; text has its
    /// own vocabulary.
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

/// Valid values of `max_seq_length`: at least enough for two segments; positions have 16 bits.
const LENGTHS: std::ops::RangeInclusive<usize> = 16..=u16::MAX as usize;

impl PretrainConfig {
    /// Refuses settings that are out of range.
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

    /// The number of special tokens in a sample: `[CLS]`, and a `[SEP]` after each segment.
    pub(super) fn special_tokens(&self) -> usize {
        if self.next_sentence { 3 } else { 2 }
    }

    /// The largest number of text tokens in a sample.
    pub(super) fn max_text_tokens(&self) -> usize {
        self.max_seq_length - self.special_tokens()
    }

    /// The padded length of a batch whose longest sample has `tokens` tokens.
    pub(super) fn padded(&self, tokens: usize) -> usize {
        let width = tokens.next_multiple_of(self.pad_to_multiple.max(1));
        // Not above the model's positions, unless a sample is longer.
        if width > self.max_seq_length { tokens.max(self.max_seq_length) } else { width }
    }
}
