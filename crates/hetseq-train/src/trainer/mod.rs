//! The training loop. All ranks run it in step: plan, compute, reduce, step the optimizer, emit
//! events, validate, save. [`crate::run`] calls [`Trainer::run`].
//!
//! A trainer is made of parts that each own one concern: [`Session`] (task, devices, group),
//! [`Pipeline`] (which samples next, on which device), [`Learner`] (parameters and optimizer),
//! [`Checkpointing`], and [`Observer`] (events and times). This file says in which order they act.

mod after_update;
mod bad_numbers;
mod boundary;
mod busy;
mod checkpointing;
pub(crate) mod early_checks;
mod early_stop;
pub(crate) mod evaluate;
mod exchange;
#[cfg(test)]
mod fuzz_header;
mod group_change;
pub(crate) mod header;
mod healing;
mod in_progress;
mod lead;
mod learner;
mod leave;
pub(crate) mod loss_scale;
mod loss_watch;
pub(crate) mod losses;
pub(crate) mod messages;
mod newcomer;
mod newer_checkpoint;
mod observer;
mod pipeline;
mod rank_contribution;
mod recovery;
pub(crate) mod running_time;
pub(crate) mod session;
pub(crate) mod setup;
mod start_point;
pub(crate) mod state;
pub(crate) mod stop;
mod valid_rounds;

use std::time::Instant;

use hetseq_comm::{Candidate, CommError};
use hetseq_metrics::Event;
use hetseq_optim::global_norm;
use hetseq_random::Key;

use crate::config::RunConfig;
use crate::data::loader::{LoadedUpdate, Loader};
use crate::data::update_sampler::PlannedUpdate;
use crate::devices::StepParams;
use crate::error::TrainError;
use crate::run::run_dir;
use crate::run_dir::audit::AuditLine;
use crate::run_dir::events::at_update;
use crate::run_dir::stop_file::StopFileWatch;
use crate::task::Term;
use boundary::{Boundary, BoundaryDecisions};
use busy::BusyWatch;
use checkpointing::Checkpointing;
use exchange::ReducedGradient;
use header::MergedHeader;
use healing::ReplicaHealth;
use in_progress::InProgress;
use learner::{Learner, WroteNotFinite};
use loss_watch::LossWatch;
use losses::{mean_losses, named, scales, weighted};
use newcomer::Newcomer;
use observer::Observer;
use pipeline::{Pipeline, RequestedUpdate};
use session::Session;
use stop::{StopFlag, StopRequest};

pub use busy::wait_until_free;
pub use evaluate::Evaluation;

/// A training run on one rank.
pub(crate) struct Trainer {
    config: RunConfig,
    terms: Vec<Term>,
    stop: StopFlag,
    session: Session,
    pipeline: Pipeline,
    learner: Learner,
    checkpointing: Checkpointing,
    observer: Observer,
    valid_loader: Loader,
    /// The work after the last update, while it is not complete.
    boundary: Option<Boundary>,
    /// The update that is being computed.
    in_progress: Option<InProgress>,
    /// Updates in a row that were skipped because their gradients were not finite.
    bad_updates: u64,
    /// The update that is repeated because a device of a lost rank failed in it.
    repeats_failed: Option<u64>,
    loss_watch: LossWatch,
    replica_health: ReplicaHealth,
    /// The ranks that leave, by agreement of all ranks.
    leaving: Vec<StopRequest>,
    /// On rank 0.
    stop_file_watch: Option<StopFileWatch>,
    _busy_watch: Option<BusyWatch>,
    /// This rank has joined the run while it trained, and has not done an update yet.
    newcomer: Option<Newcomer>,
    /// The number of the newcomer that was reported last, and the update before it.
    last_joined: Option<(Option<usize>, u64)>,
}

/// Why updates pause.
enum Pause {
    Ended(RunOutcome),
    /// Ranks leave: see `leave.rs`.
    Leave,
    /// A newcomer waits: see `newcomer.rs`.
    Admit(Candidate),
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunOutcome {
    Finished,
    /// By a signal or `hetseq stop`, or because too few ranks are left; with a checkpoint saved.
    Stopped,
    /// This rank was asked to leave. The others continue without it.
    Left,
    /// This rank has left, or a run of this rank alone has stopped with a checkpoint saved, because the
    /// machine is needed for something else (`elastic.leave_when`). It may start again after that.
    Busy,
}

impl Trainer {
    /// Trains, waits for the last checkpoint, emits the last event and leaves the group. `started`
    /// is when the process started.
    pub(crate) fn train(mut self, started: Instant) -> Result<RunOutcome, TrainError> {
        let mut result = self.run().and_then(|outcome| self.finish_saves().map(|()| outcome));
        if let Err(error) = &result {
            // Before any wait for a disk: the others need not wait, too.
            self.report_failure(error);
            self.checkpointing.finish_after_failure(&mut self.learner.state, &mut self.observer);
        }
        if let Err(TrainError::Comm(error)) = &result
            && error.is_cut_off()
        {
            result = Err(self.save_cut_off(error.to_string(), matches!(error, CommError::Excluded { .. })));
        }
        let outcome = match result {
            Ok(RunOutcome::Finished) => "finished",
            Ok(RunOutcome::Stopped) | Err(TrainError::CutOff { .. }) => "stopped",
            Ok(RunOutcome::Left | RunOutcome::Busy) => "left",
            Err(_) => "failed",
        };
        self.observer.emit_end(self.learner.updates(), outcome, started.elapsed().as_secs_f64());
        let last = self.checkpointing.last_checkpoint();
        result = result.map(|outcome| self.unless_busy(outcome));
        self.session.leave(result.map_err(|error| match error {
            TrainError::Comm(reason) => TrainError::Interrupted { reason: Box::new(reason), last },
            error => error,
        }))
    }

    /// Trains until the planned end, an early stop, a request to stop or an error. Continues without
    /// ranks that are lost or leave, with ranks that join, and with ranks whose parameters were wrong.
    fn run(&mut self) -> Result<RunOutcome, TrainError> {
        let mut result = self.start().and_then(|()| self.run_updates());
        loop {
            let continued = match result {
                Ok(Pause::Ended(outcome)) => return Ok(outcome),
                Ok(Pause::Leave) => self.regroup(None),
                Ok(Pause::Admit(candidate)) => self.admit(candidate).map(|()| None),
                Err(error) if self.can_recover(&error) => self.regroup(Some(error)),
                Err(error) if self.can_heal(&error) => self.heal(error).map(|()| None),
                Err(error) => return Err(error),
            };
            result = match continued {
                Ok(None) => self.run_updates(),
                Ok(Some(outcome)) => return Ok(outcome),
                Err(error) => Err(error),
            };
        }
    }

    /// Trains with the ranks that are there, until the end, or until one is lost, leaves or joins.
    fn run_updates(&mut self) -> Result<Pause, TrainError> {
        if self.boundary.is_some() {
            if let Some(pause) = self.after_update()? {
                return Ok(pause);
            }
            self.observer.start_update();
        }
        let mut next = match self.resumed_update()? {
            Some(resumed) => resumed,
            None => {
                let first = self.first_update()?;
                if let Some(pause) = self.end_at_once(&first.merged)? {
                    return Ok(pause);
                }
                first
            }
        };
        while let Some((update, loaded)) = next.work {
            let header = next.merged;
            self.check_background_work()?;
            self.compute(loaded, &header);
            let mut gradient;
            (gradient, next) = self.reduce(&update, &header)?;
            // All have contributed: it is a rank like any other.
            self.newcomer = None;
            let plan = self.learn_times(&next.merged);
            self.request_next()?;
            self.step(&mut gradient, &header, next.merged.overflow)?;
            self.learner.state.cursor = self.learner.cursor_after(&update);
            self.in_progress = None;
            self.enter_boundary(BoundaryDecisions::of(&update, &next.merged));
            self.observe(&update, &gradient, &plan, &header, &next.merged)?;
            if let Some(pause) = self.after_update()? {
                return Ok(pause);
            }
            if let Some(candidate) = next.merged.newcomer.filter(|_| next.work.is_some()) {
                return Ok(Pause::Admit(candidate));
            }
            self.observer.start_update();
        }
        self.session.group.close_door();
        self.finish_saves()?;
        self.final_sync()?;
        Ok(Pause::Ended(RunOutcome::Finished))
    }

    /// Loads the parameters into the devices, and starts to load samples. A newcomer gets all that
    /// from the others.
    fn start(&mut self) -> Result<(), TrainError> {
        if self.newcomer.is_some() {
            return self.continue_in_new_group().map(drop);
        }
        let is_at_end = self.pipeline.sampler.at(&self.learner.state.cursor).is_none();
        // With zero updates, `early_checks.rs` has said so.
        if is_at_end && self.learner.updates() > 0 && self.learner.state.unfinished_validation.is_none() {
            self.observer.warn(nothing_to_do(self.learner.updates()));
        }
        self.write_profile();
        self.session.devices.load(&self.learner.parameters)?;
        for _ in 0..=self.config.run.prefetch {
            self.request_next()?;
        }
        self.observer.start_update();
        self.resume_boundary();
        Ok(())
    }

    /// Errors of threads that work beside the loop: the data check, the checkpoint writer, the
    /// event sinks.
    fn check_background_work(&mut self) -> Result<(), TrainError> {
        self.session.data_check.poll()?;
        self.checkpointing.poll(&mut self.learner.state, &mut self.observer)?;
        self.observer.events.check()
    }

    /// Starts the devices of this rank on their micro-batches of the next update.
    fn compute(&mut self, loaded: LoadedUpdate, header: &MergedHeader) {
        let done = self.learner.updates();
        let samples = loaded.devices.iter().flatten().flat_map(|job| job.micro.samples.iter().copied());
        self.in_progress.get_or_insert_with(|| InProgress::new(header.clone())).samples.extend(samples);
        self.session.group.at(at_update(done + 1));
        self.session.devices.begin(
            loaded.devices,
            StepParams {
                update: done + 1,
                scales: scales(&self.terms, &header.counts),
                loss_scale: self.learner.state.loss_scale.get(),
                update_key: Key::root(self.config.run.seed).name("dropout").index(done),
                epoch_key: loaded.epoch_key,
            },
        );
    }

    /// Passes the times of the update to the planner. Returns the update's plan.
    fn learn_times(&mut self, merged: &MergedHeader) -> RequestedUpdate {
        let plan = self.pipeline.take_requested();
        self.pipeline.learn(&plan, merged, &self.session.cluster, &mut self.observer);
        plan
    }

    /// Splits the next update, `run.prefetch` updates ahead, and requests this rank's part.
    fn request_next(&mut self) -> Result<(), TrainError> {
        self.pipeline.request_next(&self.session.cluster, &mut self.observer)
    }

    /// Runs the optimizer and loads the new parameters into the devices. Does neither if gradients
    /// overflowed in `f16`.
    fn step(
        &mut self,
        gradient: &mut ReducedGradient,
        header: &MergedHeader,
        overflow: Option<bool>,
    ) -> Result<(), TrainError> {
        let started = Instant::now();
        let update = self.learner.updates() + 1;
        let loss_scale = &mut self.learner.state.loss_scale;
        let could_shrink = overflow.is_none_or(|has_overflowed| loss_scale.adjust(has_overflowed));
        if gradient.is_skipped && could_shrink {
            let scale = loss_scale.get();
            self.observer.warn(format!(
                "update {update} was skipped: gradients overflowed in f16; the loss scale is {scale} from now on"
            ));
            return Ok(());
        }
        gradient.norm = global_norm(&gradient.flat);
        self.observer.events.gradient(update, &self.session.layout, &gradient.flat)?;
        if !gradient.norm.is_finite() {
            return self.skip_bad_update(gradient, header);
        }
        self.bad_updates = 0;
        self.session.devices.release()?;
        self.learner.step(&gradient.flat, gradient.norm, header.lr).map_err(|WroteNotFinite(what)| {
            TrainError::Diverged { update, what, last: self.checkpointing.last_checkpoint() }
        })?;
        self.emulate_flipped_bit(update);
        self.session.devices.load_trainable(&self.learner.parameters)?;
        self.observer.rank.host_micros += started.elapsed().as_micros() as u64;
        Ok(())
    }

    /// Takes a checksum if one is due, counts the update, and emits its event.
    fn observe(
        &mut self,
        update: &PlannedUpdate,
        gradient: &ReducedGradient,
        plan: &RequestedUpdate,
        header: &MergedHeader,
        next: &MergedHeader,
    ) -> Result<(), TrainError> {
        let updates = self.learner.updates();
        let every = self.config.run.checksum_every;
        self.learner.new_checksum = (every > 0 && updates.is_multiple_of(every)).then(|| self.learner.checksum());
        let seconds = self.observer.finish_update(&plan.work, header, next);
        self.observer.show_shares(self.session.cluster.shares(&plan.work));
        // The updates with an equal split are reported separately.
        if self.observer.updates_done == self.config.batch.even_updates {
            self.emit_workers();
            self.observer.reset_workers();
        }
        self.observer.events.audit(|| AuditLine {
            update: updates,
            epoch: update.epoch + 1,
            ranks: self.session.cluster.original_ranks.clone(),
            computed: next.computed.clone(),
        })?;
        let means = mean_losses(&gradient.losses, &header.counts);
        let loss = weighted(&self.terms, &means);
        // The loss of a skipped update may be NaN or infinite too.
        if !loss.is_finite() {
            return Ok(());
        }
        let rising = self.loss_watch.add(loss, header.lr);
        self.observer.record(Event::Update {
            update: updates,
            epoch: update.epoch + 1,
            loss,
            terms: named(&self.terms, &means),
            samples: update.samples.len() as u64,
            tokens: update.real_tokens,
            grad_norm: gradient.norm,
            skipped: gradient.is_skipped,
            lr: header.lr,
            seconds: seconds.wall_s,
            data_wait_s: seconds.data_wait_s,
            predicted_s: (plan.predicted_s > 0.0).then_some(plan.predicted_s),
            checksum: self.learner.new_checksum.map(|sum| format!("{sum:016x}")),
        });
        if let Some(warning) = rising {
            self.observer.warn(warning);
        }
        Ok(())
    }

    fn save(&mut self) -> Result<(), TrainError> {
        self.checkpointing.save(&mut self.learner, &mut self.session, &mut self.observer)
    }

    fn finish_saves(&mut self) -> Result<(), TrainError> {
        self.checkpointing.finish(&mut self.learner.state, &mut self.observer)
    }

    /// Emits what each worker did, and on rank 0 writes the current profile of the group.
    fn emit_workers(&mut self) {
        if self.observer.updates_done > 0 {
            self.write_profile();
            self.observer.emit_workers(self.learner.updates());
        }
    }

    fn write_profile(&self) {
        if self.session.group.rank() == 0 {
            self.session.cluster.write(&run_dir(&self.config), &self.pipeline.planner.profile());
        }
    }
}

fn nothing_to_do(updates: u64) -> String {
    format!("this run already ended, after {}; raise run.max_updates or run.max_epochs to continue", at_update(updates))
}
