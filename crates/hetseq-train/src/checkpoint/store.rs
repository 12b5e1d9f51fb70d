//! The checkpoint directory on disk. A checkpoint is complete or absent: it is written under a
//! temporary name, flushed, then renamed.
//!
//! `checkpoints/step-N/` holds `model.safetensors`, the files that the task stores next to it for
//! other programs, the resolved `config.toml`, and `trainer/` with the files that only a resume
//! needs and a manifest of all files. `last` and `best` are links. Only rank 0 reads and writes;
//! other ranks receive the data over the network. `writer.rs` runs saves in the background;
//! `verify.rs` compares a checkpoint with its manifest before it is used.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use fs_err as fs;
use hetseq_optim::Layout;

use super::manifest::{self, CheckpointManifest};
use super::retention;
use super::save_error::{self, SaveError};
use super::snapshot::Snapshot;
use super::tensors::{self, write_flat};
use super::verify::{self, CheckpointPart, first_intact, verify};

use crate::checkpoint::weights;
use crate::error::TrainError;
use crate::trainer::state::State;
use hetseq_fs::sync_dir;

/// The `checkpoints` directory of a run.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    pub(super) dir: PathBuf,
}

/// A complete checkpoint.
#[derive(Debug)]
pub(crate) struct Saved {
    pub(crate) path: PathBuf,
    /// Problems that do not affect it, such as an old checkpoint that could not be removed.
    pub(crate) warnings: Vec<String>,
}

/// The content of a loaded checkpoint.
pub(crate) struct Restored {
    pub(crate) parameters: Vec<f32>,
    pub(crate) slots: Vec<(String, Vec<f32>)>,
    pub(crate) state: State,
    /// `None` for a checkpoint of an older version.
    pub(crate) manifest: Option<CheckpointManifest>,
}

impl Checkpoints {
    /// The checkpoints of the run in `run_dir`.
    pub fn at(run_dir: &Path) -> Self {
        Checkpoints { dir: run_dir.join("checkpoints") }
    }

    /// Creates the directory, removes partial checkpoints of a killed process and dangling links,
    /// and checks that the directory is writable: better now than after an hour of training.
    pub(crate) fn prepare(&self) -> Result<(), TrainError> {
        let doing = || format!("preparing {} (set run.dir to a writable directory)", self.dir.display());
        self.create().map_err(TrainError::io(doing()))?;
        for entry in fs::read_dir(&self.dir).map_err(TrainError::io(doing()))? {
            let entry = entry.map_err(TrainError::io(doing()))?;
            if entry.file_name().to_string_lossy().starts_with(TEMPORARY) {
                fs::remove_dir_all(entry.path()).map_err(TrainError::io(doing()))?;
            }
        }
        for link in ["last", "best"].map(|name| self.dir.join(name)) {
            if fs::symlink_metadata(&link).is_ok() && !link.exists() {
                fs::remove_file(&link).map_err(TrainError::io(doing()))?;
            }
        }
        self.check_writable()
    }

    /// Checks that checkpoints can be written, if the directory exists.
    pub(crate) fn check_writable(&self) -> Result<(), TrainError> {
        let doing = || format!("writing to {} (set run.dir to a writable directory)", self.dir.display());
        let trial = self.dir.join(format!("{TEMPORARY}trial"));
        match fs::create_dir(&trial) {
            Ok(()) => fs::remove_dir(&trial).map_err(TrainError::io(doing())),
            Err(_) if !self.dir.exists() => Ok(()),
            // A process that was killed has left it.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(TrainError::io(doing())(error)),
        }
    }

    pub(crate) fn create(&self) -> io::Result<()> {
        hetseq_fs::create_dir_all(&self.dir)
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Path of the checkpoint after `update` updates, whether or not it exists.
    pub(crate) fn path(&self, update: u64) -> PathBuf {
        self.dir.join(format!("step-{update}"))
    }

    /// Canonical path, for comparisons. The path itself if the directory does not exist.
    pub(crate) fn canonical(&self) -> PathBuf {
        fs::canonicalize(&self.dir).unwrap_or_else(|_| self.dir.clone())
    }

    /// The updates of all existing checkpoints, oldest first. None if there is no directory. One
    /// that cannot be listed is an error: a run that takes it for empty would start over.
    pub(crate) fn steps(&self) -> Result<Vec<u64>, TrainError> {
        self.list().map_err(TrainError::io("listing the checkpoints (check the disk or the network file system)"))
    }

    fn list(&self) -> io::Result<Vec<u64>> {
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(Vec::new());
            }
            entries => entries?,
        };
        let mut steps = Vec::new();
        for entry in entries {
            steps.extend(entry?.file_name().to_str().and_then(step_of));
        }
        steps.sort_unstable();
        Ok(steps)
    }

    /// The newest checkpoint, whether or not it is intact.
    pub fn newest(&self) -> Result<Option<PathBuf>, TrainError> {
        Ok(self.steps()?.last().map(|&step| self.path(step)))
    }

    /// All checkpoints, newest first, whether or not they are intact.
    pub(crate) fn newest_first(&self) -> Result<Vec<PathBuf>, TrainError> {
        Ok(self.steps()?.into_iter().rev().map(|step| self.path(step)).collect())
    }

    /// The best checkpoint by the configured metric.
    pub fn best(&self) -> Option<PathBuf> {
        fs::canonicalize(self.dir.join("best")).ok()
    }

    /// The checkpoint to use if the user names none: the best, else the newest, with an intact
    /// model.
    pub(crate) fn choose(&self) -> Result<Option<PathBuf>, TrainError> {
        let best = self.best();
        let is_other = |path: &PathBuf| fs::canonicalize(path).ok() != best;
        let others: Vec<PathBuf> = self.newest_first()?.into_iter().filter(is_other).collect();
        let paths: Vec<PathBuf> = best.into_iter().chain(others).collect();
        let found = first_intact(&paths, |path| verify(path, CheckpointPart::Model))?;
        Ok(found.map(|(path, _)| path))
    }

    /// Resolves a user's `path` to intact weights: `path` itself if it holds weights, else the
    /// result of [`Checkpoints::choose`] for the run directory `path`.
    pub(crate) fn resolve(path: &Path) -> Result<PathBuf, TrainError> {
        if weights::exist_at(path) {
            verify(path, CheckpointPart::Model)?;
            return Ok(path.to_owned());
        }
        Checkpoints::at(path).choose()?.ok_or_else(|| {
            TrainError::Config(format!(
                "there is no checkpoint in {}: pass a run directory or one of its checkpoints",
                path.display()
            ))
        })
    }

    /// Writes the snapshot, then removes the checkpoints that `keep` does not cover.
    ///
    /// If the disk is full, older checkpoints are removed first, in order of age. The newest and
    /// the best are never removed before the new one is complete.
    pub(crate) fn save(&self, snapshot: &Snapshot, keep: usize) -> Result<Saved, SaveError> {
        let mut warnings = Vec::new();
        if !self.dir.exists() {
            warnings.push(format!("{} was missing and has been created again", self.dir.display()));
        }
        let mut written = self.write(snapshot);
        // If they cannot be listed, there are none to remove.
        let steps = self.list().unwrap_or_default();
        let mut expendable = retention::expendable(&steps, &self.protected(snapshot)).into_iter();
        let mut removed = 0;
        while written.as_ref().is_err_and(save_error::is_disk_full)
            && let Some(step) = expendable.next()
        {
            warnings.extend(self.remove_old(&[step]));
            removed += 1;
            written = self.write(snapshot);
        }
        // Some of them would have been removed after this save anyway.
        let too_many = steps.len().saturating_sub(keep.saturating_sub(1));
        if written.is_ok() && removed > too_many {
            warnings.push(format!(
                "the disk is too small for checkpoint.keep = {keep}: removed {removed} older checkpoints to save this one"
            ));
        }
        let path = self.path(snapshot.update());
        written.map_err(|reason| SaveError::new(&path, reason, snapshot.size_bytes()))?;
        let steps = match self.list() {
            Ok(steps) => steps,
            Err(error) => {
                warnings.push(format!("did not update the links last and best or remove old checkpoints: {error}"));
                return Ok(Saved { path, warnings });
            }
        };
        if steps.last() != Some(&snapshot.update()) {
            // The ranks that continue without this process have saved later checkpoints. Links and
            // old checkpoints are theirs.
            return Ok(Saved { path, warnings });
        }
        warnings.extend(self.set_link("last", snapshot.update()));
        if snapshot.is_best() {
            warnings.extend(self.set_link("best", snapshot.update()));
        }
        warnings.extend(self.remove_old(&retention::expired(&steps, keep, &self.protected(snapshot))));
        Ok(Saved { path, warnings })
    }

    /// Writes under a temporary name, then renames. Removes the partial files if that fails.
    fn write(&self, snapshot: &Snapshot) -> io::Result<()> {
        let path = self.path(snapshot.update());
        // Another process may write the same one, if the ranks continue without this one.
        let temporary = self.dir.join(format!("{TEMPORARY}step-{}-{}", snapshot.update(), std::process::id()));
        let write = || {
            if temporary.exists() {
                fs::remove_dir_all(&temporary)?;
            }
            if !self.dir.exists() {
                self.create()?;
            }
            write_files(&temporary, snapshot)?;
            if path.exists() && verify(&path, CheckpointPart::All).is_ok() {
                // Of an attempt that failed when the directory was flushed, or of another process.
                // Or of a run that was stopped before it had validated.
                if completes_validation(&path, snapshot) {
                    exchange(&temporary, &path);
                }
                fs::remove_dir_all(&temporary)?;
            } else {
                if path.exists() {
                    self.delete(snapshot.update())?;
                }
                fs::rename(&temporary, &path)?;
            }
            sync_dir(&self.dir)
        };
        write().inspect_err(|_| _ = fs::remove_dir_all(&temporary))
    }

    /// Checkpoints that must not be removed: the best according to the snapshot's state, and the
    /// target of the `best` link, which is an older one until the new best is written.
    fn protected(&self, snapshot: &Snapshot) -> Vec<u64> {
        let linked = fs::read_link(self.dir.join("best")).ok();
        let linked = linked.and_then(|path| path.to_str().and_then(step_of));
        snapshot.state.best.as_ref().map(|best| best.update).into_iter().chain(linked).collect()
    }

    /// Removes old checkpoints. Returns a warning for each failure.
    fn remove_old(&self, steps: &[u64]) -> Vec<String> {
        let failed = |&step: &u64| {
            let error = self.delete(step).err()?;
            Some(format!("the old checkpoint {} could not be removed: {error}", self.path(step).display()))
        };
        steps.iter().filter_map(failed).collect()
    }

    fn delete(&self, step: u64) -> io::Result<()> {
        // Rename first: a partly removed checkpoint must not look like a complete one.
        let expired = self.dir.join(format!("{TEMPORARY}expired-{step}"));
        if expired.exists() {
            fs::remove_dir_all(&expired)?;
        }
        fs::rename(self.path(step), &expired)?;
        fs::remove_dir_all(&expired)
    }

    /// Renames a damaged checkpoint so that it is neither used nor removed. Returns its new path.
    pub(crate) fn rename_damaged(&self, step: u64) -> io::Result<PathBuf> {
        let name = |n: u64| {
            self.dir.join(if n == 1 { format!("damaged-step-{step}") } else { format!("damaged-step-{step}-{n}") })
        };
        let mut number = 1;
        while name(number).exists() {
            number += 1;
        }
        fs::rename(self.path(step), name(number))?;
        Ok(name(number))
    }

    /// Points the link `name` to the checkpoint after `update`. Returns a warning on failure: links
    /// are only for people, so a file system without them does not make the save fail.
    pub(crate) fn set_link(&self, name: &str, update: u64) -> Option<String> {
        let error = self.replace_link(name, update).err()?;
        Some(format!("could not create the link {}: {error}", self.dir.join(name).display()))
    }

    fn replace_link(&self, name: &str, update: u64) -> io::Result<()> {
        let temporary = self.dir.join(format!(".{name}"));
        if fs::symlink_metadata(&temporary).is_ok() {
            fs::remove_file(&temporary)?;
        }
        fs_err::os::unix::fs::symlink(format!("step-{update}"), &temporary)?;
        fs::rename(&temporary, self.dir.join(name))
    }
}

/// The parameters, in the file that other programs load.
pub(crate) const WEIGHTS: &str = "model.safetensors";
/// The optimizer state.
pub(super) const SLOTS: &str = "trainer/optimizer.safetensors";
/// The trainer state ([`State`]).
pub(crate) const STATE: &str = "trainer/state.json";

/// Name prefix of directories that are not yet, or no longer, checkpoints.
const TEMPORARY: &str = ".tmp-";

/// Returns N for the name `step-N`.
pub(crate) fn step_of(name: &str) -> Option<u64> {
    name.strip_prefix("step-")?.parse().ok()
}

/// Whether the checkpoint at `path` lacks the result of a validation that `snapshot` has.
fn completes_validation(path: &Path, snapshot: &Snapshot) -> bool {
    let state = fs::read(path.join(STATE)).ok().and_then(|state| serde_json::from_slice::<State>(&state).ok());
    snapshot.state.unfinished_validation.is_none()
        && state.is_some_and(|state| state.unfinished_validation.is_some() && state.run == snapshot.state.run)
}

/// Swaps two directories, so that there is a complete one under `path` at any time. Does nothing on
/// a file system that cannot (NFS): a resume then repeats the validation, with the same result.
#[cfg(target_os = "linux")]
fn exchange(new: &Path, path: &Path) {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    _ = renameat_with(CWD, new, CWD, path, RenameFlags::EXCHANGE);
}

#[cfg(not(target_os = "linux"))]
fn exchange(_new: &Path, _path: &Path) {}

fn write_files(dir: &Path, snapshot: &Snapshot) -> io::Result<()> {
    let trainer = dir.join("trainer");
    fs::create_dir_all(&trainer)?;
    write_flat(&dir.join(WEIGHTS), &snapshot.constants.layout, &snapshot.parameters)?;
    tensors::write_slots(&dir.join(SLOTS), &snapshot.slots)?;
    fs::write(dir.join("config.toml"), &snapshot.constants.config)?;
    fs::write(dir.join(STATE), serde_json::to_vec_pretty(&snapshot.state)?)?;
    for (name, content) in snapshot.constants.files.iter() {
        fs::write(dir.join(name), content)?;
    }
    let mut names = vec![WEIGHTS, "config.toml", SLOTS, STATE];
    names.extend(snapshot.constants.files.iter().map(|(name, _)| name.as_str()));
    let manifest = CheckpointManifest::of(snapshot, dir, &names)?;
    fs::write(dir.join(manifest::FILE), manifest.to_json()?)?;
    for name in names.into_iter().chain([manifest::FILE]) {
        fs::File::open(dir.join(name))?.sync_all()?;
    }
    sync_dir(&trainer)?;
    sync_dir(dir)
}

/// Loads an intact checkpoint for a model with this layout.
pub(crate) fn load(path: &Path, layout: &Layout) -> Result<Restored, TrainError> {
    let manifest = verify(path, CheckpointPart::All)?;
    let state = fs::read(path.join(STATE)).map_err(|error| verify::unreadable(path, STATE, error))?;
    let state =
        serde_json::from_slice(&state).map_err(|error| TrainError::checkpoint(path)(format!("{STATE}: {error}")))?;
    verify::check_state(path, &state, manifest.as_ref())?;
    let slots = tensors::read_slots(&path.join(SLOTS)).map_err(TrainError::checkpoint(path))?;
    let unchanged = |name: &str| Some(name.to_owned());
    let parameters =
        weights::read_all(&path.join(WEIGHTS), layout, &unchanged).map_err(TrainError::checkpoint(path))?;
    Ok(Restored { parameters, slots, state, manifest })
}
