//! From a config to a finished run: assemble, start, train or evaluate, tell the others if it failed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use hetseq_balance::Split;
use hetseq_comm::Place;
use hetseq_metrics::Event;

use crate::checkpoint::{Checkpoints, Part, WEIGHTS, verify};
use crate::config::{Config, Reset, Resume};
use crate::crew::{Crew, Survey, open};
use crate::error::TrainError;
use crate::evaluate::{Evaluation, evaluate};
use crate::loader::Loader;
use crate::signals::StopFlag;
use crate::skips::Skips;
use crate::start::Start;
use crate::task::{Metric, Task, TaskError, Which};
use crate::trainer::End;
use crate::weights;

/// What the command line adds to the config.
#[derive(Clone)]
pub struct RunOptions {
    pub place: Place,
    /// This rank's weight when the split is by weights; 1 if not given.
    pub weight: Option<f64>,
    pub resume: Resume,
    pub reset: Reset,
    /// `--optimizer-overrides` is part of the config already and means: there must be a checkpoint to go on from.
    pub overrides: bool,
    /// Shared by the ranks of a run; never logged. If none is given, rank 0 leaves one in the run directory.
    pub secret: Option<String>,
}

/// Written by hand so that the secret never reaches a log.
impl std::fmt::Debug for RunOptions {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let secret = self.secret.as_ref().map(|_| "(set)");
        out.debug_struct("RunOptions")
            .field("place", &self.place)
            .field("weight", &self.weight)
            .field("resume", &self.resume)
            .field("reset", &self.reset)
            .field("overrides", &self.overrides)
            .field("secret", &secret)
            .finish()
    }
}

pub(crate) fn train<T: Task>(config: Config<T::Config>, options: &RunOptions) -> Result<End, TrainError> {
    let started = Instant::now();
    let task = open::<T>(&config)?;
    let best_metric = best_metric(&task, &config)?;
    if config.valid.patience.is_some() && task.costs(Which::Valid).samples() == 0 {
        let reason = "valid.patience counts validations, but the task has no samples to validate on";
        return Err(TrainError::Config(reason.to_owned()));
    }
    if options.weight.is_some() && config.batch.split != Split::Weights {
        return Err(TrainError::Config("--weight only counts with batch.split = \"weights\"; set that too".to_owned()));
    }
    let stop = StopFlag::default();
    let mut crew = Crew::assemble("train", task, &config, options, Survey::Measure(&stop))?;
    let mut start = match Start::find(&mut crew, &config, options) {
        Ok(start) => start,
        Err(error) => {
            crew.group.abort(&error.to_string());
            return Err(error);
        }
    };
    let changed = std::mem::take(&mut start.changed);
    let mut trainer = start.into_trainer(crew, config, stop, best_metric);
    trainer.announce(changed);
    let result = trainer.run().and_then(|end| trainer.finish_saves().map(|()| end));
    if result.is_err() {
        trainer.let_the_last_save_end();
    }
    let outcome = match result {
        Ok(End::Finished) => "finished",
        Ok(End::Stopped) => "stopped",
        Err(_) => "failed",
    };
    trainer.observer.tell(&Event::End {
        update: trainer.state.cursor.updates,
        outcome: outcome.to_owned(),
        seconds: started.elapsed().as_secs_f64(),
        data_wait_s: trainer.pulse.data_wait_s,
        skipped: trainer.skips.samples(),
    });
    match result {
        Ok(end) => {
            trainer.crew.group.close();
            Ok(end)
        }
        Err(error) => {
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
) -> Result<(Option<PathBuf>, Evaluation), TrainError> {
    let mut crew = Crew::assemble("eval", open::<T>(&config)?, &config, options, Survey::Nothing)?;
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
) -> Result<(Option<PathBuf>, Evaluation), TrainError> {
    let dir = run_dir(config);
    let mut path = None;
    let mut parameters = vec![0.0; crew.layout.len()];
    if crew.group.rank() == 0 {
        let checkpoints = Checkpoints::at(&dir);
        let found = match checkpoint {
            Some(path) => {
                if !weights::are_at(path) {
                    check_exists(path, WEIGHTS, &checkpoints)?;
                }
                verify(path, Part::Model)?;
                path.to_owned()
            }
            None => checkpoints.choose()?.ok_or_else(|| {
                let dir = dir.display();
                TrainError::Config(format!("{dir} holds no checkpoint; train first, or name one with --checkpoint"))
            })?,
        };
        let rename = |name: &str| crew.task.parameter_name(name);
        parameters = weights::read_all(&found, &crew.layout, &rename)
            .map_err(|reason| TrainError::Checkpoint { path: found.clone(), reason })?;
        path = Some(found);
    }
    crew.group.broadcast(0, &mut parameters)?;
    crew.devices.load(&Arc::new(parameters))?;
    let loader = Loader::start(&crew.task, config.run.seed, &crew.loader_pool, config.comm.progress(), None)?;
    let planner = crew.planner();
    let evaluation = evaluate(crew, &loader, planner, config.batch.split, config.batch.global)?;
    let evaluation = evaluation.ok_or_else(|| TrainError::Task {
        task: T::NAME,
        reason: TaskError::Other("there are no validation samples to evaluate on".to_owned()),
    })?;
    crew.finish_data_check(config.comm.progress())?;
    let mut skips = Skips::default();
    for warning in skips.note(Which::Valid, &evaluation.skipped) {
        tracing::warn!("{warning}");
    }
    if !evaluation.loss.is_finite() {
        let reason = format!(
            "the loss is {}, though all weights are finite: values overflow in the model. Use an earlier checkpoint, or f32 \
             (run.precision)",
            evaluation.loss
        );
        return Err(TrainError::Checkpoint { path: path.unwrap_or(dir), reason });
    }
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
pub(crate) fn check_exists(path: &Path, file: &str, checkpoints: &Checkpoints) -> Result<(), TrainError> {
    if path.join(file).exists() {
        return Ok(());
    }
    let known: Vec<String> =
        checkpoints.steps().iter().map(|&step| checkpoints.path(step).display().to_string()).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    Err(TrainError::Config(format!("there is no checkpoint at {}; this run has: {known}", path.display())))
}

/// [`crate::ConfigSource`] has filled it in.
pub(crate) fn run_dir<C>(config: &Config<C>) -> PathBuf {
    config.run.dir.clone().unwrap_or_default()
}
