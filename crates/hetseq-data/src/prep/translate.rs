//! Preparing parallel text for translation: pairs of files to tokenizers and shards of pairs. What `hetseq prep translate`
//! does.
//!
//! The held-out text is read through first, so that what is wrong with it is told before anything takes long. Then, as in
//! [`prep`](super), two passes over the text, both in parallel and in bounded memory: one learns the vocabulary (unless one
//! is given), one encodes, drops pairs that do not fit and writes a part after the other. The same input and settings give
//! the same bytes, and a restart goes on with the next part. If the input itself is at fault, what was written goes, so that
//! the same command works once it is mended.

mod parts;
mod settings;
mod vocabulary;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::chunks::{Chunk, ChunkLimits, for_each_chunk};
use super::directory::{self, Part, claim, go_on_from};
use super::{Prepared, Watch};
use crate::error::{CorpusError, DataError};
use crate::source::corpus::{CorpusSplit, Manifest};
use crate::source::pairs::PairCounts;
use crate::source::text::{LinePair, ParallelLines, TextFile};
use crate::translate::TranslateTokenizer;
use parts::{PartWriter, encode_chunk};
pub use settings::{SubwordModel, SubwordSource, TranslateSettings};

/// Pairs of files: those to train on, and those held out.
type Groups = [Vec<[TextFile; 2]>; 2];

/// Prepares parallel text. Goes on with what an interrupted preparation with the same settings left.
pub fn prepare(settings: &TranslateSettings, watch: &dyn Watch) -> Result<Prepared<PairCounts>, DataError> {
    settings.check()?;
    let groups = settings.groups()?;
    let record = settings.record(&groups)?;
    if let Some(manifest) = claim(&settings.output, &record)? {
        return Ok(Prepared::Finished { manifest, was_there: true });
    }
    let prepared = work(settings, &groups, record, watch);
    if let Err(error) = &prepared
        && is_of_input(error)
    {
        directory::abandon(&settings.output)?;
    }
    prepared
}

fn work(
    settings: &TranslateSettings,
    groups: &Groups,
    record: serde_json::Value,
    watch: &dyn Watch,
) -> Result<Prepared<PairCounts>, DataError> {
    if !read_through(&groups[1], watch)? {
        return Ok(Prepared::Stopped);
    }
    let Some(tokenizer) = vocabulary::obtain(settings, &groups[0], watch)? else { return Ok(Prepared::Stopped) };
    let mut parts = directory::finished(&settings.output)?;
    for (split, files) in CorpusSplit::ALL.into_iter().zip(groups) {
        if !encode(settings, &tokenizer, split, files, &mut parts, watch)? {
            return Ok(Prepared::Stopped);
        }
    }
    let vocabulary = tokenizer.source_vocabulary().max(tokenizer.target_vocabulary());
    let mut manifest = Manifest::new(Manifest::<PairCounts>::PAIRS, vocabulary, record);
    directory::list(&mut manifest, &parts);
    for (split, files) in CorpusSplit::ALL.into_iter().zip(groups) {
        check_left(manifest.counts(split), files)?;
    }
    directory::conclude(&settings.output, &manifest)?;
    Ok(Prepared::Finished { manifest, was_there: false })
}

/// Reads all pairs and forgets them. False if it was stopped.
fn read_through(files: &[[TextFile; 2]], watch: &dyn Watch) -> Result<bool, DataError> {
    if files.is_empty() {
        return Ok(true);
    }
    watch.begin("checking held-out text", bytes(files));
    let read = Arc::new(AtomicU64::new(0));
    for pair in ParallelLines::new(files.to_vec(), read.clone()) {
        pair?;
        if watch.is_stopped() {
            return Ok(false);
        }
        watch.reached(read.load(Ordering::Relaxed));
    }
    Ok(true)
}

/// Encodes what is left of a group of files. False if it was stopped.
fn encode(
    settings: &TranslateSettings,
    tokenizer: &TranslateTokenizer,
    split: CorpusSplit,
    files: &[[TextFile; 2]],
    parts: &mut Vec<Part<PairCounts>>,
    watch: &dyn Watch,
) -> Result<bool, DataError> {
    let group = split as usize;
    let Some(from) = go_on_from(parts, group).filter(|_| !files.is_empty()) else { return Ok(true) };
    watch.begin(if group == 0 { "encoding" } else { "encoding held-out text" }, bytes(files));
    let read = Arc::new(AtomicU64::new(0));
    let lines = ParallelLines::new(files.to_vec(), read.clone());
    let limits = ChunkLimits { from, part_bytes: (settings.shard_mib << 20) as usize };
    let mut writer = PartWriter::new(settings, tokenizer, split, parts.len());
    let work = |chunk: &Chunk<LinePair>| encode_chunk(settings, tokenizer, split, files, chunk);
    for_each_chunk(lines, limits, &read, watch, work, |end, encoded| {
        parts.extend(writer.take(end, encoded)?);
        Ok(())
    })
}

fn bytes(files: &[[TextFile; 2]]) -> u64 {
    files.iter().flatten().map(|file| file.bytes).sum()
}

/// Nothing can be trained or validated on nothing.
fn check_left(counts: &PairCounts, files: &[[TextFile; 2]]) -> Result<(), DataError> {
    if counts.pairs > 0 || files.is_empty() {
        return Ok(());
    }
    let reasons = counts.dropped.iter().map(|(reason, dropped)| {
        format!(
            "{} {} (the first in {}, line {})",
            dropped.pairs,
            reason.words(),
            dropped.first_file,
            dropped.first_line
        )
    });
    let dropped = reasons.collect::<Vec<_>>().join(", ");
    let files: Vec<PathBuf> = files.iter().flatten().map(|file| file.path.clone()).collect();
    Err(CorpusError::NoPairLeft { files, read: counts.read, dropped }.into())
}

/// Whether an error is one that other input would not have: what was made of it is of no use.
fn is_of_input(error: &DataError) -> bool {
    use CorpusError::{BadLine, BadTokenizer, EmptyFile, NoPairLeft, UnequalLines};
    match error {
        DataError::DamagedGzip { .. } => true,
        DataError::Corpus(error) => {
            matches!(
                error,
                BadTokenizer { .. } | UnequalLines { .. } | BadLine { .. } | EmptyFile { .. } | NoPairLeft { .. }
            )
        }
        _ => false,
    }
}
