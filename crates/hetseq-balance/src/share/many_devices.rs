//! Cuts samples of different lengths for very many workers, each of which gets few samples of about
//! one length.
//!
//! Called by `mixed_lengths` only. Computing the real time of every worker again and again would
//! take too long. So each worker in turn gets as many samples as it can do in a given time, all
//! taken to be as long as the last of them. The search finds the earliest time for which this
//! reaches the end.

use std::ops::Range;

use super::UpdateCosts;
use super::finish_time::{self, WorkerTiming};
use super::worker::ShareWorker;

/// The largest number of search steps: more are not worth their time.
const MAX_STEPS: usize = 8;
/// The search ends when the workers could do at most this many samples too many, relatively.
const TOLERANCE: f64 = 0.01;
/// A timing is also used for samples that are shorter by up to 1/64.
const SIMILAR_LENGTH: u32 = 64;

/// One range of samples per worker, in order; `None` if no time was found. `timings` are first
/// guesses for the length of each worker's samples.
pub(super) fn cut(
    workers: &[ShareWorker],
    costs: &UpdateCosts,
    timings: &mut [WorkerTiming],
) -> Option<Vec<Range<usize>>> {
    let samples = costs.samples.len() as f64;
    let mut best = None;
    // (time, samples done) of the latest time that is too early and the earliest that is not.
    let (mut low, mut high) = ((0.0, 0.0), None);
    let mut next_s = finish_time::finish_s(timings, samples, samples * TOLERANCE);
    for _ in 0..MAX_STEPS {
        let (ranges, done) = sweep(workers, costs, timings, next_s);
        if done >= samples {
            (best, high) = (Some(ranges), Some((next_s, done)));
        } else {
            low = (next_s, done);
        }
        next_s = match high {
            Some((_, done)) if done <= samples * (1.0 + TOLERANCE) => break,
            Some(high) => {
                // Linear interpolation between the two, at a little more than needed.
                let part = (samples * (1.0 + TOLERANCE * 0.5) - low.1) / (high.1 - low.1);
                low.0 + (high.0 - low.0) * part.clamp(0.05, 0.95)
            }
            None => next_s * (samples / done.max(1.0)).clamp(1.0, 4.0) * (1.0 + TOLERANCE),
        };
    }
    best
}

/// Gives each worker in turn as many samples as it can do in the time. Also returns how many all
/// could do.
fn sweep(
    workers: &[ShareWorker],
    costs: &UpdateCosts,
    timings: &mut [WorkerTiming],
    time_s: f64,
) -> (Vec<Range<usize>>, f64) {
    let samples = costs.samples.len();
    let (mut start, mut more) = (0, 0.0);
    let mut ranges = Vec::with_capacity(workers.len());
    for (worker, WorkerTiming { timing, .. }) in workers.iter().zip(timings) {
        let mut done = timing.done_by(time_s);
        if start == samples {
            // The excess over the end shows by how much the time is too late.
            more += done.trunc();
            ranges.push(samples..samples);
            continue;
        }
        // At most twice: a guess that is too short gives too many samples, which then count as too
        // long.
        for _ in 0..2 {
            let longest = costs.cost(start.saturating_add(done as usize).saturating_sub(1).clamp(start, samples - 1));
            if longest <= timing.tokens && longest >= timing.tokens - timing.tokens / SIMILAR_LENGTH {
                break;
            }
            *timing = worker.at(longest);
            done = timing.done_by(time_s);
        }
        let end = start.saturating_add(done as usize).min(worker.reach.max(start));
        if end == samples {
            more += start as f64 + done.trunc() - samples as f64;
        }
        ranges.push(start..end);
        start = end;
    }
    (ranges, start as f64 + more)
}
