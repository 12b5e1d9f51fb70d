//! Cuts samples of different lengths: a guess, corrected by the times of the resulting shares.
//!
//! Called by `share` only. A device's time is the time of its micro-batches with their padding.
//! That is known only after the cut, so: cut by average samples, compute each worker's time,
//! correct, and keep the best. Updates of up to a few thousand samples are then searched for the
//! best cut. For a given time it is optimal to give each worker in turn as long a range as it can
//! do, so the earliest time for which this reaches the end is the optimum.

use std::ops::Range;

use super::finish_time::{self, FinishGroup, WorkerTiming};
use super::worker::ShareWorker;
use super::{UpdateCosts, many_devices};

/// The number of corrections of the guess.
const CORRECTIONS: usize = 3;
/// With more workers than this, each has samples of about one length, and computing the times of
/// all would take too long.
const VERY_MANY: usize = 1000;
/// The limits of a correction of a worker's speed.
const SCALE_LIMITS: (f64, f64) = (0.25, 4.0);
/// The search's budget of sample visits; each step visits a sample some dozens of times.
const SEARCH_VISITS: usize = 1 << 19;
const MAX_SEARCH_STEPS: usize = 40;

/// One range of samples per worker, in order.
pub(super) fn cut(workers: &[ShareWorker], costs: &UpdateCosts) -> Vec<Range<usize>> {
    let update = MixedUpdate { workers, costs };
    let mut timings = update.first_timings();
    if workers.len() > VERY_MANY
        && let Some(ranges) = many_devices::cut(workers, costs, &mut timings)
    {
        return ranges;
    }
    let mut best = update.evaluate(update.cut_by(&timings));
    let mut newest = best.clone();
    for _ in 0..CORRECTIONS {
        let corrected = update.correct(&newest);
        if corrected == newest.ranges {
            break;
        }
        newest = update.evaluate(corrected);
        if newest.last_s < best.last_s {
            best = newest.clone();
        }
    }
    update.search(best).ranges
}

struct MixedUpdate<'a> {
    workers: &'a [ShareWorker<'a>],
    costs: &'a UpdateCosts<'a>,
}

/// A cut and its times.
#[derive(Clone)]
struct EvaluatedCut {
    ranges: Vec<Range<usize>>,
    times: Vec<RangeTime>,
    last_s: f64,
}

/// A worker's result for its range.
#[derive(Clone, Copy)]
struct RangeTime {
    finish_s: f64,
    padded_tokens: u64,
}

impl MixedUpdate<'_> {
    /// Each worker's timing with samples of the length that it will get, estimated by a cut by
    /// average samples.
    fn first_timings(&self) -> Vec<WorkerTiming> {
        let average = self.costs.tokens as f64 / self.costs.samples.len() as f64;
        let mut tokens = TokenCounter { costs: self.costs, sample: 0, tokens: 0 };
        let by_average = |worker: &ShareWorker| {
            let mut timing = worker.at(average.ceil() as u32);
            timing.scale = average;
            WorkerTiming { timing, reach: tokens.before(worker.reach) as f64 }
        };
        let by_average: Vec<WorkerTiming> = self.workers.iter().map(by_average).collect();
        let total = self.costs.tokens as f64;
        let mut tokens = TokenCounter { costs: self.costs, sample: 0, tokens: 0 };
        let mut timings = Vec::with_capacity(by_average.len());
        for FinishGroup { workers, amount, finish_s } in
            finish_time::finish_groups(&by_average, total, total * 0.01).into_iter().rev()
        {
            let mut start = amount.start;
            let members = by_average[workers.clone()].iter().zip(&self.workers[workers]);
            for (WorkerTiming { timing, reach }, worker) in members {
                let end = (start + timing.done_by(finish_s)).min(*reach);
                let middle = tokens.sample_at(0.5 * (start + end)).min(worker.reach - 1);
                timings.push(WorkerTiming { timing: worker.at(self.costs.cost(middle)), reach: worker.reach as f64 });
                start = end;
            }
        }
        timings
    }

    /// Cuts again, with the average length and the speed that each worker had in the evaluated cut.
    fn correct(&self, cut: &EvaluatedCut) -> Vec<Range<usize>> {
        let last = self.costs.samples.len() - 1;
        let timing = |((worker, range), time): ((&ShareWorker, &Range<usize>), &RangeTime)| {
            let tokens = match range.len() as u64 {
                0 => u64::from(self.costs.cost(range.start.min(last))),
                count => time.padded_tokens.div_ceil(count),
            };
            let mut timing = worker.at(u32::try_from(tokens).unwrap_or(u32::MAX));
            let expected = timing.done_by(time.finish_s);
            if !range.is_empty() && expected > 0.0 {
                timing.scale = (range.len() as f64 / expected).clamp(SCALE_LIMITS.0, SCALE_LIMITS.1);
            }
            WorkerTiming { timing, reach: worker.reach as f64 }
        };
        let timings: Vec<WorkerTiming> = self.workers.iter().zip(&cut.ranges).zip(&cut.times).map(timing).collect();
        self.cut_by(&timings)
    }

    /// Cuts into whole samples by these timings.
    fn cut_by(&self, timings: &[WorkerTiming]) -> Vec<Range<usize>> {
        let tolerance = finish_time::tolerance(timings.len());
        let mut ends = Vec::with_capacity(self.workers.len());
        for FinishGroup { workers, amount, finish_s } in
            finish_time::finish_groups(timings, self.costs.samples.len() as f64, tolerance).into_iter().rev()
        {
            let mut end = amount.start as usize;
            let counts = finish_time::whole_samples(&timings[workers.clone()], finish_s, end..amount.end as usize);
            for (worker, count) in workers.zip(counts) {
                end = (end + count).min(self.workers[worker].reach);
                ends.push(end);
            }
        }
        self.ranges(ends)
    }

    /// Ranges with these ends. The last worker, which reaches all samples, takes the rest.
    fn ranges(&self, mut ends: Vec<usize>) -> Vec<Range<usize>> {
        if let Some(last) = ends.last_mut() {
            *last = self.costs.samples.len();
        }
        let mut start = 0;
        let range = |end: usize| {
            let range = start..end.max(start);
            start = range.end;
            range
        };
        ends.into_iter().map(range).collect()
    }

    fn evaluate(&self, ranges: Vec<Range<usize>>) -> EvaluatedCut {
        let times: Vec<RangeTime> =
            self.workers.iter().zip(&ranges).map(|(worker, range)| self.range_time(worker, range)).collect();
        let last_s = times.iter().map(|time| time.finish_s).fold(0.0, f64::max);
        EvaluatedCut { ranges, times, last_s }
    }

    fn range_time(&self, worker: &ShareWorker, range: &Range<usize>) -> RangeTime {
        let (mut seconds, mut padded_tokens) = (0.0, 0);
        worker.load.micro_batches(self.costs, range.clone(), |micro| {
            seconds += micro.seconds(worker.load.table);
            padded_tokens += micro.padded_tokens();
        });
        let finish_s = if range.is_empty() { 0.0 } else { worker.overhead_s + worker.factor * seconds };
        RangeTime { finish_s, padded_tokens }
    }

    /// Searches for an earlier finish, as far as the number of samples allows.
    fn search(&self, mut best: EvaluatedCut) -> EvaluatedCut {
        let visits_per_step = 64 * (self.costs.samples.len() + 8 * self.workers.len());
        let steps = (SEARCH_VISITS / visits_per_step).min(MAX_SEARCH_STEPS);
        // The approximate time if all finished together.
        let at_work = best.times.iter().filter(|time| time.finish_s > 0.0);
        let mut next_s = at_work.clone().map(|time| time.finish_s).sum::<f64>() / at_work.count().max(1) as f64;
        let mut low_s = 0.0;
        for _ in 0..steps {
            match self.sweep(next_s, &best.ranges) {
                Some(ranges) => {
                    let cut = self.evaluate(ranges);
                    if cut.last_s < best.last_s {
                        best = cut;
                    }
                }
                None => low_s = next_s,
            }
            next_s = low_s + (best.last_s - low_s) * 0.5;
            if next_s <= low_s || best.last_s - low_s <= best.last_s * 1e-9 {
                break;
            }
        }
        best
    }

    /// Gives each worker in turn as long a range as it can do in the time; `None` if that does not
    /// reach the end.
    fn sweep(&self, time_s: f64, similar: &[Range<usize>]) -> Option<Vec<Range<usize>>> {
        let mut ranges = Vec::with_capacity(self.workers.len());
        let mut start = 0;
        for (worker, similar) in self.workers.iter().zip(similar) {
            let limit = worker.reach.max(start);
            let fits = |end: usize| self.range_time(worker, &(start..end)).finish_s <= time_s;
            let end = furthest(start, limit, similar.len(), fits);
            ranges.push(start..end);
            start = end;
        }
        (start == self.costs.samples.len()).then_some(ranges)
    }
}

/// The last number in `start..=limit` that fits, where `start` always does. The search begins at
/// `start + guess`.
fn furthest(start: usize, limit: usize, guess: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (start, limit + 1);
    let mut step = 1;
    let mut next = (start + guess).min(limit);
    let is_up = next == start || fits(next);
    if next > start {
        if is_up { low = next } else { high = next }
    }
    while high - low > 1 {
        next = match (is_up, step) {
            // Away from the guess in growing steps until the result changes, then bisection.
            (true, step) if step > 0 && low + step < high => low + step,
            (false, step) if step > 0 && high > low + step => high - step,
            _ => low + (high - low) / 2,
        };
        let does_fit = fits(next);
        if does_fit {
            low = next
        } else {
            high = next
        }
        step = if does_fit == is_up { step * 2 } else { 0 };
    }
    low
}

/// Counts tokens from the first sample on. Arguments must ascend from call to call.
struct TokenCounter<'a> {
    costs: &'a UpdateCosts<'a>,
    sample: usize,
    tokens: u64,
}

impl TokenCounter<'_> {
    /// The number of tokens before a sample.
    fn before(&mut self, sample: usize) -> u64 {
        self.tokens += self.costs.tokens_in(self.sample..sample);
        self.sample = sample;
        self.tokens
    }

    /// The sample that holds the token.
    fn sample_at(&mut self, token: f64) -> usize {
        while self.sample + 1 < self.costs.samples.len() {
            let end = self.tokens + u64::from(self.costs.cost(self.sample));
            if end as f64 > token {
                break;
            }
            (self.sample, self.tokens) = (self.sample + 1, end);
        }
        self.sample
    }
}
