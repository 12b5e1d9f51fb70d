//! Archiving files of an earlier run, or of an abandoned branch of this one, in `before-N`: nothing
//! is overwritten, and no old file is taken for a part of the new run. Called on rank 0 before a
//! run starts.

use std::path::{Path, PathBuf};

use fs_err as fs;

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
        for path in &moving {
            let target = archive.join(path.strip_prefix(dir).unwrap_or(path));
            fs::create_dir_all(target.parent().unwrap_or(&archive))?;
            fs::rename(path, target)?;
        }
        let journal = dir.join(JOURNAL);
        if journal.exists() {
            fs::copy(&journal, archive.join(JOURNAL))?;
        }
        Ok(())
    };
    move_all().map_err(TrainError::io(doing()))?;
    Ok(Some(archive))
}

/// Whether `dir` holds a run: checkpoints or metrics.
fn is_run(dir: &Path) -> Result<bool, TrainError> {
    Ok(dir.join(JOURNAL).exists() || !Checkpoints::at(dir).steps()?.is_empty())
}

fn files_of_run(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
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
