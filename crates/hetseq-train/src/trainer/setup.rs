//! Everything a trainer starts with: rank 0 finds a checkpoint or initial parameters
//! (`start_point.rs`), unless another rank has a newer checkpoint (`newer_checkpoint.rs`), and all
//! ranks get them; the parts of the trainer follow. Called by `run.rs`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hetseq_data::PlanSpec;
use hetseq_fs::sync_dir;
use hetseq_metrics::{Change, Event, WorkerTotals};
use hetseq_optim::OptimError;

use crate::checkpoint::{CheckpointWriter, Checkpoints, Restored, RunConstants, Snapshot};
use crate::config::RunConfig;
use crate::data::loader::Loader;
use crate::data::update_sampler::UpdateSampler;
use crate::error::TrainError;
use crate::run::{RunOptions, run_dir};
use crate::run_dir::events::RunEvents;
use crate::run_dir::lock::RunLock;
use crate::run_dir::stop_file::StopFileWatch;
use crate::task::{OpenedTask, Split};
use crate::trainer::session::Session;
use crate::trainer::start_point::{
    Archive, StartPoint, archive_old_files, config_changes_since, find_start_point, keep_best, prepare_run_dir,
};
use crate::trainer::state::{DataSummary, State};
use crate::trainer::stop::StopFlag;

use super::busy::BusyWatch;
use super::checkpointing::Checkpointing;
use super::early_checks::overrides_without_checkpoint;
use super::learner::Learner;
use super::loss_watch::LossWatch;
use super::newcomer::Newcomer;
use super::newer_checkpoint::{FoundCheckpoint, NewerCheckpoint, Question, find_newer_checkpoint};
use super::observer::Observer;
use super::pipeline::Pipeline;
use super::recovery::set_regroup_rules;
use super::{Trainer, messages};

/// How long a checkpoint waits until earlier events are on disk.
const SYNC_TIMEOUT: Duration = Duration::from_secs(10);

/// What rank 0 found in the run directory, besides what it sends to all ranks.
struct FoundByRank0 {
    lock: RunLock,
    /// The checkpoint that it resumes from; none for a new run.
    path: Option<PathBuf>,
    archive: Archive,
    /// The update of the newest complete checkpoint in the run directory.
    saved: Option<u64>,
    damaged_best: Option<u64>,
    /// Config keys that changed since the checkpoint.
    changed: Vec<Change>,
}

impl Trainer {
    /// Prepares a run and emits its first event. A collective. An error is passed on to the other
    /// ranks. `lock` is that of the run directory, on rank 0.
    pub(crate) fn prepare(
        mut session: Session,
        config: RunConfig,
        options: &RunOptions,
        stop: StopFlag,
        lock: Option<RunLock>,
    ) -> Result<Self, TrainError> {
        match Parts::prepare(&mut session, &config, options, lock) {
            Ok(parts) => Ok(parts.into_trainer(session, config, stop)),
            Err(error) => session.leave(Err(error)),
        }
    }
}

/// The parts of a trainer besides its session.
pub(super) struct Parts {
    pub(super) pipeline: Pipeline,
    pub(super) learner: Learner,
    pub(super) checkpointing: Checkpointing,
    pub(super) observer: Observer,
    pub(super) valid_loader: Loader,
    /// Config keys that changed since the checkpoint.
    pub(super) changed: Vec<Change>,
}

impl Parts {
    fn prepare(
        session: &mut Session,
        config: &RunConfig,
        options: &RunOptions,
        lock: Option<RunLock>,
    ) -> Result<Self, TrainError> {
        let dir = run_dir(config);
        let store = Checkpoints::at(&dir);
        let new_state = State::new(config, &session.task.data.fingerprint(), DataSummary::of(&session.task, config));
        let (mut found, mut question, mut start) = (None, None, None);
        if let Some(lock) = lock {
            let own = find_start_point(session, &dir, &store, &new_state, config, options)?;
            question = Some(Question::new(&own, options));
            let (rank_0, restored) = FoundByRank0::new(lock, own, &session.task);
            (found, start) = (Some(rank_0), Some(restored));
        }
        let newer = find_newer_checkpoint(session, &store, &new_state, question)?;
        if let Some(found) = &found {
            found.announce(session, options, &dir, newer.as_ref())?;
        }
        let (owner, newer) = match newer {
            Some(newer) => {
                start = newer.restored;
                (newer.rank, Some(newer.found))
            }
            None => (0, None),
        };
        // From here on all ranks use this, whatever their own command lines say.
        let Restored { parameters, slots, mut state, .. } = broadcast_state(session, owner, start)?;
        if let (Some(found), Some(newer)) = (&mut found, newer) {
            found.follow(newer, &store, &mut state)?;
        }
        set_regroup_rules(session, config)?;
        let mut optimizer = session.optimizer(config)?;
        if !state.scalars.is_empty() {
            optimizer.restore(slots, state.scalars.clone())?;
        }
        // Reject a sample that no device can take now, not when training reaches it.
        session.planner().share(config.batch.split, &[session.task.data.lengths(Split::Train).longest()])?;
        let sampler = sampler(session, config, &mut state)?;
        let (mut lock, mut saved, mut changed) = (None, None, Vec::new());
        if let Some(found) = found {
            archive_old_files(&dir, &store, &found.archive, found.damaged_best)?;
            prepare_run_dir(&dir, &store, &session.task.config, session.group.world(), &state)?;
            (lock, saved, changed) = (Some(found.lock), found.saved, found.changed);
        }
        let events = RunEvents::start(config, &dir, &session.group, state.cursor.updates)?;
        let writer = start_writer(&events, &store, config.checkpoint.keep, &dir, saved)?;
        let constants = run_constants(session);
        let timeout = config.comm.progress_timeout();
        let loader = session.loader(config, Some(session.group.waker()))?;
        Ok(Parts {
            pipeline: Pipeline::new(sampler, session.planner(), loader, &config.batch, &state.cursor),
            checkpointing: Checkpointing::new(&config.checkpoint, constants, store, writer, lock, timeout, &state),
            learner: Learner::new(state, parameters, optimizer, &session.layout, &config.optim),
            observer: Observer::new(events, workers(session)),
            valid_loader: session.loader(config, None)?,
            changed,
        })
    }

    /// Puts the parts together and emits the first event.
    fn into_trainer(mut self, session: Session, config: RunConfig, stop: StopFlag) -> Trainer {
        let changed = std::mem::take(&mut self.changed);
        let Parts { pipeline, learner, observer, .. } = &mut self;
        let data = &session.task.data;
        let cursor = learner.state.cursor.clone();
        observer.events.emit(&Event::Start {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            task: session.task.name.to_string(),
            seed: config.run.seed,
            world: session.group.world(),
            devices: session.cluster.members.len(),
            parameters: session.layout.len(),
            frozen_parameters: session.layout.len() - session.layout.trainable_len(),
            train_samples: data.lengths(Split::Train).samples(),
            valid_samples: data.lengths(Split::Valid).samples(),
            updates_per_epoch: pipeline.sampler.updates_per_epoch(cursor.epoch),
            padding: pipeline.sampler.padding(cursor.epoch),
            total_updates: learner.total_updates(),
            resumed_at: cursor.updates,
            best_metric: config.checkpoint.best.clone(),
            changed,
        });
        self.assemble(session, config, stop, None)
    }

    pub(super) fn assemble(
        self,
        session: Session,
        config: RunConfig,
        stop: StopFlag,
        newcomer: Option<Newcomer>,
    ) -> Trainer {
        let Parts { pipeline, learner, checkpointing, observer, valid_loader, .. } = self;
        let is_resumed = newcomer.is_some() || learner.updates() > 0;
        let (stop_file_watch, busy_watch) = start_watches(&session, &config, &stop);
        let terms = session.task.data.terms();
        Trainer {
            config,
            terms,
            stop,
            session,
            pipeline,
            learner,
            checkpointing,
            observer,
            valid_loader,
            boundary: None,
            in_progress: None,
            bad_updates: 0,
            repeats_failed: None,
            loss_watch: LossWatch::new(is_resumed),
            replica_health: Default::default(),
            leaving: Vec::new(),
            stop_file_watch,
            _busy_watch: busy_watch,
            newcomer,
            last_joined: None,
        }
    }
}

impl FoundByRank0 {
    fn new(lock: RunLock, start: StartPoint, task: &OpenedTask) -> (FoundByRank0, Restored) {
        let StartPoint { restored, path, archive, damaged_best, .. } = start;
        let changed = path.as_ref().map_or_else(Vec::new, |path| config_changes_since(path, task));
        let saved = if let Archive::After(updates) = archive { Some(updates) } else { None };
        (FoundByRank0 { lock, path, archive, saved, damaged_best, changed }, restored)
    }

    /// Says where the run starts. `newer` is the checkpoint of another rank.
    fn announce(
        &self,
        session: &Session,
        options: &RunOptions,
        dir: &Path,
        newer: Option<&NewerCheckpoint>,
    ) -> Result<(), TrainError> {
        match (newer, &self.path) {
            (Some(newer), _) => newer.announce(session, dir),
            (None, Some(path)) => tracing::info!("resuming from {}", path.display()),
            (None, None) if options.overrides => return Err(overrides_without_checkpoint(dir)),
            (None, None) => {}
        }
        Ok(())
    }

    /// Continues from the checkpoint of another rank. Earlier ones of this directory stay.
    fn follow(&mut self, newer: FoundCheckpoint, store: &Checkpoints, state: &mut State) -> Result<(), TrainError> {
        let FoundCheckpoint { updates, changed, .. } = newer;
        let mut steps = store.steps()?;
        steps.retain(|&step| step < updates);
        self.damaged_best = keep_best(&steps, store, state)?;
        self.archive = Archive::After(updates);
        self.changed = changed;
        Ok(())
    }
}

/// The sampler of the run. Completes `state` with the number of its last update.
pub(super) fn sampler(session: &Session, config: &RunConfig, state: &mut State) -> Result<UpdateSampler, TrainError> {
    let spec = PlanSpec {
        seed: config.run.seed,
        batch: config.batch.global,
        curriculum_epochs: config.batch.curriculum_epochs,
        shuffle: true,
    };
    let lengths = session.task.data.lengths(Split::Train);
    let mut sampler = UpdateSampler::new(lengths, spec, config.run.max_updates, config.run.max_epochs);
    sampler.check(&state.cursor).map_err(TrainError::Config)?;
    state.total_updates.get_or_insert_with(|| sampler.total_updates(&state.cursor));
    Ok(sampler)
}

/// What all checkpoints of this run have in common.
pub(super) fn run_constants(session: &Session) -> RunConstants {
    RunConstants {
        layout: session.layout.clone(),
        config: session.task.config.to_string(),
        files: session.task.compute.hugging_face().files(),
    }
}

pub(super) fn workers(session: &Session) -> WorkerTotals {
    let mut workers = WorkerTotals::default();
    for (rank, device) in &session.cluster.members {
        workers.add_device(*rank, session.group.host(*rank), device);
    }
    workers
}

/// Starts to look for requests to stop, besides signals. Without them, the run can be stopped by
/// signals only.
fn start_watches(session: &Session, config: &RunConfig, stop: &StopFlag) -> (Option<StopFileWatch>, Option<BusyWatch>) {
    let warn = |error: TrainError| tracing::warn!("{error}");
    let is_lead = session.group.rank() == 0;
    let stop_file = is_lead.then(|| StopFileWatch::start(&run_dir(config), stop.clone()).map_err(warn).ok());
    let busy = config.elastic.leave_when.as_ref().map(|rules| {
        let watch = BusyWatch::start(rules, stop.clone()).map_err(TrainError::io("starting the watch of this machine"));
        watch.map_err(warn).ok()
    });
    (stop_file.flatten(), busy.flatten())
}

/// On rank 0: starts the thread that writes checkpoints. `saved` is the update of the newest
/// complete checkpoint in the run directory.
pub(super) fn start_writer(
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

/// Sends the state of `root` to all ranks, so that replicas are bit-identical and need no shared
/// file system. A collective.
pub(super) fn broadcast_state(
    session: &mut Session,
    root: usize,
    start: Option<Restored>,
) -> Result<Restored, TrainError> {
    let length = session.layout.len();
    // The state as JSON, as in a checkpoint.
    let message = match &start {
        Some(start) => {
            let slots: Vec<(&String, usize)> = start.slots.iter().map(|(name, slot)| (name, slot.len())).collect();
            let state = serde_json::to_string(&start.state);
            let state = state.map_err(|error| TrainError::Encode { reason: error.to_string() })?;
            messages::encode(&(slots, state))?
        }
        None => Vec::new(),
    };
    let message = session.group.broadcast_bytes(root, message)?;
    let (slots, state): (Vec<(String, usize)>, String) = messages::decode(root, &message)?;
    let state: State =
        serde_json::from_str(&state).map_err(|error| TrainError::Decode { rank: root, reason: error.to_string() })?;
    // No optimizer has a slot with more than one value per parameter. Checked before the other
    // ranks allocate memory for it.
    if let Some((name, found)) = slots.iter().find(|(_, found)| *found > length) {
        return Err(OptimError::StateLength { name: name.clone(), expected: length, found: *found }.into());
    }
    let (mut parameters, mut slots) = match start {
        Some(start) => (start.parameters, start.slots),
        None => (vec![0.0; length], slots.into_iter().map(|(name, length)| (name, vec![0.0; length])).collect()),
    };
    session.group.broadcast(root, &mut parameters)?;
    for (_, values) in &mut slots {
        session.group.broadcast(root, values)?;
    }
    Ok(Restored { parameters, slots, state, manifest: None })
}
