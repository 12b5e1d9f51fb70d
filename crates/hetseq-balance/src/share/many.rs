//! Where to cut samples of different lengths if very many workers share them, so that each has few, of about one length.
//!
//! Called by `mixed` only. Looking at what every worker would really take, again and again, would itself take long. So each
//! in turn gets as many samples as it can do in a given time, all as long as the last of them, and the earliest time is
//! looked for in which that reaches the end.

use std::ops::Range;

use super::UpdateCosts;
use super::balance::{self, Runner};
use super::worker::Worker;

/// More steps than these are not worth their time.
const MOST_STEPS: usize = 8;
/// The search ends when the workers could do so many more samples than there are, relatively.
const CLOSE: f64 = 0.01;
/// A pace is good for samples that are a little shorter: by 1/64.
const ALIKE: u32 = 64;

/// One run for each worker, in order; none if no time was found. The runners' paces are guesses: what length each will have.
pub(super) fn cut(workers: &[Worker], costs: &UpdateCosts, runners: &mut [Runner]) -> Option<Vec<Range<usize>>> {
    let samples = costs.samples.len() as f64;
    let mut best = None;
    // (time, done in it) of the latest that is too early and the earliest that is not.
    let (mut low, mut high) = ((0.0, 0.0), None);
    let mut next_s = balance::finish_s(runners, samples, samples * CLOSE);
    for _ in 0..MOST_STEPS {
        let (runs, done) = sweep(workers, costs, runners, next_s);
        if done >= samples {
            (best, high) = (Some(runs), Some((next_s, done)));
        } else {
            low = (next_s, done);
        }
        next_s = match high {
            Some((_, done)) if done <= samples * (1.0 + CLOSE) => break,
            Some(high) => {
                // On a straight line between the two, at a little more than is needed.
                let part = (samples * (1.0 + CLOSE * 0.5) - low.1) / (high.1 - low.1);
                low.0 + (high.0 - low.0) * part.clamp(0.05, 0.95)
            }
            None => next_s * (samples / done.max(1.0)).clamp(1.0, 4.0) * (1.0 + CLOSE),
        };
    }
    best
}

/// As many samples to each worker in turn as it can do in the time, and how many all could do.
fn sweep(workers: &[Worker], costs: &UpdateCosts, runners: &mut [Runner], time_s: f64) -> (Vec<Range<usize>>, f64) {
    let samples = costs.samples.len();
    let (mut start, mut more) = (0, 0.0);
    let mut runs = Vec::with_capacity(workers.len());
    for (worker, Runner { pace, .. }) in workers.iter().zip(runners) {
        let mut done = pace.done_by(time_s);
        if start == samples {
            // What could be done beyond the end says how much too late the time is.
            more += done.trunc();
            runs.push(samples..samples);
            continue;
        }
        // Twice at most: a guess that was too short gives too many samples, which are then taken to be too long.
        for _ in 0..2 {
            let longest = costs.cost(start.saturating_add(done as usize).saturating_sub(1).clamp(start, samples - 1));
            if longest <= pace.tokens && longest >= pace.tokens - pace.tokens / ALIKE {
                break;
            }
            *pace = worker.at(longest);
            done = pace.done_by(time_s);
        }
        let end = start.saturating_add(done as usize).min(worker.reach.max(start));
        if end == samples {
            more += start as f64 + done.trunc() - samples as f64;
        }
        runs.push(start..end);
        start = end;
    }
    (runs, start as f64 + more)
}
