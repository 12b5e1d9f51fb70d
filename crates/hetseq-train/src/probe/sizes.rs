//! Which sizes a probe runs: pure decisions over what was measured so far.

use std::time::Duration;

use hetseq_balance::Point;
use hetseq_data::{Costs, GlobalBatch};

use super::Limits;

/// Larger micro-batches are not tried once doubling has twice gained less than this.
const WORTHWHILE: f64 = 0.02;
/// How far off its line a point may be by noise.
const NOISE: f64 = 0.20;
/// Of the memory limit, so much is left alone: not all that is allocated shows in a measurement.
const SPARE: f64 = 0.05;

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Run(u32),
    Enough,
}

/// Doubles the samples of a micro-batch for as long as that is safe and of use.
#[derive(Debug)]
pub(super) struct Guard {
    most: u32,
    memory_bytes: Option<u64>,
    budget: Duration,
    spent: Duration,
    /// What the process held before.
    held_bytes: u64,
    /// Samples, time and memory of those run, ascending.
    ran: Vec<(u32, Duration, u64)>,
    idle_doublings: u32,
}

impl Guard {
    /// For samples of `tokens` tokens; the process holds `held_bytes` already.
    pub(super) fn new(limits: &Limits, tokens: u32, budget: Duration, held_bytes: u64) -> Self {
        let by_batch = match limits.global {
            GlobalBatch::Sequences(samples) => samples as u64,
            GlobalBatch::Tokens(all) => all as u64 / u64::from(tokens),
        };
        let by_tokens = limits.max_tokens.map_or(u64::MAX, |most| u64::from(most / tokens));
        let by_samples = limits.max_samples.map_or(u64::MAX, u64::from);
        let most = by_batch.min(by_tokens).min(by_samples).clamp(1, 1 << 20) as u32;
        Guard {
            most,
            memory_bytes: limits.memory_bytes.map(|limit| (limit as f64 * (1.0 - SPARE)) as u64),
            budget,
            spent: Duration::ZERO,
            held_bytes,
            ran: Vec::new(),
            idle_doublings: 0,
        }
    }

    /// Of the samples of a micro-batch.
    pub(super) fn most(&self) -> u32 {
        self.most
    }

    pub(super) fn next(&self) -> Step {
        let Some(&(samples, took, _)) = self.ran.last() else { return Step::Run(1) };
        let next = samples.saturating_mul(2).min(self.most);
        let grows = f64::from(next) / f64::from(samples);
        // A size is run a few times, and the last runs of this size took `took` each.
        let expected = took.mul_f64(grows * f64::from(super::RUNS));
        let fits = self.memory_bytes.is_none_or(|limit| self.expected_bytes(next) <= limit);
        let is_useful = next > samples && self.idle_doublings < 2;
        if is_useful && fits && self.spent + expected <= self.budget { Step::Run(next) } else { Step::Enough }
    }

    /// `samples` took `time` each and left the process with `bytes`; `took` in all.
    pub(super) fn ran(&mut self, samples: u32, time: Duration, bytes: u64, took: Duration) {
        if let Some(&(before, earlier, _)) = self.ran.last() {
            let per_sample = |samples: u32, time: Duration| time.as_secs_f64() / f64::from(samples);
            let gain = 1.0 - per_sample(samples, time) / per_sample(before, earlier);
            self.idle_doublings = if gain < WORTHWHILE { self.idle_doublings + 1 } else { 0 };
        }
        self.spent += took;
        self.ran.push((samples, time, bytes));
    }

    /// What `samples` will need, by the growth so far.
    fn expected_bytes(&self, samples: u32) -> u64 {
        let last = |back: usize| self.ran.len().checked_sub(back).map(|at| (self.ran[at].0, self.ran[at].2));
        let (few, less) = last(2).unwrap_or((0, self.held_bytes));
        let (many, more) = last(1).unwrap_or((few, less));
        let per_sample = more.saturating_sub(less) as f64 / f64::from(many.saturating_sub(few).max(1));
        more.saturating_add((per_sample * f64::from(samples.saturating_sub(many))) as u64)
    }

    /// What a single sample needed, if that is more than there is.
    pub(super) fn impossible(&self) -> Option<u64> {
        let &(_, _, bytes) = self.ran.first()?;
        self.memory_bytes.is_some_and(|limit| bytes > limit).then_some(bytes)
    }
}

pub(super) fn too_small(needed: u64, limit: u64, tokens: u32, is_gpu: bool) -> String {
    let remedy = if is_gpu {
        "raise run.gpu_memory_mib or free memory of the GPU, leave it out (run.devices), use"
    } else {
        "raise run.memory_mib or the job's limit, use fewer devices (run.devices),"
    };
    format!(
        "a single sample of {tokens} tokens needs {} in all and {} is allowed: {remedy} a smaller model or shorter samples",
        hetseq_metrics::bytes(needed),
        hetseq_metrics::bytes(limit)
    )
}

/// The most tokens of a micro-batch: as configured, and as memory allows for the longest samples. None if neither limits.
pub(super) fn cap(points: &[Point], lengths: &[u32], limits: &Limits) -> Option<u32> {
    let by_memory = || {
        let limit = (limits.memory_bytes? as f64 * (1.0 - SPARE)) as u64;
        let longest = *lengths.last()?;
        let device: Vec<&Point> = points.iter().filter(|point| point.tokens == longest).collect();
        let last = device.last()?;
        // With one size only nothing is known of the growth, so what ran is what may run.
        let per_sample = match device.len().checked_sub(2) {
            Some(before) => {
                let before = device[before];
                last.bytes.saturating_sub(before.bytes) as f64 / f64::from(last.samples - before.samples)
            }
            None => f64::INFINITY,
        };
        let more = limit.saturating_sub(last.bytes) as f64 / per_sample.max(1.0);
        let samples = (f64::from(last.samples) + more.floor()).min(f64::from(u32::MAX)) as u64;
        u32::try_from(samples.saturating_mul(u64::from(longest))).ok().filter(|&most| most < u32::MAX)
    };
    [limits.max_tokens, by_memory()].into_iter().flatten().min()
}

/// What was measured, without its noise: where a launch and so much per sample explain all points of a length within
/// [`NOISE`], they take their places, so that no plan is made by which size happened to be measured in a bad moment. Where they
/// do not, as on devices whose times rise in steps, the points stay as they are.
pub(super) fn without_noise(mut points: Vec<Point>) -> Vec<Point> {
    points.sort_by_key(|point| (point.tokens, point.samples));
    for of_length in points.chunk_by_mut(|a, b| a.tokens == b.tokens) {
        let Some((launch, each)) = line(of_length) else { continue };
        let at = |point: &Point| launch + each * f64::from(point.samples);
        if of_length.iter().all(|point| (at(point) / point.micros as f64 - 1.0).abs() <= NOISE) {
            of_length.iter_mut().for_each(|point| point.micros = at(point).round() as u64);
        }
    }
    points
}

/// Launch and time per sample in microseconds, neither below zero, with the least squares of relative deviations; none for too
/// few points.
fn line(points: &[Point]) -> Option<(f64, f64)> {
    if points.len() < 3 {
        return None;
    }
    // In units of its own time a point asks that `launch * x + each * y = 1`.
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

/// Up to three lengths that stand for all: a short, a middling and the longest, if they differ much.
pub(super) fn lengths(costs: &Costs) -> Vec<u32> {
    let mut all: Vec<u32> = (0..costs.samples() as u32).map(|sample| costs.padded(sample).max(1)).collect();
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

/// `count` samples of at most `tokens` tokens, the longest of them; again and again the same ones if there are too few, and none
/// if there is no such sample.
pub(super) fn samples(costs: &Costs, tokens: u32, count: u32) -> Vec<u32> {
    let fits = |sample: &u32| costs.padded(*sample).max(1) <= tokens;
    let mut found: Vec<u32> = (0..costs.samples() as u32).filter(fits).collect();
    found.sort_by_key(|&sample| std::cmp::Reverse(costs.padded(sample)));
    found.truncate(count as usize);
    found.into_iter().cycle().take(count as usize).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(max_samples: Option<u32>, memory_bytes: Option<u64>) -> Limits {
        Limits {
            max_samples,
            max_tokens: None,
            global: GlobalBatch::Sequences(64),
            memory_bytes,
            gpu_memory_bytes: None,
            reserved_bytes: 0,
            budget: Duration::from_secs(10),
        }
    }

    /// A device that takes `fixed_ms` and 1 ms a sample, and 100 bytes and 10 a sample.
    fn sizes_of(limits: &Limits, fixed_ms: u64) -> Vec<u32> {
        let mut guard = Guard::new(limits, 1, limits.budget, 100);
        let mut sizes = Vec::new();
        while let Step::Run(samples) = guard.next() {
            sizes.push(samples);
            let time = Duration::from_millis(fixed_ms + u64::from(samples));
            guard.ran(samples, time, 100 + 10 * u64::from(samples), time * 2);
        }
        sizes
    }

    #[test]
    fn sizes_double_while_that_pays() {
        assert_eq!(sizes_of(&limits(None, None), 8), [1, 2, 4, 8, 16, 32, 64]);
        assert_eq!(sizes_of(&limits(Some(6), None), 8), [1, 2, 4, 6]);
        // Nothing is gained by larger ones.
        assert_eq!(sizes_of(&limits(None, None), 0), [1, 2, 4]);
    }

    #[test]
    fn memory_and_time_end_it() {
        // 95 % of 200 hold nine samples; sixteen would need 260.
        assert_eq!(sizes_of(&limits(None, Some(200)), 8), [1, 2, 4, 8]);
        let short = Limits { budget: Duration::from_millis(60), ..limits(None, None) };
        assert_eq!(sizes_of(&short, 8), [1, 2]);
    }

    #[test]
    fn one_sample_that_does_not_fit_is_told() {
        let mut guard = Guard::new(&limits(None, Some(100)), 1, Duration::from_secs(1), 0);
        guard.ran(1, Duration::from_millis(1), 110, Duration::from_millis(2));
        assert_eq!((guard.impossible(), guard.next()), (Some(110), Step::Enough));
        assert!(too_small(3 << 30, 1 << 30, 512, false).contains("a single sample of 512 tokens needs"));
    }

    #[test]
    fn the_cap_follows_from_memory_and_from_what_was_set() {
        let point = |samples: u32| Point { samples, tokens: 8, micros: 1, bytes: 100 + 10 * u64::from(samples) };
        let points = [point(1), point(2), point(4)];
        // 190 bytes hold nine samples of eight tokens.
        assert_eq!(cap(&points, &[8], &limits(None, Some(200))), Some(72));
        assert_eq!(cap(&points, &[8], &limits(None, None)), None);
        let set = Limits { max_tokens: Some(40), ..limits(None, Some(200)) };
        assert_eq!(cap(&points, &[8], &set), Some(40));
        // Only one size was run, so only that is known to fit.
        assert_eq!(cap(&[point(1)], &[8], &limits(None, Some(200))), Some(8));
    }

    #[test]
    fn noise_is_taken_for_noise_and_steps_for_steps() {
        let point = |samples: u32, micros: u64| Point { samples, tokens: 8, micros, bytes: 0 };
        // 100 and 50 per sample, a tenth up or down.
        let noisy = vec![point(1, 165), point(2, 180), point(4, 330), point(8, 450)];
        let smooth = without_noise(noisy.clone());
        for (point, expected) in smooth.iter().zip([150.0, 200.0, 300.0, 500.0]) {
            assert!((point.micros as f64 / expected - 1.0).abs() < 0.08, "{smooth:?}");
        }
        let slope = |a: &Point, b: &Point| (b.micros - a.micros) as f64 / f64::from(b.samples - a.samples);
        assert!((slope(&smooth[0], &smooth[1]) - slope(&smooth[2], &smooth[3])).abs() < 1.0, "{smooth:?}");
        // Whatever a line says, a launch takes no less than nothing.
        let none = without_noise(vec![point(1, 45), point(2, 100), point(4, 205), point(8, 400)]);
        assert!((f64::from(none[3].micros as u32) / f64::from(none[0].micros as u32) - 8.0).abs() < 0.5, "{none:?}");
        let steps = vec![point(1, 100), point(2, 100), point(4, 100), point(8, 200)];
        assert_eq!(without_noise(steps.clone()), steps);
        let few = vec![point(1, 100), point(2, 150)];
        assert_eq!(without_noise(few.clone()), few);
    }

    #[test]
    fn lengths_and_samples_stand_for_all() {
        let costs = Costs::PerSample((1..=100).collect());
        assert_eq!(lengths(&costs), [11, 51, 100]);
        assert_eq!(lengths(&Costs::Uniform { samples: 9, tokens: 128 }), [128]);
        assert_eq!(lengths(&Costs::PerSample(vec![10, 90, 100])), [10, 100]);
        assert_eq!(samples(&costs, 11, 3), [10, 9, 8]);
        assert_eq!(samples(&Costs::PerSample(vec![5, 3]), 3, 3), [1, 1, 1]);
    }
}
