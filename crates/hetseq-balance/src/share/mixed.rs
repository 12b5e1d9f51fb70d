//! Where to cut samples of different lengths: a guess, corrected by what the shares would really take.
//!
//! Called by `share` only. A device takes as long as its micro-batches do, padded as they will be. That is known only when
//! the cut is, so: cut by average samples, look at what each worker really takes, correct, and keep the best. Updates of
//! at most some thousand samples are then searched for the best cut of all: for a given time, giving each worker in turn
//! as long a run as it can do is the best that can be done, so the earliest time for which that reaches the end is the least.

use std::ops::Range;

use super::balance::{self, Block, Runner};
use super::worker::Worker;
use super::{UpdateCosts, many};

/// How often the guess is corrected.
const CORRECTIONS: usize = 3;
/// More workers than these are very many: each has samples of about one length, and looking at all would take long.
const VERY_MANY: usize = 1000;
/// The most that a correction changes how fast a worker counts.
const SCALE_LIMITS: (f64, f64) = (0.25, 4.0);
/// Searching may look at so many samples, each some dozens of times.
const SEARCH_LOOKS: usize = 1 << 19;
const MOST_SEARCH_STEPS: usize = 40;

/// One run of samples for each worker, in order.
pub(super) fn cut(workers: &[Worker], costs: &UpdateCosts) -> Vec<Range<usize>> {
    let update = Mixed { workers, costs };
    let mut runners = update.places();
    if workers.len() > VERY_MANY
        && let Some(runs) = many::cut(workers, costs, &mut runners)
    {
        return runs;
    }
    let mut best = update.look(update.cut_by(&runners));
    let mut newest = best.clone();
    for _ in 0..CORRECTIONS {
        let corrected = update.correct(&newest);
        if corrected == newest.runs {
            break;
        }
        newest = update.look(corrected);
        if newest.last_s < best.last_s {
            best = newest.clone();
        }
    }
    update.search(best).runs
}

struct Mixed<'a> {
    workers: &'a [Worker<'a>],
    costs: &'a UpdateCosts<'a>,
}

/// A cut and what it takes.
#[derive(Clone)]
struct Look {
    runs: Vec<Range<usize>>,
    taken: Vec<Taken>,
    last_s: f64,
}

#[derive(Clone, Copy)]
struct Taken {
    finish_s: f64,
    padded_tokens: u64,
}

impl Mixed<'_> {
    /// By average samples, about where each worker's place is: its pace with samples as long as those there.
    fn places(&self) -> Vec<Runner> {
        let average = self.costs.tokens as f64 / self.costs.samples.len() as f64;
        let mut tokens = TokensBefore { costs: self.costs, sample: 0, tokens: 0 };
        let runner = |worker: &Worker| {
            let mut pace = worker.at(average.ceil() as u32);
            pace.scale = average;
            Runner { pace, reach: tokens.before(worker.reach) as f64 }
        };
        let runners: Vec<Runner> = self.workers.iter().map(runner).collect();
        let total = self.costs.tokens as f64;
        let mut tokens = TokensBefore { costs: self.costs, sample: 0, tokens: 0 };
        let mut places = Vec::with_capacity(runners.len());
        for Block { workers, amount, finish_s } in balance::blocks(&runners, total, total * 0.01).into_iter().rev() {
            let mut start = amount.start;
            for (Runner { pace, reach }, worker) in runners[workers.clone()].iter().zip(&self.workers[workers]) {
                let end = (start + pace.done_by(finish_s)).min(*reach);
                let middle = tokens.sample_at(0.5 * (start + end)).min(worker.reach - 1);
                places.push(Runner { pace: worker.at(self.costs.cost(middle)), reach: worker.reach as f64 });
                start = end;
            }
        }
        places
    }

    /// By samples as long as those that each worker got, and at the speed that it would have with them.
    fn correct(&self, look: &Look) -> Vec<Range<usize>> {
        let last = self.costs.samples.len() - 1;
        let runner = |((worker, run), taken): ((&Worker, &Range<usize>), &Taken)| {
            let tokens = match run.len() as u64 {
                0 => u64::from(self.costs.cost(run.start.min(last))),
                count => taken.padded_tokens.div_ceil(count),
            };
            let mut pace = worker.at(u32::try_from(tokens).unwrap_or(u32::MAX));
            let expected = pace.done_by(taken.finish_s);
            if !run.is_empty() && expected > 0.0 {
                pace.scale = (run.len() as f64 / expected).clamp(SCALE_LIMITS.0, SCALE_LIMITS.1);
            }
            Runner { pace, reach: worker.reach as f64 }
        };
        let runners: Vec<Runner> = self.workers.iter().zip(&look.runs).zip(&look.taken).map(runner).collect();
        self.cut_by(&runners)
    }

    /// Whole samples to each worker, which does them at this pace.
    fn cut_by(&self, runners: &[Runner]) -> Vec<Range<usize>> {
        let close = balance::close(runners.len());
        let mut ends = Vec::with_capacity(self.workers.len());
        for Block { workers, amount, finish_s } in
            balance::blocks(runners, self.costs.samples.len() as f64, close).into_iter().rev()
        {
            let mut end = amount.start as usize;
            let counts = balance::whole_samples(&runners[workers.clone()], finish_s, end..amount.end as usize);
            for (worker, count) in workers.zip(counts) {
                end = (end + count).min(self.workers[worker].reach);
                ends.push(end);
            }
        }
        self.runs(ends)
    }

    /// Runs that end there; the last worker, which reaches all, takes the rest.
    fn runs(&self, mut ends: Vec<usize>) -> Vec<Range<usize>> {
        if let Some(last) = ends.last_mut() {
            *last = self.costs.samples.len();
        }
        let mut start = 0;
        let run = |end: usize| {
            let run = start..end.max(start);
            start = run.end;
            run
        };
        ends.into_iter().map(run).collect()
    }

    fn look(&self, runs: Vec<Range<usize>>) -> Look {
        let taken: Vec<Taken> = self.workers.iter().zip(&runs).map(|(worker, run)| self.taken(worker, run)).collect();
        let last_s = taken.iter().map(|taken| taken.finish_s).fold(0.0, f64::max);
        Look { runs, taken, last_s }
    }

    fn taken(&self, worker: &Worker, run: &Range<usize>) -> Taken {
        let (mut seconds, mut padded_tokens) = (0.0, 0);
        worker.load.micro_batches(self.costs, run.clone(), |micro| {
            seconds += micro.seconds(worker.load.table);
            padded_tokens += micro.padded_tokens();
        });
        let finish_s = if run.is_empty() { 0.0 } else { worker.overhead_s + worker.factor * seconds };
        Taken { finish_s, padded_tokens }
    }

    /// Searches for an earlier time, as long as that is no long search.
    fn search(&self, mut best: Look) -> Look {
        let looks_per_step = 64 * (self.costs.samples.len() + 8 * self.workers.len());
        let steps = (SEARCH_LOOKS / looks_per_step).min(MOST_SEARCH_STEPS);
        // If all were done at the same time, it would be about this.
        let at_work = best.taken.iter().filter(|taken| taken.finish_s > 0.0);
        let mut next_s = at_work.clone().map(|taken| taken.finish_s).sum::<f64>() / at_work.count().max(1) as f64;
        let mut low_s = 0.0;
        for _ in 0..steps {
            match self.sweep(next_s, &best.runs) {
                Some(runs) => {
                    let look = self.look(runs);
                    if look.last_s < best.last_s {
                        best = look;
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

    /// As long a run to each worker in turn as it can do in the time; none if that does not reach the end.
    fn sweep(&self, time_s: f64, like: &[Range<usize>]) -> Option<Vec<Range<usize>>> {
        let mut runs = Vec::with_capacity(self.workers.len());
        let mut start = 0;
        for (worker, like) in self.workers.iter().zip(like) {
            let limit = worker.reach.max(start);
            let fits = |end: usize| self.taken(worker, &(start..end)).finish_s <= time_s;
            let end = furthest(start, limit, like.len(), fits);
            runs.push(start..end);
            start = end;
        }
        (start == self.costs.samples.len()).then_some(runs)
    }
}

/// The last number in `start..=limit` that fits, `start` always does; looked for from `start + guess` on.
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
            // Away from the guess in growing steps until the other side is met, then halving.
            (true, step) if step > 0 && low + step < high => low + step,
            (false, step) if step > 0 && high > low + step => high - step,
            _ => low + (high - low) / 2,
        };
        let does = fits(next);
        if does {
            low = next
        } else {
            high = next
        }
        step = if does == is_up { step * 2 } else { 0 };
    }
    low
}

/// Counts tokens from the first sample on; asked with ascending numbers only.
struct TokensBefore<'a> {
    costs: &'a UpdateCosts<'a>,
    sample: usize,
    tokens: u64,
}

impl TokensBefore<'_> {
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
