//! The training loop. All ranks run it in step: plan, compute, reduce, step the optimizer, emit
//! events, validate, save. [`crate::run`] calls [`Trainer::run`].

mod after_update;
mod checkpointing;
mod early_stop;
pub(crate) mod evaluate;
pub(crate) mod header;
pub(crate) mod loss_scale;
mod planning;
mod prefetch_queue;
mod rank_contribution;
pub(crate) mod session;
pub(crate) mod setup;
mod start_point;
pub(crate) mod state;
mod step_timings;
pub(crate) mod stop;
mod sync;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use hetseq_balance::Planner;
use hetseq_comm::{Algorithm, Shards};
use hetseq_data::Cursor;
use hetseq_metrics::{Event, WorkerTotals};
use hetseq_optim::{Optimizer, clip_factor, global_norm};
use hetseq_random::Key;

use crate::checkpoint::{CheckpointWriter, Checkpoints, RunConstants};
use crate::config::{Config, wire_format};
use crate::data::loader::{LoadedUpdate, Loader};
use crate::data::update_sampler::{PlannedUpdate, UpdateSampler};
use crate::devices::StepParams;
use crate::error::TrainError;
use crate::run_dir::events::{RunEvents, at_update};
use crate::run_dir::lock::RunLock;
use crate::task::skipped_samples::SkippedSamples;
use crate::task::{Metric, Task, Term};
use crate::trainer::session::Session;
use crate::trainer::state::{Best, State};
use crate::trainer::stop::StopFlag;
use header::{MergedHeader, RankTime};
use prefetch_queue::PrefetchQueue;
use rank_contribution::{ContributionSources, RankContribution};
use step_timings::StepTimings;

pub use evaluate::Evaluation;

/// The state of a training run on one rank.
pub(crate) struct Trainer<T: Task> {
    pub(crate) session: Session<T>,
    pub(crate) config: Config<T::Config>,
    pub(crate) constants: Arc<RunConstants>,
    pub(crate) state: State,
    pub(crate) parameters: Arc<Vec<f32>>,
    pub(crate) optimizer: Optimizer,
    pub(crate) sampler: UpdateSampler,
    pub(crate) total_updates: u64,
    pub(crate) checkpoints: Checkpoints,
    /// On rank 0.
    pub(crate) writer: Option<CheckpointWriter>,
    pub(crate) events: RunEvents,
    pub(crate) stop: StopFlag,
    pub(crate) terms: Vec<Term>,
    pub(crate) loader: Loader<T>,
    pub(crate) valid_loader: Loader<T>,
    pub(crate) planner: Planner,
    pub(crate) timings: StepTimings,
    pub(crate) prefetch: PrefetchQueue,
    pub(crate) workers: WorkerTotals,
    pub(crate) skipped_samples: SkippedSamples,
    /// The metric that `checkpoint.best` names.
    pub(crate) best_metric: Metric,
    /// Every best so far, oldest first. If one cannot be saved, the one before it is the best.
    pub(crate) bests: Vec<Best>,
    /// The update of the last complete checkpoint, of this process or the one it resumed from.
    pub(crate) last_saved: Option<u64>,
    /// Whether a warning about saves that wait for earlier saves was emitted.
    pub(crate) warned_of_waiting: bool,
    /// Warnings about saved checkpoints that were already reported.
    pub(crate) reported_warnings: BTreeSet<String>,
    /// Held while this process uses the run directory (rank 0).
    pub(crate) _lock: Option<RunLock>,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunOutcome {
    Finished,
    /// By a signal, with a checkpoint saved.
    Stopped,
}

/// The next update and its header, merged over all ranks.
pub(crate) struct NextUpdate<T: Task> {
    /// None at the planned end of the run.
    work: Option<(PlannedUpdate, LoadedUpdate<T>)>,
    merged: MergedHeader,
}

/// The gradient of an update, summed over all ranks.
struct ReducedGradient {
    flat: Vec<f32>,
    losses: Vec<f64>,
    norm: f64,
    predicted_s: f64,
    /// It overflowed on some device, so no rank uses it.
    is_skipped: bool,
}

impl<T: Task> Trainer<T> {
    pub(crate) fn run(&mut self) -> Result<RunOutcome, TrainError> {
        if self.sampler.at(&self.state.cursor).is_none() {
            self.events.emit(&Event::Warning { message: nothing_to_do(self.state.cursor.updates) });
        }
        self.write_profile();
        self.session.devices.load(&self.parameters)?;
        for _ in 0..=self.config.run.prefetch {
            self.request_next()?;
        }
        let mut started = Instant::now();
        let mut next = self.exchange_first_headers()?;
        if let Some(outcome) = self.end_at_once(&next.merged)? {
            return Ok(outcome);
        }
        while let Some((update, work)) = next.work {
            let merged = next.merged;
            self.session.data.poll()?;
            self.poll_saves()?;
            self.events.check()?;
            let mut reduced;
            (reduced, next) = self.compute(&update, work, &merged)?;
            self.request_next()?;
            self.step(&mut reduced, &merged, next.merged.overflow)?;
            self.state.cursor = self.cursor_after(&update);
            self.observe(&update, &reduced, &merged, &next.merged, started);
            if let Some(outcome) = self.after_update(&update, &next.merged)? {
                return Ok(outcome);
            }
            started = Instant::now();
        }
        self.finish_saves()?;
        self.final_sync()?;
        Ok(RunOutcome::Finished)
    }

    /// Returns the gradients of `update`, summed over all ranks, and the next update. This rank
    /// sends its gradients and its header for the next update when they are ready
    /// (`rank_contribution.rs`); it receives from other ranks while its devices compute.
    fn compute(
        &mut self,
        update: &PlannedUpdate,
        work: LoadedUpdate<T>,
        merged: &MergedHeader,
    ) -> Result<(ReducedGradient, NextUpdate<T>), TrainError> {
        self.events.audit(self.state.cursor.updates + 1, update.epoch + 1, || {
            work.devices.iter().flatten().flat_map(|job| job.micro.samples.iter().copied()).collect()
        })?;
        let weights: Vec<f64> = self.terms.iter().map(|term| term.weight).collect();
        let params = StepParams {
            update: self.state.cursor.updates + 1,
            scales: header::scales(&weights, &merged.counts),
            loss_scale: self.state.loss_scale.get(),
            update_key: Key::root(self.config.run.seed).name("dropout").index(self.state.cursor.updates),
            epoch_key: work.epoch_key,
        };
        self.session.group.at(at_update(self.state.cursor.updates + 1));
        self.session.devices.begin(work.devices, params);
        let requested = self.prefetch.requested.pop_front().unwrap_or_default();
        let after = self.cursor_after(update);
        let next = self.sampler.at(&after);
        let header = self.header(&after, next.as_ref());
        let (len, comm) = (self.session.layout.len() + self.terms.len(), &self.config.comm);
        let shards = Shards::weighted(len, self.planner.shard_weights());
        let (wire, algorithm) = (wire_format(comm.wire_dtype, self.terms.len()), algorithm(comm.algorithm));
        let (rank, label) = (self.session.group.rank(), self.session.rank_label());
        let sources =
            ContributionSources { devices: &mut self.session.devices, loader: &self.loader, stop: &self.stop };
        let mut contribution = RankContribution::new(sources, header, (rank, label), next.is_some());
        let summed = self.session.group.all_reduce(&shards, wire, algorithm, || contribution.next())?;
        let RankContribution { loaded, adding, data_wait, .. } = contribution;
        self.timings.rank = RankTime {
            host_micros: adding.as_micros() as u64,
            exchange_micros: summed.busy.as_micros() as u64,
            wait_micros: summed.waited.saturating_sub(data_wait).as_micros() as u64,
            ..RankTime::default()
        };
        let merged = self.receive_headers(&summed.notes, next.as_ref(), self.session.cluster.members.len())?;
        self.observe_times(&requested, &merged);
        let mut flat = summed.data;
        let losses = flat.split_off(self.session.layout.len()).into_iter().map(f64::from).collect();
        let is_skipped = merged.overflow == Some(true);
        let reduced = ReducedGradient { norm: 0.0, flat, losses, predicted_s: requested.predicted_s, is_skipped };
        Ok((reduced, NextUpdate { work: next.zip(loaded), merged }))
    }

    /// The learning rate of the update at `cursor`, which is the next one or a later one.
    fn lr_at(&self, cursor: &Cursor) -> f64 {
        let ahead = cursor.updates.saturating_sub(self.state.cursor.updates);
        let total = self.total_updates.saturating_sub(self.state.schedule_start);
        let own = self.optimizer.relative_rate(self.optimizer.steps() + 1 + ahead);
        own.unwrap_or_else(|| self.config.optim.scheduled_lr(total, self.state.position(cursor)))
    }

    /// The position of the run when `update` is done.
    fn cursor_after(&self, update: &PlannedUpdate) -> Cursor {
        let mut next = self.state.cursor.clone();
        next.advance(update.samples.len() as u64, update.updates_in_epoch);
        next
    }

    /// Runs the optimizer and loads the new parameters into the devices. Does neither if gradients
    /// overflowed in `f16`.
    fn step(
        &mut self,
        reduced: &mut ReducedGradient,
        merged: &MergedHeader,
        overflow: Option<bool>,
    ) -> Result<(), TrainError> {
        let started = Instant::now();
        let update = self.state.cursor.updates + 1;
        let could_shrink = overflow.is_none_or(|has_overflowed| self.state.loss_scale.adjust(has_overflowed));
        if reduced.is_skipped && could_shrink {
            let scale = self.state.loss_scale.get();
            let message = format!(
                "update {update} was skipped: gradients overflowed in f16; the loss scale is {scale} from now on"
            );
            self.events.emit(&Event::Warning { message });
            return Ok(());
        }
        reduced.norm = global_norm(&reduced.flat);
        self.events.gradient(update, &self.session.layout, &reduced.flat)?;
        if !reduced.norm.is_finite() {
            let loss = self.losses(reduced, merged).0;
            return Err(TrainError::NotFinite { update, norm: reduced.norm, loss, last: self.last_checkpoint() });
        }
        let scale = clip_factor(reduced.norm, self.config.optim.clip_norm);
        // The devices have dropped their handles by now, so this does not copy.
        let parameters = Arc::make_mut(&mut self.parameters);
        self.optimizer.step(parameters, &reduced.flat, scale, merged.lr as f32);
        if !self.optimizer.is_finite() {
            return Err(self.diverged(update));
        }
        self.session.devices.load(&self.parameters)?;
        self.timings.rank.host_micros += started.elapsed().as_micros() as u64;
        Ok(())
    }

    /// The weighted loss and the loss of each term.
    fn losses(&self, reduced: &ReducedGradient, merged: &MergedHeader) -> (f64, BTreeMap<String, f64>) {
        let means = mean_losses(&reduced.losses, &merged.counts);
        (weighted(&self.terms, &means), named(&self.terms, &means))
    }

    fn observe(
        &mut self,
        update: &PlannedUpdate,
        reduced: &ReducedGradient,
        merged: &MergedHeader,
        next: &MergedHeader,
        started: Instant,
    ) {
        let updates = self.state.cursor.updates;
        let every = self.config.run.checksum_every;
        self.timings.checksum = (every > 0 && updates.is_multiple_of(every)).then(|| checksum(&self.parameters));
        // Ranks wait for the samples of an update at the end of the update before it, if there is
        // one.
        let before = if self.timings.updates_done == 0 { merged.data_wait_s() } else { 0.0 };
        let (seconds, data_wait_s) = (started.elapsed().as_secs_f64(), before + next.data_wait_s());
        self.timings.data_wait_s += data_wait_s;
        self.timings.updates_done += 1;
        self.observe_workers(seconds, next);
        let (loss, terms) = self.losses(reduced, merged);
        // The loss of a skipped update may be NaN or infinite too.
        if self.events.is_enabled() && loss.is_finite() {
            self.events.emit(&Event::Update {
                update: updates,
                epoch: update.epoch + 1,
                loss,
                terms,
                samples: update.samples.len() as u64,
                grad_norm: reduced.norm,
                skipped: reduced.is_skipped,
                lr: merged.lr,
                seconds,
                data_wait_s,
                predicted_s: (reduced.predicted_s > 0.0).then_some(reduced.predicted_s),
                checksum: self.timings.checksum.map(|sum| format!("{sum:016x}")),
            });
        }
    }
}

/// `auto` means direct: only there a rank's exchange can begin before all ranks have computed. By
/// the time model (`hetseq-balance`) a ring, which is as fast as its slowest link, is never faster.
fn algorithm(configured: Algorithm) -> Algorithm {
    if configured == Algorithm::Auto { Algorithm::Direct } else { configured }
}

fn nothing_to_do(updates: u64) -> String {
    format!("this run already ended, after {}; raise run.max_updates or run.max_epochs to continue", at_update(updates))
}

/// Loss per counted item of each term; 0 for a term without counted items.
pub(crate) fn mean_losses(sums: &[f64], counts: &[u64]) -> Vec<f64> {
    sums.iter().zip(counts).map(|(sum, &count)| if count == 0 { 0.0 } else { sum / count as f64 }).collect()
}

pub(crate) fn weighted(terms: &[Term], means: &[f64]) -> f64 {
    terms.iter().zip(means).map(|(term, mean)| term.weight * mean).sum()
}

pub(crate) fn named(terms: &[Term], means: &[f64]) -> BTreeMap<String, f64> {
    terms.iter().zip(means).map(|(term, mean)| (term.name.clone(), *mean)).collect()
}

/// Hash of the bytes of all parameters. Ranks compare it to find replicas that differ in any bit.
pub(super) fn checksum(parameters: &[f32]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    let mut bytes = Vec::with_capacity(1 << 16);
    for chunk in parameters.chunks(1 << 14) {
        bytes.clear();
        bytes.extend(chunk.iter().flat_map(|value| value.to_le_bytes()));
        hasher.update(&bytes);
    }
    let hash = hasher.finalize();
    hash.as_bytes()[..8].iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}
