//! A device in `share`: its time for n samples of one length, and the number of samples it does in
//! a time.
//!
//! Samples of one length are cut into as few micro-batches as possible, of even size. With at most
//! `at_a_time` samples in a micro-batch, n samples are `k = ceil(n / at_a_time)` micro-batches that
//! take `k * t(n / k)` together; the curve t is linear between whole numbers. No number below
//! `at_a_time` takes less time per sample, so one more sample never takes less time.

use super::DeviceLoad;
use crate::table::Curve;

/// A factor or an overhead beyond these limits is not a measurement. They keep all products and
/// sums inside f64.
const FACTOR_LIMITS: (f64, f64) = (1e-15, 1e15);
const OVERHEAD_LIMIT_S: f64 = 1e9;

/// A device that can compute.
#[derive(Debug, Clone, Copy)]
pub(super) struct ShareWorker<'a> {
    pub(super) device: usize,
    pub(super) load: &'a DeviceLoad<'a>,
    pub(super) factor: f64,
    pub(super) overhead_s: f64,
    /// It can compute the samples before this one.
    pub(super) reach: usize,
}

impl<'a> ShareWorker<'a> {
    /// None if the device cannot compute anything.
    pub(super) fn new(device: usize, load: &'a DeviceLoad<'a>, reach: usize) -> Option<Self> {
        let usable = load.factor > 0.0 && load.factor.is_finite() && load.max_samples != Some(0);
        // An unknown overhead counts as none; an infinite one makes the device unusable.
        let overhead_s = if load.overhead_s > 0.0 { load.overhead_s } else { 0.0 };
        (usable && overhead_s.is_finite()).then(|| ShareWorker {
            device,
            load,
            factor: load.factor.clamp(FACTOR_LIMITS.0, FACTOR_LIMITS.1),
            overhead_s: overhead_s.min(OVERHEAD_LIMIT_S),
            reach,
        })
    }

    /// The timing with samples of this length.
    pub(super) fn at(&self, tokens: u32) -> LengthTiming {
        let curve = self.load.table.curve(tokens);
        let at_a_time = match self.load.measured {
            // Usually it is the same table, whose curve is known already.
            Some(table) if table.is_measured() && std::ptr::eq(table, self.load.table) => {
                self.load.at_a_time_by(tokens, table, &curve)
            }
            _ => self.load.at_a_time(tokens),
        };
        let full_s = curve.seconds(f64::from(at_a_time));
        LengthTiming {
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

/// A worker's timing with samples of one length.
#[derive(Debug, Clone)]
pub(super) struct LengthTiming {
    /// Of each sample.
    pub(super) tokens: u32,
    overhead_s: f64,
    factor: f64,
    curve: Curve,
    /// The largest number of samples in a micro-batch, and the seconds for them.
    at_a_time: f64,
    full_s: f64,
    /// A factor on the amount done in a time: converts samples to tokens, or corrects one length
    /// that represents several.
    pub(super) scale: f64,
}

impl LengthTiming {
    /// The time at which it is done with `amount`; 0 for none.
    pub(super) fn finish_s(&self, amount: f64) -> f64 {
        let samples = amount / self.scale;
        if samples <= 0.0 {
            return 0.0;
        }
        let micro_batches = (samples / self.at_a_time).ceil();
        self.overhead_s + self.factor * micro_batches * self.curve.seconds(samples / micro_batches)
    }

    /// The largest amount that it does until `time_s`.
    pub(super) fn done_by(&self, time_s: f64) -> f64 {
        let seconds = (time_s - self.overhead_s) / self.factor;
        if seconds <= 0.0 || seconds.is_nan() {
            return 0.0;
        }
        // The cast to an integer is faster than a call of `floor`.
        let full = (seconds / self.full_s) as i64 as f64;
        // Either full micro-batches with time left over, or one more that are not full.
        let more = (full + 1.0) * self.curve.samples(seconds / (full + 1.0)).min(self.at_a_time);
        more.max(full * self.at_a_time) * self.scale
    }

    /// The time in which nothing is done.
    pub(super) fn overhead_s(&self) -> f64 {
        self.overhead_s
    }

    /// The largest amount per second: with full micro-batches, since smaller ones are not faster.
    pub(super) fn speed(&self) -> f64 {
        self.at_a_time / (self.factor * self.full_s) * self.scale
    }
}
