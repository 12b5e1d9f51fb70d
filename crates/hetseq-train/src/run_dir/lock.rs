//! The lock of a run directory: two processes would overwrite each other's checkpoints and metrics.
//! Rank 0 holds it while it trains.

use std::fs::TryLockError;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use fs_err as fs;

use crate::error::TrainError;

/// Held until dropped, or until the process ends in any way.
pub(crate) struct RunLock {
    _file: std::fs::File,
}

impl RunLock {
    /// Takes the lock if it is free. A rank that leads from now on continues without it: rank 0, which
    /// was lost, may hold it until its process ends.
    pub(crate) fn try_take(dir: &Path) -> Option<Self> {
        let (file, _) = fs::File::create(dir.join(".lock")).ok()?.into_parts();
        file.try_lock().ok().map(|()| RunLock { _file: file })
    }

    /// Whether the file is still in the directory: the directory may have been removed meanwhile.
    pub(crate) fn is_in_place(&self, dir: &Path) -> bool {
        let inode = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
        let held = self._file.metadata().map(inode);
        let found = fs::metadata(dir.join(".lock")).map(inode);
        matches!((held, found), (Ok(held), Ok(found)) if held == found)
    }

    /// Takes the lock, or fails at once if another process holds it. On a file system without locks
    /// it only logs a warning.
    pub(crate) fn take(dir: &Path) -> Result<Self, TrainError> {
        let doing = || format!("opening the run directory {} (set run.dir to one that can be written)", dir.display());
        hetseq_fs::create_dir_all(dir).map_err(TrainError::io(doing()))?;
        let path = dir.join(".lock");
        let (file, _) = fs::File::create(&path).map_err(TrainError::io(doing()))?.into_parts();
        if let Some(warning) = lock_result(dir, file.try_lock())? {
            tracing::warn!("{warning}");
        }
        Ok(RunLock { _file: file })
    }
}

/// The result of an attempt to lock `dir`: an error, a warning that nothing is locked, or nothing.
fn lock_result(dir: &Path, tried: Result<(), TryLockError>) -> Result<Option<String>, TrainError> {
    match tried {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => Err(TrainError::Config(format!(
            "another process is training in {}: wait for it or stop it, or set another run.dir",
            dir.display()
        ))),
        Err(TryLockError::Error(reason)) => Ok(Some(format!(
            "{} cannot be locked ({reason}): make sure that no other process trains there, because two would overwrite each \
             other's checkpoints and metrics",
            dir.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn only_one_process_holds_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let held = RunLock::take(dir.path()).unwrap();
        assert!(RunLock::take(dir.path()).err().unwrap().to_string().contains("another process is training"));
        drop(held);
        let held = RunLock::take(dir.path()).unwrap();
        assert!(held.is_in_place(dir.path()));
        fs::remove_file(dir.path().join(".lock")).unwrap();
        assert!(!held.is_in_place(dir.path()));
        let _other = RunLock::take(dir.path()).unwrap();
        assert!(!held.is_in_place(dir.path()));
    }

    #[test]
    fn a_file_system_without_locks_gives_a_warning() {
        let dir = Path::new("/runs/x");
        // 37 is ENOLCK on Linux.
        let warning = lock_result(dir, Err(TryLockError::Error(io::Error::from_raw_os_error(37)))).unwrap().unwrap();
        assert!(warning.starts_with("/runs/x cannot be locked (No locks available"), "{warning}");
        assert!(warning.contains("overwrite each other's checkpoints"), "{warning}");
        assert_eq!(lock_result(dir, Ok(())).unwrap(), None);
    }
}
