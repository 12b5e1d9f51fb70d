//! Everything a trainer starts with: rank 0 finds a checkpoint or initial parameters
//! (`start_point.rs`) and sends them to all ranks; sampler, loaders, events and checkpoint writer
//! follow. Called by `run.rs`.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hetseq_data::PlanSpec;
use hetseq_fs::sync_dir;
use hetseq_metrics::{Change, Event, WorkerTotals};
use hetseq_optim::{OptimError, Optimizer};

use crate::checkpoint::{CheckpointWriter, Checkpoints, Restored, RunConstants, Snapshot};
use crate::config::Config;
use crate::data::loader::Loader;
use crate::data::update_sampler::UpdateSampler;
use crate::error::TrainError;
use crate::run::{RunOptions, run_dir};
use crate::run_dir::events::RunEvents;
use crate::run_dir::lock::RunLock;
use crate::task::skipped_samples::SkippedSamples;
use crate::task::{Metric, Split, Task};
use crate::trainer::Trainer;
use crate::trainer::prefetch_queue::PrefetchQueue;
use crate::trainer::session::Session;
use crate::trainer::start_point::{
    Archive, archive_old_files, config_changes_since, find_start_point, prepare_run_dir,
};
use crate::trainer::state::State;
use crate::trainer::step_timings::StepTimings;
use crate::trainer::stop::StopFlag;

/// How long a checkpoint waits until earlier events are on disk.
const SYNC_TIMEOUT: Duration = Duration::from_secs(10);

/// Everything a trainer starts with besides its session.
pub(crate) struct TrainerSetup<T: Task> {
    constants: Arc<RunConstants>,
    /// Config keys that changed since the checkpoint; on rank 0.
    pub(crate) changed: Vec<Change>,
    state: State,
    parameters: Vec<f32>,
    optimizer: Optimizer,
    sampler: UpdateSampler,
    checkpoints: Checkpoints,
    writer: Option<CheckpointWriter>,
    events: RunEvents,
    loader: Loader<T>,
    valid_loader: Loader<T>,
    lock: Option<RunLock>,
}

impl<T: Task> TrainerSetup<T> {
    pub(crate) fn prepare(
        session: &mut Session<T>,
        config: &Config<T::Config>,
        options: &RunOptions,
    ) -> Result<Self, TrainError> {
        let dir = run_dir(config);
        let config_text = toml::to_string(config)
            .map_err(|error| TrainError::Config(format!("the config cannot be written as TOML: {error}")))?;
        let checkpoints = Checkpoints::at(&dir);
        let new_state = State::new(config, &session.task.fingerprint());
        let (mut start, mut lock, mut archive, mut changed) = (None, None, Archive::Nothing, Vec::new());
        let mut damaged_best = None;
        if session.group.rank() == 0 {
            lock = Some(RunLock::take(&dir)?);
            let found = find_start_point(session, &dir, &checkpoints, &new_state, config, options)?;
            changed = found.path.map_or_else(Vec::new, |path| config_changes_since::<T>(&path, &config_text));
            (start, archive, damaged_best) = (Some(found.restored), found.archive, found.damaged_best);
        }
        // From here on all ranks use what rank 0 found, whatever their own command lines say.
        let Restored { parameters, slots, mut state, .. } = broadcast_start(session, start)?;
        let mut optimizer = Optimizer::new(&config.optim.optimizer(), &session.layout)?;
        if !state.scalars.is_empty() {
            optimizer.restore(slots, state.scalars.clone())?;
        }
        let spec = PlanSpec {
            seed: config.run.seed,
            batch: config.batch.global,
            curriculum_epochs: config.batch.curriculum_epochs,
            shuffle: true,
        };
        let lengths = session.task.lengths(Split::Train);
        // Reject a sample that no device can take now, not when training reaches it.
        session.planner().share(config.batch.split, &[lengths.longest()])?;
        let mut sampler = UpdateSampler::new(lengths, spec, config.run.max_updates, config.run.max_epochs);
        sampler.check(&state.cursor).map_err(TrainError::Config)?;
        state.total_updates.get_or_insert_with(|| sampler.total_updates(&state.cursor));
        if session.group.rank() == 0 {
            let best = state.best.as_ref().map(|best| best.update);
            archive_old_files(&dir, &checkpoints, &archive, damaged_best)?;
            prepare_run_dir(&dir, &checkpoints, best, &config_text, session.group.world())?;
        }
        let events = RunEvents::start(config, &dir, session.group.rank(), state.cursor.updates)?;
        let saved = if let Archive::After(updates) = archive { Some(updates) } else { None };
        let writer = start_writer(&events, &checkpoints, config.checkpoint.keep, &dir, saved)?;
        let timeout = config.comm.progress_timeout();
        let loader = |waker| Loader::start(&session.task, config.run.seed, &session.loader_pool, timeout, waker);
        Ok(TrainerSetup {
            writer,
            constants: Arc::new(RunConstants {
                layout: session.layout.clone(),
                config: config_text,
                files: session.task.files(),
            }),
            changed,
            events,
            state,
            parameters,
            optimizer,
            sampler,
            checkpoints,
            loader: loader(Some(session.group.waker()))?,
            valid_loader: loader(None)?,
            lock,
        })
    }

    pub(crate) fn into_trainer(
        self,
        session: Session<T>,
        config: Config<T::Config>,
        stop: StopFlag,
        best_metric: Metric,
    ) -> Trainer<T> {
        let mut workers = WorkerTotals::default();
        for (rank, device) in &session.cluster.members {
            workers.add_device(*rank, session.group.host(*rank), device);
        }
        Trainer {
            planner: session.planner(),
            terms: session.task.terms(),
            total_updates: self.state.total_updates.unwrap_or_default(),
            last_saved: resumed_update(&self.state),
            bests: self.state.best.iter().cloned().collect(),
            warned_of_waiting: false,
            reported_warnings: BTreeSet::new(),
            best_metric,
            _lock: self.lock,
            timings: StepTimings::starting_at(self.state.cursor.updates),
            prefetch: PrefetchQueue::starting_at(&self.state.cursor),
            skipped_samples: SkippedSamples::default(),
            parameters: Arc::new(self.parameters),
            constants: self.constants,
            state: self.state,
            optimizer: self.optimizer,
            sampler: self.sampler,
            checkpoints: self.checkpoints,
            writer: self.writer,
            events: self.events,
            loader: self.loader,
            valid_loader: self.valid_loader,
            session,
            config,
            stop,
            workers,
        }
    }
}

impl<T: Task> Trainer<T> {
    pub(crate) fn emit_start(&mut self, changed: Vec<Change>) {
        let cursor = self.state.cursor.clone();
        self.events.emit(&Event::Start {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            task: T::NAME.to_owned(),
            seed: self.config.run.seed,
            world: self.session.group.world(),
            devices: self.session.cluster.members.len(),
            parameters: self.session.layout.len(),
            train_samples: self.session.task.lengths(Split::Train).samples(),
            valid_samples: self.session.task.lengths(Split::Valid).samples(),
            updates_per_epoch: self.sampler.updates_per_epoch(cursor.epoch),
            padding: self.sampler.padding(cursor.epoch),
            total_updates: self.total_updates,
            resumed_at: cursor.updates,
            changed,
        });
        self.warn_if_disk_is_small();
    }
}

/// On rank 0: starts the thread that writes checkpoints. `saved` is the update of the newest
/// complete checkpoint in the run directory.
fn start_writer(
    events: &RunEvents,
    checkpoints: &Checkpoints,
    keep: usize,
    dir: &Path,
    saved: Option<u64>,
) -> Result<Option<CheckpointWriter>, TrainError> {
    let Some(journal) = events.journal() else { return Ok(None) };
    let (checkpoints, dir) = (checkpoints.clone(), dir.to_owned());
    let save = move |snapshot: &Snapshot| {
        // So that a resume finds the events of all updates before the checkpoint, also after a
        // power cut. If it fails, the checkpoint is still good, and the journal reports the error.
        journal.sync(SYNC_TIMEOUT);
        _ = sync_dir(&dir);
        checkpoints.save(snapshot, keep)
    };
    CheckpointWriter::start(saved, save).map(Some)
}

/// The update of the checkpoint that a run resumes from; none for a new run.
fn resumed_update(state: &State) -> Option<u64> {
    Some(state.cursor.updates).filter(|&updates| updates > 0)
}

/// Sends rank 0's start to all ranks, so that replicas start bit-identical and need no shared file
/// system.
fn broadcast_start<T: Task>(session: &mut Session<T>, start: Option<Restored>) -> Result<Restored, TrainError> {
    let length = session.layout.len();
    let message = match &start {
        Some(start) => {
            let slots: Vec<(&String, usize)> = start.slots.iter().map(|(name, slot)| (name, slot.len())).collect();
            serde_json::to_vec(&(slots, &start.state)).map_err(|error| undecodable_state(&error))?
        }
        None => Vec::new(),
    };
    let message = session.group.broadcast_bytes(0, message)?;
    let (slots, state): (Vec<(String, usize)>, State) =
        serde_json::from_slice(&message).map_err(|error| undecodable_state(&error))?;
    // No optimizer has a slot with more than one value per parameter. Checked before the other
    // ranks allocate memory for it.
    if let Some((name, found)) = slots.iter().find(|(_, found)| *found > length) {
        return Err(OptimError::StateLength { name: name.clone(), expected: length, found: *found }.into());
    }
    let (mut parameters, mut slots) = match start {
        Some(start) => (start.parameters, start.slots),
        None => (vec![0.0; length], slots.into_iter().map(|(name, length)| (name, vec![0.0; length])).collect()),
    };
    session.group.broadcast(0, &mut parameters)?;
    for (_, values) in &mut slots {
        session.group.broadcast(0, values)?;
    }
    Ok(Restored { parameters, slots, state, manifest: None })
}

fn undecodable_state(error: &serde_json::Error) -> TrainError {
    TrainError::Config(format!("the state of the run cannot be exchanged: {error}"))
}
