//! Training and evaluating, from a config to the result: assembles the session, runs, and passes an
//! error on to the other ranks. Called by the task registry for `hetseq train` and `hetseq eval`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use hetseq_balance::SplitMode;
use hetseq_comm::RankEnv;
use hetseq_metrics::Event;

use crate::checkpoint::weights;
use crate::checkpoint::{CheckpointPart, Checkpoints, WEIGHTS, verify};
use crate::config::{Config, Reset, Resume};
use crate::data::loader::Loader;
use crate::error::TrainError;
use crate::task::skipped_samples::SkippedSamples;
use crate::task::{Metric, Split, Task, TaskError};
use crate::trainer::RunOutcome;
use crate::trainer::evaluate::{Evaluation, evaluate};
use crate::trainer::session::{ProbeMode, Session, open};
use crate::trainer::setup::TrainerSetup;
use crate::trainer::stop::StopFlag;

/// Command-line options besides the config.
#[derive(Clone)]
pub struct RunOptions {
    pub rank_env: RankEnv,
    /// This rank's weight when the split is by weights; 1 if not given.
    pub weight: Option<f64>,
    pub resume: Resume,
    pub reset: Reset,
    /// Whether `--optimizer-overrides` was given. The config already contains its values; there
    /// must be a checkpoint to resume from.
    pub overrides: bool,
    /// Shared by the ranks of a run; never logged. If none, rank 0 writes one into the run
    /// directory.
    pub secret: Option<String>,
}

/// Written by hand so that the secret never reaches a log.
impl std::fmt::Debug for RunOptions {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let secret = self.secret.as_ref().map(|_| "(set)");
        out.debug_struct("RunOptions")
            .field("rank_env", &self.rank_env)
            .field("weight", &self.weight)
            .field("resume", &self.resume)
            .field("reset", &self.reset)
            .field("overrides", &self.overrides)
            .field("secret", &secret)
            .finish()
    }
}

pub(crate) fn train<T: Task>(config: Config<T::Config>, options: &RunOptions) -> Result<RunOutcome, TrainError> {
    let started = Instant::now();
    let task = open::<T>(&config)?;
    let best_metric = best_metric(&task, &config)?;
    if config.valid.patience.is_some() && task.lengths(Split::Valid).samples() == 0 {
        let reason = "valid.patience counts validations, but the task has no samples to validate on";
        return Err(TrainError::Config(reason.to_owned()));
    }
    if options.weight.is_some() && config.batch.split != SplitMode::Weights {
        return Err(TrainError::Config("--weight needs batch.split = \"weights\"; set that too".to_owned()));
    }
    let stop = StopFlag::default();
    let mut session = Session::assemble("train", task, &config, options, ProbeMode::Measure(&stop))?;
    let mut setup = match TrainerSetup::prepare(&mut session, &config, options) {
        Ok(setup) => setup,
        Err(error) => {
            session.group.abort(&error.to_string());
            return Err(error);
        }
    };
    let changed = std::mem::take(&mut setup.changed);
    let mut trainer = setup.into_trainer(session, config, stop, best_metric);
    trainer.emit_start(changed);
    let result = trainer.run().and_then(|outcome| trainer.finish_saves().map(|()| outcome));
    if result.is_err() {
        trainer.finish_save_after_failure();
    }
    let outcome = match result {
        Ok(RunOutcome::Finished) => "finished",
        Ok(RunOutcome::Stopped) => "stopped",
        Err(_) => "failed",
    };
    trainer.events.emit(&Event::End {
        update: trainer.state.cursor.updates,
        outcome: outcome.to_owned(),
        seconds: started.elapsed().as_secs_f64(),
        data_wait_s: trainer.timings.data_wait_s,
        skipped: trainer.skipped_samples.samples(),
    });
    match result {
        Ok(outcome) => {
            trainer.session.group.close();
            Ok(outcome)
        }
        Err(error) => {
            let error = match error {
                TrainError::Comm(reason) => {
                    TrainError::Interrupted { reason: Box::new(reason), last: trainer.last_checkpoint() }
                }
                error => error,
            };
            trainer.session.group.abort(&error.to_string());
            Err(error)
        }
    }
}

/// Evaluates a checkpoint on the validation samples, over all ranks.
pub(crate) fn eval<T: Task>(
    config: Config<T::Config>,
    options: &RunOptions,
    checkpoint: Option<&Path>,
) -> Result<(Option<PathBuf>, Evaluation), TrainError> {
    let mut session = Session::assemble("eval", open::<T>(&config)?, &config, options, ProbeMode::Skip)?;
    match eval_with(&mut session, &config, checkpoint) {
        Ok(found) => {
            session.group.close();
            Ok(found)
        }
        Err(error) => {
            session.group.abort(&error.to_string());
            Err(error)
        }
    }
}

fn eval_with<T: Task>(
    session: &mut Session<T>,
    config: &Config<T::Config>,
    checkpoint: Option<&Path>,
) -> Result<(Option<PathBuf>, Evaluation), TrainError> {
    let dir = run_dir(config);
    let mut path = None;
    let mut parameters = vec![0.0; session.layout.len()];
    if session.group.rank() == 0 {
        let checkpoints = Checkpoints::at(&dir);
        let found = match checkpoint {
            Some(path) => {
                if !weights::exist_at(path) {
                    check_exists(path, WEIGHTS, &checkpoints)?;
                }
                verify(path, CheckpointPart::Model)?;
                path.to_owned()
            }
            None => checkpoints.choose()?.ok_or_else(|| {
                let dir = dir.display();
                TrainError::Config(format!("{dir} holds no checkpoint; train first, or name one with --checkpoint"))
            })?,
        };
        let rename = |name: &str| session.task.parameter_name(name);
        parameters = weights::read_all(&found, &session.layout, &rename)
            .map_err(|reason| TrainError::Checkpoint { path: found.clone(), reason })?;
        path = Some(found);
    }
    session.group.broadcast(0, &mut parameters)?;
    session.devices.load(&Arc::new(parameters))?;
    let loader =
        Loader::start(&session.task, config.run.seed, &session.loader_pool, config.comm.progress_timeout(), None)?;
    let planner = session.planner();
    let evaluation = evaluate(session, &loader, planner, config.batch.split, config.batch.global)?;
    let evaluation = evaluation.ok_or_else(|| TrainError::Task {
        task: T::NAME,
        reason: TaskError::Other("there are no validation samples to evaluate on".to_owned()),
    })?;
    session.finish_data_check(config.comm.progress_timeout())?;
    let mut skipped_samples = SkippedSamples::default();
    for warning in skipped_samples.note(Split::Valid, &evaluation.skipped) {
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

/// The metric that `checkpoint.best` names. Checked at the start, not after the first epoch.
fn best_metric<T: Task>(task: &T, config: &Config<T::Config>) -> Result<Metric, TrainError> {
    let mut known = task.metrics();
    known.push(Metric::lower("loss"));
    let best = config.checkpoint.best.as_str();
    known.iter().find(|metric| metric.name == best).copied().ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|metric| metric.name).collect();
        TrainError::Config(format!("checkpoint.best = \"{best}\": this task measures {}", names.join(", ")))
    })
}

/// Checks that the path a user gave is a checkpoint. The error lists the checkpoints of the run.
pub(crate) fn check_exists(path: &Path, file: &str, checkpoints: &Checkpoints) -> Result<(), TrainError> {
    if path.join(file).exists() {
        return Ok(());
    }
    let known: Vec<String> =
        checkpoints.steps().iter().map(|&step| checkpoints.path(step).display().to_string()).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    Err(TrainError::Config(format!("there is no checkpoint at {}; this run has: {known}", path.display())))
}

/// The run directory, which [`crate::ConfigSource`] always sets.
pub(crate) fn run_dir<C>(config: &Config<C>) -> PathBuf {
    config.run.dir.clone().unwrap_or_default()
}
