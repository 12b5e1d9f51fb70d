//! Archiving files of an earlier run, or of an abandoned branch of this one, in `before-N`: nothing
//! is overwritten, and no old file is taken for a part of the new run. Called on rank 0 before a
//! run starts.

use std::io;
use std::path::{Path, PathBuf};

use fs_err as fs;
use hetseq_fs::sync_dir;

use crate::checkpoint::Checkpoints;
use crate::error::TrainError;
use crate::run_dir::events::JOURNAL;

/// Prefix of the archive directories.
const ARCHIVE: &str = "before-";

/// Moves files of `dir` to a new archive directory. With `after`, moves checkpoints of later
/// updates and copies the metrics, which are about to be cut; else moves everything. Returns the
/// archive directory; none if there is nothing to move.
pub(crate) fn archive_run(dir: &Path, after: Option<u64>) -> Result<Option<PathBuf>, TrainError> {
    let doing = || format!("moving an earlier run in {} to an archive directory", dir.display());
    let moving = match after {
        None if is_run(dir)? => files_of_run(dir).map_err(TrainError::io(doing()))?,
        None => Vec::new(),
        Some(after) => {
            let checkpoints = Checkpoints::at(dir);
            checkpoints.steps()?.into_iter().filter(|&step| step > after).map(|step| checkpoints.path(step)).collect()
        }
    };
    if moving.is_empty() {
        return Ok(None);
    }
    let archive = (1..u64::MAX).map(|n| dir.join(format!("{ARCHIVE}{n}"))).find(|path| !path.exists());
    let archive = archive.unwrap_or_else(|| dir.join(ARCHIVE));
    let move_all = || {
        hetseq_fs::create_dir_all(&archive)?;
        let journal = dir.join(JOURNAL);
        // First, and flushed: if this process dies, the next one finds nothing to move and cuts it.
        if after.is_some() && journal.exists() {
            let copy = |out: &mut dyn io::Write| io::copy(&mut fs::File::open(&journal)?, out).map(drop);
            hetseq_fs::write_atomic(&archive.join(JOURNAL), copy)?;
        }
        for path in &moving {
            let target = archive.join(path.strip_prefix(dir).unwrap_or(path));
            let parent = target.parent().unwrap_or(&archive);
            hetseq_fs::create_dir_all(parent)?;
            fs::rename(path, &target)?;
            sync_dir(parent)?;
        }
        Ok(())
    };
    // An archive that is still empty is removed.
    move_all().inspect_err(|_| _ = fs::remove_dir(&archive)).map_err(TrainError::io(doing()))?;
    Ok(Some(archive))
}

/// Whether `dir` holds a run: checkpoints or metrics.
fn is_run(dir: &Path) -> Result<bool, TrainError> {
    Ok(dir.join(JOURNAL).exists() || !Checkpoints::at(dir).steps()?.is_empty())
}

fn files_of_run(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_ours = ["checkpoints", "config.toml", "env.json", JOURNAL, "gradients"].contains(&name.as_str());
        if is_ours || name.starts_with("audit-rank-") {
            paths.push(entry.path());
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::tests::snapshot;

    #[test]
    fn metrics_are_archived_before_checkpoints_are_moved() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::at(dir.path());
        checkpoints.prepare().unwrap();
        for update in [2, 4] {
            checkpoints.save(&snapshot(update, None, 1.0), 10).unwrap();
        }
        // Cannot be copied.
        fs::create_dir(dir.path().join(JOURNAL)).unwrap();
        assert!(archive_run(dir.path(), Some(2)).is_err());
        assert_eq!(checkpoints.steps().unwrap(), [2, 4]);
        assert!(!dir.path().join("before-1").exists());
        fs::remove_dir(dir.path().join(JOURNAL)).unwrap();
        fs::write(dir.path().join(JOURNAL), "events").unwrap();
        let archive = archive_run(dir.path(), Some(2)).unwrap().unwrap();
        assert_eq!(fs::read(archive.join(JOURNAL)).unwrap(), b"events");
        assert_eq!(checkpoints.steps().unwrap(), [2]);
        assert!(archive.join("checkpoints/step-4").is_dir());
    }
}
