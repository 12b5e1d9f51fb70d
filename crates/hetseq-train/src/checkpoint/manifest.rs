//! A checkpoint's manifest: size and hash of every file, and the update, task and layout it belongs
//! to. Written before the checkpoint gets its final name, compared before it is used (`verify.rs`).

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use fs_err as fs;
use serde::{Deserialize, Serialize};

use super::Snapshot;

/// In the `trainer` directory, so that other programs that load the model do not see it.
pub(super) const FILE: &str = "trainer/manifest.json";

/// Raised when the meaning of a stored field changes.
pub(super) const FORMAT: u32 = 1;

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

fn hex(hash: u64) -> String {
    format!("{hash:016x}")
}
