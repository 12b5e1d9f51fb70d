//! The amount of work for each worker: the earliest time by which all are done, rounded to whole
//! samples.
//!
//! Called by `share` only. Amounts are in tokens or in samples. Workers are ordered by reach, which
//! has the same unit. Only + - * / and comparisons on f64, in a fixed order: every rank gets the
//! same bits.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::ops::Range;

use super::worker::LengthTiming;

/// A worker's timing and its reach.
#[derive(Debug, Clone)]
pub(super) struct WorkerTiming {
    pub(super) timing: LengthTiming,
    pub(super) reach: f64,
}

/// Workers that finish together, and their part of the amount.
#[derive(Debug)]
pub(super) struct FinishGroup {
    pub(super) workers: Range<usize>,
    pub(super) amount: Range<f64>,
    pub(super) finish_s: f64,
}

/// The largest number of groups. More would only rearrange workers that are done early anyway.
const MAX_GROUPS: usize = 8;
/// The largest number of steps in the search for a time.
const MAX_STEPS: usize = 100;
const MAX_FALSE_POSITION_STEPS: usize = 20;

/// Splits the workers into groups that each finish together, none before the group on its left. The
/// work is `0..amount`, and the last worker reaches all of it.
///
/// At the earliest time by which everything can be done, the workers are filled from the left, each
/// as far as it reaches. Those after the last one that is stopped by its reach are all full:
/// workers to the left cannot help them, so they are a group. The others may be done earlier, so
/// the same is repeated for them. The last group comes first.
pub(super) fn finish_groups(timings: &[WorkerTiming], amount: f64, tolerance: f64) -> Vec<FinishGroup> {
    let mut groups = Vec::new();
    let (mut end, mut to_do) = (timings.len(), amount);
    while end > 0 {
        let finish_s = finish_s(&timings[..end], to_do, tolerance);
        let (mut first, mut start) = (0, 0.0);
        let mut done = 0.0;
        // The last one reaches the end, so its reach is not a limit.
        for (at, worker) in timings[..end].iter().enumerate().take(end - 1) {
            done += worker.timing.done_by(finish_s);
            if done >= worker.reach && groups.len() + 1 < MAX_GROUPS {
                done = worker.reach;
                (first, start) = (at + 1, done.min(to_do));
            }
            done = done.min(worker.reach);
        }
        groups.push(FinishGroup { workers: first..end, amount: start..to_do, finish_s });
        (end, to_do) = (first, start);
    }
    groups
}

/// The number of samples that the search for a time may leave over: less than rounding to whole
/// samples.
pub(super) fn tolerance(workers: usize) -> f64 {
    0.125 * workers as f64
}

/// The earliest time by which the workers are done with `amount` if it could be split freely.
/// Approached from below, until at most `tolerance` is left.
pub(super) fn finish_s(timings: &[WorkerTiming], amount: f64, tolerance: f64) -> f64 {
    let done_by = |time_s: f64| {
        let add = |done: f64, worker: &WorkerTiming| {
            let done = done + worker.timing.done_by(time_s);
            // Not limited at the end, so that the result shows by how much a time is too late.
            if worker.reach < amount { done.min(worker.reach) } else { done }
        };
        timings.iter().fold(0.0, add)
    };
    let speed: f64 = timings.iter().map(|worker| worker.timing.speed()).sum();
    let begin_s = timings.iter().map(|worker| worker.timing.overhead_s()).fold(f64::INFINITY, f64::min);
    // First try: as if all began with the first, with full micro-batches.
    let (mut low_s, mut high_s) = (begin_s, begin_s + amount / speed);
    let (mut low, mut high) = (0.0, done_by(high_s));
    for _ in 0..MAX_STEPS {
        if high >= amount {
            break;
        }
        (low_s, low) = (high_s, high);
        // A little further than linear extrapolation.
        let ahead_s = (high_s - begin_s) * (amount / high - 1.0).clamp(0.01, 1.0) * 1.25;
        high_s += ahead_s;
        high = done_by(high_s);
    }
    // False position: the point where the straight line between the bounds meets the amount. The
    // bound that stays counts half as far off each time (Illinois). After some steps, which are
    // needed only if the amount done jumps, the interval is halved.
    let (mut too_little, mut too_much) = (amount - low, high - amount);
    let mut last_was_low = None;
    for step in 0..MAX_STEPS {
        if amount - low <= tolerance || high_s - low_s <= high_s * 1e-13 {
            break;
        }
        let part = if step < MAX_FALSE_POSITION_STEPS { too_little / (too_little + too_much) } else { 0.5 };
        let middle_s = low_s + (high_s - low_s) * part.clamp(0.001, 0.999);
        let done = done_by(middle_s);
        let is_low = done <= amount;
        if is_low {
            (low_s, low, too_little) = (middle_s, done, amount - done);
            too_much *= if last_was_low == Some(true) { 0.5 } else { 1.0 };
        } else {
            (high_s, too_much) = (middle_s, done - amount);
            too_little *= if last_was_low == Some(false) { 0.5 } else { 1.0 };
        }
        last_was_low = Some(is_low);
    }
    low_s
}

/// The number of whole samples for each worker of a group, so that the last one finishes as early
/// as possible. Amounts must be in samples.
///
/// `finish_s` is not later than the earliest time by which everything can be done, so the floor of
/// each amount always fits. Each remaining sample goes to the worker that would finish it first.
/// That is optimal, since one more sample never takes less time.
pub(super) fn whole_samples(timings: &[WorkerTiming], finish_s: f64, samples: Range<usize>) -> Vec<usize> {
    let mut counts = Vec::with_capacity(timings.len());
    let mut start = samples.start;
    for worker in timings {
        // The casts take the floor. Rounding errors must not exceed the samples.
        let reach = (worker.reach as usize).clamp(start, samples.end.max(start));
        let count = (worker.timing.done_by(finish_s) as usize).min(reach - start);
        start += count;
        counts.push(count);
    }
    let left = samples.end.saturating_sub(start);
    if left == 0 {
        return counts;
    }
    let next = |worker: usize, count: usize| {
        Reverse(NextSample { finish_s: timings[worker].timing.finish_s((count + 1) as f64), worker })
    };
    let mut heap: BinaryHeap<_> = counts.iter().enumerate().map(|(worker, &count)| next(worker, count)).collect();
    for _ in 0..left {
        if let Some(mut first) = heap.peek_mut() {
            let worker = first.0.worker;
            counts[worker] += 1;
            *first = next(worker, counts[worker]);
        }
    }
    counts
}

/// The time at which a worker would finish one more sample. Ties go to the worker on the left.
struct NextSample {
    finish_s: f64,
    worker: usize,
}

impl Ord for NextSample {
    fn cmp(&self, other: &Self) -> Ordering {
        self.finish_s.total_cmp(&other.finish_s).then(self.worker.cmp(&other.worker))
    }
}

impl PartialOrd for NextSample {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for NextSample {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for NextSample {}
