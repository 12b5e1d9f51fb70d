//! The loop. Every rank runs it in step: plan, agree, compute, reduce, step, observe, save.

mod early_stop;
mod milestones;
mod saving;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hetseq_data::{Cursor, Pace, Share, Split};
use hetseq_metrics::{Event, Workers};
use hetseq_optim::{Optimizer, clip_factor, global_norm};
use hetseq_random::Key;

use crate::checkpoint::{Checkpoints, Common, Saver};
use crate::config::Config;
use crate::crew::Crew;
use crate::devices::LocalSum;
use crate::error::TrainError;
use crate::header::{self, Agreed, DeviceTime, Ending, Header};
use crate::itinerary::{Itinerary, Planned};
use crate::loader::{Loader, Order, Prepared};
use crate::observer::{Observer, at_update};
use crate::roster::undecodable;
use crate::run_lock::RunLock;
use crate::signals::StopFlag;
use crate::skips::{self, Skips};
use crate::state::{Best, State};
use crate::task::{Metric, Task, TaskError, Term, Which};

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
    pub(crate) pace: Pace,
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
    /// Held while this process works in the run directory (rank 0).
    pub(crate) _lock: Option<RunLock>,
}

/// What the next header has to say of the last update, and what was ordered ahead.
#[derive(Default)]
pub(crate) struct Pulse {
    /// Work of all devices in the updates that were ordered from the loader and not yet done.
    ordered: VecDeque<Vec<DeviceTime>>,
    last: Vec<DeviceTime>,
    last_seconds: f64,
    checksum: Option<u64>,
    /// What the loader is to prepare next.
    to_order: Cursor,
    /// Where this process group began, and how many updates it has done.
    first: u64,
    done: u64,
    /// How long these updates waited for samples, in all.
    pub(crate) data_wait_s: f64,
}

impl Pulse {
    pub(crate) fn beginning_at(cursor: &Cursor) -> Self {
        Pulse { first: cursor.updates, to_order: cursor.clone(), ..Pulse::default() }
    }
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Finished,
    /// By a signal, with a checkpoint saved.
    Stopped,
}

/// The reduced gradient, with what was learnt on the way.
struct Global {
    flat: Vec<f32>,
    losses: Vec<f64>,
    norm: f64,
}

impl<T: Task> Trainer<T> {
    pub(crate) fn run(&mut self) -> Result<End, TrainError> {
        if self.itinerary.at(&self.state.cursor).is_none() {
            self.observer.tell(&Event::Warning { message: nothing_to_do(self.state.cursor.updates) });
        }
        self.crew.devices.load(&self.parameters)?;
        for _ in 0..self.config.run.prefetch {
            self.order_next()?;
        }
        while let Some(update) = self.itinerary.at(&self.state.cursor) {
            let started = Instant::now();
            self.look_after_saves()?;
            let asked = Instant::now();
            let work = self.loader.take()?;
            let agreed = self.agree(&update, &work, asked.elapsed())?;
            if agreed.ending == Ending::Before {
                return self.end_before();
            }
            self.note_skipped(&update, &agreed)?;
            self.order_next()?;
            let local = self.gradients(&update, work, &agreed)?;
            let global = self.reduce(local)?;
            self.step(&global, &agreed)?;
            self.crew.devices.load(&self.parameters)?;
            self.state.cursor = self.after(&update);
            self.observe(&update, &global, &agreed, started);
            self.pass_milestones(&update, &agreed)?;
            if agreed.ending == Ending::After {
                return self.end_after();
            }
            if agreed.stop {
                self.finish_saves()?;
                self.settle()?;
                return Ok(End::Stopped);
            }
        }
        self.finish_saves()?;
        self.settle()?;
        Ok(End::Finished)
    }

    /// The tiny exchange before the backward pass.
    fn agree(&mut self, update: &Planned, work: &Prepared<T>, wait: Duration) -> Result<Agreed, TrainError> {
        let mut mine = self.header(update.fingerprint, work.samples, work.counts.clone());
        mine.data_wait_micros = wait.as_micros() as u64;
        mine.skipped = skips::to_tell(work.skipped.clone(), &self.crew.group);
        mine.ending = self.ending(update);
        self.exchange(&mine, update.samples.len() as u64)
    }

    /// Says which samples could not be read. If that is all of them, something else is wrong than a file here and there;
    /// all ranks see it in the same headers and stop together.
    fn note_skipped(&mut self, update: &Planned, agreed: &Agreed) -> Result<(), TrainError> {
        for message in self.skips.note(Which::Train, &agreed.skipped) {
            self.observer.tell(&Event::Warning { message });
        }
        match agreed.skipped.first() {
            Some(first) if agreed.skipped.len() == update.samples.len() => {
                let reason = format!(
                    "none of the {} samples of an update could be read: {}",
                    update.samples.len(),
                    first.reason
                );
                Err(TrainError::Collate { task: T::NAME, reason: TaskError::Other(reason) })
            }
            _ => Ok(()),
        }
    }

    fn header(&mut self, plan: u64, samples: u64, counts: Vec<u64>) -> Header {
        Header {
            update: self.state.cursor.updates,
            plan,
            layout: self.crew.layout.hash(),
            samples,
            counts,
            stop: self.stop.is_set(),
            ending: Ending::No,
            lr: self.lr_at(&self.state.cursor),
            checksum: self.pulse.checksum.take(),
            saved: self.saver.as_ref().and_then(Saver::saved),
            best: self.state.best.as_ref().map(|best| best.update),
            last: std::mem::take(&mut self.pulse.last),
            data_wait_micros: 0,
            skipped: Vec::new(),
        }
    }

    /// The learning rate of the update at `cursor`, which is the next one or comes after it.
    fn lr_at(&self, cursor: &Cursor) -> f64 {
        let ahead = cursor.updates.saturating_sub(self.state.cursor.updates);
        let total = self.total_updates.saturating_sub(self.state.schedule_start);
        let own = self.optimizer.relative_rate(self.optimizer.steps() + 1 + ahead);
        own.unwrap_or_else(|| self.config.optim.scheduled_lr(total, self.state.position(cursor)))
    }

    fn exchange(&mut self, mine: &Header, samples: u64) -> Result<Agreed, TrainError> {
        self.crew.group.at(at_update(mine.update + 1));
        let bytes = postcard::to_stdvec(mine).map_err(|error| undecodable(self.crew.group.rank(), &error))?;
        let mut headers = Vec::new();
        for (rank, bytes) in self.crew.group.agree(&bytes)?.iter().enumerate() {
            headers.push(postcard::from_bytes(bytes).map_err(|error| undecodable(rank, &error))?);
        }
        let agreed =
            header::agree(&headers, samples).map_err(|conflict| self.disagreement(conflict.what, conflict.detail))?;
        let expected = if self.pulse.done > 0 { self.crew.roster.members.len() } else { 0 };
        if agreed.last.len() != expected {
            return Err(self.disagreement("the devices", format!("{} of {expected} reported", agreed.last.len())));
        }
        self.last_saved = agreed.saved;
        if self.state.best.as_ref().map(|best| best.update) != agreed.best {
            self.state.best = self.bests.iter().find(|best| Some(best.update) == agreed.best).cloned();
        }
        for (device, time) in agreed.last.iter().enumerate() {
            self.pace.observe(device, time.tokens, time.micros);
        }
        if self.pulse.done > 0 {
            let work = agreed.last.iter().map(|time| (time.samples, time.micros as f64 * 1e-6));
            self.workers.observe(self.pulse.last_seconds, work);
            // The even phase is reported by itself.
            if self.pulse.done == self.config.batch.even_updates {
                self.tell_workers();
                self.workers.reset();
            }
        }
        Ok(agreed)
    }

    fn disagreement(&self, what: &'static str, detail: String) -> TrainError {
        TrainError::Disagreement { update: self.state.cursor.updates, what, detail, last: self.last_checkpoint() }
    }

    /// Where the run will stand when `update` is done.
    fn after(&self, update: &Planned) -> Cursor {
        let mut next = self.state.cursor.clone();
        next.advance(update.samples.len() as u64, update.updates_in_epoch);
        next
    }

    /// Order the next update from the loader, `run.prefetch` updates ahead: its split follows from what has been agreed so
    /// far, on every rank the same.
    fn order_next(&mut self) -> Result<(), TrainError> {
        let Some(update) = self.itinerary.at(&self.pulse.to_order) else { return Ok(()) };
        let split = self.split_of(self.pulse.to_order.updates);
        self.pulse.to_order.advance(update.samples.len() as u64, update.updates_in_epoch);
        let shares = self.crew.roster.share(&self.pace, split, &update.tokens, (None, None))?;
        self.pulse.ordered.push_back(shares.iter().map(|share| work_of(share, &update.tokens)).collect());
        let devices = self.crew.roster.my_micro_batches(&shares, &update.samples);
        self.loader.order(Order { which: Which::Train, epoch: update.epoch, devices })
    }

    /// How the update after `updates` updates is split.
    fn split_of(&self, updates: u64) -> Split {
        match self.config.batch.split {
            Split::Measured if updates - self.pulse.first < self.config.batch.even_updates => Split::Equal,
            split => split,
        }
    }

    fn gradients(&mut self, update: &Planned, work: Prepared<T>, agreed: &Agreed) -> Result<LocalSum, TrainError> {
        self.observer.audit(self.state.cursor.updates + 1, update.epoch + 1, || {
            work.devices.iter().flatten().flat_map(|job| job.samples.iter().copied()).collect()
        })?;
        let weights: Vec<f64> = self.terms.iter().map(|term| term.weight).collect();
        let scales = header::scales(&weights, &agreed.counts);
        let update_key = Key::root(self.config.run.seed).name("dropout").index(self.state.cursor.updates);
        let local = self.crew.devices.gradients(work.devices, scales, update_key)?;
        let ordered = self.pulse.ordered.pop_front().unwrap_or_default();
        let mine = ordered.get(self.crew.roster.mine.clone()).unwrap_or_default();
        self.pulse.last = mine
            .iter()
            .zip(&local.compute)
            .map(|(time, compute)| DeviceTime { micros: compute.as_micros() as u64, ..*time })
            .collect();
        Ok(local)
    }

    /// The sum over all ranks; the losses ride behind the gradients.
    fn reduce(&mut self, local: LocalSum) -> Result<Global, TrainError> {
        let mut flat = local.flat;
        let (shards, comm) = (self.crew.roster.shards(flat.len()), &self.config.comm);
        self.crew.group.all_reduce(&mut flat, &shards, comm.wire.wire(self.terms.len()), comm.route)?;
        let losses = flat.split_off(self.crew.layout.len()).into_iter().map(f64::from).collect();
        let norm = global_norm(&flat);
        Ok(Global { flat, losses, norm })
    }

    fn step(&mut self, global: &Global, agreed: &Agreed) -> Result<(), TrainError> {
        let update = self.state.cursor.updates + 1;
        self.observer.gradient(update, &self.crew.layout, &global.flat)?;
        if !global.norm.is_finite() {
            let loss = self.losses(global, agreed).0;
            return Err(TrainError::NotFinite { update, norm: global.norm, loss, last: self.last_checkpoint() });
        }
        let scale = clip_factor(global.norm, self.config.optim.clip_norm);
        // The devices have dropped their handles by now, so this does not copy.
        let parameters = Arc::make_mut(&mut self.parameters);
        self.optimizer.step(parameters, &global.flat, scale, agreed.lr as f32);
        Ok(())
    }

    /// The weighted loss and each term's.
    fn losses(&self, global: &Global, agreed: &Agreed) -> (f64, BTreeMap<String, f64>) {
        let means = mean_losses(&global.losses, &agreed.counts);
        (weighted(&self.terms, &means), named(&self.terms, &means))
    }

    fn observe(&mut self, update: &Planned, global: &Global, agreed: &Agreed, started: Instant) {
        let updates = self.state.cursor.updates;
        let every = self.config.run.checksum_every;
        self.pulse.checksum = (every > 0 && updates.is_multiple_of(every)).then(|| checksum(&self.parameters));
        self.pulse.last_seconds = started.elapsed().as_secs_f64();
        let data_wait_s = agreed.data_wait_micros as f64 * 1e-6;
        self.pulse.data_wait_s += data_wait_s;
        self.pulse.done += 1;
        if self.observer.is_telling() {
            let (loss, terms) = self.losses(global, agreed);
            self.observer.tell(&Event::Update {
                update: updates,
                epoch: update.epoch + 1,
                loss,
                terms,
                samples: update.samples.len() as u64,
                grad_norm: global.norm,
                lr: agreed.lr,
                seconds: self.pulse.last_seconds,
                data_wait_s,
                checksum: self.pulse.checksum.map(|sum| format!("{sum:016x}")),
            });
        }
    }

    /// A last exchange without work: compares the last checksum and learns the last times.
    fn settle(&mut self) -> Result<(), TrainError> {
        let mine = self.header(0, 0, vec![0; self.terms.len()]);
        self.exchange(&mine, 0)?;
        self.tell_workers();
        Ok(())
    }

    fn tell_workers(&mut self) {
        if self.pulse.done == 0 {
            return;
        }
        let event = Event::Workers { update: self.state.cursor.updates, workers: self.workers.report() };
        self.observer.tell(&event);
    }
}

fn nothing_to_do(updates: u64) -> String {
    format!("this run is at its end, after {}; raise run.max_updates or run.max_epochs to go on", at_update(updates))
}

/// What a device will have computed when it has done its share: tokens as computed, padded to the longest.
pub(crate) fn work_of(share: &Share, tokens: &[u32]) -> DeviceTime {
    let mut work = DeviceTime::default();
    for range in &share.micro {
        let longest = tokens[range.clone()].iter().copied().max().unwrap_or(0);
        work.samples += range.len() as u64;
        work.tokens += u64::from(longest) * range.len() as u64;
    }
    work
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
