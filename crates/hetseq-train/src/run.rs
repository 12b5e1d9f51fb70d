//! From a config to a running trainer and back: assemble, restore or start afresh, run, tell the others if it failed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use hetseq_comm::Place;
use hetseq_data::{Pace, PlanSpec, Split};
use hetseq_metrics::{Event, Workers};
use hetseq_optim::Optimizer;

use crate::checkpoint::{self, Checkpoints, Restored};
use crate::config::{Config, Reset, Resume};
use crate::crew::{Crew, open};
use crate::error::TrainError;
use crate::evaluate::{Evaluation, evaluate};
use crate::flat;
use crate::itinerary::Itinerary;
use crate::loader::Loader;
use crate::observer::{Observer, move_aside, write_run_files};
use crate::run_lock::RunLock;
use crate::signals::StopFlag;
use crate::state::State;
use crate::task::{Metric, Task, TaskError, Which};
use crate::trainer::{End, Pulse, Trainer};

/// What the command line adds to the config.
#[derive(Debug, Clone)]
pub struct RunOptions {
    pub place: Place,
    /// This rank's weight when the split is by weights; 1 if not given.
    pub weight: Option<f64>,
    pub resume: Resume,
    pub reset: Reset,
    /// Shared by the ranks of a run; never logged.
    pub secret: Option<String>,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Finished,
    /// By a signal, with a checkpoint saved.
    Stopped,
}

pub(crate) fn train<T: Task>(config: Config<T::Config>, options: &RunOptions) -> Result<Outcome, TrainError> {
    let started = Instant::now();
    config.optim.schedule.validate(config.optim.lr)?;
    config.optim.optimizer().validate()?;
    let task = open::<T>(&config)?;
    let best_metric = best_metric(&task, &config)?;
    if options.weight.is_some() && config.batch.split != Split::Weights {
        return Err(TrainError::Config("--weight only counts with batch.split = \"weights\"; set that too".to_owned()));
    }
    let mut crew = Crew::assemble("train", task, &config, options)?;
    // Before this a signal simply ends the process: there is nothing to save yet.
    let stop = StopFlag::listen().map_err(TrainError::io("listening for signals"))?;
    let start = match Start::find(&mut crew, &config, options) {
        Ok(start) => start,
        Err(error) => {
            crew.group.abort(&error.to_string());
            return Err(error);
        }
    };
    let mut trainer = start.into_trainer(crew, config, stop, best_metric);
    trainer.announce();
    match trainer.run() {
        Ok(end) => {
            let (name, outcome) = match end {
                End::Finished => ("finished", Outcome::Finished),
                End::Stopped => ("stopped", Outcome::Stopped),
            };
            trainer.observer.tell(&Event::End {
                update: trainer.state.cursor.updates,
                outcome: name.to_owned(),
                seconds: started.elapsed().as_secs_f64(),
            });
            trainer.crew.group.close();
            Ok(outcome)
        }
        Err(error) => {
            trainer.observer.tell(&Event::End {
                update: trainer.state.cursor.updates,
                outcome: "failed".to_owned(),
                seconds: started.elapsed().as_secs_f64(),
            });
            let error = match error {
                TrainError::Comm(reason) => {
                    TrainError::Interrupted { reason: Box::new(reason), last: trainer.last_checkpoint() }
                }
                error => error,
            };
            trainer.crew.group.abort(&error.to_string());
            Err(error)
        }
    }
}

/// Score a checkpoint on the validation samples, over all ranks.
pub(crate) fn eval<T: Task>(
    config: Config<T::Config>,
    options: &RunOptions,
    checkpoint: Option<&Path>,
) -> Result<(PathBuf, Evaluation), TrainError> {
    let mut crew = Crew::assemble("eval", open::<T>(&config)?, &config, options)?;
    match eval_with(&mut crew, &config, checkpoint) {
        Ok(found) => {
            crew.group.close();
            Ok(found)
        }
        Err(error) => {
            crew.group.abort(&error.to_string());
            Err(error)
        }
    }
}

fn eval_with<T: Task>(
    crew: &mut Crew<T>,
    config: &Config<T::Config>,
    checkpoint: Option<&Path>,
) -> Result<(PathBuf, Evaluation), TrainError> {
    let dir = run_dir(config);
    let mut path = PathBuf::new();
    let mut parameters = vec![0.0; crew.layout.len()];
    if crew.group.rank() == 0 {
        let checkpoints = Checkpoints::at(&dir);
        let found = checkpoint.map(Path::to_owned).or_else(|| checkpoints.best()).or_else(|| checkpoints.newest());
        path = found.ok_or_else(|| {
            TrainError::Config(format!(
                "{} holds no checkpoint; train first, or name one with --checkpoint",
                dir.display()
            ))
        })?;
        check_exists(&path, "model.safetensors", &checkpoints)?;
        parameters = checkpoint::load_parameters(&path, &crew.layout)?;
    }
    crew.group.broadcast(0, &mut parameters)?;
    crew.devices.load(&Arc::new(parameters))?;
    let loader = Loader::start(crew.task.clone(), config.run.seed, config.comm.progress())?;
    let pace = Pace::new(crew.roster.members.len());
    let terms = crew.task.terms();
    let evaluation = evaluate(crew, &loader, &pace, config.batch.split, &terms)?;
    let evaluation = evaluation.ok_or_else(|| TrainError::Task {
        task: T::NAME,
        reason: TaskError::Other("there are no validation samples to evaluate on".to_owned()),
    })?;
    Ok((path, evaluation))
}

/// `checkpoint.best` must be something that the task measures; found out now, not after the first epoch.
fn best_metric<T: Task>(task: &T, config: &Config<T::Config>) -> Result<Metric, TrainError> {
    let mut known = task.metrics();
    known.push(Metric::lower("loss"));
    let best = config.checkpoint.best.as_str();
    known.iter().find(|metric| metric.name == best).copied().ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|metric| metric.name).collect();
        TrainError::Config(format!("checkpoint.best = \"{best}\": this task measures {}", names.join(", ")))
    })
}

/// A path that was typed must hold a checkpoint; if not, the message lists those of the run.
fn check_exists(path: &Path, file: &str, checkpoints: &Checkpoints) -> Result<(), TrainError> {
    if path.join(file).exists() {
        return Ok(());
    }
    let known: Vec<String> =
        checkpoints.steps().iter().map(|&step| checkpoints.path(step).display().to_string()).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    Err(TrainError::Config(format!("there is no checkpoint at {}; this run has: {known}", path.display())))
}

/// [`crate::ConfigSource`] has filled it in.
fn run_dir<C>(config: &Config<C>) -> PathBuf {
    config.run.dir.clone().unwrap_or_default()
}

/// Everything a trainer starts with besides its crew.
struct Start<T: Task> {
    config_text: String,
    state: State,
    parameters: Vec<f32>,
    optimizer: Optimizer,
    itinerary: Itinerary,
    checkpoints: Checkpoints,
    observer: Observer,
    loader: Loader<T>,
    valid_loader: Loader<T>,
    lock: Option<RunLock>,
}

impl<T: Task> Start<T> {
    fn find(crew: &mut Crew<T>, config: &Config<T::Config>, options: &RunOptions) -> Result<Self, TrainError> {
        let dir = run_dir(config);
        let config_text = toml::to_string(config)
            .map_err(|error| TrainError::Config(format!("the config cannot be written as TOML: {error}")))?;
        let checkpoints = Checkpoints::at(&dir);
        let fresh = State::new(config, &crew.task.fingerprint());
        let (mut origin, mut lock) = (None, None);
        if crew.group.rank() == 0 {
            lock = RunLock::take(&dir)?;
            origin = Some(find_origin(crew, &dir, &checkpoints, &fresh, config, options)?);
            write_run_files(&dir, &config_text, crew.group.world())?;
        }
        // From here on the ranks do what rank 0 found, whatever stood on their own command lines.
        let Restored { parameters, slots, mut state } = spread(crew, origin)?;
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
        let mut itinerary = Itinerary::new(costs, spec, config.run.max_updates, config.run.max_epochs);
        itinerary.check(&state.cursor).map_err(TrainError::Config)?;
        state.total_updates.get_or_insert_with(|| itinerary.total_updates(&state.cursor));
        Ok(Start {
            config_text,
            observer: Observer::start(config, &dir, crew.group.rank(), state.cursor.updates)?,
            state,
            parameters,
            optimizer,
            itinerary,
            checkpoints,
            loader: Loader::start(crew.task.clone(), config.run.seed, config.comm.progress())?,
            valid_loader: Loader::start(crew.task.clone(), config.run.seed, config.comm.progress())?,
            lock,
        })
    }

    fn into_trainer(self, crew: Crew<T>, config: Config<T::Config>, stop: StopFlag, best_metric: Metric) -> Trainer<T> {
        let mut workers = Workers::default();
        for (rank, member) in &crew.roster.members {
            workers.add_device(*rank, crew.group.host(*rank), &member.device);
        }
        Trainer {
            pace: Pace::new(crew.roster.members.len()),
            terms: crew.task.terms(),
            total_updates: self.state.total_updates.unwrap_or_default(),
            last_saved: Some(self.state.cursor.updates).filter(|&updates| updates > 0),
            best_metric,
            _lock: self.lock,
            pulse: Pulse::beginning_at(self.state.cursor.updates),
            parameters: Arc::new(self.parameters),
            config_text: self.config_text,
            state: self.state,
            optimizer: self.optimizer,
            itinerary: self.itinerary,
            checkpoints: self.checkpoints,
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
    fn announce(&mut self) {
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
            total_updates: self.total_updates,
            resumed_at: cursor.updates,
        });
    }
}

/// Rank 0: a checkpoint to go on from, or fresh parameters.
fn find_origin<T: Task>(
    crew: &Crew<T>,
    dir: &Path,
    checkpoints: &Checkpoints,
    fresh: &State,
    config: &Config<T::Config>,
    options: &RunOptions,
) -> Result<Restored, TrainError> {
    let path = match &options.resume {
        Resume::Auto => checkpoints.newest(),
        Resume::Never => None,
        Resume::From(path) => {
            // A run's directory stands for its newest checkpoint.
            let path = Checkpoints::at(path).newest().unwrap_or_else(|| path.clone());
            check_exists(&path, "trainer/state.json", checkpoints)?;
            Some(path)
        }
    };
    if options.resume == Resume::Never {
        set_aside(dir, None)?;
    }
    checkpoints.prepare()?;
    let Some(path) = path else {
        let parameters = flat::initial::<T::Model>(&crew.layout, config.run.seed);
        return Ok(Restored { parameters, slots: Vec::new(), state: fresh.clone() });
    };
    let mut restored = checkpoint::load(&path, &crew.layout)?;
    restored.state = restored
        .state
        .resumed(fresh, options.reset)
        .map_err(|reason| TrainError::Config(format!("cannot resume from {}: {reason}", path.display())))?;
    let is_own = path.canonicalize().is_ok_and(|path| path.starts_with(checkpoints.canonical()));
    set_aside(dir, is_own.then_some(restored.state.cursor.updates))?;
    checkpoints.prepare()?;
    if options.reset.optimizer {
        restored.slots.clear();
    }
    // A best that this directory does not hold cannot be the best of this run.
    restored.state.best.take_if(|best| !checkpoints.steps().contains(&best.update));
    tracing::info!("resuming from {}", path.display());
    Ok(restored)
}

fn set_aside(dir: &Path, after: Option<u64>) -> Result<(), TrainError> {
    if let Some(aside) = move_aside(dir, after)? {
        tracing::info!("what was in {} is in {} now", dir.display(), aside.display());
    }
    Ok(())
}

/// Rank 0's origin to all, so that replicas start bit-identical and need no shared file system.
fn spread<T: Task>(crew: &mut Crew<T>, origin: Option<Restored>) -> Result<Restored, TrainError> {
    let length = crew.layout.len();
    let message = match &origin {
        Some(origin) => {
            let names: Vec<&String> = origin.slots.iter().map(|(name, _)| name).collect();
            serde_json::to_vec(&(names, &origin.state)).map_err(|error| odd(&error))?
        }
        None => Vec::new(),
    };
    let message = crew.group.broadcast_bytes(0, message)?;
    let (names, state): (Vec<String>, State) = serde_json::from_slice(&message).map_err(|error| odd(&error))?;
    let (mut parameters, mut slots) = match origin {
        Some(origin) => (origin.parameters, origin.slots),
        None => (vec![0.0; length], names.into_iter().map(|name| (name, vec![0.0; length])).collect()),
    };
    crew.group.broadcast(0, &mut parameters)?;
    for (_, values) in &mut slots {
        crew.group.broadcast(0, values)?;
    }
    Ok(Restored { parameters, slots, state })
}

fn odd(error: &serde_json::Error) -> TrainError {
    TrainError::Config(format!("the state of the run cannot be exchanged: {error}"))
}
