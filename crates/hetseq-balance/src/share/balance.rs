//! How much each device should get: water filling, and its rounding to whole samples.
//!
//! Device i takes `t_i(b) = a_i + b / v_i` seconds for b tokens. The least time in which all together do B tokens is
//! `T = (B + sum a_i v_i) / (sum v_i)` over the devices with `a_i < T`; the others get nothing. Called by `share` only.
//!
//! Only + - * / and comparisons on f64, in a fixed order: every rank gets the same bits.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::ops::Range;

use super::{DeviceLoad, UpdateCosts};

/// Beyond these a speed or an overhead is no measurement. They keep every product and sum below well inside f64.
const SPEED_LIMITS: (f64, f64) = (1e-15, 1e15);
const OVERHEAD_LIMIT_S: f64 = 1e9;

/// A device that can compute.
#[derive(Debug, Clone)]
pub(super) struct Worker {
    pub(super) device: usize,
    pub(super) speed: f64,
    pub(super) overhead_s: f64,
    /// It may compute the samples before this one.
    pub(super) reach: usize,
}

impl Worker {
    /// None if the device cannot compute anything.
    pub(super) fn new(device: usize, load: &DeviceLoad, reach: usize) -> Option<Self> {
        let usable = load.speed > 0.0 && load.speed.is_finite() && load.max_samples != Some(0);
        // An unknown overhead is none; an endless one is a device not worth waiting for.
        let overhead_s = if load.overhead_s > 0.0 { load.overhead_s } else { 0.0 };
        (usable && overhead_s.is_finite()).then(|| Worker {
            device,
            speed: load.speed.clamp(SPEED_LIMITS.0, SPEED_LIMITS.1),
            overhead_s: overhead_s.min(OVERHEAD_LIMIT_S),
            reach,
        })
    }
}

/// Workers that finish together, and the samples they do.
#[derive(Debug)]
pub(super) struct Block<'a> {
    pub(super) workers: &'a [Worker],
    pub(super) samples: Range<usize>,
    pub(super) tokens: u64,
    pub(super) finish_s: f64,
}

/// Splits the workers, ordered by reach, into blocks that each finish together, none before the one on its left.
///
/// Start with a block for each reach, holding the samples that the reach before it misses. A block may do samples of
/// those on its left, never of those on its right. So as long as a block finishes later than its right neighbour, merge
/// the two; what remains is the least maximum. (Pool adjacent violators.) Without binding caps there is one block.
pub(super) fn blocks<'a>(workers: &'a [Worker], costs: &UpdateCosts) -> Vec<Block<'a>> {
    let mut blocks: Vec<Block<'a>> = Vec::new();
    let (mut first_worker, mut first_sample) = (0, 0);
    for group in workers.chunk_by(|a, b| a.reach == b.reach) {
        let samples = first_sample..group[0].reach;
        let tokens = costs.tokens_in(samples.clone());
        let mut block = Block { workers: group, samples, tokens, finish_s: finish_s(group, tokens) };
        first_sample = block.samples.end;
        let last_worker = first_worker + group.len();
        let mut from = first_worker;
        while let Some(left) = blocks.pop_if(|left| left.finish_s > block.finish_s) {
            from -= left.workers.len();
            block.workers = &workers[from..last_worker];
            block.samples = left.samples.start..block.samples.end;
            block.tokens += left.tokens;
            block.finish_s = finish_s(block.workers, block.tokens);
        }
        blocks.push(block);
        first_worker = last_worker;
    }
    blocks
}

/// The water level: when these workers are done with `tokens`, if tokens could be split at will.
fn finish_s(workers: &[Worker], tokens: u64) -> f64 {
    let mut by_overhead: Vec<(f64, f64)> = workers.iter().map(|w| (w.overhead_s, w.speed)).collect();
    // Mostly nothing is known of overheads, and the sort then sees one run.
    by_overhead.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut work, mut speed, mut level_s) = (tokens as f64, 0.0, f64::INFINITY);
    for (overhead_s, worker_speed) in by_overhead {
        if overhead_s >= level_s {
            break;
        }
        work += overhead_s * worker_speed;
        speed += worker_speed;
        level_s = work / speed;
    }
    level_s
}

/// How many samples of average cost each worker of a block gets, so that the last to finish does so earliest.
///
/// Below the water level whole samples always fit, so take the floor. Each sample left over then goes to the worker that
/// would finish it first, which is optimal for equal samples.
pub(super) fn whole_samples(block: &Block) -> Vec<usize> {
    let samples = block.samples.len();
    let average = block.tokens as f64 / samples as f64;
    let mut left = samples;
    let mut counts = Vec::with_capacity(block.workers.len());
    for worker in block.workers {
        let ideal = (block.finish_s - worker.overhead_s) * worker.speed / average;
        // The cast takes the floor, and makes zero of what is negative. Rounding errors must not overdraw.
        let count = (ideal as usize).min(left);
        left -= count;
        counts.push(count);
    }
    if left == 0 {
        return counts;
    }
    let candidate = |worker: usize, count: usize| {
        let Worker { speed, overhead_s, .. } = block.workers[worker];
        Reverse(Candidate { finish_s: overhead_s + (count + 1) as f64 * average / speed, worker })
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
