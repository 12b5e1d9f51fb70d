//! How much each worker should get: the earliest time by which all together are done, and its rounding to whole samples.
//!
//! Called by `share` only. Amounts are in tokens or in samples; workers stand in order of reach, which is in the same
//! unit. Only + - * / and comparisons on f64, in a fixed order: every rank gets the same bits.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::ops::Range;

use super::worker::Pace;

/// A worker's pace, and how far it reaches.
#[derive(Debug, Clone)]
pub(super) struct Runner {
    pub(super) pace: Pace,
    pub(super) reach: f64,
}

/// Workers that finish together, and what they do.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) workers: Range<usize>,
    pub(super) amount: Range<f64>,
    pub(super) finish_s: f64,
}

/// More blocks than these only tidy up among workers that nobody waits for.
const MOST_BLOCKS: usize = 8;
/// The search for a time ends here at the latest.
const MOST_STEPS: usize = 100;
const MOST_FALSE_STEPS: usize = 20;

/// Splits the workers into blocks that each finish together, none before the one on its left. What there is to do is
/// `0..amount`, and the last worker reaches all of it.
///
/// At the earliest time by which everything can be done, the workers are filled from the left, each as far as it reaches.
/// Those behind the last that reached its end are all full: nothing to the left can help them, so they are a block of
/// their own. The others may well be done earlier, so the same is asked of them again. Blocks come last first.
pub(super) fn blocks(runners: &[Runner], amount: f64, close: f64) -> Vec<Block> {
    let mut blocks = Vec::new();
    let (mut end, mut to_do) = (runners.len(), amount);
    while end > 0 {
        let finish_s = finish_s(&runners[..end], to_do, close);
        let (mut first, mut start) = (0, 0.0);
        let mut done = 0.0;
        // The last one reaches the end; that is no limit of its own.
        for (at, runner) in runners[..end].iter().enumerate().take(end - 1) {
            done += runner.pace.done_by(finish_s);
            if done >= runner.reach && blocks.len() + 1 < MOST_BLOCKS {
                done = runner.reach;
                (first, start) = (at + 1, done.min(to_do));
            }
            done = done.min(runner.reach);
        }
        blocks.push(Block { workers: first..end, amount: start..to_do, finish_s });
        (end, to_do) = (first, start);
    }
    blocks
}

/// How many samples the search for a time may leave over: fewer than whole samples do anyway.
pub(super) fn close(workers: usize) -> f64 {
    0.125 * workers as f64
}

/// The earliest time by which the runners are done with `amount`, if it could be split at will; from below, and so near
/// that no more than `close` is left.
pub(super) fn finish_s(runners: &[Runner], amount: f64, close: f64) -> f64 {
    let done_by = |time_s: f64| {
        let add = |done: f64, runner: &Runner| {
            let done = done + runner.pace.done_by(time_s);
            // Who reaches the end is not held up there, so that one sees by how much a time is too late.
            if runner.reach < amount { done.min(runner.reach) } else { done }
        };
        runners.iter().fold(0.0, add)
    };
    let speed: f64 = runners.iter().map(|runner| runner.pace.speed()).sum();
    let begin_s = runners.iter().map(|runner| runner.pace.overhead_s()).fold(f64::INFINITY, f64::min);
    // If all began with the first, and with full micro-batches.
    let (mut low_s, mut high_s) = (begin_s, begin_s + amount / speed);
    let (mut low, mut high) = (0.0, done_by(high_s));
    for _ in 0..MOST_STEPS {
        if high >= amount {
            break;
        }
        (low_s, low) = (high_s, high);
        // A little further than a straight line says.
        let ahead_s = (high_s - begin_s) * (amount / high - 1.0).clamp(0.01, 1.0) * 1.25;
        high_s += ahead_s;
        high = done_by(high_s);
    }
    // False position: where the straight line between the bounds meets the amount. The bound that stays counts half as
    // far off each time (Illinois), and after some steps, which only leaps in what is done need, the bounds are halved.
    let (mut too_little, mut too_much) = (amount - low, high - amount);
    let mut last_was_low = None;
    for step in 0..MOST_STEPS {
        if amount - low <= close || high_s - low_s <= high_s * 1e-13 {
            break;
        }
        let part = if step < MOST_FALSE_STEPS { too_little / (too_little + too_much) } else { 0.5 };
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

/// How many whole samples each worker of a block gets, so that the last to finish does so earliest; amounts must be in
/// samples.
///
/// Until a time at which not everything can be done, whole samples always fit, so take the floor. Each sample left over
/// then goes to the worker that would finish it first, which is optimal since a sample more never takes less time.
pub(super) fn whole_samples(runners: &[Runner], finish_s: f64, samples: Range<usize>) -> Vec<usize> {
    let mut counts = Vec::with_capacity(runners.len());
    let mut start = samples.start;
    for runner in runners {
        // The casts take the floor. Rounding errors must not overdraw.
        let reach = (runner.reach as usize).clamp(start, samples.end.max(start));
        let count = (runner.pace.done_by(finish_s) as usize).min(reach - start);
        start += count;
        counts.push(count);
    }
    let left = samples.end.saturating_sub(start);
    if left == 0 {
        return counts;
    }
    let candidate = |worker: usize, count: usize| {
        Reverse(Candidate { finish_s: runners[worker].pace.finish_s((count + 1) as f64), worker })
    };
    let mut heap: BinaryHeap<_> = counts.iter().enumerate().map(|(worker, &count)| candidate(worker, count)).collect();
    for _ in 0..left {
        if let Some(mut first) = heap.peek_mut() {
            let worker = first.0.worker;
            counts[worker] += 1;
            *first = candidate(worker, counts[worker]);
        }
    }
    counts
}

/// When a worker would finish if it got one sample more; ties go to the worker on the left.
struct Candidate {
    finish_s: f64,
    worker: usize,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.finish_s.total_cmp(&other.finish_s).then(self.worker.cmp(&other.worker))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}
