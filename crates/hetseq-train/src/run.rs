//! Training and evaluating, from a config to the result: assembles the session, runs, and passes an
//! error on to the other ranks. Called by the task registry for `hetseq train` and `hetseq eval`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use hetseq_balance::SplitMode;
use hetseq_comm::{RankEnv, TransportKind};
use hetseq_metrics::terminal;

use crate::checkpoint::weights;
use crate::checkpoint::{CheckpointPart, Checkpoints, WEIGHTS, verify};
use crate::config::{Config, Reset, Resume, RunConfig};
use crate::error::TrainError;
use crate::run_dir::lock::RunLock;
use crate::task::skipped_samples::SkippedSamples;
use crate::task::{OpenedTask, Split, Totals};
use crate::tasks::python::check_sums;
use crate::trainer::early_checks::early_checks;
use crate::trainer::evaluate::{Evaluated, Evaluation, evaluate};
use crate::trainer::session::{ProbeMode, Session};
use crate::trainer::stop::StopFlag;
use crate::trainer::{RunOutcome, Trainer};

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
    /// Members, as `host:port`, of a run to join while it trains. Nothing else is started then.
    pub join: Vec<String>,
    /// This process has been a rank of that run before: it looks for it only for a moment.
    pub rejoin: bool,
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
            .field("join", &self.join)
            .field("rejoin", &self.rejoin)
            .finish()
    }
}

/// Trains a task.
pub(crate) fn train(task: &OpenedTask, mut config: RunConfig, options: &RunOptions) -> Result<RunOutcome, TrainError> {
    let started = Instant::now();
    check_best_metric(task, &config)?;
    if config.valid.patience.is_some() && task.data.lengths(Split::Valid).samples() == 0 {
        let reason = "valid.patience counts validations, but the task has no samples to validate on";
        return Err(TrainError::Config(reason.to_owned()));
    }
    if options.weight.is_some() && config.batch.split != SplitMode::Weights {
        return Err(TrainError::Config("--weight needs batch.split = \"weights\"; set that too".to_owned()));
    }
    let stop = StopFlag::default();
    if !options.join.is_empty() && config.comm.transport == TransportKind::Mpi {
        return Err(TrainError::Config(
            "--join needs comm.transport = \"tcp\", as on all ranks of that run".to_owned(),
        ));
    }
    if !options.join.is_empty() && !config.elastic.enabled {
        return Err(TrainError::Config("--join needs elastic.enabled = true, as on all ranks of that run".to_owned()));
    }
    let mut session = Session::assemble("train", task, &config, options, &stop).map_err(|error| match error {
        TrainError::Comm(reason) if options.rejoin => TrainError::CutOff {
            reason: format!("this process could not join the run again: {reason}"),
            saved: "It has nothing to save".to_owned(),
            rejoin: Vec::new(),
        },
        error => error,
    })?;
    if config.comm.transport == TransportKind::Mpi
        && std::mem::take(&mut config.elastic.enabled)
        && session.group.rank() == 0
    {
        tracing::info!(
            "comm.transport = \"mpi\": if a rank is lost, the run ends, and the same command resumes it from its last checkpoint"
        );
    }
    stop.set_may_leave(config.elastic.enabled && session.group.world() > 1);
    let checked = check_and_measure(&mut session, &config, options, &stop);
    if let Some(running) = session.running.take() {
        checked?;
        return Trainer::join(session, running, config, stop)?.train(started);
    }
    match checked {
        Ok(lock) => Trainer::prepare(session, config, options, stop, lock)?.train(started),
        Err(error) => session.leave(Err(error)),
    }
}

/// What is cheap to check comes before what takes time to measure. Returns the lock of the run
/// directory, on rank 0.
fn check_and_measure(
    session: &mut Session,
    config: &RunConfig,
    options: &RunOptions,
    stop: &StopFlag,
) -> Result<Option<RunLock>, TrainError> {
    // The run to join has checked all this.
    let lock = if session.running.is_none() { early_checks(session, config, options)? } else { None };
    session.probe_cluster(config, options, ProbeMode::Measure(stop))?;
    check_sums(session)?;
    Ok(lock)
}

/// Evaluates a checkpoint on the validation samples, over all ranks.
pub(crate) fn eval(
    task: &OpenedTask,
    config: &RunConfig,
    options: &RunOptions,
    checkpoint: Option<&Path>,
) -> Result<(Option<PathBuf>, Evaluation), TrainError> {
    let mut session = Session::assemble("eval", task, config, options, &StopFlag::default())?;
    let probed = session.probe_cluster(config, options, ProbeMode::Skip);
    let result = probed.and_then(|()| eval_with(&mut session, config, checkpoint));
    session.leave(result)
}

fn eval_with(
    session: &mut Session,
    config: &RunConfig,
    checkpoint: Option<&Path>,
) -> Result<(Option<PathBuf>, Evaluation), TrainError> {
    let dir = run_dir(config);
    let mut path = None;
    let mut parameters = vec![0.0; session.layout.len()];
    if session.group.rank() == 0 {
        let found = checkpoint_to_evaluate(&dir, checkpoint)?;
        let hub = session.task.compute.hugging_face();
        parameters = weights::read_all(&found, &session.layout, &|name: &str| hub.parameter_name(name))
            .map_err(TrainError::checkpoint(&found))?;
        path = Some(found);
    }
    session.group.broadcast(0, &mut parameters)?;
    // Kept until the end, for a device that replaces a failed one.
    let parameters = Arc::new(parameters);
    session.devices.load(&parameters)?;
    let (loader, planner) = (session.loader(config, None)?, session.planner());
    let split = (config.batch.split, config.batch.global);
    if path.is_some() {
        terminal::show(config.run.log_every);
    }
    // A signal ends an evaluation at once: there is nothing to save.
    let Evaluated::Done(evaluation) = evaluate(session, &loader, planner, split, None)? else {
        return Err(session.task.error("there are no validation samples to evaluate on"));
    };
    terminal::hide();
    session.finish_data_check(config.comm.progress_timeout())?;
    for warning in SkippedSamples::default().note(Split::Valid, &evaluation.skipped) {
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

/// The checkpoint that the user named, or the best of the run.
fn checkpoint_to_evaluate(dir: &Path, named: Option<&Path>) -> Result<PathBuf, TrainError> {
    let checkpoints = Checkpoints::at(dir);
    let Some(path) = named else {
        return checkpoints.choose()?.ok_or_else(|| {
            let dir = dir.display();
            TrainError::Config(format!("{dir} holds no checkpoint; train first, or name one with --checkpoint"))
        });
    };
    if !weights::exist_at(path) {
        check_exists(path, WEIGHTS, &checkpoints)?;
    }
    verify(path, CheckpointPart::Model)?;
    Ok(path.to_owned())
}

/// Checks that the task has the metric that `checkpoint.best` names: at the start, not after the
/// first epoch.
fn check_best_metric(task: &OpenedTask, config: &RunConfig) -> Result<(), TrainError> {
    let metrics = task.compute.metrics(&Totals::default()).map_err(|reason| task.error(reason))?;
    let known: Vec<&str> = metrics.iter().map(|metric| metric.name.as_str()).chain(["loss"]).collect();
    let best = config.checkpoint.best.as_str();
    if known.contains(&best) {
        return Ok(());
    }
    Err(TrainError::Config(format!("checkpoint.best = \"{best}\": this task measures {}", known.join(", "))))
}

/// Checks that the path a user gave is a checkpoint. The error lists the checkpoints of the run.
pub(crate) fn check_exists(path: &Path, file: &str, checkpoints: &Checkpoints) -> Result<(), TrainError> {
    if path.join(file).exists() {
        return Ok(());
    }
    let known: Vec<String> =
        checkpoints.steps()?.iter().map(|&step| checkpoints.path(step).display().to_string()).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    Err(TrainError::Config(format!("there is no checkpoint at {}; this run has: {known}", path.display())))
}

/// The run directory, which [`crate::ConfigSource`] always sets.
pub(crate) fn run_dir<C>(config: &Config<C>) -> PathBuf {
    config.run.dir.clone().unwrap_or_default()
}
