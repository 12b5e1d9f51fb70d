//! Text preparation for BERT pre-training: text files to a tokenizer and shards. Called by
//! `hetseq prep bert`.
//!
//! Two passes over the text, both parallel and with bounded memory. The first counts words and
//! trains a vocabulary, unless one is given; the second encodes. The input is cut into *parts* of
//! whole documents, each about `shard_mib` of text. A part becomes one shard per split, or one per
//! split and pass in NVIDIA's layout. A restart keeps finished parts and continues with the next.

mod parts;
mod settings;
pub(super) mod train_vocabulary;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::chunks::{Chunk, ChunkLimits, for_each_chunk};
use super::directory::{self, PrepPart, claim, resume_from};
use super::{PrepObserver, PrepOutcome};
use crate::error::{CorpusError, DataError};
use crate::source::corpus::{CorpusManifest, TextCounts};
use crate::source::text::{Document, Documents, TextFile, TextFormat, find};
use crate::tokenize::Tokenizer;
use parts::{BertPartWriter, encode_chunk};
pub use settings::{Hdf5Settings, PrepFormat, PrepSettings, VocabularySource};

/// Prepares text. Resumes an interrupted preparation with the same settings.
pub fn prepare(settings: &PrepSettings, observer: &dyn PrepObserver) -> Result<PrepOutcome, DataError> {
    settings.check()?;
    let groups = [find(&settings.inputs)?, if settings.valid.is_empty() { Vec::new() } else { find(&settings.valid)? }];
    // Before anything is written or counted.
    groups.iter().flatten().try_for_each(|file| TextFormat::of(file).map(drop))?;
    let record = settings.record(&groups)?;
    if let Some(manifest) = claim(&settings.output, &record)? {
        return Ok(PrepOutcome::Finished { manifest, was_there: true });
    }
    let outcome = run(settings, &groups, record, observer);
    if outcome.as_ref().is_err_and(is_input_error) {
        // So that the same command works once the input is corrected.
        directory::discard(&settings.output)?;
    }
    outcome
}

fn run(
    settings: &PrepSettings,
    groups: &[Vec<TextFile>; 2],
    record: serde_json::Value,
    observer: &dyn PrepObserver,
) -> Result<PrepOutcome, DataError> {
    let Some(tokenizer) = train_vocabulary::obtain(settings, &groups[0], observer)? else {
        return Ok(PrepOutcome::Stopped);
    };
    let mut parts = directory::finished(&settings.output)?;
    for (group, files) in groups.iter().enumerate() {
        if !encode(settings, &tokenizer, group, files, &mut parts, observer)? {
            return Ok(PrepOutcome::Stopped);
        }
    }
    let manifest = finish(settings, &tokenizer, record, &parts)?;
    Ok(PrepOutcome::Finished { manifest, was_there: false })
}

/// Encodes the remaining documents of a group of files. False if the observer stopped it.
fn encode(
    settings: &PrepSettings,
    tokenizer: &Tokenizer,
    group: usize,
    files: &[TextFile],
    parts: &mut Vec<PrepPart<TextCounts>>,
    observer: &dyn PrepObserver,
) -> Result<bool, DataError> {
    let Some(from) = resume_from(parts, group).filter(|_| !files.is_empty()) else { return Ok(true) };
    observer.begin(
        if group == 0 { "encoding" } else { "encoding held-out text" },
        files.iter().map(|file| file.bytes).sum(),
    );
    let read = Arc::new(AtomicU64::new(0));
    let documents = Documents::new(files.to_vec(), settings.sentences, read.clone()).with_field(&settings.field);
    let limits = ChunkLimits { from, part_bytes: (settings.shard_mib() << 20) as usize };
    let mut writer = BertPartWriter::new(settings, tokenizer, group, parts.len());
    let work = |chunk: &Chunk<Document>| encode_chunk(settings, tokenizer, group, chunk);
    for_each_chunk(documents, limits, &read, observer, work, |end, encoded| {
        parts.extend(writer.add(end, encoded)?);
        Ok(())
    })
}

/// Whether an error is caused by the text, so that the output is useless.
fn is_input_error(error: &DataError) -> bool {
    use CorpusError::{BadLine, BadObject, NoField, NotUtf8};
    match error {
        DataError::DamagedGzip { .. } | DataError::DamagedZstd { .. } => true,
        DataError::Corpus(error) => {
            matches!(error, BadLine { .. } | BadObject { .. } | NoField { .. } | NotUtf8 { .. })
        }
        _ => false,
    }
}

/// Writes the manifest of all parts.
fn finish(
    settings: &PrepSettings,
    tokenizer: &Tokenizer,
    record: serde_json::Value,
    parts: &[PrepPart<TextCounts>],
) -> Result<CorpusManifest, DataError> {
    let mut manifest = CorpusManifest::new(settings.format.name(), tokenizer.vocabulary().size(), record);
    directory::add_parts(&mut manifest, parts);
    if manifest.train == TextCounts::default() {
        return Err(CorpusError::NoText { inputs: settings.inputs.clone() }.into());
    }
    directory::finish(&settings.output, &manifest)?;
    Ok(manifest)
}
