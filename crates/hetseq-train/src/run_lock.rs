//! One process at a time in a run directory: two would write over each other's checkpoints and metrics.

use std::fs::TryLockError;
use std::path::Path;

use fs_err as fs;

use crate::error::TrainError;

/// Held until dropped, or until the process ends however it ends.
pub(crate) struct RunLock {
    _file: std::fs::File,
}

impl RunLock {
    /// Fails at once if another process holds it. A file system without locks cannot tell; then nothing is held.
    pub(crate) fn take(dir: &Path) -> Result<Option<Self>, TrainError> {
        let doing = || format!("opening the run directory {} (set run.dir to one that can be written)", dir.display());
        fs::create_dir_all(dir).map_err(TrainError::io(doing()))?;
        let path = dir.join(".lock");
        let (file, _) = fs::File::create(&path).map_err(TrainError::io(doing()))?.into_parts();
        match file.try_lock() {
            Ok(()) => Ok(Some(RunLock { _file: file })),
            Err(TryLockError::WouldBlock) => Err(TrainError::Config(format!(
                "another process is training in {}: wait for it or stop it, or set another run.dir",
                dir.display()
            ))),
            Err(TryLockError::Error(_)) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let held = RunLock::take(dir.path()).unwrap();
        assert!(RunLock::take(dir.path()).err().unwrap().to_string().contains("another process is training"));
        drop(held);
        RunLock::take(dir.path()).unwrap();
    }
}
