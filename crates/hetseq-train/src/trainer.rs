//! The loop. Every rank runs it in step: plan, agree, compute, reduce, step, observe, save.

mod agreement;
mod contribution;
mod early_stop;
mod milestones;
mod planning;
mod saving;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use hetseq_balance::{Planner, Work};
use hetseq_comm::{Route, Shards};
use hetseq_data::Cursor;
use hetseq_metrics::{Event, Workers};
use hetseq_optim::{Optimizer, clip_factor, global_norm};
use hetseq_random::Key;

use crate::checkpoint::{Checkpoints, Common, Saver};
use crate::config::Config;
use crate::crew::Crew;
use crate::devices::Terms;
use crate::error::TrainError;
use crate::header::{self, Agreed, RankTime};
use crate::itinerary::{Itinerary, Planned};
use crate::loader::{Loader, Prepared};
use crate::observer::{Observer, at_update};
use crate::run_lock::RunLock;
use crate::signals::StopFlag;
use crate::skips::Skips;
use crate::state::{Best, State};
use crate::task::{Metric, Task, Term};

use contribution::{Mine, Sources};

pub(crate) struct Trainer<T: Task> {
    pub(crate) crew: Crew<T>,
    pub(crate) config: Config<T::Config>,
    pub(crate) common: Arc<Common>,
    pub(crate) state: State,
    pub(crate) parameters: Arc<Vec<f32>>,
    pub(crate) optimizer: Optimizer,
    pub(crate) itinerary: Itinerary,
    pub(crate) total_updates: u64,
    pub(crate) checkpoints: Checkpoints,
    /// On rank 0.
    pub(crate) saver: Option<Saver>,
    pub(crate) observer: Observer,
    pub(crate) stop: StopFlag,
    pub(crate) terms: Vec<Term>,
    pub(crate) loader: Loader<T>,
    pub(crate) valid_loader: Loader<T>,
    pub(crate) planner: Planner,
    pub(crate) pulse: Pulse,
    pub(crate) workers: Workers,
    pub(crate) skips: Skips,
    /// What `checkpoint.best` names.
    pub(crate) best_metric: Metric,
    /// Every best so far, oldest first: one that does not reach the disk gives way to the one before it.
    pub(crate) bests: Vec<Best>,
    /// The update that the last complete checkpoint was taken after, here or where this run was resumed from.
    pub(crate) last_saved: Option<u64>,
    /// Whether it was said that a save had to wait for the one before it.
    pub(crate) told_of_waiting: bool,
    /// What was said about checkpoints that were saved.
    pub(crate) remarks_told: BTreeSet<String>,
    /// Held while this process works in the run directory (rank 0).
    pub(crate) _lock: Option<RunLock>,
}

/// What the next header has to say of the last update, and what was ordered ahead.
#[derive(Default)]
pub(crate) struct Pulse {
    /// The updates that were ordered from the loader and not yet done.
    ordered: VecDeque<Ordered>,
    /// What this rank did in the last update beside computing.
    last: RankTime,
    /// What all devices were given to do in it.
    work: Vec<Work>,
    checksum: Option<u64>,
    /// What the loader is to prepare next.
    to_order: Cursor,
    /// Where this process group began, and how many updates it has done.
    first: u64,
    done: u64,
    /// How long these updates waited for samples, in all.
    pub(crate) data_wait_s: f64,
    /// Devices that were said to get nothing.
    left_out: Vec<usize>,
}

impl Pulse {
    pub(crate) fn beginning_at(cursor: &Cursor) -> Self {
        Pulse { first: cursor.updates, to_order: cursor.clone(), ..Pulse::default() }
    }
}

/// What an update was planned to be.
#[derive(Default)]
struct Ordered {
    /// Of all devices.
    work: Vec<Work>,
    predicted_s: f64,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Finished,
    /// By a signal, with a checkpoint saved.
    Stopped,
}

/// What comes next, as all ranks agreed.
pub(crate) struct Next<T: Task> {
    /// None when the run is at its planned end.
    coming: Option<(Planned, Prepared<T>)>,
    agreed: Agreed,
}

/// The reduced gradient, with what was learnt on the way.
struct Global {
    flat: Vec<f32>,
    losses: Vec<f64>,
    norm: f64,
    predicted_s: f64,
    /// It overflowed somewhere: nobody uses it.
    is_skipped: bool,
}

impl<T: Task> Trainer<T> {
    pub(crate) fn run(&mut self) -> Result<End, TrainError> {
        if self.itinerary.at(&self.state.cursor).is_none() {
            self.observer.tell(&Event::Warning { message: nothing_to_do(self.state.cursor.updates) });
        }
        self.keep_profile();
        self.crew.devices.load(&self.parameters)?;
        for _ in 0..=self.config.run.prefetch {
            self.order_next()?;
        }
        let mut started = Instant::now();
        let mut next = self.first()?;
        if let Some(end) = self.end_at_once(&next.agreed)? {
            return Ok(end);
        }
        while let Some((update, work)) = next.coming {
            let agreed = next.agreed;
            self.crew.data.poll()?;
            self.look_after_saves()?;
            self.observer.check()?;
            let mut global;
            (global, next) = self.compute(&update, work, &agreed)?;
            self.order_next()?;
            self.step(&mut global, &agreed, next.agreed.overflow)?;
            self.state.cursor = self.after(&update);
            self.observe(&update, &global, &agreed, &next.agreed, started);
            if let Some(end) = self.pass_milestones(&update, &next.agreed)? {
                return Ok(end);
            }
            started = Instant::now();
        }
        self.finish_saves()?;
        self.settle()?;
        Ok(End::Finished)
    }

    /// The gradients of `update`, summed over all ranks, and what comes next: this rank's header for that follows its
    /// gradients (`contribution.rs`), and what others send meanwhile is taken in while the devices compute.
    fn compute(
        &mut self,
        update: &Planned,
        work: Prepared<T>,
        agreed: &Agreed,
    ) -> Result<(Global, Next<T>), TrainError> {
        self.observer.audit(self.state.cursor.updates + 1, update.epoch + 1, || {
            work.devices.iter().flatten().flat_map(|job| job.micro.samples.iter().copied()).collect()
        })?;
        let weights: Vec<f64> = self.terms.iter().map(|term| term.weight).collect();
        let terms = Terms {
            update: self.state.cursor.updates + 1,
            scales: header::scales(&weights, &agreed.counts),
            loss_scale: self.state.loss_scale.get(),
            update_key: Key::root(self.config.run.seed).name("dropout").index(self.state.cursor.updates),
            epoch_key: work.epoch_key,
        };
        self.crew.group.at(at_update(self.state.cursor.updates + 1));
        self.crew.devices.begin(work.devices, terms);
        let ordered = self.pulse.ordered.pop_front().unwrap_or_default();
        let after = self.after(update);
        let coming = self.itinerary.at(&after);
        let header = self.header(&after, coming.as_ref());
        let (len, comm) = (self.crew.layout.len() + self.terms.len(), &self.config.comm);
        let shards = Shards::weighted(len, self.planner.ownership());
        let (wire, route) = (comm.wire.wire(self.terms.len()), route(comm.route));
        let (rank, whose) = (self.crew.group.rank(), self.crew.whose());
        let sources = Sources { devices: &mut self.crew.devices, loader: &self.loader, stop: &self.stop };
        let mut mine = Mine::new(sources, header, (rank, whose), coming.is_some());
        let summed = self.crew.group.all_reduce_late(&shards, wire, route, || mine.next())?;
        let Mine { prepared, adding, data_wait, .. } = mine;
        self.pulse.last = RankTime {
            host_micros: adding.as_micros() as u64,
            exchange_micros: summed.busy.as_micros() as u64,
            wait_micros: summed.waited.saturating_sub(data_wait).as_micros() as u64,
            ..RankTime::default()
        };
        let agreed = self.agree(&summed.notes, coming.as_ref(), self.crew.roster.members.len())?;
        self.learn(&ordered, &agreed);
        let mut flat = summed.data;
        let losses = flat.split_off(self.crew.layout.len()).into_iter().map(f64::from).collect();
        let is_skipped = agreed.overflow == Some(true);
        let global = Global { norm: 0.0, flat, losses, predicted_s: ordered.predicted_s, is_skipped };
        Ok((global, Next { coming: coming.zip(prepared), agreed }))
    }

    /// The learning rate of the update at `cursor`, which is the next one or comes after it.
    fn lr_at(&self, cursor: &Cursor) -> f64 {
        let ahead = cursor.updates.saturating_sub(self.state.cursor.updates);
        let total = self.total_updates.saturating_sub(self.state.schedule_start);
        let own = self.optimizer.relative_rate(self.optimizer.steps() + 1 + ahead);
        own.unwrap_or_else(|| self.config.optim.scheduled_lr(total, self.state.position(cursor)))
    }

    /// Where the run will stand when `update` is done.
    fn after(&self, update: &Planned) -> Cursor {
        let mut next = self.state.cursor.clone();
        next.advance(update.samples.len() as u64, update.updates_in_epoch);
        next
    }

    /// One pass of the optimizer, and the new parameters to the devices; nothing if gradients in `f16` have overflowed.
    fn step(&mut self, global: &mut Global, agreed: &Agreed, overflow: Option<bool>) -> Result<(), TrainError> {
        let started = Instant::now();
        let update = self.state.cursor.updates + 1;
        let could_shrink = overflow.is_none_or(|has_overflowed| self.state.loss_scale.learn(has_overflowed));
        if global.is_skipped && could_shrink {
            let scale = self.state.loss_scale.get();
            let message = format!(
                "update {update} was skipped: gradients overflowed in f16; the loss scale is {scale} from now on"
            );
            self.observer.tell(&Event::Warning { message });
            return Ok(());
        }
        global.norm = global_norm(&global.flat);
        self.observer.gradient(update, &self.crew.layout, &global.flat)?;
        if !global.norm.is_finite() {
            let loss = self.losses(global, agreed).0;
            return Err(TrainError::NotFinite { update, norm: global.norm, loss, last: self.last_checkpoint() });
        }
        let scale = clip_factor(global.norm, self.config.optim.clip_norm);
        // The devices have dropped their handles by now, so this does not copy.
        let parameters = Arc::make_mut(&mut self.parameters);
        self.optimizer.step(parameters, &global.flat, scale, agreed.lr as f32);
        if !self.optimizer.is_finite() {
            return Err(self.diverged(update));
        }
        self.crew.devices.load(&self.parameters)?;
        self.pulse.last.host_micros += started.elapsed().as_micros() as u64;
        Ok(())
    }

    /// The weighted loss and each term's.
    fn losses(&self, global: &Global, agreed: &Agreed) -> (f64, BTreeMap<String, f64>) {
        let means = mean_losses(&global.losses, &agreed.counts);
        (weighted(&self.terms, &means), named(&self.terms, &means))
    }

    fn observe(&mut self, update: &Planned, global: &Global, agreed: &Agreed, next: &Agreed, started: Instant) {
        let updates = self.state.cursor.updates;
        let every = self.config.run.checksum_every;
        self.pulse.checksum = (every > 0 && updates.is_multiple_of(every)).then(|| checksum(&self.parameters));
        // The samples of an update are awaited at the end of the one before it, if there is one.
        let before = if self.pulse.done == 0 { agreed.data_wait_s() } else { 0.0 };
        let (seconds, data_wait_s) = (started.elapsed().as_secs_f64(), before + next.data_wait_s());
        self.pulse.data_wait_s += data_wait_s;
        self.pulse.done += 1;
        self.observe_workers(seconds, next);
        let (loss, terms) = self.losses(global, agreed);
        // Of a skipped update the loss may be no number either.
        if self.observer.is_telling() && loss.is_finite() {
            self.observer.tell(&Event::Update {
                update: updates,
                epoch: update.epoch + 1,
                loss,
                terms,
                samples: update.samples.len() as u64,
                grad_norm: global.norm,
                skipped: global.is_skipped,
                lr: agreed.lr,
                seconds,
                data_wait_s,
                predicted_s: (global.predicted_s > 0.0).then_some(global.predicted_s),
                checksum: self.pulse.checksum.map(|sum| format!("{sum:016x}")),
            });
        }
    }
}

/// The direct way unless another is asked for: only there a rank's exchange can begin before all have computed, and by the
/// model of time (`hetseq-balance`) a ring, which is as fast as its slowest line, is never faster.
fn route(asked: Route) -> Route {
    if asked == Route::Auto { Route::Direct } else { asked }
}

fn nothing_to_do(updates: u64) -> String {
    format!("this run is at its end, after {}; raise run.max_updates or run.max_epochs to go on", at_update(updates))
}

/// A term that nothing counts for has no mean; it contributes nothing.
pub(crate) fn mean_losses(sums: &[f64], counts: &[u64]) -> Vec<f64> {
    sums.iter().zip(counts).map(|(sum, &count)| if count == 0 { 0.0 } else { sum / count as f64 }).collect()
}

pub(crate) fn weighted(terms: &[Term], means: &[f64]) -> f64 {
    terms.iter().zip(means).map(|(term, mean)| term.weight * mean).sum()
}

pub(crate) fn named(terms: &[Term], means: &[f64]) -> BTreeMap<String, f64> {
    terms.iter().zip(means).map(|(term, mean)| (term.name.clone(), *mean)).collect()
}

/// Equal on two ranks if and only if their parameters are, bit for bit.
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
