//! One process at a time in a run directory: two would write over each other's checkpoints and metrics.

use std::fs::TryLockError;
use std::path::Path;

use fs_err as fs;

use crate::error::TrainError;
use crate::run_files;

/// Held until dropped, or until the process ends however it ends.
pub(crate) struct RunLock {
    _file: std::fs::File,
}

impl RunLock {
    /// Fails at once if another process holds it. On a file system without locks nothing is held, with a warning.
    pub(crate) fn take(dir: &Path) -> Result<Self, TrainError> {
        let doing = || format!("opening the run directory {} (set run.dir to one that can be written)", dir.display());
        run_files::create_dir_all(dir).map_err(TrainError::io(doing()))?;
        let path = dir.join(".lock");
        let (file, _) = fs::File::create(&path).map_err(TrainError::io(doing()))?.into_parts();
        if let Some(warning) = judge(dir, file.try_lock())? {
            tracing::warn!("{warning}");
        }
        Ok(RunLock { _file: file })
    }
}

/// What follows from a try to lock `dir`: an error, a warning that nothing is locked, or nothing.
fn judge(dir: &Path, tried: Result<(), TryLockError>) -> Result<Option<String>, TrainError> {
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
    fn one_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let held = RunLock::take(dir.path()).unwrap();
        assert!(RunLock::take(dir.path()).err().unwrap().to_string().contains("another process is training"));
        drop(held);
        RunLock::take(dir.path()).unwrap();
    }

    #[test]
    fn without_locks_there_is_a_warning() {
        let dir = Path::new("/runs/x");
        // ENOLCK, as Linux numbers it.
        let warning = judge(dir, Err(TryLockError::Error(io::Error::from_raw_os_error(37)))).unwrap().unwrap();
        assert!(warning.starts_with("/runs/x cannot be locked (No locks available"), "{warning}");
        assert!(warning.contains("overwrite each other's checkpoints"), "{warning}");
        assert_eq!(judge(dir, Ok(())).unwrap(), None);
    }
}
