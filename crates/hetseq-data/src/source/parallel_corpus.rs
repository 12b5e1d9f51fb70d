//! Counts of a parallel corpus, and the reference lines that translations are scored against.
//!
//! The pairs themselves are in [`tokens`](super::tokens) shards. Written by
//! [`prep::translate`](crate::prep::translate), read by [`translate`](crate::translate).

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use fs_err as fs;
use serde::{Deserialize, Serialize};

use super::bytes::write_atomic;
use super::corpus::{CorpusManifest, Counts};
use crate::error::{CorpusError, DataError};

/// Counts of one side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SideCounts {
    /// Including `</s>`.
    pub tokens: u64,
    /// Number of `<unk>` tokens.
    pub unknown: u64,
    /// Number of words separated by spaces.
    pub words: u64,
    /// Number of tokens in the longest line, including `</s>`.
    pub longest: u64,
}

/// Why a pair was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropReason {
    Empty,
    TooLong,
    TooShort,
    Ratio,
}

impl DropReason {
    /// The reason in words, for messages.
    pub fn description(self) -> &'static str {
        match self {
            DropReason::Empty => "a side is empty",
            DropReason::TooLong => "too long",
            DropReason::TooShort => "too short",
            DropReason::Ratio => "lengths too different",
        }
    }
}

/// Pairs dropped for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    pub pairs: u64,
    /// Source file of the first dropped pair.
    pub first_file: String,
    /// Line of the first dropped pair in that file.
    pub first_line: u64,
}

/// A file with the raw target lines of a shard's pairs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReferenceFile {
    pub file: String,
    pub lines: u64,
    /// BLAKE3 hash in hexadecimal.
    pub hash: String,
}

/// Numbers of pairs read, kept and dropped in a split.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairCounts {
    /// Pairs read, kept or not.
    pub read: u64,
    /// Pairs kept.
    pub pairs: u64,
    pub source: SideCounts,
    pub target: SideCounts,
    pub dropped: BTreeMap<DropReason, Dropped>,
    /// Only in the validation split.
    pub references: Vec<ReferenceFile>,
}

impl SideCounts {
    fn add(&mut self, other: &SideCounts) {
        self.tokens += other.tokens;
        self.unknown += other.unknown;
        self.words += other.words;
        self.longest = self.longest.max(other.longest);
    }
}

impl PairCounts {
    /// Counts a dropped pair. The file and line of the first one per reason are kept.
    pub fn drop_pair(&mut self, reason: DropReason, file: &str, line: u64) {
        let first = || Dropped { pairs: 0, first_file: file.to_owned(), first_line: line };
        self.dropped.entry(reason).or_insert_with(first).pairs += 1;
    }
}

impl Counts for PairCounts {
    const FORMATS: &[&str] = &[CorpusManifest::<PairCounts>::PAIRS];
    const DESCRIPTION: &str = "pairs for translation, as `hetseq prep translate` writes them";

    fn add(&mut self, other: &PairCounts) {
        self.read += other.read;
        self.pairs += other.pairs;
        self.source.add(&other.source);
        self.target.add(&other.target);
        for (&reason, later) in &other.dropped {
            match self.dropped.get_mut(&reason) {
                Some(dropped) => dropped.pairs += later.pairs,
                None => {
                    self.dropped.insert(reason, later.clone());
                }
            }
        }
        self.references.extend(other.references.iter().cloned());
    }
}

impl CorpusManifest<PairCounts> {
    pub const PAIRS: &str = "pairs";
}

/// Reference lines, in memory.
#[derive(Debug, Default)]
pub struct References {
    text: String,
    /// End of each line, including its newline.
    ends: Vec<usize>,
}

impl References {
    /// Reads reference files and checks their hashes.
    pub fn read(dir: &Path, files: &[ReferenceFile]) -> Result<Self, DataError> {
        let mut references = References::default();
        for entry in files {
            let path = dir.join(&entry.file);
            let bytes = fs::read(&path).map_err(|reason| DataError::Io { path: path.clone(), reason })?;
            let damaged = |problem: &str| CorpusError::Damaged {
                path: path.clone(),
                field: "references",
                problem: problem.to_owned(),
            };
            if blake3::hash(&bytes).to_hex().as_str() != entry.hash {
                return Err(damaged("their checksum is wrong").into());
            }
            let text = String::from_utf8(bytes).map_err(|_| damaged("they are not UTF-8"))?;
            let start = references.text.len();
            references.ends.extend(text.match_indices('\n').map(|(at, _)| start + at + 1));
            references.text.push_str(&text);
        }
        Ok(references)
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// All lines in one string.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns line `at`, unchanged from the input file.
    pub fn line(&self, at: usize) -> Option<&str> {
        let end = *self.ends.get(at)?;
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        let Range { start, end } = start..end - 1;
        self.text.get(start..end)
    }
}

/// Writes reference lines atomically.
pub fn write_references(dir: &Path, file: String, lines: &[String]) -> Result<ReferenceFile, DataError> {
    let mut text = lines.join("\n");
    text.push('\n');
    write_atomic(&dir.join(&file), |out| out.write_all(text.as_bytes()))?;
    let hash = blake3::hash(text.as_bytes()).to_hex().to_string();
    Ok(ReferenceFile { file, lines: lines.len() as u64, hash })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_read_back_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let lines = |some: &[&str]| some.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        let first =
            write_references(dir.path(), "a.txt".to_owned(), &lines(&[" Ein  Hund.", "", "\u{fc}ber\u{2028}x"]));
        let second = write_references(dir.path(), "b.txt".to_owned(), &lines(&["zwei"]));
        let files = [first.unwrap(), second.unwrap()];
        let read = References::read(dir.path(), &files).unwrap();
        let found: Vec<Option<&str>> = (0..5).map(|at| read.line(at)).collect();
        assert_eq!(found, [Some(" Ein  Hund."), Some(""), Some("\u{fc}ber\u{2028}x"), Some("zwei"), None]);
        fs::write(dir.path().join("b.txt"), "zwey\n").unwrap();
        let error = References::read(dir.path(), &files).unwrap_err().to_string();
        assert!(error.contains("b.txt") && error.contains("checksum"), "{error}");
    }

    #[test]
    fn the_first_dropped_pair_per_reason_is_kept() {
        let mut all = PairCounts::default();
        let mut later = PairCounts::default();
        all.drop_pair(DropReason::Empty, "a", 3);
        all.drop_pair(DropReason::Empty, "a", 9);
        later.drop_pair(DropReason::Empty, "b", 1);
        later.drop_pair(DropReason::Ratio, "b", 2);
        all.add(&later);
        let dropped: Vec<_> = all
            .dropped
            .iter()
            .map(|(reason, dropped)| (*reason, dropped.pairs, &*dropped.first_file, dropped.first_line))
            .collect();
        assert_eq!(dropped, [(DropReason::Empty, 3, "a", 3), (DropReason::Ratio, 1, "b", 2)]);
    }
}
