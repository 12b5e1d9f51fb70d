//! Preparing text for pre-training BERT: files of text to a tokenizer and shards. What `hetseq prep bert` does.
//!
//! Two passes over the text, both in parallel and both with bounded memory: the first counts words and trains a vocabulary
//! (unless one is given), the second encodes. The input is cut into *parts* of whole documents, each about
//! `shard_mib` of text; a part becomes one shard per split (or one per split and pass, in NVIDIA's layout). The same input and
//! settings give the same bytes, whatever the number of cores, and however often the preparation was interrupted: finished
//! parts are kept, and a restart goes on with the next.
//!
//! While it works, `prep.json` in the directory holds the settings and `parts/` what is finished; both go when `corpus.json`
//! comes.

mod chunks;
mod parts;
mod settings;
mod vocabulary;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use fs_err as fs;

use crate::error::{CorpusError, DataError};
use crate::source::bytes::write_whole;
use crate::source::corpus::{Manifest, TextCounts};
use crate::source::text::{Documents, TextFile, find};
use crate::tokenize::Tokenizer;
use chunks::{Chunk, ChunkLimits, for_each_chunk};
use parts::{Part, PartWriter, encode_chunk};
pub use settings::{Hdf5Settings, PrepFormat, PrepSettings, VocabularySource};

const SETTINGS_FILE: &str = "prep.json";
const PARTS_DIR: &str = "parts";

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
pub enum Prepared {
    /// `was_there`: there was nothing to do.
    Finished { manifest: Manifest, was_there: bool },
    /// The same settings go on from here.
    Stopped,
}

/// Prepares text. Goes on with what an interrupted preparation with the same settings left.
pub fn prepare(settings: &PrepSettings, watch: &dyn Watch) -> Result<Prepared, DataError> {
    settings.check()?;
    let groups = [find(&settings.inputs)?, if settings.valid.is_empty() { Vec::new() } else { find(&settings.valid)? }];
    let record = settings.record(&groups)?;
    if let Some(manifest) = claim(settings, &record)? {
        return Ok(Prepared::Finished { manifest, was_there: true });
    }
    let Some(tokenizer) = vocabulary::obtain(settings, &groups[0], watch)? else { return Ok(Prepared::Stopped) };
    let mut parts = parts::finished(&settings.output)?;
    for (group, files) in groups.iter().enumerate() {
        if !encode(settings, &tokenizer, group, files, &mut parts, watch)? {
            return Ok(Prepared::Stopped);
        }
    }
    let manifest = conclude(settings, &tokenizer, record, &parts)?;
    Ok(Prepared::Finished { manifest, was_there: false })
}

/// Makes sure that the directory is ours: new, begun with the same settings, or finished with them.
fn claim(settings: &PrepSettings, record: &serde_json::Value) -> Result<Option<Manifest>, DataError> {
    let dir = &settings.output;
    let failed = |reason| DataError::Io { path: dir.clone(), reason };
    let compare = |there: &serde_json::Value| match settings::differences(there, record) {
        differences if differences.is_empty() => Ok(()),
        differences => Err(CorpusError::OtherSettings { dir: dir.clone(), differences }),
    };
    fs::create_dir_all(dir).map_err(failed)?;
    if let Some(manifest) = Manifest::read(dir)? {
        compare(&manifest.settings)?;
        clear_away(dir)?;
        return Ok(Some(manifest));
    }
    let path = dir.join(SETTINGS_FILE);
    if path.exists() {
        let bytes = fs::read(&path).map_err(failed)?;
        let damaged = |problem| CorpusError::Damaged { path: path.clone(), field: SETTINGS_FILE, problem };
        let there = serde_json::from_slice(&bytes).map_err(|reason| damaged(reason.to_string()))?;
        compare(&there)?;
        return Ok(None);
    }
    for entry in fs::read_dir(dir).map_err(failed)? {
        let file = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        if !file.starts_with('.') {
            return Err(CorpusError::NotEmpty { dir: dir.clone(), file }.into());
        }
    }
    write_whole(&path, |file| writeln!(file, "{record:#}"))?;
    Ok(None)
}

/// Encodes what is left of a group of files. False if it was stopped.
fn encode(
    settings: &PrepSettings,
    tokenizer: &Tokenizer,
    group: usize,
    files: &[TextFile],
    parts: &mut Vec<Part>,
    watch: &dyn Watch,
) -> Result<bool, DataError> {
    let from = match parts.iter().rev().find(|part| part.group == group) {
        Some(part) if part.ends_group => return Ok(true),
        Some(part) => part.next_document,
        None if files.is_empty() => return Ok(true),
        None => 0,
    };
    watch.begin(
        if group == 0 { "encoding" } else { "encoding held-out text" },
        files.iter().map(|file| file.bytes).sum(),
    );
    let read = Arc::new(AtomicU64::new(0));
    let documents = Documents::new(files.to_vec(), settings.sentences, read.clone());
    let limits = ChunkLimits { from, part_bytes: (settings.shard_mib() << 20) as usize };
    let mut writer = PartWriter::new(settings, tokenizer, group, parts.len());
    let work = |chunk: &Chunk| encode_chunk(settings, tokenizer, group, chunk);
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
    parts: &[Part],
) -> Result<Manifest, DataError> {
    let mut manifest = Manifest::new(settings.format.name(), tokenizer.vocabulary().size(), record);
    for part in parts {
        manifest.train.add(&part.train);
        manifest.valid.add(&part.valid);
        manifest.shards.extend(part.shards.iter().cloned());
    }
    manifest.shards.sort_by(|a, b| (a.split, &a.file).cmp(&(b.split, &b.file)));
    if manifest.train == TextCounts::default() {
        return Err(CorpusError::NoText { inputs: settings.inputs.clone() }.into());
    }
    manifest.write(&settings.output)?;
    clear_away(&settings.output)?;
    Ok(manifest)
}

/// Removes what only a restart needs, and what a killed preparation was just writing.
fn clear_away(dir: &Path) -> Result<(), DataError> {
    let failed = |reason| DataError::Io { path: dir.to_owned(), reason };
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path == dir.join(PARTS_DIR) {
            fs::remove_dir_all(path).map_err(failed)?;
        } else if path == dir.join(SETTINGS_FILE) || path.extension().is_some_and(|ending| ending == "tmp") {
            fs::remove_file(path).map_err(failed)?;
        }
    }
    Ok(())
}
