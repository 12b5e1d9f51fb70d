//! The output directory of a preparation: its settings and its finished parts.
//!
//! During a preparation, `prep.json` holds the settings and `parts/` holds a record of each
//! finished part. Both are removed once `corpus.json` is written. Called by all preparations.

use std::path::{Path, PathBuf};

use fs_err as fs;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{CorpusError, DataError};
use crate::source::bytes::write_atomic;
use crate::source::corpus::{CorpusManifest, Counts, ShardEntry};
use crate::source::text::TextFile;
use crate::tokenize::{CONFIG_FILE, TOKENIZER_FILE, VOCABULARY_FILE};

const SETTINGS_FILE: &str = "prep.json";
const PARTS_DIR: &str = "parts";

/// A part of the input whose shards have been written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct PrepPart<C> {
    /// The input (0) or the held-out input (1).
    pub(super) group: usize,
    /// The number of the first document or pair after it.
    pub(super) next_item: u64,
    pub(super) ends_group: bool,
    pub(super) train: C,
    pub(super) valid: C,
    pub(super) shards: Vec<ShardEntry>,
}

/// Claims the directory: it must be new or empty, or begun or finished with the same settings.
/// Returns the manifest if it is finished.
pub(super) fn claim<C: Counts>(dir: &Path, record: &Value) -> Result<Option<CorpusManifest<C>>, DataError> {
    let failed = |reason| DataError::Io { path: dir.to_owned(), reason };
    let compare = |stored: &Value| match differences(stored, record) {
        differences if differences.is_empty() => Ok(()),
        differences => Err(CorpusError::OtherSettings { dir: dir.to_owned(), differences }),
    };
    fs::create_dir_all(dir).map_err(failed)?;
    if let Some(manifest) = CorpusManifest::<C>::read(dir)? {
        compare(&manifest.settings)?;
        remove_temporary(dir)?;
        return Ok(Some(manifest));
    }
    let path = dir.join(SETTINGS_FILE);
    if path.exists() {
        let bytes = fs::read(&path).map_err(failed)?;
        let damaged = |problem| CorpusError::Damaged { path: path.clone(), field: SETTINGS_FILE, problem };
        let stored = serde_json::from_slice(&bytes).map_err(|reason| damaged(reason.to_string()))?;
        compare(&stored)?;
        return Ok(None);
    }
    for entry in fs::read_dir(dir).map_err(failed)? {
        let file = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        if !file.starts_with('.') {
            return Err(CorpusError::NotEmpty { dir: dir.to_owned(), file }.into());
        }
    }
    write_atomic(&path, |file| writeln!(file, "{record:#}"))?;
    Ok(None)
}

/// The finished parts, in order, up to the first one with a missing file.
pub(super) fn finished<C: DeserializeOwned>(dir: &Path) -> Result<Vec<PrepPart<C>>, DataError> {
    let parts_dir = dir.join(PARTS_DIR);
    fs::create_dir_all(&parts_dir).map_err(|reason| DataError::Io { path: parts_dir.clone(), reason })?;
    let mut parts = Vec::new();
    while let Ok(bytes) = fs::read(record_path(dir, parts.len())) {
        let Ok(part) = serde_json::from_slice::<PrepPart<C>>(&bytes) else { break };
        let is_complete = |shard: &ShardEntry| {
            fs::metadata(dir.join(&shard.file)).is_ok_and(|metadata| metadata.len() == shard.bytes)
        };
        if !part.shards.iter().all(is_complete) {
            break;
        }
        parts.push(part);
    }
    Ok(parts)
}

/// Writes the record of a part whose shards have been written.
pub(super) fn write_record<C: Serialize>(dir: &Path, number: usize, part: &PrepPart<C>) -> Result<(), DataError> {
    let path = record_path(dir, number);
    let text =
        serde_json::to_vec(part).map_err(|reason| DataError::Io { path: path.clone(), reason: reason.into() })?;
    write_atomic(&path, |file| file.write_all(&text))
}

fn record_path(dir: &Path, part: usize) -> PathBuf {
    dir.join(PARTS_DIR).join(format!("{part:05}.json"))
}

/// The item of a group to resume from. None if the group is finished.
pub(super) fn resume_from<C>(parts: &[PrepPart<C>], group: usize) -> Option<u64> {
    match parts.iter().rev().find(|part| part.group == group) {
        Some(part) if part.ends_group => None,
        Some(part) => Some(part.next_item),
        None => Some(0),
    }
}

/// Adds the counts and shards of the parts to the manifest.
pub(super) fn add_parts<C: Counts>(manifest: &mut CorpusManifest<C>, parts: &[PrepPart<C>]) {
    for part in parts {
        manifest.train.add(&part.train);
        manifest.valid.add(&part.valid);
        manifest.shards.extend(part.shards.iter().cloned());
    }
    manifest.shards.sort_by(|a, b| (a.split, &a.file).cmp(&(b.split, &b.file)));
}

/// Writes the manifest, which marks the directory as finished.
pub(super) fn finish<C: Counts>(dir: &Path, manifest: &CorpusManifest<C>) -> Result<(), DataError> {
    manifest.write(dir)?;
    remove_temporary(dir)
}

/// Removes the files that only a restart needs, and files that a killed preparation left half
/// written.
fn remove_temporary(dir: &Path) -> Result<(), DataError> {
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

/// Removes everything that a preparation has written so far, except for the directory.
pub(super) fn discard(dir: &Path) -> Result<(), DataError> {
    let failed = |reason| DataError::Io { path: dir.to_owned(), reason };
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_shard = ["train-", "valid-", "training-", "validation-"].iter().any(|start| name.starts_with(start));
        let is_tokenizer = name.ends_with(TOKENIZER_FILE) || [CONFIG_FILE, VOCABULARY_FILE].contains(&name.as_str());
        if is_shard || is_tokenizer {
            fs::remove_file(entry.path()).map_err(failed)?;
        }
    }
    remove_temporary(dir)
}

/// The differences between two records, each as `name: was OLD, now NEW`.
fn differences(old: &Value, new: &Value) -> Vec<String> {
    fn compare(name: &str, old_value: &Value, new_value: &Value, found: &mut Vec<String>) {
        if let (Value::Object(old), Value::Object(new)) = (old_value, new_value) {
            let mut keys: Vec<&String> = old.keys().chain(new.keys()).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                compare(&name, old.get(key).unwrap_or(&Value::Null), new.get(key).unwrap_or(&Value::Null), found);
            }
        } else if old_value != new_value {
            found.push(format!("{name}: was {old_value}, now {new_value}"));
        }
    }
    let mut found = Vec::new();
    compare("", old, new, &mut found);
    found
}

/// The identity of input files, which a restart compares. It does not depend on their directory.
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
    Ok(crate::fingerprint(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_named() {
        let (old, new) = (json!({ "a": 1, "b": { "c": 2, "d": 3 } }), json!({ "a": 1, "b": { "c": 4 }, "e": null }));
        assert_eq!(differences(&old, &new), ["b.c: was 2, now 4", "b.d: was 3, now null"]);
        assert_eq!(differences(&old, &old), [] as [&str; 0]);
    }
}
