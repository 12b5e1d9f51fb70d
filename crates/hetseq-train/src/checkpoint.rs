//! Checkpoints: a directory is complete or absent. Written to a temporary name, flushed to the disk, then renamed.
//!
//! `checkpoints/step-N/` holds `model.safetensors`, the resolved `config.toml`, and `trainer/` with what only a resume
//! needs; `last` and `best` are links. Only rank 0 reads and writes; the others get what they need over the network.

mod retention;
mod tensors;

use std::path::{Path, PathBuf};

use fs_err as fs;
use hetseq_optim::Layout;

use crate::error::TrainError;
use crate::state::State;

pub(crate) use tensors::write_flat;

/// The `checkpoints` directory of a run.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    dir: PathBuf,
}

/// What is saved.
pub(crate) struct Snapshot<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) parameters: &'a [f32],
    pub(crate) slots: Vec<(String, &'a [f32])>,
    pub(crate) state: &'a State,
    pub(crate) config: &'a str,
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

    pub(crate) fn create(&self) -> std::io::Result<()> {
        fs::create_dir_all(&self.dir)
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
        let step = |name: &str| name.strip_prefix("step-")?.parse().ok();
        let mut steps: Vec<u64> = entries.filter_map(|entry| step(entry.ok()?.file_name().to_str()?)).collect();
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

    /// Write the snapshot and return where it is.
    pub(crate) fn save(&self, snapshot: &Snapshot<'_>) -> Result<PathBuf, TrainError> {
        let update = snapshot.state.cursor.updates;
        let path = self.path(update);
        let doing = || format!("saving {}", path.display());
        let temporary = self.dir.join(format!("{TEMPORARY}step-{update}"));
        if temporary.exists() {
            fs::remove_dir_all(&temporary).map_err(TrainError::io(doing()))?;
        }
        write(&temporary, snapshot).map_err(TrainError::io(doing()))?;
        fs::rename(&temporary, &path).map_err(TrainError::io(doing()))?;
        sync_dir(&self.dir).map_err(TrainError::io(doing()))?;
        self.link("last", update).map_err(TrainError::io(doing()))?;
        if snapshot.state.best.as_ref().is_some_and(|best| best.update == update) {
            self.link("best", update).map_err(TrainError::io(doing()))?;
        }
        Ok(path)
    }

    /// Remove what `keep` does not cover.
    pub(crate) fn prune(&self, keep: usize, best: Option<u64>) -> Result<(), TrainError> {
        for step in retention::expired(&self.steps(), keep, best) {
            // Renamed first: a checkpoint that is half removed must not look like one.
            let (path, gone) = (self.path(step), self.dir.join(format!("{TEMPORARY}expired-{step}")));
            let doing = || format!("removing the old checkpoint {}", path.display());
            fs::rename(&path, &gone).map_err(TrainError::io(doing()))?;
            fs::remove_dir_all(&gone).map_err(TrainError::io(doing()))?;
        }
        Ok(())
    }

    fn link(&self, name: &str, update: u64) -> std::io::Result<()> {
        let temporary = self.dir.join(format!(".{name}"));
        if fs::symlink_metadata(&temporary).is_ok() {
            fs::remove_file(&temporary)?;
        }
        fs_err::os::unix::fs::symlink(format!("step-{update}"), &temporary)?;
        fs::rename(&temporary, self.dir.join(name))
    }
}

/// How the names of directories begin that are not checkpoints yet, or no longer.
const TEMPORARY: &str = ".tmp-";

fn write(dir: &Path, snapshot: &Snapshot<'_>) -> std::io::Result<()> {
    let trainer = dir.join("trainer");
    fs::create_dir_all(&trainer)?;
    write_flat(&dir.join("model.safetensors"), snapshot.layout, snapshot.parameters)?;
    tensors::write_slots(&trainer.join("optimizer.safetensors"), &snapshot.slots)?;
    fs::write(dir.join("config.toml"), snapshot.config)?;
    fs::write(trainer.join("state.json"), serde_json::to_vec_pretty(snapshot.state)?)?;
    for file in ["model.safetensors", "config.toml", "trainer/optimizer.safetensors", "trainer/state.json"] {
        fs::File::open(dir.join(file))?.sync_all()?;
    }
    sync_dir(&trainer)?;
    sync_dir(dir)
}

fn sync_dir(dir: &Path) -> std::io::Result<()> {
    fs::File::open(dir)?.sync_all()
}

/// Only the parameters, for evaluation.
pub(crate) fn load_parameters(path: &Path, layout: &Layout) -> Result<Vec<f32>, TrainError> {
    tensors::read_flat(&path.join("model.safetensors"), layout)
        .map_err(|reason| TrainError::Checkpoint { path: path.to_owned(), reason })
}

/// Parameters, optimizer state and position.
pub(crate) fn load(path: &Path, layout: &Layout) -> Result<Restored, TrainError> {
    let failed = |reason: String| TrainError::Checkpoint { path: path.to_owned(), reason };
    let state = fs::read(path.join("trainer/state.json")).map_err(|error| failed(error.to_string()))?;
    let state = serde_json::from_slice(&state).map_err(|error| failed(format!("trainer/state.json: {error}")))?;
    let slots = tensors::read_slots(&path.join("trainer/optimizer.safetensors")).map_err(failed)?;
    Ok(Restored { parameters: load_parameters(path, layout)?, slots, state })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

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
            limits: Limits::default(),
            total_updates: None,
        }
    }

    fn layout() -> Layout {
        Layout::new([("a.weight".to_owned(), vec![2, 3]), ("a.bias".to_owned(), vec![2])]).unwrap()
    }

    fn save(checkpoints: &Checkpoints, update: u64, best: Option<u64>, value: f32) -> PathBuf {
        let (parameters, moments) = (vec![value; 8], vec![2.0 * value; 8]);
        let slots = vec![("exp_avg".to_owned(), &moments[..])];
        let state = state(update, best);
        let layout = layout();
        let snapshot = Snapshot { layout: &layout, parameters: &parameters, slots, state: &state, config: "[run]\n" };
        checkpoints.save(&snapshot).unwrap()
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
            save(&checkpoints, update, Some(5), 1.0);
        }
        checkpoints.prune(2, Some(5)).unwrap();
        assert_eq!(checkpoints.steps(), [5, 15, 20]);
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
