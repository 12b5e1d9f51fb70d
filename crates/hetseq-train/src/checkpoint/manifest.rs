//! What a checkpoint consists of: size and hash of every file, and which update, task and layout it belongs to. Written
//! before the checkpoint gets its name, compared before it is used (`verify.rs`).

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use fs_err as fs;
use serde::{Deserialize, Serialize};

use super::Snapshot;

/// Beside what only a resume needs: other programs that load the model do not see it.
pub(super) const FILE: &str = "trainer/manifest.json";

/// Raised when the meaning of a stored field changes.
pub(super) const FORMAT: u32 = 1;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(super) format: u32,
    pub(crate) update: u64,
    pub(crate) task: String,
    /// In hexadecimal digits, since not every reader of JSON has integers of 64 bits.
    pub(super) layout: String,
    pub(super) files: BTreeMap<String, Content>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Content {
    bytes: u64,
    blake3: String,
}

impl Manifest {
    /// Of the files `names` in `dir`, which hold `snapshot`.
    pub(super) fn of(snapshot: &Snapshot, dir: &Path, names: &[&str]) -> io::Result<Self> {
        let content = |name: &&str| Ok(((*name).to_owned(), Content::of(&dir.join(name))?));
        Ok(Manifest {
            format: FORMAT,
            update: snapshot.update(),
            task: snapshot.state.task.clone(),
            layout: digits(snapshot.common.layout.hash()),
            files: names.iter().map(content).collect::<io::Result<_>>()?,
        })
    }

    /// Whether the parameters were laid out like this, in this order.
    pub(crate) fn has_layout(&self, hash: u64) -> bool {
        self.layout == digits(hash)
    }
}

impl Content {
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(fs::File::open(path)?)?;
        Ok(Content { bytes: hasher.count(), blake3: hasher.finalize().to_hex().to_string() })
    }

    /// What differs from `expected`.
    pub(super) fn difference(&self, expected: &Content) -> Option<String> {
        if self.bytes != expected.bytes {
            return Some(format!("has {} bytes, {} were saved", self.bytes, expected.bytes));
        }
        (self != expected).then(|| "is not what was saved (its hash differs)".to_owned())
    }
}

fn digits(hash: u64) -> String {
    format!("{hash:016x}")
}
