//! The memory-mapped pairs of one split. Opened by the translation task.
//!
//! In a shard ([`tokens`](crate::source::tokens)) a pair is a document of two sentences: the source
//! and the target, each with its `</s>`. Sizes, headers and offsets are checked on opening. Ids are
//! checked when they are used, because a mapped file may change, and all at once by
//! [`ParallelData::verify`].

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::batch::TranslateBatch;
use super::translate_tokenizer::TranslateTokenizer;
use crate::error::{CorpusError, DataError};
use crate::plan::SampleLengths;
use crate::source::checksum::ChecksummedFile;
use crate::source::corpus::{CorpusManifest, CorpusSplit};
use crate::source::parallel_corpus::{PairCounts, References};
use crate::source::tokens::TokenShard;
use crate::tokenize::SubwordSpecialTokens;

/// One split of a prepared directory.
#[derive(Debug)]
pub struct ParallelData {
    dir: PathBuf,
    shards: Vec<TokenShard>,
    /// The number of pairs up to the end of each shard.
    ends: Vec<usize>,
    references: Option<References>,
    source: SideIds,
    target: SideIds,
    longest: (usize, usize),
}

/// The vocabulary of one side.
#[derive(Debug, Clone, Copy)]
struct SideIds {
    special: SubwordSpecialTokens,
    vocabulary: usize,
}

/// Totals from reading all pairs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PairTotals {
    pub pairs: u64,
    pub source_tokens: u64,
    pub target_tokens: u64,
}

impl ParallelData {
    /// Maps the shards of a split, and reads the references of validation.
    pub fn open(dir: &Path, split: CorpusSplit) -> Result<Self, DataError> {
        let manifest = CorpusManifest::<PairCounts>::open(dir)?;
        let tokenizer = TranslateTokenizer::read(dir)?;
        let source = SideIds { special: tokenizer.source_special(), vocabulary: tokenizer.source_vocabulary() };
        let target = SideIds { special: tokenizer.special(), vocabulary: tokenizer.target_vocabulary() };
        let counts = manifest.counts(split);
        let longest = (counts.source.longest as usize, counts.target.longest as usize);
        let mut data = ParallelData {
            dir: dir.to_owned(),
            shards: Vec::new(),
            ends: Vec::new(),
            references: None,
            source,
            target,
            longest,
        };
        for entry in manifest.shards.iter().filter(|entry| entry.split == split) {
            let shard = TokenShard::open(&dir.join(&entry.file))?;
            check_pairs(&shard)?;
            data.ends.push(data.pairs() + shard.documents());
            data.shards.push(shard);
        }
        if data.pairs() == 0 {
            let remedy = "prepare it with --valid-source and --valid-target";
            return Err(CorpusError::NoSuchSplit { dir: dir.to_owned(), split: split.name(), remedy }.into());
        }
        if data.pairs() as u64 > u64::from(u32::MAX) {
            return Err(CorpusError::TooManySamples { dir: dir.to_owned(), samples: data.pairs() as u64 }.into());
        }
        if split == CorpusSplit::Valid {
            let references = References::read(dir, &counts.references)?;
            if references.len() != data.pairs() {
                let problem = format!("there are {} for {} pairs", references.len(), data.pairs());
                return Err(CorpusError::Damaged { path: dir.to_owned(), field: "references", problem }.into());
            }
            data.references = Some(references);
        }
        Ok(data)
    }

    /// The number of pairs, below 2^32.
    pub fn pairs(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The ids of a source, with `</s>` at the end; empty if there is no such pair.
    pub fn source(&self, pair: u32) -> impl Iterator<Item = u32> {
        self.side(pair, 0)
    }

    /// The ids of a target, with `</s>` at the end; empty if there is no such pair.
    pub fn target(&self, pair: u32) -> impl Iterator<Item = u32> {
        self.side(pair, 1)
    }

    /// The raw target line; validation only.
    pub fn reference(&self, pair: u32) -> Option<&str> {
        self.references.as_ref()?.line(pair as usize)
    }

    /// The lengths of all pairs: the tokens of source and target with their `</s>`, and the upper
    /// bound after the padding of [`ParallelData::collate`].
    pub fn lengths(&self, pad_to_multiple: usize, positions: usize) -> SampleLengths {
        let (mut tokens, mut padded) = (Vec::new(), Vec::new());
        for shard in &self.shards {
            let mut start = 0;
            for pair in 0..shard.documents() {
                let (middle, end) = (shard.sentence_end(2 * pair), shard.sentence_end(2 * pair + 1));
                let width = padded_width((middle - start).max(end - middle), pad_to_multiple, positions);
                tokens.push((end - start) as u32);
                padded.push(u32::try_from(2 * width).unwrap_or(u32::MAX));
                start = end;
            }
        }
        SampleLengths::Pairs { tokens, padded }
    }

    /// 16 hexadecimal digits that differ between any two sets of pairs. Ranks compare them.
    pub fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for shard in &self.shards {
            hasher.update(shard.hash());
        }
        if let Some(references) = &self.references {
            hasher.update(references.text().as_bytes());
        }
        hasher.finalize().to_hex()[..16].to_owned()
    }

    /// The shards, for checksum verification. References are verified when they are read.
    pub fn checksummed_files(&self) -> Vec<ChecksummedFile> {
        self.shards.iter().map(TokenShard::checksummed_file).collect()
    }

    /// Tokens of the longest source and of the longest target, `</s>` included.
    pub fn longest(&self) -> (usize, usize) {
        self.longest
    }

    /// Builds a batch. Each side is padded to its longest sentence, rounded up to a multiple of
    /// `pad_to_multiple` (0 and 1: no rounding). The rounding does not exceed `positions`, the
    /// number of positions of the model.
    pub fn collate(
        &self,
        pairs: &[u32],
        pad_to_multiple: usize,
        positions: usize,
    ) -> Result<TranslateBatch, DataError> {
        let mut batch = TranslateBatch::default();
        let rows = pairs.iter().map(|&pair| self.pair(pair)).collect::<Result<Vec<_>, _>>()?;
        let width = |side: usize| {
            padded_width(rows.iter().map(|row| row[side].len()).max().unwrap_or(0), pad_to_multiple, positions)
        };
        let (source_width, target_width) = (width(0), width(1));
        let (source_pad, pad) = (self.source.special.pad as i32, self.target.special.pad as i32);
        for (at, [source, target]) in rows.iter().enumerate() {
            let end = (at + 1) * target_width;
            batch.source.extend(source.iter().map(|&id| id as i32));
            batch.source.resize((at + 1) * source_width, source_pad);
            batch.target_out.extend(target.iter().map(|&id| id as i32));
            batch.target_out.resize(end, pad);
            batch.target_in.push(pad);
            batch.target_in.extend(target[..target.len() - 1].iter().map(|&id| id as i32));
            batch.target_in.resize(end, pad);
            batch.source_lengths.push(source.len() as u32);
            batch.target_lengths.push(target.len() as u32);
        }
        Ok(batch)
    }

    /// Reads all pairs. Compares shards with their checksums and ids with their vocabulary, or with
    /// the smaller vocabulary of a model.
    pub fn verify(&self, vocabulary: Option<usize>) -> Result<PairTotals, DataError> {
        self.shards.iter().try_for_each(TokenShard::verify)?;
        let mut totals = PairTotals::default();
        for pair in 0..self.pairs() as u32 {
            let [source, target] = self.pair(pair)?;
            let known = vocabulary.unwrap_or(usize::MAX);
            if let Some(&id) = source.iter().chain(&target).find(|&&id| id as usize >= known) {
                return Err(CorpusError::IdBeyondVocabulary { path: self.dir.clone(), id, vocabulary: known }.into());
            }
            totals.pairs += 1;
            totals.source_tokens += source.len() as u64;
            totals.target_tokens += target.len() as u64;
        }
        Ok(totals)
    }

    /// Both sides of a pair, checked: mapped bytes may have changed since they were written, and an
    /// id outside the model's vocabulary would make the model fail.
    fn pair(&self, pair: u32) -> Result<[Vec<u32>; 2], DataError> {
        let Some((shard, _)) = self.locate(pair) else {
            return Err(CorpusError::NoSuchSample { sample: pair, samples: self.pairs() }.into());
        };
        let sides = [self.source(pair).collect::<Vec<u32>>(), self.target(pair).collect()];
        for (ids, SideIds { special, vocabulary }) in sides.iter().zip([self.source, self.target]) {
            let path = || shard.path().to_owned();
            if let Some(&id) = ids.iter().find(|&&id| id as usize >= vocabulary) {
                return Err(CorpusError::IdBeyondVocabulary { path: path(), id, vocabulary }.into());
            }
            if ids.last() != Some(&special.eos) {
                let problem = format!("pair {pair} does not end with </s>");
                return Err(CorpusError::Damaged { path: path(), field: "content", problem }.into());
            }
        }
        Ok(sides)
    }

    /// The shard that holds a pair, and the pair's number in it.
    fn locate(&self, pair: u32) -> Option<(&TokenShard, usize)> {
        let at = self.ends.partition_point(|&end| end <= pair as usize);
        let first = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some((self.shards.get(at)?, pair as usize - first))
    }

    fn side(&self, pair: u32, side: usize) -> impl Iterator<Item = u32> {
        self.locate(pair).into_iter().flat_map(move |(shard, pair)| {
            let sentence = 2 * pair + side;
            let start = sentence.checked_sub(1).map_or(0, |before| shard.sentence_end(before));
            shard.iter(Range { start, end: shard.sentence_end(sentence) })
        })
    }
}

/// The padded length of a batch whose longest sentence has `longest` tokens.
fn padded_width(longest: usize, pad_to_multiple: usize, positions: usize) -> usize {
    let padded = longest.checked_next_multiple_of(pad_to_multiple.max(1)).unwrap_or(usize::MAX);
    padded.min(positions.max(longest))
}

/// Checks that each document is a pair: two sentences.
fn check_pairs(shard: &TokenShard) -> Result<(), DataError> {
    match (0..shard.documents()).find(|&pair| shard.document_end(pair) != 2 * (pair + 1)) {
        None => Ok(()),
        Some(pair) => {
            let problem = format!("document {pair} is not a pair of lines");
            Err(CorpusError::Damaged { path: shard.path().to_owned(), field: "document ends", problem }.into())
        }
    }
}
