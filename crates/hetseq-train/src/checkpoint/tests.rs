//! Checkpoints are complete, load as they were saved, and do not affect other files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fs_err as fs;
use hetseq_data::Cursor;
use hetseq_optim::Layout;

use super::manifest::CheckpointManifest;
use super::*;
use crate::error::TrainError;
use crate::trainer::state::{Best, FORMAT, PlanKeys, RunLimits, State};

fn state(update: u64, best: Option<u64>) -> State {
    State {
        format: FORMAT,
        version: "0".to_owned(),
        task: "toy".to_owned(),
        run: None,
        cursor: Cursor { updates: update, ..Cursor::default() },
        schedule_start: 0,
        schedule_epoch: 0,
        optimizer: "adam".to_owned(),
        scalars: BTreeMap::from([("beta1_power".to_owned(), 0.1f64.powi(7) / 3.0)]),
        plan: PlanKeys { seed: 1, global: "8".to_owned(), curriculum_epochs: 0, data: String::new() },
        data: None,
        best: best.map(|update| Best { metric: "loss".to_owned(), value: 0.1, update, since: 0 }),
        record: None,
        loss_scale: Default::default(),
        limits: RunLimits::default(),
        total_updates: None,
    }
}

fn layout() -> Layout {
    Layout::new([("a.weight".to_owned(), vec![2, 3]), ("a.bias".to_owned(), vec![2])]).unwrap()
}

fn constants() -> Arc<RunConstants> {
    let files = vec![("config.json".to_owned(), b"{}".to_vec())];
    Arc::new(RunConstants { layout: Arc::new(layout()), config: "[run]\n".to_owned(), files })
}

pub(crate) fn snapshot(update: u64, best: Option<u64>, value: f32) -> Snapshot {
    let (parameters, moments) = (vec![value; 8], vec![2.0 * value; 8]);
    let slots = [("exp_avg".to_owned(), &moments[..])];
    Snapshot::take(&constants(), &state(update, best), &parameters, &slots, None)
}

fn save(checkpoints: &Checkpoints, update: u64, best: Option<u64>, value: f32) -> PathBuf {
    let saved = checkpoints.save(&snapshot(update, best, value), 10).unwrap();
    assert_eq!(saved.warnings, [] as [&str; 0]);
    saved.path
}

#[test]
fn a_saved_checkpoint_loads_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::at(dir.path());
    checkpoints.prepare().unwrap();
    let path = save(&checkpoints, 5, Some(5), 1.25);
    let restored = load(&path, &layout()).unwrap();
    assert_eq!(restored.parameters, [1.25; 8]);
    assert_eq!(restored.slots, [("exp_avg".to_owned(), vec![2.5; 8])]);
    assert_eq!(restored.state, state(5, Some(5)));
    assert_eq!(fs::read(path.join("config.json")).unwrap(), b"{}");
    // The same permissions as any other file of the user.
    let mode = |name: &str| fs::metadata(path.join(name)).unwrap().permissions();
    assert_eq!(mode("model.safetensors"), mode("config.toml"));
    assert_eq!(checkpoints.newest().unwrap(), Some(path.clone()));
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
    assert_eq!(checkpoints.steps().unwrap(), [5, 15, 20]);
    checkpoints.save(&snapshot(25, Some(25), 1.0), 2).unwrap();
    assert_eq!(checkpoints.steps().unwrap(), [20, 25]);
    // The best after update 30 was never written: the target of the `best` link stays.
    for update in [35, 40, 45] {
        checkpoints.save(&snapshot(update, Some(30), 1.0), 2).unwrap();
    }
    assert_eq!(checkpoints.steps().unwrap(), [25, 40, 45]);
}

#[test]
fn a_failed_save_keeps_the_others_and_leaves_no_partial_files() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::at(dir.path());
    checkpoints.prepare().unwrap();
    let good = save(&checkpoints, 5, None, 1.0);
    // Blocks the final rename, and cannot be deleted because of the file below.
    let path = checkpoints.path(10);
    fs::create_dir(&path).unwrap();
    fs::write(checkpoints.dir.join(".tmp-expired-10"), "").unwrap();
    let save_error = checkpoints.save(&snapshot(10, None, 2.0), 1).unwrap_err().to_string();
    assert!(save_error.starts_with(&format!("saving {}: ", path.display())), "{save_error}");
    assert!(!checkpoints.dir.join(".tmp-step-10").exists());
    assert_eq!(load(&good, &layout()).unwrap().parameters, [1.0; 8]);
    assert_eq!(fs::read_link(checkpoints.dir.join("last")).unwrap(), Path::new("step-5"));
    fs::remove_file(checkpoints.dir.join(".tmp-expired-10")).unwrap();
    save(&checkpoints, 10, None, 2.0);
    assert_eq!(fs::read_link(checkpoints.dir.join("last")).unwrap(), Path::new("step-10"));
}

#[test]
fn a_directory_that_cannot_be_listed_is_not_an_empty_one() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::at(dir.path());
    assert_eq!(checkpoints.steps().unwrap(), [] as [u64; 0]);
    fs_err::os::unix::fs::symlink("checkpoints", &checkpoints.dir).unwrap();
    let error = checkpoints.newest_first().unwrap_err().to_string();
    assert!(error.starts_with("listing the checkpoints (") && error.contains("symbolic links"), "{error}");
}

#[test]
fn a_missing_directory_is_created_again() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::at(&dir.path().join("run"));
    checkpoints.prepare().unwrap();
    save(&checkpoints, 5, None, 1.0);
    fs::remove_dir_all(dir.path().join("run")).unwrap();
    let saved = checkpoints.save(&snapshot(10, None, 2.0), 1).unwrap();
    assert!(saved.warnings[0].contains("was missing and has been created again"), "{:?}", saved.warnings);
    assert_eq!(load(&saved.path, &layout()).unwrap().parameters, [2.0; 8]);
}

#[test]
fn an_old_checkpoint_that_cannot_be_removed_is_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::at(dir.path());
    checkpoints.prepare().unwrap();
    save(&checkpoints, 5, None, 1.0);
    // A file in place of the directory's temporary name.
    fs::write(checkpoints.dir.join(".tmp-expired-5"), "").unwrap();
    let saved = checkpoints.save(&snapshot(10, None, 2.0), 1).unwrap();
    assert!(saved.warnings[0].contains("step-5 could not be removed"), "{:?}", saved.warnings);
    assert_eq!(checkpoints.newest().unwrap(), Some(saved.path));
}

#[test]
fn a_snapshot_reuses_buffers_without_their_content() {
    let first = snapshot(5, None, 1.0);
    let at = first.parameters.as_ptr();
    let (parameters, moments) = (vec![3.0; 8], vec![4.0; 8]);
    let slots = [("buffer".to_owned(), &moments[..])];
    let second = Snapshot::take(&constants(), &state(6, None), &parameters, &slots, Some(first));
    assert_eq!((second.parameters.as_ptr(), &second.parameters), (at, &parameters));
    assert_eq!(second.slots, [("buffer".to_owned(), moments)]);
}

#[test]
fn partial_checkpoints_of_a_killed_process_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::at(dir.path());
    checkpoints.prepare().unwrap();
    let half = dir.path().join("checkpoints/.tmp-step-9");
    fs::create_dir_all(half.join("trainer")).unwrap();
    assert_eq!(checkpoints.newest().unwrap(), None);
    checkpoints.prepare().unwrap();
    assert!(!half.exists());
}

#[test]
fn errors_name_the_wrong_tensor_or_damaged_file() {
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

/// Why a checkpoint counts as damaged. `None` if it loads.
fn damage(path: &Path) -> Option<String> {
    match load(path, &layout()) {
        Ok(_) => None,
        Err(TrainError::Damaged { reason, .. }) => Some(reason),
        Err(error) => panic!("{error}"),
    }
}

const FILES: [&str; 6] = [
    "model.safetensors",
    "config.json",
    "config.toml",
    "trainer/optimizer.safetensors",
    "trainer/state.json",
    "trainer/manifest.json",
];

/// With `old`, in the format of versions without a manifest.
fn one_checkpoint(dir: &Path, old: bool) -> PathBuf {
    let checkpoints = Checkpoints::at(dir);
    checkpoints.prepare().unwrap();
    let path = save(&checkpoints, 5, None, 1.0);
    if old {
        fs::remove_file(path.join(FILES[5])).unwrap();
    }
    path
}

#[test]
fn every_flipped_bit_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = one_checkpoint(dir.path(), false);
    for name in FILES {
        let file = path.join(name);
        let whole = fs::read(&file).unwrap();
        for at in [0, whole.len() / 2, whole.len() - 2] {
            let mut bytes = whole.clone();
            bytes[at] ^= 4;
            fs::write(&file, &bytes).unwrap();
            assert!(damage(&path).is_some(), "{name} at {at}");
            // Files that only a resume needs are not checked otherwise.
            let is_used = !name.starts_with("trainer/") || name == FILES[5];
            assert_eq!(verify(&path, CheckpointPart::Model).is_err(), is_used, "{name}");
        }
        fs::write(&file, whole).unwrap();
    }
    assert_eq!(damage(&path), None);
}

#[test]
fn every_flipped_bit_of_a_manifest_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let whole = fs::read(one_checkpoint(dir.path(), false).join(FILES[5])).unwrap();
    assert!(CheckpointManifest::from_json(&whole).is_ok());
    for bit in 0..8 * whole.len() {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(CheckpointManifest::from_json(&bytes).is_err(), "{}", String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn a_manifest_without_a_hash_is_one_of_an_older_version() {
    let dir = tempfile::tempdir().unwrap();
    let path = one_checkpoint(dir.path(), false);
    let manifest = load(&path, &layout()).unwrap().manifest.unwrap();
    fs::write(path.join(FILES[5]), serde_json::to_vec_pretty(&manifest).unwrap()).unwrap();
    assert_eq!(load(&path, &layout()).unwrap().manifest, Some(manifest));
}

#[test]
fn truncated_missing_or_foreign_files_are_found() {
    for old in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = one_checkpoint(dir.path(), old);
        assert_eq!(damage(&path), None);
        for name in [FILES[0], FILES[3], FILES[4]] {
            let whole = fs::read(path.join(name)).unwrap();
            for length in [0, whole.len() / 2, whole.len() - 1] {
                fs::write(path.join(name), &whole[..length]).unwrap();
                assert!(damage(&path).unwrap().contains(name), "{name} {length}");
            }
            fs::remove_file(path.join(name)).unwrap();
            assert_eq!(damage(&path).unwrap(), format!("{name} is missing"));
            fs::write(path.join(name), whole).unwrap();
        }
        let other = Checkpoints::at(dir.path()).path(9);
        fs::rename(&path, &other).unwrap();
        assert_eq!(damage(&other).unwrap(), "it holds update 5, not update 9");
        // A copy may have any other name.
        let copy = dir.path().join("copy");
        fs::rename(&other, &copy).unwrap();
        assert_eq!(damage(&copy), None);
        let mut state = state(6, None);
        state.task = "other".to_owned();
        let manifest = CheckpointManifest {
            format: manifest::FORMAT,
            update: 6,
            task: "toy".to_owned(),
            layout: String::new(),
            files: BTreeMap::new(),
        };
        assert!(matches!(verify::check_state(&copy, &state, Some(&manifest)), Err(TrainError::Damaged { .. })));
    }
}

#[test]
fn a_model_without_tensors_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let path = one_checkpoint(dir.path(), true);
    write_flat(&path.join(WEIGHTS), &Layout::new([]).unwrap(), &[]).unwrap();
    assert_eq!(damage(&path).unwrap(), "model.safetensors holds no tensors");
}

#[test]
fn the_first_intact_checkpoint_of_a_run_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::at(dir.path());
    checkpoints.prepare().unwrap();
    for (update, best) in [(2, 2), (4, 4), (6, 4)] {
        save(&checkpoints, update, Some(best), 1.0);
    }
    let chosen = || Checkpoints::resolve(dir.path()).map(|path| path.file_name().unwrap().to_owned());
    let break_it = |update: u64| fs::write(checkpoints.path(update).join(WEIGHTS), "").unwrap();
    assert_eq!(chosen().unwrap(), "step-4");
    break_it(4);
    assert_eq!(chosen().unwrap(), "step-6");
    let newest = || first_intact(&checkpoints.newest_first().unwrap(), |path| load(path, &layout()));
    break_it(6);
    assert!(newest().unwrap().unwrap().0.ends_with("step-2"));
    // A checkpoint that the user names must be intact.
    assert!(matches!(Checkpoints::resolve(&checkpoints.path(6)), Err(TrainError::Damaged { .. })));
    assert!(matches!(Checkpoints::resolve(&checkpoints.dir.join("best")), Err(TrainError::Damaged { .. })));
    break_it(2);
    assert!(matches!(newest(), Err(TrainError::Damaged { path, .. }) if path.ends_with("step-6")));
    assert!(chosen().is_err());
    assert!(first_intact(&[], |path| load(path, &layout())).unwrap().is_none());
}

#[test]
fn a_different_model_is_not_damage() {
    let dir = tempfile::tempdir().unwrap();
    let path = one_checkpoint(dir.path(), false);
    let other = Layout::new([("b".to_owned(), vec![1])]).unwrap();
    assert!(matches!(load(&path, &other), Err(TrainError::Checkpoint { .. })));
    let manifest = load(&path, &layout()).unwrap().manifest.unwrap();
    assert!(manifest.has_layout(layout().hash()) && !manifest.has_layout(other.hash()));
}

#[test]
fn a_damaged_checkpoint_is_kept_under_another_name() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::at(dir.path());
    checkpoints.prepare().unwrap();
    for name in ["damaged-step-5", "damaged-step-5-2"] {
        save(&checkpoints, 5, None, 1.0);
        assert!(checkpoints.rename_damaged(5).unwrap().ends_with(name));
    }
    assert_eq!(checkpoints.steps().unwrap(), [] as [u64; 0]);
    checkpoints.prepare().unwrap();
    assert!(checkpoints.dir.join("damaged-step-5/model.safetensors").is_file());
}
