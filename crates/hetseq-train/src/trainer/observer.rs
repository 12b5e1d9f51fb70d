//! What a run reports about itself: events, times of the last update, totals per worker, skipped
//! samples. Written to by all stages of the loop; decides nothing.

use std::collections::VecDeque;
use std::time::Instant;

use hetseq_balance::AssignedWork;
use hetseq_metrics::{Event, RankSeconds, WorkerTotals, terminal};

use crate::run_dir::events::RunEvents;
use crate::task::Split;
use crate::task::skipped_samples::{SkippedSample, SkippedSamples};
use crate::trainer::header::{DeviceTime, MergedHeader, RankTime};

pub(crate) struct Observer {
    pub(crate) events: RunEvents,
    workers: WorkerTotals,
    skipped: SkippedSamples,
    /// Where this rank's time went in the last update, besides computing on devices. The next
    /// header reports it.
    pub(super) rank: RankTime,
    /// When the update in progress started, or the last one ended.
    started: Instant,
    /// Updates that this process has done.
    pub(super) updates_done: u64,
    /// Seconds that these updates waited for samples, in total.
    data_wait_s: f64,
    /// Events of a boundary that is not complete.
    held: Vec<Event>,
    /// The last events about updates.
    recent: VecDeque<Event>,
    /// The shares of the ranks or devices that were shown last.
    shares: Vec<f64>,
}

/// More than can wait to be written for a moment.
const RECENT_EVENTS: usize = 256;

/// The duration of an update.
#[derive(Clone, Copy)]
pub(super) struct UpdateSeconds {
    pub(super) wall_s: f64,
    /// Part of it: waiting for samples.
    pub(super) data_wait_s: f64,
}

impl Observer {
    pub(super) fn new(events: RunEvents, workers: WorkerTotals) -> Self {
        let (skipped, rank) = (SkippedSamples::default(), RankTime::default());
        Observer {
            events,
            workers,
            skipped,
            rank,
            started: Instant::now(),
            updates_done: 0,
            data_wait_s: 0.0,
            held: Vec::new(),
            recent: VecDeque::new(),
            shares: Vec::new(),
        }
    }

    /// Emits an event once the boundary that it belongs to is complete.
    pub(super) fn hold(&mut self, event: Event) {
        self.held.push(event);
    }

    pub(super) fn release_held(&mut self) {
        for event in std::mem::take(&mut self.held) {
            self.record(event);
        }
    }

    /// Emits an event about an update, and remembers it on all ranks: if rank 0 is lost, another
    /// rank writes what it had not written yet.
    pub(super) fn record(&mut self, event: Event) {
        self.events.emit(&event);
        if self.recent.len() == RECENT_EVENTS {
            self.recent.pop_front();
        }
        self.recent.push_back(event);
    }

    /// The recorded events about updates after `update`.
    pub(super) fn recorded_after(&self, update: u64) -> Vec<Event> {
        self.recent.iter().filter(|event| event.update().is_some_and(|at| at > update)).cloned().collect()
    }

    /// Emits the recorded events that the lost rank 0 has not written, by what it has.
    pub(super) fn emit_unwritten(&mut self, written: &[Event]) {
        let is_written = |event: &Event| {
            let is_same = |other: &Event| {
                other.update() == event.update() && std::mem::discriminant(other) == std::mem::discriminant(event)
            };
            written.iter().any(is_same)
        };
        for event in self.recent.iter().filter(|event| !is_written(event)) {
            self.events.emit(event);
        }
    }

    pub(super) fn drop_held(&mut self) {
        self.held.clear();
    }

    /// Counts for other workers from now on.
    pub(super) fn replace_workers(&mut self, workers: WorkerTotals) {
        self.workers = workers;
    }

    pub(super) fn warn(&mut self, message: String) {
        self.events.emit(&Event::Warning { message });
    }

    /// Warns about samples that were skipped for the first time.
    pub(super) fn note_skipped(&mut self, split: Split, skipped: &[SkippedSample]) {
        for message in self.skipped.note(split, skipped) {
            self.warn(message);
        }
    }

    pub(super) fn start_update(&mut self) {
        self.started = Instant::now();
    }

    /// Seconds since the update in progress started, or, after it, since the last one ended.
    pub(super) fn seconds_since_update(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Counts an update as done. `header` was merged for it, `next` after it.
    pub(super) fn finish_update(
        &mut self,
        work: &[AssignedWork],
        header: &MergedHeader,
        next: &MergedHeader,
    ) -> UpdateSeconds {
        // Ranks wait for the samples of an update at the end of the update before it, if there is
        // one.
        let before = if self.updates_done == 0 { header.data_wait_s() } else { 0.0 };
        let data_wait_s = before + next.data_wait_s();
        let wall_s = self.started.elapsed().as_secs_f64();
        self.start_update();
        self.data_wait_s += data_wait_s;
        self.updates_done += 1;
        self.count_workers(wall_s, work, next);
        UpdateSeconds { wall_s, data_wait_s }
    }

    fn count_workers(&mut self, wall_s: f64, work: &[AssignedWork], next: &MergedHeader) {
        let s = |micros: u64| micros as f64 * 1e-6;
        let device = |(work, time): (&AssignedWork, &DeviceTime)| {
            (work.samples, s(time.micros.saturating_add(time.after_micros)))
        };
        let rank = |rank: &RankTime| RankSeconds {
            data_s: s(rank.data_micros),
            exchange_s: s(rank.exchange_micros),
            wait_s: s(rank.wait_micros),
            host_s: s(rank.host_micros),
        };
        self.workers.observe(wall_s, work.iter().zip(&next.devices).map(device), next.ranks.iter().map(rank));
    }

    /// Emits what each worker did since the last such event. `update` is the number of updates done
    /// in the whole run.
    pub(super) fn emit_workers(&mut self, update: u64) {
        let (updates, wall_s) = self.workers.span();
        let (workers, ranks) = (self.workers.report(), self.workers.ranks());
        self.events.emit(&Event::Workers { update, updates, wall_s, workers, ranks });
    }

    /// Shows which part of an update each rank or device computes now.
    pub(super) fn show_shares(&mut self, shares: Vec<f64>) {
        if self.shares != shares {
            self.shares.clone_from(&shares);
            terminal::shares(shares);
        }
    }

    /// Which part of an update each rank or device computed last.
    pub(super) fn shares(&self) -> Vec<f64> {
        self.shares.clone()
    }

    pub(super) fn reset_workers(&mut self) {
        self.workers.reset();
    }

    /// The last event of a run.
    pub(super) fn emit_end(&mut self, update: u64, outcome: &str, seconds: f64) {
        let (data_wait_s, skipped) = (self.data_wait_s, self.skipped.samples());
        self.events.emit(&Event::End { update, outcome: outcome.to_owned(), seconds, data_wait_s, skipped });
    }
}
