//! Settings of `hetseq prep translate`, their checks, and the record of them that a restart
//! compares.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::Groups;
use crate::error::{CorpusError, DataError};
use crate::prep::directory::{content_hash, inputs};
use crate::source::corpus::CorpusSplit;
use crate::source::parallel_corpus::DropReason;
use crate::source::text::{TextFile, find};
use crate::tokenize::TOKENIZER_FILE;
use crate::translate::{SOURCE_TOKENIZER_FILE, TARGET_TOKENIZER_FILE};

/// The version of the output. It increases when the same settings would give other bytes.
const VERSION: u32 = 1;
const MIN_VOCABULARY: usize = 100;
const MAX_VOCABULARY: usize = 1 << 20;
/// The largest `max_length`: more than the positions of any model.
const MAX_SIDE_TOKENS: usize = 65_536;
/// The largest text size of a part: its tokens are counted in 32 bits.
const MAX_SHARD_MIB: u64 = 2048;

/// The kind of subword vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubwordModel {
    Bpe,
    Unigram,
}

/// The origin of the vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubwordSource {
    /// Trained on the training pairs: one vocabulary for both sides, or one per side.
    Trained { size: usize, model: SubwordModel, separate: bool },
    /// A `tokenizer.json`, or a directory that holds it or one tokenizer per side.
    Given { path: PathBuf },
}

/// Settings of `hetseq prep translate`.
#[derive(Debug, Clone, PartialEq)]
pub struct TranslateSettings {
    /// Files of the source language, and the same number of files of the target language.
    pub source: Vec<PathBuf>,
    pub target: Vec<PathBuf>,
    /// Held-out files; may be empty.
    pub valid_source: Vec<PathBuf>,
    pub valid_target: Vec<PathBuf>,
    pub output: PathBuf,
    pub vocabulary: SubwordSource,
    /// The names of the source and target languages, if given.
    pub languages: [Option<String>; 2],
    /// The smallest number of tokens per side, without `</s>`. Does not apply to held-out pairs.
    pub min_length: usize,
    /// The largest number of tokens per side, without `</s>`.
    pub max_length: usize,
    /// The largest ratio of the longer side to the shorter side; zero means no limit. Does not
    /// apply to held-out pairs.
    pub max_ratio: f64,
    /// Text per shard, both sides together, in MiB.
    pub shard_mib: u64,
}

impl TranslateSettings {
    pub(super) fn check(&self) -> Result<(), DataError> {
        let bad = |name, problem: String| Err(CorpusError::BadSetting { name, problem }.into());
        if let SubwordSource::Trained { size, .. } = self.vocabulary
            && !(MIN_VOCABULARY..=MAX_VOCABULARY).contains(&size)
        {
            return bad("vocab-size", format!("{size} is not between {MIN_VOCABULARY} and {MAX_VOCABULARY}"));
        }
        if !(1..=MAX_SIDE_TOKENS).contains(&self.max_length) {
            return bad("max-length", format!("{} is not between 1 and {MAX_SIDE_TOKENS}", self.max_length));
        }
        if self.min_length > self.max_length {
            return bad("min-length", format!("{} is above --max-length {}", self.min_length, self.max_length));
        }
        if self.max_ratio != 0.0 && !(1.0..=1000.0).contains(&self.max_ratio) {
            return bad("max-ratio", format!("{} is neither 0 (no limit) nor between 1 and 1000", self.max_ratio));
        }
        if !(1..=MAX_SHARD_MIB).contains(&self.shard_mib) {
            return bad("shard-mb", format!("{} is not between 1 and {MAX_SHARD_MIB}", self.shard_mib));
        }
        Ok(())
    }

    /// Finds the files and pairs them.
    pub(super) fn groups(&self) -> Result<Groups, DataError> {
        let pair = |source: &[PathBuf], target: &[PathBuf]| -> Result<Vec<[TextFile; 2]>, DataError> {
            let found = |inputs: &[PathBuf]| if inputs.is_empty() { Ok(Vec::new()) } else { find(inputs) };
            let (source, target) = (found(source)?, found(target)?);
            if source.len() != target.len() {
                let (source_files, target_files) = (source.len(), target.len());
                return Err(CorpusError::UnequalFiles { source_files, target_files }.into());
            }
            Ok(source.into_iter().zip(target).map(|(source, target)| [source, target]).collect())
        };
        let train = pair(&self.source, &self.target)?;
        if train.is_empty() {
            return Err(CorpusError::NoText { inputs: self.source.clone() }.into());
        }
        Ok([train, pair(&self.valid_source, &self.valid_target)?])
    }

    /// The reason to drop a pair, from the number of tokens per side without `</s>`.
    pub(super) fn drop_reason(&self, split: CorpusSplit, lengths: [usize; 2]) -> Option<DropReason> {
        let (shorter, longer) = (lengths[0].min(lengths[1]), lengths[0].max(lengths[1]));
        let is_filtered = split == CorpusSplit::Train;
        if shorter == 0 {
            Some(DropReason::Empty)
        } else if longer > self.max_length {
            Some(DropReason::TooLong)
        } else if is_filtered && shorter < self.min_length {
            Some(DropReason::TooShort)
        } else if is_filtered && self.max_ratio > 0.0 && longer as f64 > self.max_ratio * shorter as f64 {
            Some(DropReason::Ratio)
        } else {
            None
        }
    }

    /// All settings and inputs that determine the output. A restart compares them.
    pub(super) fn record(&self, groups: &Groups) -> Result<Value, DataError> {
        let vocabulary = match &self.vocabulary {
            SubwordSource::Trained { size, model, separate } => {
                let model = match model {
                    SubwordModel::Bpe => "bpe",
                    SubwordModel::Unigram => "unigram",
                };
                json!({ "trained": size, "model": model, "separate": separate })
            }
            SubwordSource::Given { path } if path.is_dir() => {
                let files = [TOKENIZER_FILE, SOURCE_TOKENIZER_FILE, TARGET_TOKENIZER_FILE].into_iter();
                let present = files.filter(|file| path.join(file).exists());
                let hash = |file: &str| Ok((file.to_owned(), content_hash(&path.join(file))?.into()));
                Value::Object(present.map(hash).collect::<Result<_, DataError>>()?)
            }
            SubwordSource::Given { path } => json!({ TOKENIZER_FILE: content_hash(path)? }),
        };
        let side = |group: &[[TextFile; 2]], side: usize| {
            inputs(&group.iter().map(|pair| pair[side].clone()).collect::<Vec<_>>())
        };
        let [train, valid] = groups;
        Ok(json!({
            "version": VERSION, "source": side(train, 0)?, "target": side(train, 1)?,
            "valid_source": side(valid, 0)?, "valid_target": side(valid, 1)?, "vocabulary": vocabulary,
            "source_lang": self.languages[0], "target_lang": self.languages[1], "min_length": self.min_length,
            "max_length": self.max_length, "max_ratio": self.max_ratio, "shard_mb": self.shard_mib,
        }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn settings() -> TranslateSettings {
        TranslateSettings {
            source: Vec::new(),
            target: Vec::new(),
            valid_source: Vec::new(),
            valid_target: Vec::new(),
            output: PathBuf::new(),
            vocabulary: SubwordSource::Trained { size: 1000, model: SubwordModel::Bpe, separate: false },
            languages: [None, None],
            min_length: 2,
            max_length: 10,
            max_ratio: 1.5,
            shard_mib: 128,
        }
    }

    #[test]
    fn pairs_are_dropped_for_the_first_reason_that_holds() {
        let drops = |lengths| settings().drop_reason(CorpusSplit::Train, lengths);
        assert_eq!(drops([0, 20]), Some(DropReason::Empty));
        assert_eq!(drops([11, 11]), Some(DropReason::TooLong));
        assert_eq!(drops([1, 2]), Some(DropReason::TooShort));
        assert_eq!(drops([4, 7]), Some(DropReason::Ratio));
        assert_eq!((drops([4, 6]), drops([10, 10])), (None, None), "the limits are inclusive");
        let held_out = |lengths| settings().drop_reason(CorpusSplit::Valid, lengths);
        assert_eq!((held_out([1, 10]), held_out([1, 11])), (None, Some(DropReason::TooLong)));
        let unlimited = TranslateSettings { max_ratio: 0.0, ..settings() };
        assert_eq!(unlimited.drop_reason(CorpusSplit::Train, [2, 10]), None);
    }

    proptest! {
        #[test]
        fn both_sides_are_treated_alike(a in 0usize..20, b in 0usize..20) {
            for split in CorpusSplit::ALL {
                prop_assert_eq!(settings().drop_reason(split, [a, b]), settings().drop_reason(split, [b, a]));
            }
        }
    }

    #[test]
    fn invalid_settings_are_refused() {
        let wrong = |change: fn(&mut TranslateSettings)| {
            let mut settings = settings();
            change(&mut settings);
            settings.check().unwrap_err().to_string()
        };
        assert!(settings().check().is_ok());
        let size = |size| SubwordSource::Trained { size, model: SubwordModel::Unigram, separate: true };
        assert!(wrong(|s| s.min_length = 11).contains("min-length: 11 is above"));
        assert!(wrong(|s| s.max_length = 0).contains("max-length"));
        assert!(wrong(|s| s.max_ratio = 0.5).contains("max-ratio"));
        assert!(wrong(|s| s.max_ratio = f64::NAN).contains("max-ratio"));
        assert!(wrong(|s| s.shard_mib = 0).contains("shard-mb"));
        let small = TranslateSettings { vocabulary: size(10), ..settings() };
        assert!(small.check().unwrap_err().to_string().contains("vocab-size"));
    }
}
