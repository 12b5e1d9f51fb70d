//! Preparation of parallel text for translation: pairs of files to tokenizers and shards of pairs.
//! Called by `hetseq prep translate`.
//!
//! The held-out text is read first, so that its errors are reported before any long step. Then
//! there are two passes over the text, both parallel and with bounded memory. The first trains the
//! vocabulary, unless one is given. The second encodes, drops pairs outside the limits, and writes
//! one part after the other. The same input and settings give the same bytes, and a restart
//! continues with the next part. If the input is invalid, the output is removed, so that the same
//! command works after the input is corrected.

mod parts;
mod settings;
mod train_vocabulary;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::chunks::{Chunk, ChunkLimits, for_each_chunk};
use super::directory::{self, PrepPart, claim, resume_from};
use super::{PrepObserver, PrepOutcome};
use crate::error::{CorpusError, DataError};
use crate::source::corpus::{CorpusManifest, CorpusSplit};
use crate::source::parallel_corpus::PairCounts;
use crate::source::text::{LinePair, ParallelLines, TextFile};
use crate::translate::TranslateTokenizer;
use parts::{PairPartWriter, encode_chunk};
pub use settings::{SubwordModel, SubwordSource, TranslateSettings};

/// Pairs of files: training and held-out.
type Groups = [Vec<[TextFile; 2]>; 2];

/// Prepares parallel text. Resumes an interrupted preparation with the same settings.
pub fn prepare(
    settings: &TranslateSettings,
    observer: &dyn PrepObserver,
) -> Result<PrepOutcome<PairCounts>, DataError> {
    settings.check()?;
    let groups = settings.groups()?;
    let record = settings.record(&groups)?;
    if let Some(manifest) = claim(&settings.output, &record)? {
        return Ok(PrepOutcome::Finished { manifest, was_there: true });
    }
    let outcome = run(settings, &groups, record, observer);
    if let Err(error) = &outcome
        && is_input_error(error)
    {
        directory::discard(&settings.output)?;
    }
    outcome
}

fn run(
    settings: &TranslateSettings,
    groups: &Groups,
    record: serde_json::Value,
    observer: &dyn PrepObserver,
) -> Result<PrepOutcome<PairCounts>, DataError> {
    if !read_through(&groups[1], observer)? {
        return Ok(PrepOutcome::Stopped);
    }
    let Some(tokenizer) = train_vocabulary::obtain(settings, &groups[0], observer)? else {
        return Ok(PrepOutcome::Stopped);
    };
    let mut parts = directory::finished(&settings.output)?;
    for (split, files) in CorpusSplit::ALL.into_iter().zip(groups) {
        if !encode(settings, &tokenizer, split, files, &mut parts, observer)? {
            return Ok(PrepOutcome::Stopped);
        }
    }
    let vocabulary = tokenizer.source_vocabulary().max(tokenizer.target_vocabulary());
    let mut manifest = CorpusManifest::new(CorpusManifest::<PairCounts>::PAIRS, vocabulary, record);
    directory::add_parts(&mut manifest, &parts);
    for (split, files) in CorpusSplit::ALL.into_iter().zip(groups) {
        check_not_empty(manifest.counts(split), files)?;
    }
    directory::finish(&settings.output, &manifest)?;
    Ok(PrepOutcome::Finished { manifest, was_there: false })
}

/// Reads all pairs to find errors, and discards them. False if the observer stopped it.
fn read_through(files: &[[TextFile; 2]], observer: &dyn PrepObserver) -> Result<bool, DataError> {
    if files.is_empty() {
        return Ok(true);
    }
    observer.begin("checking held-out text", bytes(files));
    let read = Arc::new(AtomicU64::new(0));
    for pair in ParallelLines::new(files.to_vec(), read.clone()) {
        pair?;
        if observer.is_stopped() {
            return Ok(false);
        }
        observer.progress(read.load(Ordering::Relaxed));
    }
    Ok(true)
}

/// Encodes the remaining pairs of a group of files. False if the observer stopped it.
fn encode(
    settings: &TranslateSettings,
    tokenizer: &TranslateTokenizer,
    split: CorpusSplit,
    files: &[[TextFile; 2]],
    parts: &mut Vec<PrepPart<PairCounts>>,
    observer: &dyn PrepObserver,
) -> Result<bool, DataError> {
    let group = split as usize;
    let Some(from) = resume_from(parts, group).filter(|_| !files.is_empty()) else { return Ok(true) };
    observer.begin(if group == 0 { "encoding" } else { "encoding held-out text" }, bytes(files));
    let read = Arc::new(AtomicU64::new(0));
    let lines = ParallelLines::new(files.to_vec(), read.clone());
    let limits = ChunkLimits { from, part_bytes: (settings.shard_mib << 20) as usize };
    let mut writer = PairPartWriter::new(settings, tokenizer, split, parts.len());
    let work = |chunk: &Chunk<LinePair>| encode_chunk(settings, tokenizer, split, files, chunk);
    for_each_chunk(lines, limits, &read, observer, work, |end, encoded| {
        parts.extend(writer.add(end, encoded)?);
        Ok(())
    })
}

fn bytes(files: &[[TextFile; 2]]) -> u64 {
    files.iter().flatten().map(|file| file.bytes).sum()
}

/// Refuses a split whose pairs were all dropped.
fn check_not_empty(counts: &PairCounts, files: &[[TextFile; 2]]) -> Result<(), DataError> {
    if counts.pairs > 0 || files.is_empty() {
        return Ok(());
    }
    let reasons = counts.dropped.iter().map(|(reason, dropped)| {
        format!(
            "{} {} (the first in {}, line {})",
            dropped.pairs,
            reason.description(),
            dropped.first_file,
            dropped.first_line
        )
    });
    let dropped = reasons.collect::<Vec<_>>().join(", ");
    let files: Vec<PathBuf> = files.iter().flatten().map(|file| file.path.clone()).collect();
    Err(CorpusError::NoPairLeft { files, read: counts.read, dropped }.into())
}

/// Whether an error is caused by the input, so that the output is useless.
fn is_input_error(error: &DataError) -> bool {
    use CorpusError::{BadLine, BadTokenizer, EmptyFile, NoPairLeft, UnequalLines};
    match error {
        DataError::DamagedGzip { .. } | DataError::DamagedZstd { .. } => true,
        DataError::Corpus(error) => {
            matches!(
                error,
                BadTokenizer { .. } | UnequalLines { .. } | BadLine { .. } | EmptyFile { .. } | NoPairLeft { .. }
            )
        }
        _ => false,
    }
}
