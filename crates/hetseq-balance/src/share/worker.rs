//! A device as `share` sees it: how long it takes for n samples of one length, and how many it does in a time.
//!
//! Samples of one length are cut into as few micro-batches as may be, and as even. With `at_a_time` samples in a
//! micro-batch at most, n samples are `k = ceil(n / at_a_time)` micro-batches that take `k * t(n / k)` together: the curve t
//! is a straight line between whole numbers. No smaller number than `at_a_time` takes less time per sample, so one sample
//! more never takes less time.

use super::DeviceLoad;
use crate::table::Curve;

/// Beyond these a factor or an overhead is no measurement. They keep every product and sum inside f64.
const FACTOR_LIMITS: (f64, f64) = (1e-15, 1e15);
const OVERHEAD_LIMIT_S: f64 = 1e9;

/// A device that can compute.
#[derive(Debug, Clone, Copy)]
pub(super) struct Worker<'a> {
    pub(super) device: usize,
    pub(super) load: &'a DeviceLoad<'a>,
    pub(super) factor: f64,
    pub(super) overhead_s: f64,
    /// It may compute the samples before this one.
    pub(super) reach: usize,
}

impl<'a> Worker<'a> {
    /// None if the device cannot compute anything.
    pub(super) fn new(device: usize, load: &'a DeviceLoad<'a>, reach: usize) -> Option<Self> {
        let usable = load.factor > 0.0 && load.factor.is_finite() && load.max_samples != Some(0);
        // An unknown overhead is none; an endless one is a device not worth waiting for.
        let overhead_s = if load.overhead_s > 0.0 { load.overhead_s } else { 0.0 };
        (usable && overhead_s.is_finite()).then(|| Worker {
            device,
            load,
            factor: load.factor.clamp(FACTOR_LIMITS.0, FACTOR_LIMITS.1),
            overhead_s: overhead_s.min(OVERHEAD_LIMIT_S),
            reach,
        })
    }

    /// Its pace with samples of this length.
    pub(super) fn at(&self, tokens: u32) -> Pace {
        let curve = self.load.table.curve(tokens);
        let at_a_time = match self.load.measured {
            // As a rule it is the same table.
            Some(table) if table.is_measured() && std::ptr::eq(table, self.load.table) => {
                self.load.at_a_time_by(tokens, table, &curve)
            }
            _ => self.load.at_a_time(tokens),
        };
        let full_s = curve.seconds(f64::from(at_a_time));
        Pace {
            tokens,
            overhead_s: self.overhead_s,
            factor: self.factor,
            curve,
            at_a_time: f64::from(at_a_time),
            full_s,
            scale: 1.0,
        }
    }
}

/// How a worker does with samples of one length.
#[derive(Debug, Clone)]
pub(super) struct Pace {
    /// Of each sample.
    pub(super) tokens: u32,
    overhead_s: f64,
    factor: f64,
    curve: Curve,
    /// The most samples in a micro-batch, and how long those take.
    at_a_time: f64,
    full_s: f64,
    /// What it does in a time is so many times what the curve says: tokens instead of samples, or the correction of a
    /// length that stands for several.
    pub(super) scale: f64,
}

impl Pace {
    /// When it is done with so many; no time at all for none.
    pub(super) fn finish_s(&self, amount: f64) -> f64 {
        let samples = amount / self.scale;
        if samples <= 0.0 {
            return 0.0;
        }
        let micro_batches = (samples / self.at_a_time).ceil();
        self.overhead_s + self.factor * micro_batches * self.curve.seconds(samples / micro_batches)
    }

    /// The most that it does until then.
    pub(super) fn done_by(&self, time_s: f64) -> f64 {
        let seconds = (time_s - self.overhead_s) / self.factor;
        if seconds <= 0.0 || seconds.is_nan() {
            return 0.0;
        }
        // By way of an integer: faster than a call of `floor`.
        let full = (seconds / self.full_s) as i64 as f64;
        // Either full micro-batches and time to spare, or one more that are not full.
        let more = (full + 1.0) * self.curve.samples(seconds / (full + 1.0)).min(self.at_a_time);
        more.max(full * self.at_a_time) * self.scale
    }

    /// The time that nothing can be done in.
    pub(super) fn overhead_s(&self) -> f64 {
        self.overhead_s
    }

    /// The most that it does per second, when its micro-batches are full: no smaller ones do more.
    pub(super) fn speed(&self) -> f64 {
        self.at_a_time / (self.factor * self.full_s) * self.scale
    }
}
