//! Which micro-batch sizes a probe runs: pure decisions from the measurements so far. Used by
//! `probe.rs`.

use std::time::Duration;

use hetseq_balance::CostPoint;
use hetseq_data::{GlobalBatch, SampleLengths};

use super::probe::{ProbeLimits, RUNS};

/// The search stops when two doublings in a row gained less than this fraction of time per sample.
const MIN_GAIN: f64 = 0.02;
/// Largest relative deviation of a point from the fitted line that counts as noise.
const NOISE: f64 = 0.20;
/// Fraction of the memory limit that is not used: measurements miss some allocations.
const MEMORY_MARGIN: f64 = 0.05;

/// The next step of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProbeStep {
    Run(u32),
    Stop,
}

/// Doubles the samples of a micro-batch as long as that is safe and makes it faster.
#[derive(Debug)]
pub(super) struct SizeSearch {
    max_samples: u32,
    memory_bytes: Option<u64>,
    budget: Duration,
    spent: Duration,
    /// Memory of the process before the search.
    held_bytes: u64,
    /// Samples, time and memory of the sizes run, ascending.
    measured: Vec<(u32, Duration, u64)>,
    useless_doublings: u32,
}

impl SizeSearch {
    /// A search with samples of `tokens` tokens. The process already holds `held_bytes`.
    pub(super) fn new(limits: &ProbeLimits, tokens: u32, budget: Duration, held_bytes: u64) -> Self {
        let by_batch = match limits.global {
            GlobalBatch::Sequences(samples) => samples as u64,
            GlobalBatch::Tokens(all) => all as u64 / u64::from(tokens),
        };
        let by_tokens = limits.max_tokens.map_or(u64::MAX, |most| u64::from(most / tokens));
        let by_samples = limits.max_samples.map_or(u64::MAX, u64::from);
        let max_samples = by_batch.min(by_tokens).min(by_samples).clamp(1, 1 << 20) as u32;
        SizeSearch {
            max_samples,
            memory_bytes: limits.memory_bytes.map(|limit| (limit as f64 * (1.0 - MEMORY_MARGIN)) as u64),
            budget,
            spent: Duration::ZERO,
            held_bytes,
            measured: Vec::new(),
            useless_doublings: 0,
        }
    }

    /// The most samples of a micro-batch.
    pub(super) fn max_samples(&self) -> u32 {
        self.max_samples
    }

    pub(super) fn next(&self) -> ProbeStep {
        let Some(&(samples, took, _)) = self.measured.last() else { return ProbeStep::Run(1) };
        let next = samples.saturating_mul(2).min(self.max_samples);
        let grows = f64::from(next) / f64::from(samples);
        // Each size is run at least `RUNS` times; a run of the last size took `took`.
        let expected = took.mul_f64(grows * f64::from(RUNS));
        let fits = self.memory_bytes.is_none_or(|limit| self.expected_bytes(next) <= limit);
        let is_useful = next > samples && self.useless_doublings < 2;
        if is_useful && fits && self.spent + expected <= self.budget { ProbeStep::Run(next) } else { ProbeStep::Stop }
    }

    /// Records a size: a run of `samples` took `time`, the process holds `bytes` after it, and all
    /// runs together took `took`.
    pub(super) fn record(&mut self, samples: u32, time: Duration, bytes: u64, took: Duration) {
        if let Some(&(before, earlier, _)) = self.measured.last() {
            let per_sample = |samples: u32, time: Duration| time.as_secs_f64() / f64::from(samples);
            let gain = 1.0 - per_sample(samples, time) / per_sample(before, earlier);
            self.useless_doublings = if gain < MIN_GAIN { self.useless_doublings + 1 } else { 0 };
        }
        self.spent += took;
        self.measured.push((samples, time, bytes));
    }

    /// The memory that `samples` will need, extrapolated from the growth so far.
    fn expected_bytes(&self, samples: u32) -> u64 {
        let last =
            |back: usize| self.measured.len().checked_sub(back).map(|at| (self.measured[at].0, self.measured[at].2));
        let (few, less) = last(2).unwrap_or((0, self.held_bytes));
        let (many, more) = last(1).unwrap_or((few, less));
        let per_sample = more.saturating_sub(less) as f64 / f64::from(many.saturating_sub(few).max(1));
        more.saturating_add((per_sample * f64::from(samples.saturating_sub(many))) as u64)
    }

    /// The memory that a single sample needed, if that is over the limit.
    pub(super) fn single_sample_too_large(&self) -> Option<u64> {
        let &(_, _, bytes) = self.measured.first()?;
        self.memory_bytes.is_some_and(|limit| bytes > limit).then_some(bytes)
    }
}

/// The error for memory too small for a single sample.
pub(super) fn memory_too_small(needed: u64, limit: u64, tokens: u32, is_gpu: bool) -> String {
    let remedy = if is_gpu {
        "raise run.gpu_memory_mib or free memory of the GPU, exclude it (run.devices), use"
    } else {
        "raise run.memory_mib or the job's limit, use fewer devices (run.devices),"
    };
    format!(
        "a single sample of {tokens} tokens needs {} in total and {} is allowed: {remedy} a smaller model or shorter samples",
        hetseq_metrics::bytes(needed),
        hetseq_metrics::bytes(limit)
    )
}

/// The most tokens of a micro-batch: as configured, and as memory allows for the longest samples.
/// None if there is no limit.
pub(super) fn token_cap(points: &[CostPoint], lengths: &[u32], limits: &ProbeLimits) -> Option<u32> {
    let by_memory = || {
        let limit = (limits.memory_bytes? as f64 * (1.0 - MEMORY_MARGIN)) as u64;
        let longest = *lengths.last()?;
        let of_longest: Vec<&CostPoint> = points.iter().filter(|point| point.tokens == longest).collect();
        let last = of_longest.last()?;
        // With only one size the growth is unknown, so larger ones are not allowed.
        let per_sample = match of_longest.len().checked_sub(2) {
            Some(before) => {
                let before = of_longest[before];
                last.bytes.saturating_sub(before.bytes) as f64 / f64::from(last.samples - before.samples)
            }
            None => f64::INFINITY,
        };
        let more = limit.saturating_sub(last.bytes) as f64 / per_sample.max(1.0);
        let samples = (f64::from(last.samples) + more.floor()).min(f64::from(u32::MAX)) as u64;
        u32::try_from(samples.saturating_mul(u64::from(longest))).ok().filter(|&tokens| tokens < u32::MAX)
    };
    [limits.max_tokens, by_memory()].into_iter().flatten().min()
}

/// The points without noise: where a line (launch time plus time per sample) fits all points of a
/// length within [`NOISE`], the line replaces them, so that plans do not depend on which size was
/// measured at a bad moment. Other points stay as they are, as on devices whose times rise in
/// steps.
pub(super) fn smoothed(mut points: Vec<CostPoint>) -> Vec<CostPoint> {
    points.sort_by_key(|point| (point.tokens, point.samples));
    for of_length in points.chunk_by_mut(|a, b| a.tokens == b.tokens) {
        let Some((launch, each)) = fit_line(of_length) else { continue };
        let at = |point: &CostPoint| launch + each * f64::from(point.samples);
        if of_length.iter().all(|point| (at(point) / point.micros as f64 - 1.0).abs() <= NOISE) {
            of_length.iter_mut().for_each(|point| point.micros = at(point).round() as u64);
        }
    }
    points
}

/// Launch time and time per sample in microseconds, neither negative, with the least squares of
/// relative deviations. None for too few points.
fn fit_line(points: &[CostPoint]) -> Option<(f64, f64)> {
    if points.len() < 3 {
        return None;
    }
    // Relative to its own time, each point wants `launch * x + each * y = 1`.
    let sums = points.iter().fold([0.0; 5], |[xx, xy, yy, x1, y1], point| {
        let (x, y) = (1.0 / point.micros.max(1) as f64, f64::from(point.samples) / point.micros.max(1) as f64);
        [xx + x * x, xy + x * y, yy + y * y, x1 + x, y1 + y]
    });
    let [xx, xy, yy, x1, y1] = sums;
    let (launch, each) = ((x1 * yy - y1 * xy) / (xx * yy - xy * xy), (xx * y1 - xy * x1) / (xx * yy - xy * xy));
    let (launch, each) = match (launch >= 0.0, each >= 0.0) {
        (true, true) => (launch, each),
        (false, _) => (0.0, y1 / yy),
        (_, false) => return None,
    };
    (launch.is_finite() && each.is_finite()).then_some((launch, each))
}

/// Up to three lengths that represent all: a short, a medium and the longest, if they differ
/// enough.
pub(super) fn lengths(sample_lengths: &SampleLengths) -> Vec<u32> {
    let mut all: Vec<u32> =
        (0..sample_lengths.samples() as u32).map(|sample| sample_lengths.padded(sample).max(1)).collect();
    all.sort_unstable();
    let Some(&longest) = all.last() else { return Vec::new() };
    let mut lengths = Vec::new();
    for part in [0.1, 0.5] {
        let length = all[(all.len() as f64 * part) as usize];
        let is_far = |other: u32| f64::from(other) > 1.3 * f64::from(length);
        if is_far(longest) && lengths.last().is_none_or(|&last| f64::from(length) > 1.3 * f64::from(last)) {
            lengths.push(length);
        }
    }
    lengths.push(longest);
    lengths
}

/// The `count` longest samples of at most `tokens` tokens, repeated if there are too few; empty if
/// there is none.
pub(super) fn samples(sample_lengths: &SampleLengths, tokens: u32, count: u32) -> Vec<u32> {
    let fits = |sample: &u32| sample_lengths.padded(*sample).max(1) <= tokens;
    let mut found: Vec<u32> = (0..sample_lengths.samples() as u32).filter(fits).collect();
    found.sort_by_key(|&sample| std::cmp::Reverse(sample_lengths.padded(sample)));
    found.truncate(count as usize);
    found.into_iter().cycle().take(count as usize).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(max_samples: Option<u32>, memory_bytes: Option<u64>) -> ProbeLimits {
        ProbeLimits {
            max_samples,
            max_tokens: None,
            global: GlobalBatch::Sequences(64),
            memory_bytes,
            gpu_memory_bytes: None,
            reserved_bytes: 0,
            budget: Duration::from_secs(10),
        }
    }

    /// The sizes run on a device that takes `fixed_ms` plus 1 ms per sample, and 100 bytes plus 10
    /// per sample.
    fn sizes_of(limits: &ProbeLimits, fixed_ms: u64) -> Vec<u32> {
        let mut search = SizeSearch::new(limits, 1, limits.budget, 100);
        let mut sizes = Vec::new();
        while let ProbeStep::Run(samples) = search.next() {
            sizes.push(samples);
            let time = Duration::from_millis(fixed_ms + u64::from(samples));
            search.record(samples, time, 100 + 10 * u64::from(samples), time * 2);
        }
        sizes
    }

    #[test]
    fn sizes_double_while_that_is_faster() {
        assert_eq!(sizes_of(&limits(None, None), 8), [1, 2, 4, 8, 16, 32, 64]);
        assert_eq!(sizes_of(&limits(Some(6), None), 8), [1, 2, 4, 6]);
        // Larger ones are not faster.
        assert_eq!(sizes_of(&limits(None, None), 0), [1, 2, 4]);
    }

    #[test]
    fn memory_and_time_end_the_search() {
        // 95 % of 200 bytes hold nine samples; sixteen would need 260.
        assert_eq!(sizes_of(&limits(None, Some(200)), 8), [1, 2, 4, 8]);
        let short = ProbeLimits { budget: Duration::from_millis(60), ..limits(None, None) };
        assert_eq!(sizes_of(&short, 8), [1, 2]);
    }

    #[test]
    fn a_single_sample_that_does_not_fit_is_reported() {
        let mut search = SizeSearch::new(&limits(None, Some(100)), 1, Duration::from_secs(1), 0);
        search.record(1, Duration::from_millis(1), 110, Duration::from_millis(2));
        assert_eq!((search.single_sample_too_large(), search.next()), (Some(110), ProbeStep::Stop));
        assert!(memory_too_small(3 << 30, 1 << 30, 512, false).contains("a single sample of 512 tokens needs"));
    }

    #[test]
    fn the_cap_follows_from_memory_and_config() {
        let point = |samples: u32| CostPoint { samples, tokens: 8, micros: 1, bytes: 100 + 10 * u64::from(samples) };
        let points = [point(1), point(2), point(4)];
        // 190 bytes hold nine samples of eight tokens.
        assert_eq!(token_cap(&points, &[8], &limits(None, Some(200))), Some(72));
        assert_eq!(token_cap(&points, &[8], &limits(None, None)), None);
        let set = ProbeLimits { max_tokens: Some(40), ..limits(None, Some(200)) };
        assert_eq!(token_cap(&points, &[8], &set), Some(40));
        // Only one size was run, so no other is known to fit.
        assert_eq!(token_cap(&[point(1)], &[8], &limits(None, Some(200))), Some(8));
    }

    #[test]
    fn noise_is_smoothed_and_steps_are_kept() {
        let point = |samples: u32, micros: u64| CostPoint { samples, tokens: 8, micros, bytes: 0 };
        // 100 plus 50 per sample, a tenth up or down.
        let noisy = vec![point(1, 165), point(2, 180), point(4, 330), point(8, 450)];
        let smooth = smoothed(noisy.clone());
        for (point, expected) in smooth.iter().zip([150.0, 200.0, 300.0, 500.0]) {
            assert!((point.micros as f64 / expected - 1.0).abs() < 0.08, "{smooth:?}");
        }
        let slope = |a: &CostPoint, b: &CostPoint| (b.micros - a.micros) as f64 / f64::from(b.samples - a.samples);
        assert!((slope(&smooth[0], &smooth[1]) - slope(&smooth[2], &smooth[3])).abs() < 1.0, "{smooth:?}");
        // The launch time is never negative.
        let none = smoothed(vec![point(1, 45), point(2, 100), point(4, 205), point(8, 400)]);
        assert!((f64::from(none[3].micros as u32) / f64::from(none[0].micros as u32) - 8.0).abs() < 0.5, "{none:?}");
        let steps = vec![point(1, 100), point(2, 100), point(4, 100), point(8, 200)];
        assert_eq!(smoothed(steps.clone()), steps);
        let few = vec![point(1, 100), point(2, 150)];
        assert_eq!(smoothed(few.clone()), few);
    }

    #[test]
    fn lengths_and_samples_represent_all() {
        let sample_lengths = SampleLengths::PerSample((1..=100).collect());
        assert_eq!(lengths(&sample_lengths), [11, 51, 100]);
        assert_eq!(lengths(&SampleLengths::Uniform { samples: 9, tokens: 128 }), [128]);
        assert_eq!(lengths(&SampleLengths::PerSample(vec![10, 90, 100])), [10, 100]);
        assert_eq!(samples(&sample_lengths, 11, 3), [10, 9, 8]);
        assert_eq!(samples(&SampleLengths::PerSample(vec![5, 3]), 3, 3), [1, 1, 1]);
    }
}
