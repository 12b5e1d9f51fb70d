//! A checkpoint's manifest: size and hash of every file, the update, task and layout it belongs to,
//! and a hash of all that. Written before the checkpoint gets its final name, compared before it is
//! used (`verify.rs`).

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use fs_err as fs;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Snapshot;

/// In the `trainer` directory, so that other programs that load the model do not see it.
pub(super) const FILE: &str = "trainer/manifest.json";

/// Raised when the meaning of a stored field changes.
pub(super) const FORMAT: u32 = 1;

/// The field with the hash of the others.
const HASH: &str = "blake3";
/// The fields of manifests without a hash, by older versions.
const UNHASHED: [&str; 5] = ["format", "update", "task", "layout", "files"];

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CheckpointManifest {
    pub(super) format: u32,
    pub(crate) update: u64,
    pub(crate) task: String,
    /// Hash of the parameter layout, in hexadecimal: not every JSON reader has 64-bit integers.
    pub(super) layout: String,
    pub(super) files: BTreeMap<String, FileDigest>,
}

/// Size and hash of one file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileDigest {
    bytes: u64,
    blake3: String,
}

impl CheckpointManifest {
    /// Describes the files `names` in `dir`, which hold `snapshot`.
    pub(super) fn of(snapshot: &Snapshot, dir: &Path, names: &[&str]) -> io::Result<Self> {
        let digest = |name: &&str| Ok(((*name).to_owned(), FileDigest::of(&dir.join(name))?));
        Ok(CheckpointManifest {
            format: FORMAT,
            update: snapshot.update(),
            task: snapshot.state.task.clone(),
            layout: hex(snapshot.constants.layout.hash()),
            files: names.iter().map(digest).collect::<io::Result<_>>()?,
        })
    }

    /// The content of the file.
    pub(super) fn to_json(&self) -> io::Result<Vec<u8>> {
        let Value::Object(mut fields) = serde_json::to_value(self)? else {
            return Err(io::Error::other("a manifest is a JSON object"));
        };
        let hash = hash_of(&fields)?;
        fields.insert(HASH.to_owned(), Value::String(hash));
        Ok(serde_json::to_vec_pretty(&fields)?)
    }

    /// Reads the content of a file. An error means that it is damaged; the format is not checked.
    pub(super) fn from_json(bytes: &[u8]) -> Result<Self, String> {
        let unreadable = |error: serde_json::Error| format!("cannot be read: {error}");
        let mut fields: Map<String, Value> = serde_json::from_slice(bytes).map_err(unreadable)?;
        let is_intact = match fields.remove(HASH) {
            Some(hash) => hash == hash_of(&fields).map_err(unreadable)?,
            // Its name may be what is damaged.
            None => fields.keys().all(|name| UNHASHED.contains(&name.as_str())),
        };
        if !is_intact {
            return Err("is not what was saved (its hash differs)".to_owned());
        }
        serde_json::from_value(Value::Object(fields)).map_err(unreadable)
    }

    /// Whether the parameters have the layout with this hash: same names, shapes and order.
    pub(crate) fn has_layout(&self, hash: u64) -> bool {
        self.layout == hex(hash)
    }
}

impl FileDigest {
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(fs::File::open(path)?)?;
        Ok(FileDigest { bytes: hasher.count(), blake3: hasher.finalize().to_hex().to_string() })
    }

    /// Describes the difference from `expected`, if any.
    pub(super) fn difference(&self, expected: &FileDigest) -> Option<String> {
        if self.bytes != expected.bytes {
            return Some(format!("has {} bytes, {} were saved", self.bytes, expected.bytes));
        }
        (self != expected).then(|| "is not what was saved (its hash differs)".to_owned())
    }
}

fn hash_of(fields: &Map<String, Value>) -> serde_json::Result<String> {
    Ok(blake3::hash(&serde_json::to_vec(fields)?).to_hex().to_string())
}

fn hex(hash: u64) -> String {
    format!("{hash:016x}")
}
