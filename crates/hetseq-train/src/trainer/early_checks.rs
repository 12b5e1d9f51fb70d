//! What rank 0 can check in a moment, before the machines are measured: the run directory, the
//! checkpoint to resume from, the initial weights, the disk. Later steps check again what they read;
//! these checks only save the time of the measurement. Called by `run.rs` after the ranks have joined.

use std::path::Path;

use fs_err as fs;
use hetseq_data::GlobalBatch;
use hetseq_metrics::thousands;

use crate::checkpoint::{CheckpointPart, Checkpoints, STATE, free_bytes, size_bytes, stored_shapes, verify};
use crate::config::RunConfig;
use crate::error::TrainError;
use crate::run::{RunOptions, run_dir};
use crate::run_dir::lock::RunLock;
use crate::task::Split;
use crate::tasks::initial_weights::missing_weights;
use crate::trainer::session::Session;
use crate::trainer::start_point::{checkpoints_to_resume, config_changes_since};
use crate::trainer::state::{DataSummary, State};

/// Checks on rank 0. Returns the lock of the run directory, which it keeps until the run ends.
pub(crate) fn early_checks(
    session: &Session,
    config: &RunConfig,
    options: &RunOptions,
) -> Result<Option<RunLock>, TrainError> {
    // The ranks have the same config: all of them find the same.
    let optimizer = session.optimizer(config)?;
    if session.group.rank() != 0 {
        return Ok(None);
    }
    let dir = run_dir(config);
    let lock = RunLock::take(&dir)?;
    let store = Checkpoints::at(&dir);
    store.check_writable()?;
    match checkpoints_to_resume(&store, options)?.first() {
        Some(path) => check_resume(session, path, config, options)?,
        None => check_new_run(session, &dir, options)?,
    }
    let slots = optimizer.state().into_iter().map(|(_, values)| values.len());
    let needed = size_bytes(session.layout.len(), slots);
    // A link to another disk may be there already; in a new run, neither exists.
    let disk = if store.dir().exists() { store.dir() } else { &dir };
    let warnings = [small_disk(disk, needed), large_batch(session, config), no_updates(config)];
    for warning in warnings.into_iter().flatten() {
        tracing::warn!("{warning}");
    }
    if session.task.data.lengths(Split::Valid).samples() == 0 {
        tracing::info!("there are no validation samples: only the loss on the training samples is shown");
    }
    Ok(Some(lock))
}

/// Whether the newest checkpoint is of the same task, data and model. One that is damaged is left to
/// the start, which says so and may find an earlier one.
fn check_resume(session: &Session, path: &Path, config: &RunConfig, options: &RunOptions) -> Result<(), TrainError> {
    let compared = compare(session, path, config, options);
    // It takes a while to read all of it, so only to not blame the config for damage.
    if compared.is_err() && verify(path, CheckpointPart::All).is_err() { Ok(()) } else { compared }
}

fn compare(session: &Session, path: &Path, config: &RunConfig, options: &RunOptions) -> Result<(), TrainError> {
    let Ok(bytes) = fs::read(path.join(STATE)) else { return Ok(()) };
    let Ok(state) = serde_json::from_slice::<State>(&bytes) else { return Ok(()) };
    let refused = |reason: String| TrainError::Config(format!("cannot resume from {}: {reason}", path.display()));
    let now = State::new(config, &session.task.data.fingerprint(), DataSummary::of(&session.task, config));
    state.resumed(&now, options.reset).map_err(refused)?;
    let Some(stored) = stored_shapes(path) else { return Ok(()) };
    let model = session.layout.entries().iter().map(|entry| (entry.name.clone(), entry.shape.clone())).collect();
    if let Some(difference) = stored.difference(&model) {
        let changes = config_changes_since(path, &session.task);
        let keys: Vec<String> = changes
            .iter()
            .filter(|change| change.key.starts_with("task."))
            .map(|change| {
                let [was, is] = [&change.was, &change.is].map(|value| value.as_deref().unwrap_or("not set"));
                format!("{} was {was} and is {is} now", change.key)
            })
            .collect();
        let keys = if keys.is_empty() { String::new() } else { format!(" ({})", keys.join(", ")) };
        return Err(refused(format!(
            "its model is another one than this config's: {difference}{keys}. Set the model back, or start a new run: \
             another run.dir, or --resume never, which keeps the previous run"
        )));
    }
    Ok(())
}

fn check_new_run(session: &Session, dir: &Path, options: &RunOptions) -> Result<(), TrainError> {
    // Otherwise another rank may have a checkpoint.
    if options.overrides && session.group.world() == 1 {
        return Err(overrides_without_checkpoint(dir));
    }
    match session.task.compute.hugging_face().init_from() {
        Some(path) if !path.exists() => Err(session.task.error(missing_weights(path))),
        _ => Ok(()),
    }
}

pub(super) fn overrides_without_checkpoint(dir: &Path) -> TrainError {
    TrainError::Config(format!(
        "--optimizer-overrides only works when resuming, but this would be a new run in {}. Set the values in the config, or \
         with --set, such as --set optim.lr=0.001",
        dir.display()
    ))
}

fn small_disk(dir: &Path, needed: u64) -> Option<String> {
    let free = free_bytes(dir).filter(|&free| free < needed)?;
    let [needed, free] = [needed, free].map(hetseq_metrics::bytes);
    let dir = dir.display();
    Some(format!("a checkpoint takes {needed} and {free} is free in {dir}: free some space or set another run.dir"))
}

fn large_batch(session: &Session, config: &RunConfig) -> Option<String> {
    let lengths = session.task.data.lengths(Split::Train);
    let samples = lengths.samples();
    let (batch, available, unit) = match config.batch.global {
        GlobalBatch::Sequences(batch) => (batch as u64, samples as u64, "samples"),
        GlobalBatch::Tokens(batch) => {
            let tokens = (0..samples).map(|sample| u64::from(lengths.tokens(sample as u32))).sum();
            (batch as u64, tokens, "tokens")
        }
    };
    (batch > available).then(|| {
        let [batch, available] = [batch, available].map(thousands);
        format!(
            "batch.global = {batch} {unit} is more than the data has ({available}): each update is a whole epoch. Set a \
             smaller batch.global"
        )
    })
}

fn no_updates(config: &RunConfig) -> Option<String> {
    let limits = [("run.max_updates", config.run.max_updates), ("run.max_epochs", config.run.max_epochs)];
    let (key, _) = limits.into_iter().find(|(_, limit)| *limit == Some(0))?;
    Some(format!("{key} = 0: the run ends before its first update. Set it to the number to train for"))
}
