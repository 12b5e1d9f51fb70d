//! The error message for a checkpoint that could not be written: what happened, where, needed and
//! free disk space, and what to do. Whether the run continues without the checkpoint is decided by
//! the caller of [`super::CheckpointWriter`].

use std::fmt;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

use hetseq_metrics::bytes;

use super::disk_space::free_bytes;

/// A checkpoint could not be written.
#[derive(Debug)]
pub struct SaveError {
    path: PathBuf,
    reason: Error,
    needed_bytes: u64,
    free_bytes: Option<u64>,
}

impl SaveError {
    /// Queries the free disk space, so call it after the partly written files were removed.
    pub(crate) fn new(path: &Path, reason: Error, needed_bytes: u64) -> Self {
        let free_bytes = path.ancestors().skip(1).find(|dir| dir.exists()).and_then(free_bytes);
        SaveError { path: path.to_owned(), reason, needed_bytes, free_bytes }
    }

    /// The cause without advice, for repeated messages.
    pub(crate) fn reason(&self) -> &Error {
        &self.reason
    }
}

impl fmt::Display for SaveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "saving {}: {}. It needs {}", self.path.display(), self.reason, bytes(self.needed_bytes))?;
        if let Some(free) = self.free_bytes {
            write!(f, ", {} is free there", bytes(free))?;
        }
        write!(f, ". {}", advice(self.reason.kind()))
    }
}

/// Whether removing files could help.
pub(super) fn is_disk_full(reason: &Error) -> bool {
    matches!(reason.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

fn advice(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::StorageFull => "Free some space, lower checkpoint.keep, or set run.dir to a larger disk",
        ErrorKind::QuotaExceeded => {
            "Free some space or raise your quota, lower checkpoint.keep, or set another run.dir"
        }
        ErrorKind::FileTooLarge => "Raise the limit on the size of files (ulimit -f), or set another run.dir",
        ErrorKind::ReadOnlyFilesystem => {
            "The disk is mounted read-only, often because the system found a fault (see dmesg): mount it for writing, \
             or set another run.dir"
        }
        ErrorKind::PermissionDenied => "Give this user write permission there, or set another run.dir",
        ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::StaleNetworkFileHandle => {
            "The directory was moved, removed or unmounted: put it back, or set another run.dir"
        }
        _ => "The disk or the network file system has a fault (see dmesg): repair it, or set another run.dir",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_happened_where_and_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gone/step-7");
        let text = SaveError::new(&path, Error::from_raw_os_error(28), 2_500_000).to_string();
        let start = format!("saving {}: No space left on device (os error 28). It needs 2.5 MB, ", path.display());
        assert!(text.starts_with(&start), "{text}");
        assert!(text.contains("is free there. Free some space"), "{text}");
    }

    #[test]
    fn every_kind_of_error_has_advice() {
        // ENOSPC, EDQUOT, EFBIG, EROFS, EACCES, ENOENT, ESTALE, EIO as Linux numbers them.
        for (code, words) in [
            (28, "Free some space"),
            (122, "raise your quota"),
            (27, "ulimit -f"),
            (30, "mounted read-only"),
            (13, "write permission"),
            (2, "put it back"),
            (116, "put it back"),
            (5, "has a fault (see dmesg)"),
        ] {
            let reason = Error::from_raw_os_error(code);
            assert!(advice(reason.kind()).contains(words), "{code}: {}", advice(reason.kind()));
            assert_eq!(is_disk_full(&reason), [28, 122].contains(&code), "{code}");
        }
    }
}
