//! Preparing text for pre-training BERT: files of text to a tokenizer and shards. What `hetseq prep bert` does.
//!
//! Two passes over the text, both in parallel and both with bounded memory: the first counts words and trains a vocabulary
//! (unless one is given), the second encodes. The input is cut into *parts* of whole documents, each about
//! `shard_mib` of text; a part becomes one shard per split (or one per split and pass, in NVIDIA's layout). The same input and
//! settings give the same bytes, whatever the number of cores, and however often the preparation was interrupted: finished
//! parts are kept, and a restart goes on with the next.
//!
//! Parallel text is prepared by [`translate`], on the same foundations: `chunks` and `directory`.

mod chunks;
mod directory;
mod parts;
mod settings;
pub mod translate;
mod vocabulary;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::error::{CorpusError, DataError};
use crate::source::corpus::{Manifest, TextCounts};
use crate::source::text::{Document, Documents, TextFile, find};
use crate::tokenize::Tokenizer;
use chunks::{Chunk, ChunkLimits, for_each_chunk};
use directory::{Part, claim, go_on_from};
use parts::{PartWriter, encode_chunk};
pub use settings::{Hdf5Settings, PrepFormat, PrepSettings, VocabularySource};

/// Who waits for a preparation.
pub trait Watch: Sync {
    /// Something that reads `bytes` of input begins.
    fn begin(&self, what: &str, bytes: u64);
    /// So much of it is read.
    fn reached(&self, bytes: u64);
    /// Asked often; true ends the preparation where it can go on later.
    fn is_stopped(&self) -> bool;
}

/// How a preparation ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Prepared<C = TextCounts> {
    /// `was_there`: there was nothing to do.
    Finished { manifest: Manifest<C>, was_there: bool },
    /// The same settings go on from here.
    Stopped,
}

/// Prepares text. Goes on with what an interrupted preparation with the same settings left.
pub fn prepare(settings: &PrepSettings, watch: &dyn Watch) -> Result<Prepared, DataError> {
    settings.check()?;
    let groups = [find(&settings.inputs)?, if settings.valid.is_empty() { Vec::new() } else { find(&settings.valid)? }];
    let record = settings.record(&groups)?;
    if let Some(manifest) = claim(&settings.output, &record)? {
        return Ok(Prepared::Finished { manifest, was_there: true });
    }
    let Some(tokenizer) = vocabulary::obtain(settings, &groups[0], watch)? else { return Ok(Prepared::Stopped) };
    let mut parts = directory::finished(&settings.output)?;
    for (group, files) in groups.iter().enumerate() {
        if !encode(settings, &tokenizer, group, files, &mut parts, watch)? {
            return Ok(Prepared::Stopped);
        }
    }
    let manifest = conclude(settings, &tokenizer, record, &parts)?;
    Ok(Prepared::Finished { manifest, was_there: false })
}

/// Encodes what is left of a group of files. False if it was stopped.
fn encode(
    settings: &PrepSettings,
    tokenizer: &Tokenizer,
    group: usize,
    files: &[TextFile],
    parts: &mut Vec<Part<TextCounts>>,
    watch: &dyn Watch,
) -> Result<bool, DataError> {
    let Some(from) = go_on_from(parts, group).filter(|_| !files.is_empty()) else { return Ok(true) };
    watch.begin(
        if group == 0 { "encoding" } else { "encoding held-out text" },
        files.iter().map(|file| file.bytes).sum(),
    );
    let read = Arc::new(AtomicU64::new(0));
    let documents = Documents::new(files.to_vec(), settings.sentences, read.clone());
    let limits = ChunkLimits { from, part_bytes: (settings.shard_mib() << 20) as usize };
    let mut writer = PartWriter::new(settings, tokenizer, group, parts.len());
    let work = |chunk: &Chunk<Document>| encode_chunk(settings, tokenizer, group, chunk);
    for_each_chunk(documents, limits, &read, watch, work, |end, encoded| {
        parts.extend(writer.take(end, encoded)?);
        Ok(())
    })
}

/// Everything is there: list it.
fn conclude(
    settings: &PrepSettings,
    tokenizer: &Tokenizer,
    record: serde_json::Value,
    parts: &[Part<TextCounts>],
) -> Result<Manifest, DataError> {
    let mut manifest = Manifest::new(settings.format.name(), tokenizer.vocabulary().size(), record);
    directory::list(&mut manifest, parts);
    if manifest.train == TextCounts::default() {
        return Err(CorpusError::NoText { inputs: settings.inputs.clone() }.into());
    }
    directory::conclude(&settings.output, &manifest)?;
    Ok(manifest)
}
