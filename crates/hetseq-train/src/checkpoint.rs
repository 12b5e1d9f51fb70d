//! Checkpoints: a directory is complete or absent. Written to a temporary name, flushed to the disk, then renamed.
//!
//! `checkpoints/step-N/` holds `model.safetensors`, what the task lays beside it for other programs, the resolved
//! `config.toml`, and `trainer/` with what only a resume needs and a manifest of all files; `last` and `best` are links. Only
//! rank 0 reads and writes; the others get what they need over the network. Here is what happens on the disk; `saver.rs` has
//! it done in the background, and `verify.rs` compares a checkpoint with its manifest before it is used.

mod manifest;
mod retention;
mod room;
mod saver;
mod snapshot;
mod tensors;
mod trouble;
mod verify;

use std::io;
use std::path::{Path, PathBuf};

use fs_err as fs;
use hetseq_optim::Layout;

use crate::error::TrainError;
use crate::run_files::{self, sync_dir};
use crate::state::State;
use crate::weights;

use manifest::Manifest;
pub(crate) use room::free_bytes;
pub(crate) use saver::{News, RETRY, Saver};
pub(crate) use snapshot::{Common, Snapshot, size_bytes};
pub(crate) use tensors::write_flat;
pub use trouble::Trouble;
pub(crate) use verify::{Part, first_intact, verify};

/// The `checkpoints` directory of a run.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    dir: PathBuf,
}

/// A checkpoint that is complete.
#[derive(Debug)]
pub(crate) struct Saved {
    pub(crate) path: PathBuf,
    /// What went wrong beside it, such as an old checkpoint that could not be removed: no reason to stop.
    pub(crate) remarks: Vec<String>,
}

/// What is loaded.
pub(crate) struct Restored {
    pub(crate) parameters: Vec<f32>,
    pub(crate) slots: Vec<(String, Vec<f32>)>,
    pub(crate) state: State,
    /// None if it was saved by an older version.
    pub(crate) manifest: Option<Manifest>,
}

impl Checkpoints {
    pub fn at(run_dir: &Path) -> Self {
        Checkpoints { dir: run_dir.join("checkpoints") }
    }

    /// Make the directory, clear away what a killed process left half written, and try that it can be written to:
    /// better now than after an hour of training.
    pub(crate) fn prepare(&self) -> Result<(), TrainError> {
        let doing = || format!("preparing {} (set run.dir to a directory that can be written)", self.dir.display());
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
        let trial = self.dir.join(format!("{TEMPORARY}trial"));
        fs::create_dir(&trial).map_err(TrainError::io(doing()))?;
        fs::remove_dir(&trial).map_err(TrainError::io(doing()))
    }

    pub(crate) fn create(&self) -> io::Result<()> {
        run_files::create_dir_all(&self.dir)
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where the checkpoint after `update` updates is or would be.
    pub(crate) fn path(&self, update: u64) -> PathBuf {
        self.dir.join(format!("step-{update}"))
    }

    /// For comparing paths; itself where it does not exist.
    pub(crate) fn canonical(&self) -> PathBuf {
        fs::canonicalize(&self.dir).unwrap_or_else(|_| self.dir.clone())
    }

    /// The updates that checkpoints exist for, oldest first.
    pub(crate) fn steps(&self) -> Vec<u64> {
        let Ok(entries) = fs::read_dir(&self.dir) else { return Vec::new() };
        let mut steps: Vec<u64> = entries.filter_map(|entry| step_of(entry.ok()?.file_name().to_str()?)).collect();
        steps.sort_unstable();
        steps
    }

    /// The newest checkpoint, whether or not it is intact.
    pub fn newest(&self) -> Option<PathBuf> {
        self.steps().last().map(|&step| self.path(step))
    }

    pub(crate) fn newest_first(&self) -> Vec<PathBuf> {
        self.steps().into_iter().rev().map(|step| self.path(step)).collect()
    }

    /// The best checkpoint by the metric of the config.
    pub fn best(&self) -> Option<PathBuf> {
        fs::canonicalize(self.dir.join("best")).ok()
    }

    /// The checkpoint to use where none was named: the best, else the newest, of those whose model is intact.
    pub(crate) fn choose(&self) -> Result<Option<PathBuf>, TrainError> {
        let best = self.best();
        let is_other = |path: &PathBuf| fs::canonicalize(path).ok() != best;
        let others: Vec<PathBuf> = self.newest_first().into_iter().filter(is_other).collect();
        let paths: Vec<PathBuf> = best.into_iter().chain(others).collect();
        let found = first_intact(&paths, |path| verify(path, Part::Model))?;
        Ok(found.map(|(path, _)| path))
    }

    /// What a user means by `path`: a directory that holds weights, or of a run the one that [`Checkpoints::choose`] finds.
    /// It is intact.
    pub(crate) fn resolve(path: &Path) -> Result<PathBuf, TrainError> {
        if weights::are_at(path) {
            verify(path, Part::Model)?;
            return Ok(path.to_owned());
        }
        Checkpoints::at(path).choose()?.ok_or_else(|| {
            TrainError::Config(format!(
                "there is no checkpoint in {}: name a run or one of its checkpoints",
                path.display()
            ))
        })
    }

    /// Write the snapshot, then remove what `keep` does not cover. Where there is no room for it, older checkpoints are
    /// removed first, the oldest first; but the newest and the best never go before the new one is complete.
    pub(crate) fn save(&self, snapshot: &Snapshot, keep: usize) -> Result<Saved, Trouble> {
        let mut remarks = Vec::new();
        if !self.dir.exists() {
            remarks.push(format!("{} had vanished and was made anew", self.dir.display()));
        }
        let mut written = self.write(snapshot);
        let steps = self.steps();
        let mut expendable = retention::expendable(&steps, &self.protected(snapshot)).into_iter();
        let mut removed = 0;
        while written.as_ref().is_err_and(trouble::is_lack_of_room)
            && let Some(step) = expendable.next()
        {
            remarks.extend(self.remove(&[step]));
            removed += 1;
            written = self.write(snapshot);
        }
        // Some of them would have had to go now anyway.
        let too_many = steps.len().saturating_sub(keep.saturating_sub(1));
        if written.is_ok() && removed > too_many {
            remarks.push(format!(
                "the disk is too small for checkpoint.keep = {keep}: {removed} older checkpoints were removed to save this one"
            ));
        }
        let path = self.path(snapshot.update());
        written.map_err(|reason| Trouble::new(&path, reason, snapshot.size_bytes()))?;
        remarks.extend(self.link_from("last", snapshot.update()));
        if snapshot.is_best() {
            remarks.extend(self.link_from("best", snapshot.update()));
        }
        remarks.extend(self.remove(&retention::expired(&self.steps(), keep, &self.protected(snapshot))));
        Ok(Saved { path, remarks })
    }

    /// Write to a temporary name, then rename; what was written so far is removed if that fails.
    fn write(&self, snapshot: &Snapshot) -> io::Result<()> {
        let path = self.path(snapshot.update());
        let temporary = self.dir.join(format!("{TEMPORARY}step-{}", snapshot.update()));
        let write = || {
            if temporary.exists() {
                fs::remove_dir_all(&temporary)?;
            }
            if !self.dir.exists() {
                self.create()?;
            }
            write_files(&temporary, snapshot)?;
            if path.exists() {
                // Left by a try that failed after renaming, when the directory could not be flushed.
                self.discard(snapshot.update())?;
            }
            fs::rename(&temporary, &path)?;
            sync_dir(&self.dir)
        };
        write().inspect_err(|_| _ = fs::remove_dir_all(&temporary))
    }

    /// What must not be removed: the best by the snapshot's state, and what `best` leads to, which is another one as long
    /// as that is not written.
    fn protected(&self, snapshot: &Snapshot) -> Vec<u64> {
        let linked = fs::read_link(self.dir.join("best")).ok();
        let linked = linked.and_then(|path| path.to_str().and_then(step_of));
        snapshot.state.best.as_ref().map(|best| best.update).into_iter().chain(linked).collect()
    }

    /// Remove old checkpoints; what could not be removed is told.
    fn remove(&self, steps: &[u64]) -> Vec<String> {
        let failed = |&step: &u64| {
            let error = self.discard(step).err()?;
            Some(format!("the old checkpoint {} could not be removed: {error}", self.path(step).display()))
        };
        steps.iter().filter_map(failed).collect()
    }

    fn discard(&self, step: u64) -> io::Result<()> {
        // Renamed first: a checkpoint that is half removed must not look like one.
        let gone = self.dir.join(format!("{TEMPORARY}expired-{step}"));
        if gone.exists() {
            fs::remove_dir_all(&gone)?;
        }
        fs::rename(self.path(step), &gone)?;
        fs::remove_dir_all(&gone)
    }

    /// Renames a damaged checkpoint, so that it is neither used nor removed. Returns its new path.
    pub(crate) fn set_aside(&self, step: u64) -> io::Result<PathBuf> {
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

    /// Links are for people: a file system without them, or a full one, does not make a checkpoint worse.
    pub(crate) fn link_from(&self, name: &str, update: u64) -> Option<String> {
        let error = self.link(name, update).err()?;
        Some(format!("the link {} could not be set: {error}", self.dir.join(name).display()))
    }

    fn link(&self, name: &str, update: u64) -> io::Result<()> {
        let temporary = self.dir.join(format!(".{name}"));
        if fs::symlink_metadata(&temporary).is_ok() {
            fs::remove_file(&temporary)?;
        }
        fs_err::os::unix::fs::symlink(format!("step-{update}"), &temporary)?;
        fs::rename(&temporary, self.dir.join(name))
    }
}

/// The parameters, as other programs know them.
pub(crate) const WEIGHTS: &str = "model.safetensors";
/// The optimizer's state.
const SLOTS: &str = "trainer/optimizer.safetensors";
/// See [`State`].
pub(crate) const STATE: &str = "trainer/state.json";

/// How the names of directories begin that are not checkpoints yet, or no longer.
const TEMPORARY: &str = ".tmp-";

pub(crate) fn step_of(name: &str) -> Option<u64> {
    name.strip_prefix("step-")?.parse().ok()
}

fn write_files(dir: &Path, snapshot: &Snapshot) -> io::Result<()> {
    let trainer = dir.join("trainer");
    fs::create_dir_all(&trainer)?;
    write_flat(&dir.join(WEIGHTS), &snapshot.common.layout, &snapshot.parameters)?;
    tensors::write_slots(&dir.join(SLOTS), &snapshot.slots)?;
    fs::write(dir.join("config.toml"), &snapshot.common.config)?;
    fs::write(dir.join(STATE), serde_json::to_vec_pretty(&snapshot.state)?)?;
    for (name, content) in snapshot.common.files.iter() {
        fs::write(dir.join(name), content)?;
    }
    let mut names = vec![WEIGHTS, "config.toml", SLOTS, STATE];
    names.extend(snapshot.common.files.iter().map(|(name, _)| name.as_str()));
    let manifest = Manifest::of(snapshot, dir, &names)?;
    fs::write(dir.join(manifest::FILE), serde_json::to_vec_pretty(&manifest)?)?;
    for name in names.into_iter().chain([manifest::FILE]) {
        fs::File::open(dir.join(name))?.sync_all()?;
    }
    sync_dir(&trainer)?;
    sync_dir(dir)
}

/// Parameters, optimizer state and position of an intact checkpoint, for a model with this layout.
pub(crate) fn load(path: &Path, layout: &Layout) -> Result<Restored, TrainError> {
    let failed = |reason: String| TrainError::Checkpoint { path: path.to_owned(), reason };
    let manifest = verify(path, Part::All)?;
    let state = fs::read(path.join(STATE)).map_err(|error| verify::unreadable(path, STATE, error))?;
    let state = serde_json::from_slice(&state).map_err(|error| failed(format!("{STATE}: {error}")))?;
    verify::check_state(path, &state, manifest.as_ref())?;
    let slots = tensors::read_slots(&path.join(SLOTS)).map_err(failed)?;
    let as_they_are = |name: &str| Some(name.to_owned());
    let parameters = weights::read_all(&path.join(WEIGHTS), layout, &as_they_are).map_err(failed)?;
    Ok(Restored { parameters, slots, state, manifest })
}

#[cfg(test)]
pub(crate) mod tests;
