//! The directory that is written: whose it is, and what of it is finished.
//!
//! While a preparation works, `prep.json` holds its settings and `parts/` the record of each finished part; both go when
//! `corpus.json` comes. Called by all preparations.

use std::path::{Path, PathBuf};

use fs_err as fs;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{CorpusError, DataError};
use crate::source::bytes::write_whole;
use crate::source::corpus::{Counts, Manifest, ShardEntry};
use crate::source::text::TextFile;
use crate::tokenize::{CONFIG_FILE, TOKENIZER_FILE};

const SETTINGS_FILE: &str = "prep.json";
const PARTS_DIR: &str = "parts";

/// A part of the input whose shards are written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Part<C> {
    /// Of the input (0) or the held-out input (1).
    pub(super) group: usize,
    /// The first document or pair after it.
    pub(super) next_item: u64,
    pub(super) ends_group: bool,
    pub(super) train: C,
    pub(super) valid: C,
    pub(super) shards: Vec<ShardEntry>,
}

/// Makes sure that the directory is ours: new, begun with the same settings, or finished with them.
pub(super) fn claim<C: Counts>(dir: &Path, record: &Value) -> Result<Option<Manifest<C>>, DataError> {
    let failed = |reason| DataError::Io { path: dir.to_owned(), reason };
    let compare = |there: &Value| match differences(there, record) {
        differences if differences.is_empty() => Ok(()),
        differences => Err(CorpusError::OtherSettings { dir: dir.to_owned(), differences }),
    };
    fs::create_dir_all(dir).map_err(failed)?;
    if let Some(manifest) = Manifest::<C>::read(dir)? {
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
            return Err(CorpusError::NotEmpty { dir: dir.to_owned(), file }.into());
        }
    }
    write_whole(&path, |file| writeln!(file, "{record:#}"))?;
    Ok(None)
}

/// The parts that are finished, in order; the first of which anything is missing ends them.
pub(super) fn finished<C: DeserializeOwned>(dir: &Path) -> Result<Vec<Part<C>>, DataError> {
    let parts_dir = dir.join(PARTS_DIR);
    fs::create_dir_all(&parts_dir).map_err(|reason| DataError::Io { path: parts_dir.clone(), reason })?;
    let mut parts = Vec::new();
    while let Ok(bytes) = fs::read(record_path(dir, parts.len())) {
        let Ok(part) = serde_json::from_slice::<Part<C>>(&bytes) else { break };
        let is_there = |shard: &ShardEntry| {
            fs::metadata(dir.join(&shard.file)).is_ok_and(|metadata| metadata.len() == shard.bytes)
        };
        if !part.shards.iter().all(is_there) {
            break;
        }
        parts.push(part);
    }
    Ok(parts)
}

/// The shards of a part are there.
pub(super) fn record<C: Serialize>(dir: &Path, number: usize, part: &Part<C>) -> Result<(), DataError> {
    let path = record_path(dir, number);
    let text =
        serde_json::to_vec(part).map_err(|reason| DataError::Io { path: path.clone(), reason: reason.into() })?;
    write_whole(&path, |file| file.write_all(&text))
}

fn record_path(dir: &Path, part: usize) -> PathBuf {
    dir.join(PARTS_DIR).join(format!("{part:05}.json"))
}

/// Where a group of the input is to be gone on with: None if it is finished.
pub(super) fn go_on_from<C>(parts: &[Part<C>], group: usize) -> Option<u64> {
    match parts.iter().rev().find(|part| part.group == group) {
        Some(part) if part.ends_group => None,
        Some(part) => Some(part.next_item),
        None => Some(0),
    }
}

/// Adds up and lists what the parts hold.
pub(super) fn list<C: Counts>(manifest: &mut Manifest<C>, parts: &[Part<C>]) {
    for part in parts {
        manifest.train.add(&part.train);
        manifest.valid.add(&part.valid);
        manifest.shards.extend(part.shards.iter().cloned());
    }
    manifest.shards.sort_by(|a, b| (a.split, &a.file).cmp(&(b.split, &b.file)));
}

/// Writes the manifest: from now on the directory is finished.
pub(super) fn conclude<C: Counts>(dir: &Path, manifest: &Manifest<C>) -> Result<(), DataError> {
    manifest.write(dir)?;
    clear_away(dir)
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

/// Removes what a preparation has written so far, but for the directory: it is of no use.
pub(super) fn abandon(dir: &Path) -> Result<(), DataError> {
    let failed = |reason| DataError::Io { path: dir.to_owned(), reason };
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_shard = ["train-", "valid-"].iter().any(|start| name.starts_with(start));
        let is_tokenizer = name.ends_with(TOKENIZER_FILE) || name == CONFIG_FILE;
        if is_shard || is_tokenizer {
            fs::remove_file(entry.path()).map_err(failed)?;
        }
    }
    clear_away(dir)
}

/// What differs between two records, each as `name: that there, this here`.
fn differences(there: &Value, here: &Value) -> Vec<String> {
    fn compare(name: &str, there: &Value, here: &Value, found: &mut Vec<String>) {
        if let (Value::Object(old), Value::Object(new)) = (there, here) {
            let mut keys: Vec<&String> = old.keys().chain(new.keys()).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                compare(&name, old.get(key).unwrap_or(&Value::Null), new.get(key).unwrap_or(&Value::Null), found);
            }
        } else if there != here {
            found.push(format!("{name}: {there} there, {here} here"));
        }
    }
    let mut found = Vec::new();
    compare("", there, here, &mut found);
    found
}

/// What a restart compares of files: that they are the same, wherever they lie.
pub(super) fn inputs(files: &[TextFile]) -> Result<Value, DataError> {
    let mut hasher = blake3::Hasher::new();
    for file in files {
        hasher.update(file.identity()?.as_bytes());
    }
    let bytes: u64 = files.iter().map(|file| file.bytes).sum();
    Ok(json!({ "files": files.len(), "bytes": bytes, "identity": hasher.finalize().to_hex()[..16] }))
}

pub(super) fn content_hash(path: &Path) -> Result<String, DataError> {
    let bytes = fs::read(path).map_err(|reason| DataError::Io { path: path.to_owned(), reason })?;
    Ok(blake3::hash(&bytes).to_hex()[..16].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_named() {
        let (old, new) = (json!({ "a": 1, "b": { "c": 2, "d": 3 } }), json!({ "a": 1, "b": { "c": 4 }, "e": null }));
        assert_eq!(differences(&old, &new), ["b.c: 2 there, 4 here", "b.d: 3 there, null here"]);
        assert_eq!(differences(&old, &old), [] as [&str; 0]);
    }
}
