//! Checkpoints: a directory is complete or absent. Written to a temporary name, flushed to the disk, then renamed.
//!
//! `checkpoints/step-N/` holds `model.safetensors`, what the task lays beside it for other programs, the resolved
//! `config.toml`, and `trainer/` with what only a resume needs; `last` and `best` are links. Only rank 0 reads and writes; the others get what they need over the network.
//! Here is what happens on the disk; `saver.rs` has it done in the background.

mod retention;
mod room;
mod saver;
mod snapshot;
mod tensors;
mod trouble;

use std::io;
use std::path::{Path, PathBuf};

use fs_err as fs;
use hetseq_optim::Layout;

use crate::error::TrainError;
use crate::state::State;
use crate::weights;

pub(crate) use room::free_bytes;
pub(crate) use saver::{News, RETRY, Saver};
pub(crate) use snapshot::{Common, Snapshot, size_bytes};
pub(crate) use tensors::write_flat;
pub use trouble::Trouble;

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
        fs::create_dir_all(&self.dir)
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

    /// The newest checkpoint.
    pub fn newest(&self) -> Option<PathBuf> {
        self.steps().last().map(|&step| self.path(step))
    }

    /// The best checkpoint by the metric of the config.
    pub fn best(&self) -> Option<PathBuf> {
        fs::canonicalize(self.dir.join("best")).ok()
    }

    /// What a user means by `path`: a directory that holds weights, or of a run the best checkpoint, else the newest.
    pub(crate) fn resolve(path: &Path) -> Result<PathBuf, TrainError> {
        if weights::are_at(path) {
            return Ok(path.to_owned());
        }
        let run = Checkpoints::at(path);
        run.best().or_else(|| run.newest()).ok_or_else(|| {
            TrainError::Config(format!(
                "there is no checkpoint in {}: name a run or one of its checkpoints",
                path.display()
            ))
        })
    }

    /// Write the snapshot, then remove what `keep` does not cover. Where there is no room, what would then be removed goes
    /// first; but the newest checkpoint and the best never go before the new one is complete.
    pub(crate) fn save(&self, snapshot: &Snapshot, keep: usize) -> Result<Saved, Trouble> {
        let mut remarks = Vec::new();
        if !self.dir.exists() {
            remarks.push(format!("{} had vanished and was made anew", self.dir.display()));
        }
        let mut written = self.write(snapshot);
        if written.as_ref().is_err_and(trouble::is_lack_of_room) {
            let expendable = retention::expendable(&self.steps(), keep, &self.protected(snapshot));
            if !expendable.is_empty() {
                remarks.extend(self.remove(&expendable));
                written = self.write(snapshot);
            }
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

/// How the names of directories begin that are not checkpoints yet, or no longer.
const TEMPORARY: &str = ".tmp-";

pub(crate) fn step_of(name: &str) -> Option<u64> {
    name.strip_prefix("step-")?.parse().ok()
}

fn write_files(dir: &Path, snapshot: &Snapshot) -> io::Result<()> {
    let trainer = dir.join("trainer");
    fs::create_dir_all(&trainer)?;
    write_flat(&dir.join(WEIGHTS), &snapshot.common.layout, &snapshot.parameters)?;
    tensors::write_slots(&trainer.join("optimizer.safetensors"), &snapshot.slots)?;
    fs::write(dir.join("config.toml"), &snapshot.common.config)?;
    fs::write(trainer.join("state.json"), serde_json::to_vec_pretty(&snapshot.state)?)?;
    for (name, content) in snapshot.common.files.iter() {
        fs::write(dir.join(name), content)?;
    }
    let own = [WEIGHTS, "config.toml", "trainer/optimizer.safetensors", "trainer/state.json"];
    for file in own.into_iter().chain(snapshot.common.files.iter().map(|(name, _)| name.as_str())) {
        fs::File::open(dir.join(file))?.sync_all()?;
    }
    sync_dir(&trainer)?;
    sync_dir(dir)
}

pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    fs::File::open(dir)?.sync_all()
}

/// Parameters, optimizer state and position.
pub(crate) fn load(path: &Path, layout: &Layout) -> Result<Restored, TrainError> {
    let failed = |reason: String| TrainError::Checkpoint { path: path.to_owned(), reason };
    let state = fs::read(path.join("trainer/state.json")).map_err(|error| failed(error.to_string()))?;
    let state = serde_json::from_slice(&state).map_err(|error| failed(format!("trainer/state.json: {error}")))?;
    let slots = tensors::read_slots(&path.join("trainer/optimizer.safetensors")).map_err(failed)?;
    let as_they_are = |name: &str| Some(name.to_owned());
    let parameters = weights::read_all(&path.join(WEIGHTS), layout, &as_they_are).map_err(failed)?;
    Ok(Restored { parameters, slots, state })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use hetseq_data::Cursor;

    use super::*;
    use crate::state::{Best, FORMAT, Limits, PlanKeys};

    fn state(update: u64, best: Option<u64>) -> State {
        State {
            format: FORMAT,
            version: "0".to_owned(),
            task: "toy".to_owned(),
            cursor: Cursor { updates: update, ..Cursor::default() },
            schedule_start: 0,
            schedule_epoch: 0,
            optimizer: "adam".to_owned(),
            scalars: BTreeMap::from([("beta1_power".to_owned(), 0.1f64.powi(7) / 3.0)]),
            plan: PlanKeys { seed: 1, global: "8".to_owned(), curriculum_epochs: 0, data: String::new() },
            best: best.map(|update| Best { metric: "loss".to_owned(), value: 0.1, update, since: 0 }),
            loss_scale: Default::default(),
            limits: Limits::default(),
            total_updates: None,
        }
    }

    fn layout() -> Layout {
        Layout::new([("a.weight".to_owned(), vec![2, 3]), ("a.bias".to_owned(), vec![2])]).unwrap()
    }

    fn common() -> Arc<Common> {
        let files = vec![("config.json".to_owned(), b"{}".to_vec())];
        Arc::new(Common { layout: Arc::new(layout()), config: "[run]\n".to_owned(), files })
    }

    pub(crate) fn snapshot(update: u64, best: Option<u64>, value: f32) -> Snapshot {
        let (parameters, moments) = (vec![value; 8], vec![2.0 * value; 8]);
        let slots = [("exp_avg".to_owned(), &moments[..])];
        Snapshot::take(&common(), &state(update, best), &parameters, &slots, None)
    }

    fn save(checkpoints: &Checkpoints, update: u64, best: Option<u64>, value: f32) -> PathBuf {
        let saved = checkpoints.save(&snapshot(update, best, value), 10).unwrap();
        assert_eq!(saved.remarks, [] as [&str; 0]);
        saved.path
    }

    #[test]
    fn what_is_saved_is_what_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::at(dir.path());
        checkpoints.prepare().unwrap();
        let path = save(&checkpoints, 5, Some(5), 1.25);
        let restored = load(&path, &layout()).unwrap();
        assert_eq!(restored.parameters, [1.25; 8]);
        assert_eq!(restored.slots, [("exp_avg".to_owned(), vec![2.5; 8])]);
        assert_eq!(restored.state, state(5, Some(5)));
        assert_eq!(fs::read(path.join("config.json")).unwrap(), b"{}");
        // As readable as any other file that the user makes.
        let mode = |name: &str| fs::metadata(path.join(name)).unwrap().permissions();
        assert_eq!(mode("model.safetensors"), mode("config.toml"));
        assert_eq!(checkpoints.newest(), Some(path.clone()));
        assert_eq!(checkpoints.best(), Some(fs::canonicalize(path).unwrap()));
    }

    #[test]
    fn pruning_keeps_the_newest_and_the_best() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::at(dir.path());
        checkpoints.prepare().unwrap();
        for update in [5, 10, 15, 20] {
            checkpoints.save(&snapshot(update, Some(5), 1.0), 2).unwrap();
        }
        assert_eq!(checkpoints.steps(), [5, 15, 20]);
        checkpoints.save(&snapshot(25, Some(25), 1.0), 2).unwrap();
        assert_eq!(checkpoints.steps(), [20, 25]);
        // The best after update 30 was never written: the one that `best` leads to stays.
        for update in [35, 40, 45] {
            checkpoints.save(&snapshot(update, Some(30), 1.0), 2).unwrap();
        }
        assert_eq!(checkpoints.steps(), [25, 40, 45]);
    }

    #[test]
    fn a_save_that_fails_leaves_the_others_alone_and_nothing_half_written() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::at(dir.path());
        checkpoints.prepare().unwrap();
        let good = save(&checkpoints, 5, None, 1.0);
        // In the way of the rename at the end, and not to be discarded.
        let path = checkpoints.path(10);
        fs::create_dir(&path).unwrap();
        fs::write(checkpoints.dir.join(".tmp-expired-10"), "").unwrap();
        let trouble = checkpoints.save(&snapshot(10, None, 2.0), 1).unwrap_err().to_string();
        assert!(trouble.starts_with(&format!("saving {}: ", path.display())), "{trouble}");
        assert!(!checkpoints.dir.join(".tmp-step-10").exists());
        assert_eq!(load(&good, &layout()).unwrap().parameters, [1.0; 8]);
        assert_eq!(fs::read_link(checkpoints.dir.join("last")).unwrap(), Path::new("step-5"));
        fs::remove_file(checkpoints.dir.join(".tmp-expired-10")).unwrap();
        save(&checkpoints, 10, None, 2.0);
        assert_eq!(fs::read_link(checkpoints.dir.join("last")).unwrap(), Path::new("step-10"));
    }

    #[test]
    fn a_directory_that_vanished_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::at(&dir.path().join("run"));
        checkpoints.prepare().unwrap();
        save(&checkpoints, 5, None, 1.0);
        fs::remove_dir_all(dir.path().join("run")).unwrap();
        let saved = checkpoints.save(&snapshot(10, None, 2.0), 1).unwrap();
        assert!(saved.remarks[0].contains("had vanished"), "{:?}", saved.remarks);
        assert_eq!(load(&saved.path, &layout()).unwrap().parameters, [2.0; 8]);
    }

    #[test]
    fn an_old_checkpoint_that_cannot_be_removed_is_a_remark() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::at(dir.path());
        checkpoints.prepare().unwrap();
        save(&checkpoints, 5, None, 1.0);
        // A file where the directory would go to.
        fs::write(checkpoints.dir.join(".tmp-expired-5"), "").unwrap();
        let saved = checkpoints.save(&snapshot(10, None, 2.0), 1).unwrap();
        assert!(saved.remarks[0].contains("step-5 could not be removed"), "{:?}", saved.remarks);
        assert_eq!(checkpoints.newest(), Some(saved.path));
    }

    #[test]
    fn a_snapshot_uses_the_buffers_of_another_and_keeps_nothing_of_it() {
        let first = snapshot(5, None, 1.0);
        let at = first.parameters.as_ptr();
        let (parameters, moments) = (vec![3.0; 8], vec![4.0; 8]);
        let slots = [("buffer".to_owned(), &moments[..])];
        let second = Snapshot::take(&common(), &state(6, None), &parameters, &slots, Some(first));
        assert_eq!((second.parameters.as_ptr(), &second.parameters), (at, &parameters));
        assert_eq!(second.slots, [("buffer".to_owned(), moments)]);
    }

    #[test]
    fn what_a_killed_process_left_is_no_checkpoint_and_is_cleared() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::at(dir.path());
        checkpoints.prepare().unwrap();
        let half = dir.path().join("checkpoints/.tmp-step-9");
        fs::create_dir_all(half.join("trainer")).unwrap();
        assert_eq!(checkpoints.newest(), None);
        checkpoints.prepare().unwrap();
        assert!(!half.exists());
    }

    #[test]
    fn another_model_or_a_damaged_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::at(dir.path());
        checkpoints.prepare().unwrap();
        let path = save(&checkpoints, 1, None, 1.0);
        let other = Layout::new([("a.weight".to_owned(), vec![3, 2])]).unwrap();
        let error = load(&path, &other).err().unwrap().to_string();
        assert!(error.contains("a.weight") && error.contains("[2, 3]"), "{error}");
        let missing = Layout::new([("b".to_owned(), vec![1])]).unwrap();
        assert!(load(&path, &missing).err().unwrap().to_string().contains("b"));
        fs::write(path.join("model.safetensors"), b"short").unwrap();
        assert!(load(&path, &layout()).err().unwrap().to_string().contains("model.safetensors"));
    }
}
