//! Settings of `hetseq prep bert`, their checks, and the record of them that a restart compares.

use std::path::PathBuf;

use hetseq_random::Key;
use serde_json::{Value, json};

use crate::error::{CorpusError, DataError};
use crate::prep::directory::{content_hash, inputs};
use crate::source::corpus::{CorpusManifest, CorpusSplit};
use crate::source::text::{DEFAULT_FIELD, SentenceStyle, TextFile};

/// The version of the output. It increases when the same settings would give other bytes.
const VERSION: u32 = 1;
const MIN_VOCABULARY: usize = 100;
/// The largest text size of a part: its tokens are counted in 32 bits.
const MAX_SHARD_MIB: u64 = 2048;

/// The origin of the vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VocabularySource {
    /// Trained on the training text.
    Trained { size: usize, cased: bool },
    /// A `vocab.txt`.
    Vocabulary { path: PathBuf, cased: bool },
    /// A `tokenizer.json`.
    Tokenizer { path: PathBuf },
}

/// Settings of NVIDIA's layout, with the names of NVIDIA's scripts.
#[derive(Debug, Clone, PartialEq)]
pub struct Hdf5Settings {
    pub max_seq_length: usize,
    pub max_predictions: usize,
    /// The number of passes over the training text, each with other pairs and masks.
    pub dupe_factor: usize,
    pub short_seq_prob: f64,
    pub whole_word: bool,
}

/// The format of the shards.
#[derive(Debug, Clone, PartialEq)]
pub enum PrepFormat {
    /// Tokens; samples are built during training.
    Compact,
    /// Masked samples in NVIDIA's layout.
    Hdf5(Hdf5Settings),
}

impl PrepFormat {
    pub(super) fn name(&self) -> &'static str {
        match self {
            PrepFormat::Compact => CorpusManifest::COMPACT,
            PrepFormat::Hdf5(_) => CorpusManifest::HDF5,
        }
    }
}

/// Settings of `hetseq prep bert`.
#[derive(Debug, Clone, PartialEq)]
pub struct PrepSettings {
    /// Text files and directories.
    pub inputs: Vec<PathBuf>,
    /// Separate held-out text files and directories.
    pub valid: Vec<PathBuf>,
    /// The fraction of the documents in `inputs` to hold out.
    pub valid_fraction: f64,
    pub output: PathBuf,
    pub vocabulary: VocabularySource,
    /// The meaning of a line; by default detected for each file.
    pub sentences: Option<SentenceStyle>,
    /// The field of JSONL and Parquet files that has the text.
    pub field: String,
    pub format: PrepFormat,
    /// Text per shard, in MiB; by default 128, or 32 in NVIDIA's layout, whose rows take more
    /// memory.
    pub shard_mib: Option<u64>,
    pub seed: u64,
}

impl PrepSettings {
    pub(super) fn check(&self) -> Result<(), DataError> {
        let bad = |name, problem: String| Err(CorpusError::BadSetting { name, problem }.into());
        if let VocabularySource::Trained { size, .. } = self.vocabulary
            && size < MIN_VOCABULARY
        {
            return bad("vocab-size", format!("{size} is below {MIN_VOCABULARY}"));
        }
        if !(0.0..=0.5).contains(&self.valid_fraction) {
            return bad("valid-fraction", format!("{} is not between 0 and 0.5", self.valid_fraction));
        }
        if self.valid_fraction > 0.0 && !self.valid.is_empty() {
            return bad("valid", "give either files or a fraction, not both".to_owned());
        }
        if !(1..=MAX_SHARD_MIB).contains(&self.shard_mib()) {
            return bad("shard-mb", format!("{} is not between 1 and {MAX_SHARD_MIB}", self.shard_mib()));
        }
        if let PrepFormat::Hdf5(hdf5) = &self.format {
            if !(1..=1000).contains(&hdf5.dupe_factor) {
                return bad("dupe-factor", format!("{} is not between 1 and 1000", hdf5.dupe_factor));
            }
            if !(1..=hdf5.max_seq_length).contains(&hdf5.max_predictions) {
                let problem = format!("{} is not between 1 and {}", hdf5.max_predictions, hdf5.max_seq_length);
                return bad("max-predictions", problem);
            }
        }
        Ok(())
    }

    pub(super) fn shard_mib(&self) -> u64 {
        self.shard_mib.unwrap_or(match self.format {
            PrepFormat::Compact => 128,
            PrepFormat::Hdf5(_) => 32,
        })
    }

    /// The split of a document. One of every `1 / valid_fraction` documents is held out, at a
    /// random position, so that even that many documents give one held-out document.
    pub(super) fn split(&self, group: usize, document: u64) -> CorpusSplit {
        if group > 0 {
            return CorpusSplit::Valid;
        }
        const WHOLE: u128 = 1_000_000;
        let part = (self.valid_fraction * WHOLE as f64).round() as u128;
        if part == 0 {
            return CorpusSplit::Train;
        }
        let stratum = u128::from(document) * part / WHOLE;
        let (first, next) = ((stratum * WHOLE).div_ceil(part), ((stratum + 1) * WHOLE).div_ceil(part));
        let key = Key::root(self.seed).name("held out");
        let chosen = first as u64 + key.below(stratum as u64, (next - first) as u64);
        if document == chosen { CorpusSplit::Valid } else { CorpusSplit::Train }
    }

    /// All settings and inputs that determine the output. A restart compares them.
    pub(super) fn record(&self, groups: &[Vec<TextFile>; 2]) -> Result<Value, DataError> {
        let vocabulary = match &self.vocabulary {
            VocabularySource::Trained { size, cased } => json!({ "trained": size, "cased": cased }),
            VocabularySource::Vocabulary { path, cased } => json!({ "vocab.txt": content_hash(path)?, "cased": cased }),
            VocabularySource::Tokenizer { path } => json!({ "tokenizer.json": content_hash(path)? }),
        };
        let format = match &self.format {
            PrepFormat::Compact => json!({ "name": CorpusManifest::COMPACT }),
            PrepFormat::Hdf5(hdf5) => json!({
                "name": CorpusManifest::HDF5, "max_seq_length": hdf5.max_seq_length,
                "max_predictions": hdf5.max_predictions, "dupe_factor": hdf5.dupe_factor,
                "short_seq_prob": hdf5.short_seq_prob, "whole_word": hdf5.whole_word,
            }),
        };
        Ok(json!({
            "version": VERSION, "input": inputs(&groups[0])?, "valid": inputs(&groups[1])?,
            "valid_fraction": self.valid_fraction, "vocabulary": vocabulary, "sentences": self.sentences,
            "format": format, "shard_mb": self.shard_mib(), "seed": self.seed,
            // Not recorded if it is the default, as in directories of older versions.
            "field": Some(&self.field).filter(|field| *field != DEFAULT_FIELD),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(valid_fraction: f64) -> PrepSettings {
        PrepSettings {
            inputs: Vec::new(),
            valid: Vec::new(),
            valid_fraction,
            output: PathBuf::new(),
            vocabulary: VocabularySource::Trained { size: 1000, cased: false },
            sentences: None,
            field: DEFAULT_FIELD.to_owned(),
            format: PrepFormat::Compact,
            shard_mib: None,
            seed: 1,
        }
    }

    #[test]
    fn the_held_out_fraction_is_exact() {
        for fraction in [0.05, 0.3, 0.5, 0.001] {
            let settings = settings(fraction);
            let held_out: Vec<u64> = (0..10_000).filter(|&d| settings.split(0, d) == CorpusSplit::Valid).collect();
            assert!((held_out.len() as f64 - 10_000.0 * fraction).abs() <= 1.0, "{fraction}: {}", held_out.len());
        }
        assert!((0..1000).all(|d| settings(0.0).split(0, d) == CorpusSplit::Train));
        assert!((0..20).any(|d| settings(0.05).split(0, d) == CorpusSplit::Valid), "one of the first twenty");
        assert_eq!(settings(0.0).split(1, 5), CorpusSplit::Valid);
    }

    #[test]
    fn invalid_settings_are_refused() {
        let wrong = |change: fn(&mut PrepSettings)| {
            let mut settings = settings(0.1);
            change(&mut settings);
            settings.check().unwrap_err().to_string()
        };
        assert!(wrong(|s| s.valid_fraction = 0.9).contains("valid-fraction"));
        assert!(wrong(|s| s.valid_fraction = f64::NAN).contains("valid-fraction"));
        assert!(wrong(|s| s.valid = vec!["x".into()]).contains("not both"));
        assert!(wrong(|s| s.shard_mib = Some(0)).contains("shard-mb"));
        assert!(wrong(|s| s.vocabulary = VocabularySource::Trained { size: 10, cased: true }).contains("vocab-size"));
    }
}
