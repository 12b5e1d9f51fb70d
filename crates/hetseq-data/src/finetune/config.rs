//! Settings of samples for fine-tuning: the data part of a task's config.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::error::{CorpusError, DataError};

/// What happens to a sentence with more tokens than `max_seq_length`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LongSentences {
    /// It becomes several samples. Each word has its label in exactly one of them.
    #[default]
    Windows,
    /// Its last words are lost, as with Hugging Face's `truncation=True`.
    Truncate,
}

/// Settings of samples with a label for each word.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TokenSampleConfig {
    /// The largest number of tokens in a sample, special tokens included. At most the number of
    /// positions of the model, which the task checks.
    pub max_seq_length: usize,
    /// Batches are padded to a multiple of this, but not beyond `max_seq_length`.
    pub pad_to_multiple: usize,
    /// Label all sub-tokens of a word, not only the first. After the first, `B-x` becomes `I-x` if
    /// there is such a label, as in Hugging Face's `run_ner.py`.
    pub label_all: bool,
    pub long_sentences: LongSentences,
    /// The number of words that a window shares with the next, as context. Less if they would fill
    /// more than half of the window.
    pub overlap_words: usize,
}

impl Default for TokenSampleConfig {
    fn default() -> Self {
        TokenSampleConfig {
            max_seq_length: 128,
            pad_to_multiple: 8,
            label_all: false,
            long_sentences: LongSentences::Windows,
            overlap_words: 16,
        }
    }
}

impl TokenSampleConfig {
    /// Refuses settings that are out of range.
    pub fn check(&self) -> Result<(), DataError> {
        check(self.max_seq_length, self.pad_to_multiple)
    }
}

/// Settings of samples with a label for each text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SequenceSampleConfig {
    /// The largest number of tokens in a sample, special tokens included. At most the number of
    /// positions of the model, which the task checks.
    pub max_seq_length: usize,
    /// Batches are padded to a multiple of this, but not beyond `max_seq_length`.
    pub pad_to_multiple: usize,
}

impl Default for SequenceSampleConfig {
    fn default() -> Self {
        SequenceSampleConfig { max_seq_length: 128, pad_to_multiple: 8 }
    }
}

impl SequenceSampleConfig {
    /// Refuses settings that are out of range.
    pub fn check(&self) -> Result<(), DataError> {
        check(self.max_seq_length, self.pad_to_multiple)
    }
}

/// Valid values of `max_seq_length`: room for special tokens and some words; positions have 16
/// bits.
const LENGTHS: RangeInclusive<usize> = 8..=u16::MAX as usize;

fn check(max_seq_length: usize, pad_to_multiple: usize) -> Result<(), DataError> {
    let bad = |name, problem: String| Err(CorpusError::BadSetting { name, problem }.into());
    if !LENGTHS.contains(&max_seq_length) {
        let problem = format!("{max_seq_length} is not between {} and {}", LENGTHS.start(), LENGTHS.end());
        return bad("max_seq_length", problem);
    }
    if !(1..=64).contains(&pad_to_multiple) {
        return bad("pad_to_multiple", format!("{pad_to_multiple} is not between 1 and 64"));
    }
    Ok(())
}

/// The padded length of a batch whose longest sample has `tokens` tokens, at most `max_seq_length`.
pub(super) fn padded(tokens: usize, pad_to_multiple: usize, max_seq_length: usize) -> usize {
    tokens.next_multiple_of(pad_to_multiple.max(1)).min(max_seq_length.max(tokens))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_does_not_exceed_the_positions() {
        let padded = |tokens| padded(tokens, 8, 20);
        assert_eq!([0, 1, 8, 9, 16, 17, 20].map(padded), [0, 8, 8, 16, 16, 20, 20]);
    }

    #[test]
    fn settings_out_of_range_are_refused() {
        let error = |config: TokenSampleConfig| config.check().unwrap_err().to_string();
        let config = TokenSampleConfig { max_seq_length: 7, ..TokenSampleConfig::default() };
        assert_eq!(error(config), "max_seq_length: 7 is not between 8 and 65535");
        let config = TokenSampleConfig { pad_to_multiple: 0, ..TokenSampleConfig::default() };
        assert_eq!(error(config), "pad_to_multiple: 0 is not between 1 and 64");
        let config = SequenceSampleConfig { max_seq_length: 70_000, ..SequenceSampleConfig::default() };
        assert_eq!(config.check().unwrap_err().to_string(), "max_seq_length: 70000 is not between 8 and 65535");
    }
}
