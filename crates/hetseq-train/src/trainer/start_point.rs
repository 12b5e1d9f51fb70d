//! Rank 0's part of starting a run: finds the checkpoint to resume from or initial parameters, and
//! prepares the run directory. Called by `setup.rs`, which asks the other ranks for a newer one
//! (`newer_checkpoint.rs`) and hands the result to all ranks.

use std::path::{Path, PathBuf};

use fs_err as fs;
use hetseq_metrics::Change;
use hetseq_optim::Layout;

use crate::checkpoint::finite::state_not_finite;
use crate::checkpoint::weights;
use crate::checkpoint::{self, CheckpointPart, Checkpoints, Restored, STATE, first_intact, verify};
use crate::config::rank_match;
use crate::config::{Reset, Resume, RunConfig};
use crate::error::TrainError;
use crate::run::{RunOptions, check_exists};
use crate::run_dir::archive::archive_run;
use crate::run_dir::events::at_update;
use crate::run_dir::run_files::{new_run_id, run_in, write_run_files};
use crate::task::OpenedTask;
use crate::trainer::session::Session;
use crate::trainer::state::State;

/// Where rank 0 would start, by its own run directory.
pub(super) struct StartPoint {
    pub(super) restored: Restored,
    /// The checkpoint that was restored; none for a new run.
    pub(super) path: Option<PathBuf>,
    /// The id of the run in the directory, if that run would continue; none if there is none, or
    /// one of an older version.
    pub(super) run: Option<String>,
    pub(super) archive: Archive,
    /// The update of this run's best checkpoint, if that is damaged.
    pub(super) damaged_best: Option<u64>,
}

/// Which files of an earlier run to archive, because the new run would contradict them. They are
/// moved only after all checks have passed.
pub(super) enum Archive {
    Nothing,
    All,
    /// Checkpoints of later updates than this one.
    After(u64),
}

/// Finds the checkpoint to resume from, or initial parameters. Changes nothing on disk.
pub(super) fn find_start_point(
    session: &Session,
    dir: &Path,
    checkpoints: &Checkpoints,
    new_state: &State,
    config: &RunConfig,
    options: &RunOptions,
) -> Result<StartPoint, TrainError> {
    let paths = checkpoints_to_resume(checkpoints, options)?;
    let Some((path, restored)) = first_intact(&paths, |path| checkpoint::load(path, &session.layout))? else {
        let parameters = initial_parameters(session, config.run.seed)?;
        let state = State { run: Some(new_run_id()?), ..new_state.clone() };
        let restored = Restored { parameters, slots: Vec::new(), state, manifest: None };
        // Of a run that saved nothing here.
        let (archive, run) = match options.resume {
            Resume::Never => (Archive::All, None),
            _ => (Archive::Nothing, run_in(dir)),
        };
        return Ok(StartPoint { restored, path: None, run, archive, damaged_best: None });
    };
    let run = restored.state.run.clone();
    let mut restored = resume_state(session, &path, restored, new_state, options.reset)?;
    let updates = restored.state.cursor.updates;
    let is_own = path.canonicalize().is_ok_and(|path| path.starts_with(checkpoints.canonical()));
    if options.resume != Resume::Auto {
        // Later checkpoints of the run, on other ranks, are of a branch that the user has left.
        restored.state.run = Some(new_run_id()?);
    }
    restored.state.record.take_if(|_| !is_own);
    let archive = if is_own { Archive::After(updates) } else { Archive::All };
    let steps = if is_own { checkpoints.steps()? } else { Vec::new() };
    let damaged_best = keep_best(&steps, checkpoints, &mut restored.state)?;
    Ok(StartPoint { restored, path: Some(path), run, archive, damaged_best })
}

/// The checkpoints that a run may resume from, the first one that is intact; none for a new run.
pub(super) fn checkpoints_to_resume(
    checkpoints: &Checkpoints,
    options: &RunOptions,
) -> Result<Vec<PathBuf>, TrainError> {
    match &options.resume {
        Resume::Auto => checkpoints.newest_first(),
        Resume::Never => Ok(Vec::new()),
        // A run directory means its newest checkpoint.
        Resume::From(path) => match Checkpoints::at(path).newest_first()? {
            paths if paths.is_empty() => {
                check_exists(path, STATE, checkpoints)?;
                Ok(vec![path.clone()])
            }
            paths => Ok(paths),
        },
    }
}

/// The checkpoint at `path` as the start of this process. `new_state` is that of a new run.
pub(super) fn resume_state(
    session: &Session,
    path: &Path,
    mut restored: Restored,
    new_state: &State,
    reset: Reset,
) -> Result<Restored, TrainError> {
    restored.state = restored
        .state
        .resumed(new_state, reset)
        .map_err(|reason| TrainError::Config(format!("cannot resume from {}: {reason}", path.display())))?;
    if reset.optimizer {
        restored.slots.clear();
    } else {
        check_optimizer_state(&restored, &session.layout, || config_changes_since(path, &session.task))
            .map_err(TrainError::checkpoint(path))?;
    }
    // With a reset, other ranks' checkpoints of the run are no later states of this one.
    if restored.state.run.is_none() || reset != Reset::default() {
        restored.state.run = Some(new_run_id()?);
    }
    Ok(restored)
}

/// Forgets the best checkpoint unless it is one of `steps` that stay in this directory: what is not
/// there cannot be linked. Returns its update if it is damaged.
pub(super) fn keep_best(
    steps: &[u64],
    checkpoints: &Checkpoints,
    state: &mut State,
) -> Result<Option<u64>, TrainError> {
    let updates = state.cursor.updates;
    state.best.take_if(|best| best.update > updates || !steps.contains(&best.update));
    drop_damaged_best(checkpoints, state)
}

/// Checks that the optimizer's state fits `layout` and is finite. It has no parameter names: its
/// values are in the order of the layout. `changes` are those of the config.
fn check_optimizer_state(
    restored: &Restored,
    layout: &Layout,
    changes: impl FnOnce() -> Vec<Change>,
) -> Result<(), String> {
    const DROP: &str = "Drop the optimizer's state with --reset optimizer";
    if restored.manifest.as_ref().is_some_and(|manifest| !manifest.has_layout(layout.hash())) {
        return Err(match changes().into_iter().find(|change| change.key == "optim.frozen") {
            Some(Change { was, is, .. }) => {
                let [was, is] = [was, is].map(|value| value.unwrap_or_else(|| "[]".to_owned()));
                format!(
                    "optim.frozen was {was} and is {is} now, so its optimizer state is of other parameters. Set it \
                     back, or drop the state with --reset optimizer"
                )
            }
            None => format!("its model has other parameters, or another order of them, than this config's. {DROP}"),
        });
    }
    let slots = restored.slots.iter().map(|(name, values)| (name.as_str(), &values[..]));
    state_not_finite(layout, slots)
        .map_or(Ok(()), |what| Err(format!("{what}. {DROP}, or resume from an earlier checkpoint")))
}

/// Forgets the best checkpoint if it is damaged: the next validation is the best. Returns its
/// update. One that fails to read may be intact, and would be removed later: that is an error.
fn drop_damaged_best(checkpoints: &Checkpoints, state: &mut State) -> Result<Option<u64>, TrainError> {
    let Some(update) = state.best.as_ref().map(|best| best.update) else { return Ok(None) };
    // It was just loaded, so it is intact.
    if update == state.cursor.updates {
        return Ok(None);
    }
    let error = match verify(&checkpoints.path(update), CheckpointPart::Model) {
        Ok(_) => return Ok(None),
        Err(error @ TrainError::Io { .. }) => return Err(error),
        Err(error) => error,
    };
    tracing::warn!("the best checkpoint cannot be used, the next validation sets a new one: {error}");
    state.best = None;
    Ok(matches!(error, TrainError::Damaged { .. }).then_some(update))
}

/// Moves files that do not belong to the new run out of its way.
pub(super) fn archive_old_files(
    dir: &Path,
    checkpoints: &Checkpoints,
    archive: &Archive,
    damaged_best: Option<u64>,
) -> Result<(), TrainError> {
    let (what, after) = match archive {
        Archive::Nothing => return rename_damaged_best(checkpoints, damaged_best),
        Archive::All => ("the previous run".to_owned(), None),
        Archive::After(updates) => (format!("checkpoints after {}", at_update(*updates)), Some(*updates)),
    };
    if let Some(archive) = archive_run(dir, after)? {
        tracing::info!("moved {what} from {} to {}", dir.display(), archive.display());
    }
    rename_damaged_best(checkpoints, damaged_best)
}

fn rename_damaged_best(checkpoints: &Checkpoints, damaged_best: Option<u64>) -> Result<(), TrainError> {
    if let Some(step) = damaged_best.filter(|&step| checkpoints.path(step).exists()) {
        let doing = format!("renaming the damaged checkpoint {}", checkpoints.path(step).display());
        let path = checkpoints.rename_damaged(step).map_err(TrainError::io(doing))?;
        tracing::warn!("the damaged checkpoint is kept as {}", path.display());
    }
    Ok(())
}

/// Prepares the run directory after all checks have passed: links, config and environment.
pub(super) fn prepare_run_dir(
    dir: &Path,
    checkpoints: &Checkpoints,
    config_text: &str,
    world: usize,
    state: &State,
) -> Result<(), TrainError> {
    checkpoints.prepare()?;
    let best = state.best.as_ref().map(|best| best.update);
    let links = [("last", checkpoints.steps()?.last().copied()), ("best", best)];
    for remark in links.iter().filter_map(|(name, step)| checkpoints.set_link(name, (*step)?)) {
        tracing::warn!("{remark}");
    }
    write_run_files(dir, config_text, world, state.run.as_deref())
}

/// Random values drawn by parameter name, or the weights that the task names.
fn initial_parameters(session: &Session, seed: u64) -> Result<Vec<f32>, TrainError> {
    let Session { task, layout, .. } = session;
    let mut parameters = task.compute.initial(layout, seed).map_err(|reason| task.error(reason))?;
    let hub = task.compute.hugging_face();
    let Some(path) = hub.init_from() else { return Ok(parameters) };
    verify(path, CheckpointPart::Model)?;
    let found = weights::read(path, layout, &|name: &str| hub.parameter_name(name), &mut parameters)
        .map_err(|reason| task.error(reason.to_string()))?;
    if let Some(name) = found.missing.iter().find(|name| !hub.allow_missing(name)) {
        let path = path.display();
        return Err(task.error(format!("{path} has no tensor {name}, which the model of this config has")));
    }
    tracing::info!("starting from the weights of {}", path.display());
    if !found.missing.is_empty() {
        tracing::warn!("missing tensors, initialized at random: {}", found.missing.join(", "));
    }
    if !found.unused.is_empty() {
        tracing::warn!("ignored tensors: {}", found.unused.join(", "));
    }
    Ok(parameters)
}

/// Differences from the config of the checkpoint at `path`. Only reported, so a config that cannot
/// be read is no error.
pub(super) fn config_changes_since(path: &Path, task: &OpenedTask) -> Vec<Change> {
    let then = fs::read_to_string(path.join("config.toml"));
    then.map_or_else(|_| Vec::new(), |then| rank_match::changed(&task.keys, &then, &task.config))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::tests::snapshot;

    #[test]
    fn resuming_from_an_earlier_checkpoint_links_the_best_that_remains() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::at(dir.path());
        checkpoints.prepare().unwrap();
        for (update, best) in [(300, 300), (500, 300), (800, 800)] {
            checkpoints.save(&snapshot(update, Some(best), 1.0), 10).unwrap();
        }
        archive_old_files(dir.path(), &checkpoints, &Archive::After(500), None).unwrap();
        prepare_run_dir(dir.path(), &checkpoints, "", 1, &snapshot(500, Some(300), 1.0).state).unwrap();
        assert_eq!(checkpoints.steps().unwrap(), [300, 500]);
        assert_eq!(fs::read_link(checkpoints.dir().join("last")).unwrap(), Path::new("step-500"));
        assert!(checkpoints.best().unwrap().ends_with("step-300"));
        assert!(dir.path().join("before-1/checkpoints/step-800").exists());
    }

    #[test]
    fn a_damaged_best_is_renamed_and_no_longer_the_best() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::at(dir.path());
        checkpoints.prepare().unwrap();
        for update in [300, 500] {
            checkpoints.save(&snapshot(update, Some(300), 1.0), 10).unwrap();
        }
        let mut state = snapshot(500, Some(300), 1.0).state;
        assert_eq!((drop_damaged_best(&checkpoints, &mut state).unwrap(), state.best.is_some()), (None, true));
        let weights = checkpoints.path(300).join("model.safetensors");
        fs::remove_file(&weights).unwrap();
        // Fails to read.
        fs_err::os::unix::fs::symlink("model.safetensors", &weights).unwrap();
        let error = drop_damaged_best(&checkpoints, &mut state).unwrap_err();
        assert!(matches!(error, TrainError::Io { .. }) && state.best.is_some(), "{error}");
        fs::remove_file(&weights).unwrap();
        fs::write(&weights, "").unwrap();
        let damaged = drop_damaged_best(&checkpoints, &mut state).unwrap();
        assert_eq!((damaged, &state.best), (Some(300), &None));
        archive_old_files(dir.path(), &checkpoints, &Archive::After(500), damaged).unwrap();
        prepare_run_dir(dir.path(), &checkpoints, "", 1, &state).unwrap();
        assert_eq!((checkpoints.steps().unwrap(), checkpoints.best()), (vec![500], None));
        assert!(checkpoints.dir().join("damaged-step-300").is_dir());
    }
}
