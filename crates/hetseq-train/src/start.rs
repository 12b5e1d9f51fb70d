//! Where a run begins: a checkpoint or fresh parameters, found by rank 0 and handed to all, and everything else that a
//! trainer starts with.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fs_err as fs;
use hetseq_data::PlanSpec;
use hetseq_metrics::{Change, Event, Workers};
use hetseq_optim::{Layout, OptimError, Optimizer};

use crate::checkpoint::{self, Checkpoints, Common, Part, Restored, STATE, Saver, Snapshot, first_intact, verify};
use crate::config::{Config, Resume};
use crate::crew::{Crew, initial_of};
use crate::error::TrainError;
use crate::finite::state_not_finite;
use crate::identity;
use crate::itinerary::Itinerary;
use crate::loader::Loader;
use crate::observer::{Observer, move_aside, write_run_files};
use crate::run::{RunOptions, check_exists, run_dir};
use crate::run_files::sync_dir;
use crate::run_lock::RunLock;
use crate::signals::StopFlag;
use crate::skips::Skips;
use crate::state::State;
use crate::task::{Metric, Task, TaskError, Which};
use crate::trainer::{Pulse, Trainer};
use crate::weights;

/// How long a checkpoint waits for the events before it to reach the disk.
const TO_SYNC_EVENTS: Duration = Duration::from_secs(10);

/// Everything a trainer starts with besides its crew.
pub(crate) struct Start<T: Task> {
    common: Arc<Common>,
    /// What is not as it was when the checkpoint was saved; known to rank 0.
    pub(crate) changed: Vec<Change>,
    state: State,
    parameters: Vec<f32>,
    optimizer: Optimizer,
    itinerary: Itinerary,
    checkpoints: Checkpoints,
    saver: Option<Saver>,
    observer: Observer,
    loader: Loader<T>,
    valid_loader: Loader<T>,
    lock: Option<RunLock>,
}

impl<T: Task> Start<T> {
    pub(crate) fn find(
        crew: &mut Crew<T>,
        config: &Config<T::Config>,
        options: &RunOptions,
    ) -> Result<Self, TrainError> {
        let dir = run_dir(config);
        let config_text = toml::to_string(config)
            .map_err(|error| TrainError::Config(format!("the config cannot be written as TOML: {error}")))?;
        let checkpoints = Checkpoints::at(&dir);
        let fresh = State::new(config, &crew.task.fingerprint());
        let (mut origin, mut lock, mut aside, mut changed) = (None, None, Aside::Nothing, Vec::new());
        let mut damaged_best = None;
        if crew.group.rank() == 0 {
            lock = Some(RunLock::take(&dir)?);
            let found = find_origin(crew, &dir, &checkpoints, &fresh, config, options)?;
            changed = found.path.map_or_else(Vec::new, |path| changed_since::<T>(&path, &config_text));
            (origin, aside, damaged_best) = (Some(found.restored), found.aside, found.damaged_best);
        }
        // From here on the ranks do what rank 0 found, whatever stood on their own command lines.
        let Restored { parameters, slots, mut state, .. } = spread(crew, origin)?;
        let mut optimizer = Optimizer::new(&config.optim.optimizer(), &crew.layout)?;
        if !state.scalars.is_empty() {
            optimizer.restore(slots, state.scalars.clone())?;
        }
        let spec = PlanSpec {
            seed: config.run.seed,
            batch: config.batch.global,
            curriculum_epochs: config.batch.curriculum_epochs,
            shuffle: true,
        };
        let costs = crew.task.costs(Which::Train);
        // A sample that no device can take is refused now, not when its turn comes.
        crew.planner().share(config.batch.split, &[costs.longest()])?;
        let mut itinerary = Itinerary::new(costs, spec, config.run.max_updates, config.run.max_epochs);
        itinerary.check(&state.cursor).map_err(TrainError::Config)?;
        state.total_updates.get_or_insert_with(|| itinerary.total_updates(&state.cursor));
        if crew.group.rank() == 0 {
            let best = state.best.as_ref().map(|best| best.update);
            make_room(&dir, &checkpoints, &aside, damaged_best)?;
            settle(&dir, &checkpoints, best, &config_text, crew.group.world())?;
        }
        let observer = Observer::start(config, &dir, crew.group.rank(), state.cursor.updates)?;
        let saver = match observer.journal() {
            Some(journal) => {
                let (checkpoints, keep, run) = (checkpoints.clone(), config.checkpoint.keep, dir.clone());
                let saved = if let Aside::After(updates) = aside { Some(updates) } else { None };
                let save = move |snapshot: &Snapshot| {
                    // A resume finds the events of all updates that the checkpoint counts as done, also after a power cut. If
                    // that fails, it is no fault of the checkpoint, and the journal says so itself.
                    journal.sync(TO_SYNC_EVENTS);
                    _ = sync_dir(&run);
                    checkpoints.save(snapshot, keep)
                };
                Some(Saver::start(saved, save)?)
            }
            None => None,
        };
        let loader =
            |waker| Loader::start(&crew.task, config.run.seed, &crew.loader_pool, config.comm.progress(), waker);
        Ok(Start {
            saver,
            common: Arc::new(Common { layout: crew.layout.clone(), config: config_text, files: crew.task.files() }),
            changed,
            observer,
            state,
            parameters,
            optimizer,
            itinerary,
            checkpoints,
            loader: loader(Some(crew.group.waker()))?,
            valid_loader: loader(None)?,
            lock,
        })
    }

    pub(crate) fn into_trainer(
        self,
        crew: Crew<T>,
        config: Config<T::Config>,
        stop: StopFlag,
        best_metric: Metric,
    ) -> Trainer<T> {
        let mut workers = Workers::default();
        for (rank, device) in &crew.roster.members {
            workers.add_device(*rank, crew.group.host(*rank), device);
        }
        Trainer {
            planner: crew.planner(),
            terms: crew.task.terms(),
            total_updates: self.state.total_updates.unwrap_or_default(),
            last_saved: saved(&self.state),
            bests: self.state.best.iter().cloned().collect(),
            told_of_waiting: false,
            remarks_told: BTreeSet::new(),
            best_metric,
            _lock: self.lock,
            pulse: Pulse::beginning_at(&self.state.cursor),
            skips: Skips::default(),
            parameters: Arc::new(self.parameters),
            common: self.common,
            state: self.state,
            optimizer: self.optimizer,
            itinerary: self.itinerary,
            checkpoints: self.checkpoints,
            saver: self.saver,
            observer: self.observer,
            loader: self.loader,
            valid_loader: self.valid_loader,
            crew,
            config,
            stop,
            workers,
        }
    }
}

impl<T: Task> Trainer<T> {
    pub(crate) fn announce(&mut self, changed: Vec<Change>) {
        let cursor = self.state.cursor.clone();
        self.observer.tell(&Event::Start {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            task: T::NAME.to_owned(),
            seed: self.config.run.seed,
            world: self.crew.group.world(),
            devices: self.crew.roster.members.len(),
            parameters: self.crew.layout.len(),
            train_samples: self.crew.task.costs(Which::Train).samples(),
            valid_samples: self.crew.task.costs(Which::Valid).samples(),
            updates_per_epoch: self.itinerary.updates_per_epoch(cursor.epoch),
            padding: self.itinerary.padding(cursor.epoch),
            total_updates: self.total_updates,
            resumed_at: cursor.updates,
            changed,
        });
        self.warn_of_little_room();
    }
}

/// The update of the checkpoint that a run begins from; none for a new run.
fn saved(state: &State) -> Option<u64> {
    Some(state.cursor.updates).filter(|&updates| updates > 0)
}

/// What rank 0 found to begin with.
struct Origin {
    restored: Restored,
    /// The checkpoint that it came from.
    path: Option<PathBuf>,
    aside: Aside,
    /// The best checkpoint of this run, if it is damaged.
    damaged_best: Option<u64>,
}

/// What an earlier run left and the new one would contradict; moved only when nothing can be refused any more.
enum Aside {
    Nothing,
    All,
    /// What came after so many updates.
    After(u64),
}

/// Rank 0: a checkpoint to go on from, or fresh parameters. Changes nothing on the disk.
fn find_origin<T: Task>(
    crew: &Crew<T>,
    dir: &Path,
    checkpoints: &Checkpoints,
    fresh: &State,
    config: &Config<T::Config>,
    options: &RunOptions,
) -> Result<Origin, TrainError> {
    let paths = match &options.resume {
        Resume::Auto => checkpoints.newest_first(),
        Resume::Never => Vec::new(),
        // A run's directory stands for its newest checkpoint.
        Resume::From(path) => match Checkpoints::at(path).newest_first() {
            paths if paths.is_empty() => {
                check_exists(path, STATE, checkpoints)?;
                vec![path.clone()]
            }
            paths => paths,
        },
    };
    if paths.is_empty() && options.overrides {
        return Err(TrainError::Config(format!(
            "--optimizer-overrides changes what a resume goes on with, but this would be a new run in {}. Set the values \
             in the config, or with --set optim.lr=0.001 and the like",
            dir.display()
        )));
    }
    let Some((path, mut restored)) = first_intact(&paths, |path| checkpoint::load(path, &crew.layout))? else {
        let parameters = first_parameters(crew, config.run.seed)?;
        let restored = Restored { parameters, slots: Vec::new(), state: fresh.clone(), manifest: None };
        let aside = if options.resume == Resume::Never { Aside::All } else { Aside::Nothing };
        return Ok(Origin { restored, path: None, aside, damaged_best: None });
    };
    restored.state = restored
        .state
        .resumed(fresh, options.reset)
        .map_err(|reason| TrainError::Config(format!("cannot resume from {}: {reason}", path.display())))?;
    if options.reset.optimizer {
        restored.slots.clear();
    } else {
        check_optimizer_state(&restored, &crew.layout)
            .map_err(|reason| TrainError::Checkpoint { path: path.clone(), reason })?;
    }
    let updates = restored.state.cursor.updates;
    let is_own = path.canonicalize().is_ok_and(|path| path.starts_with(checkpoints.canonical()));
    // A best that this directory will not hold cannot be the best of this run.
    let stays = |update| is_own && update <= updates && checkpoints.steps().contains(&update);
    restored.state.best.take_if(|best| !stays(best.update));
    restored.state.record.take_if(|_| !is_own);
    let damaged_best = damaged_best(checkpoints, &mut restored.state);
    tracing::info!("resuming from {}", path.display());
    let aside = if is_own { Aside::After(updates) } else { Aside::All };
    Ok(Origin { restored, path: Some(path), aside, damaged_best })
}

/// The optimizer's state has no names in it: its values are in the order of the layout.
fn check_optimizer_state(restored: &Restored, layout: &Layout) -> Result<(), String> {
    const DROP: &str = "Drop the optimizer's state with --reset optimizer";
    if restored.manifest.as_ref().is_some_and(|manifest| !manifest.has_layout(layout.hash())) {
        return Err(format!("its model has other parameters, or in another order, than that of this config. {DROP}"));
    }
    let slots = restored.slots.iter().map(|(name, values)| (name.as_str(), &values[..]));
    state_not_finite(layout, slots)
        .map_or(Ok(()), |place| Err(format!("{place}. {DROP}, or resume from an earlier one")))
}

/// A best checkpoint that is damaged is no longer the best: the next one that is saved as such takes its place. Returns its
/// update.
fn damaged_best(checkpoints: &Checkpoints, state: &mut State) -> Option<u64> {
    // The one that was just loaded is intact.
    let update = state.best.as_ref()?.update;
    if update == state.cursor.updates {
        return None;
    }
    let error = verify(&checkpoints.path(update), Part::Model).err()?;
    tracing::warn!("the best checkpoint is not kept as such: {error}");
    state.best = None;
    matches!(error, TrainError::Damaged { .. }).then_some(update)
}

/// Rank 0: moves away what does not belong to the run that is about to start.
fn make_room(
    dir: &Path,
    checkpoints: &Checkpoints,
    aside: &Aside,
    damaged_best: Option<u64>,
) -> Result<(), TrainError> {
    let moved = match aside {
        Aside::Nothing => None,
        Aside::All => move_aside(dir, None)?,
        Aside::After(updates) => move_aside(dir, Some(*updates))?,
    };
    if let Some(aside) = moved {
        tracing::info!("what was in {} is in {} now", dir.display(), aside.display());
    }
    if let Some(step) = damaged_best.filter(|&step| checkpoints.path(step).exists()) {
        let doing = format!("renaming the damaged checkpoint {}", checkpoints.path(step).display());
        let path = checkpoints.set_aside(step).map_err(TrainError::io(doing))?;
        tracing::warn!("the damaged checkpoint is kept as {}", path.display());
    }
    Ok(())
}

/// Rank 0: makes the run directory ready for a run that nothing stands in the way of.
fn settle(
    dir: &Path,
    checkpoints: &Checkpoints,
    best: Option<u64>,
    config_text: &str,
    world: usize,
) -> Result<(), TrainError> {
    checkpoints.prepare()?;
    let links = [("last", checkpoints.steps().last().copied()), ("best", best)];
    for remark in links.iter().filter_map(|(name, step)| checkpoints.link_from(name, (*step)?)) {
        tracing::warn!("{remark}");
    }
    write_run_files(dir, config_text, world)
}

/// The task's origin, or values drawn by name.
fn first_parameters<T: Task>(crew: &Crew<T>, seed: u64) -> Result<Vec<f32>, TrainError> {
    let mut parameters = initial_of(&*crew.task, &crew.layout, seed);
    let Some(path) = crew.task.origin() else { return Ok(parameters) };
    let failed = |reason: String| TrainError::Task { task: T::NAME, reason: TaskError::Other(reason) };
    verify(path, Part::Model)?;
    let rename = |name: &str| crew.task.parameter_name(name);
    let found = weights::read(path, &crew.layout, &rename, &mut parameters).map_err(failed)?;
    if let Some(name) = found.missing.iter().find(|name| !crew.task.may_start_afresh(name)) {
        let reason = format!("{} has no tensor {name}, which the model of this config has", path.display());
        return Err(failed(reason));
    }
    tracing::info!("beginning with the weights of {}", path.display());
    if !found.missing.is_empty() {
        tracing::warn!("it has no {}: these begin at random", found.missing.join(", "));
    }
    if !found.unused.is_empty() {
        tracing::warn!("of no use here: {}", found.unused.join(", "));
    }
    Ok(parameters)
}

/// What differs from the config of the checkpoint at `path`. It is for people to know, so that nothing depends on it.
fn changed_since<T: Task>(path: &Path, config: &str) -> Vec<Change> {
    let then = fs::read_to_string(path.join("config.toml"));
    then.map_or_else(|_| Vec::new(), |then| identity::changed::<T>(&then, config))
}

/// Rank 0's origin to all, so that replicas start bit-identical and need no shared file system.
fn spread<T: Task>(crew: &mut Crew<T>, origin: Option<Restored>) -> Result<Restored, TrainError> {
    let length = crew.layout.len();
    let message = match &origin {
        Some(origin) => {
            let slots: Vec<(&String, usize)> = origin.slots.iter().map(|(name, slot)| (name, slot.len())).collect();
            serde_json::to_vec(&(slots, &origin.state)).map_err(|error| odd(&error))?
        }
        None => Vec::new(),
    };
    let message = crew.group.broadcast_bytes(0, message)?;
    let (slots, state): (Vec<(String, usize)>, State) =
        serde_json::from_slice(&message).map_err(|error| odd(&error))?;
    // No optimizer keeps more of a slot than one value per parameter. Rank 0 looks before the others make room for it.
    if let Some((name, found)) = slots.iter().find(|(_, found)| *found > length) {
        return Err(OptimError::StateLength { name: name.clone(), expected: length, found: *found }.into());
    }
    let (mut parameters, mut slots) = match origin {
        Some(origin) => (origin.parameters, origin.slots),
        None => (vec![0.0; length], slots.into_iter().map(|(name, length)| (name, vec![0.0; length])).collect()),
    };
    crew.group.broadcast(0, &mut parameters)?;
    for (_, values) in &mut slots {
        crew.group.broadcast(0, values)?;
    }
    Ok(Restored { parameters, slots, state, manifest: None })
}

fn odd(error: &serde_json::Error) -> TrainError {
    TrainError::Config(format!("the state of the run cannot be exchanged: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::tests::snapshot;

    #[test]
    fn going_back_links_the_best_of_what_stays() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::at(dir.path());
        checkpoints.prepare().unwrap();
        for (update, best) in [(300, 300), (500, 300), (800, 800)] {
            checkpoints.save(&snapshot(update, Some(best), 1.0), 10).unwrap();
        }
        make_room(dir.path(), &checkpoints, &Aside::After(500), None).unwrap();
        settle(dir.path(), &checkpoints, Some(300), "", 1).unwrap();
        assert_eq!(checkpoints.steps(), [300, 500]);
        assert_eq!(fs::read_link(checkpoints.dir().join("last")).unwrap(), Path::new("step-500"));
        assert!(checkpoints.best().unwrap().ends_with("step-300"));
        assert!(dir.path().join("before-1/checkpoints/step-800").exists());
    }

    #[test]
    fn a_best_that_is_damaged_is_set_aside_and_no_longer_the_best() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::at(dir.path());
        checkpoints.prepare().unwrap();
        for update in [300, 500] {
            checkpoints.save(&snapshot(update, Some(300), 1.0), 10).unwrap();
        }
        let mut state = snapshot(500, Some(300), 1.0).state;
        assert_eq!((damaged_best(&checkpoints, &mut state), state.best.is_some()), (None, true));
        fs::write(checkpoints.path(300).join("model.safetensors"), "").unwrap();
        let damaged = damaged_best(&checkpoints, &mut state);
        assert_eq!((damaged, &state.best), (Some(300), &None));
        make_room(dir.path(), &checkpoints, &Aside::After(500), damaged).unwrap();
        settle(dir.path(), &checkpoints, None, "", 1).unwrap();
        assert_eq!((checkpoints.steps(), checkpoints.best()), (vec![500], None));
        assert!(checkpoints.dir().join("damaged-step-300").is_dir());
    }
}
