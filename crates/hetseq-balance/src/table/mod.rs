//! Cost table: the time and memory of micro-batches on a device, interpolated between measured
//! points.
//!
//! Pure, and built from integers, so all ranks read the same seconds from the same points. Filled
//! by the trainer's probe or by a profile written by hand; read by `share` and the predictions. It
//! does not know the drift: the planner multiplies its seconds by the device's factor.
//!
//! Seconds are piecewise linear in the samples of a micro-batch, and linear between measured
//! lengths. Extrapolation is cautious: the time per sample never falls below the last measured one.
//! More samples never cost less, even if noisy measurements say so; therefore the number of samples
//! that fit into a time can be found.

pub(crate) mod curve;
mod grid;
mod serialize;

use crate::error::BalanceError;
pub(crate) use curve::Curve;
use grid::{Grid, Quantity};
use serde::{Deserialize, Serialize};

/// A speed beyond these limits is not a measurement. They keep all products and sums of seconds
/// well inside f64.
const SPEED_LIMITS: (f64, f64) = (1e-15, 1e15);

/// A measured micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostPoint {
    pub samples: u32,
    /// Of each sample, padded.
    pub tokens: u32,
    pub micros: u64,
    /// Peak memory of the process; 0 if unknown.
    #[serde(default)]
    pub bytes: u64,
}

/// See the [module](self).
///
/// In JSON a list of [`CostPoint`]s, or a plain number if nothing was measured: tokens per second.
#[derive(Clone, Debug, PartialEq)]
pub struct CostTable {
    points: Vec<CostPoint>,
    /// Used only without points.
    tokens_per_s: f64,
    seconds: Grid,
    bytes: Grid,
    /// Each measured length, and the largest number of samples of it.
    max_samples: Vec<(f64, f64)>,
}

impl CostTable {
    /// Builds a table from measured points, in any order. If a micro-batch was measured twice, the
    /// smaller time counts.
    pub fn new(mut points: Vec<CostPoint>) -> Result<CostTable, BalanceError> {
        if points.is_empty() {
            return Err(BalanceError::EmptyTable);
        }
        if let Some(&CostPoint { samples, tokens, .. }) = points.iter().find(|p| p.samples == 0 || p.tokens == 0) {
            return Err(BalanceError::EmptyPoint { samples, tokens });
        }
        points.sort_by_key(|p| (p.tokens, p.samples, p.micros));
        // The first of equals stays, which is the fastest; the largest memory is kept.
        points.dedup_by(|slower, p| {
            let same = (slower.tokens, slower.samples) == (p.tokens, p.samples);
            p.bytes = if same { p.bytes.max(slower.bytes) } else { p.bytes };
            same
        });
        // Zero means that the clock is too coarse.
        let seconds = |p: &CostPoint| Some(p.micros.max(1) as f64 * 1e-6);
        let bytes = |p: &CostPoint| (p.bytes > 0).then_some(p.bytes as f64);
        let max_samples = |p: &CostPoint| (f64::from(p.tokens), f64::from(p.samples));
        Ok(CostTable {
            seconds: Grid::new(&points, seconds, Quantity::Seconds),
            bytes: Grid::new(&points, bytes, Quantity::Bytes),
            max_samples: points
                .chunk_by(|a, b| a.tokens == b.tokens)
                .filter_map(<[CostPoint]>::last)
                .map(max_samples)
                .collect(),
            tokens_per_s: 1.0,
            points,
        })
    }

    /// A table without measurements: time is tokens divided by the speed. A speed that is not a
    /// positive number counts as extremely slow.
    pub fn proportional(tokens_per_s: f64) -> CostTable {
        // In this order NaN becomes the lower limit.
        let tokens_per_s = tokens_per_s.max(SPEED_LIMITS.0).min(SPEED_LIMITS.1);
        let (seconds, bytes) = (Grid::default(), Grid::default());
        CostTable { points: Vec::new(), tokens_per_s, seconds, bytes, max_samples: Vec::new() }
    }

    /// The table of a device that takes `factor` times as long.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> CostTable {
        let slower = |point: &CostPoint| CostPoint { micros: (point.micros as f64 * factor).round() as u64, ..*point };
        CostTable::new(self.points.iter().map(slower).collect())
            .unwrap_or_else(|_| CostTable::proportional(self.tokens_per_s / factor))
    }

    /// Whether there are measured points.
    pub fn is_measured(&self) -> bool {
        !self.points.is_empty()
    }

    /// The points by length, then by samples; empty if nothing was measured.
    pub fn points(&self) -> &[CostPoint] {
        &self.points
    }

    /// The seconds of a micro-batch of `samples` samples, padded to `tokens` tokens each.
    pub fn seconds(&self, samples: u32, tokens: u32) -> f64 {
        if samples == 0 {
            return 0.0;
        }
        match self.is_measured() {
            true => self.seconds.at(samples, tokens.max(1)),
            false => f64::from(samples) * f64::from(tokens.max(1)) / self.tokens_per_s,
        }
    }

    /// Peak memory of the process for such a micro-batch, rounded up if in doubt; 0 if unknown.
    pub fn bytes(&self, samples: u32, tokens: u32) -> u64 {
        // The cast saturates.
        if self.bytes.is_empty() { 0 } else { self.bytes.at(samples.max(1), tokens.max(1)).ceil() as u64 }
    }

    /// The number of samples with the least time per sample, within the measured range for this
    /// length. Of those within 2 % of the least, the smallest. 1 if nothing was measured.
    pub fn best_samples(&self, tokens: u32) -> u32 {
        if self.is_measured() { self.curve(tokens).best_up_to(self.measured_samples(tokens)) } else { 1 }
    }

    /// The largest number of samples whose memory fits; 0 if not even one does, `u32::MAX` if the
    /// memory is unknown.
    pub fn largest_samples(&self, tokens: u32, limit_bytes: u64) -> u32 {
        let fits = |samples: u32| self.bytes(samples, tokens) <= limit_bytes;
        if fits(u32::MAX) {
            return u32::MAX;
        }
        // `low` fits or is zero; `high` does not fit.
        let (mut low, mut high) = (0, u32::MAX);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(middle) { low = middle } else { high = middle }
        }
        low
    }

    /// The seconds for samples of one length.
    pub(crate) fn curve(&self, tokens: u32) -> Curve {
        match self.is_measured() {
            true => self.seconds.curve(tokens.max(1)),
            false => Curve::proportional(f64::from(tokens.max(1)) / self.tokens_per_s),
        }
    }

    /// The number of samples of this length that was measured, or would have fitted. If memory
    /// grows with the tokens of a micro-batch and with the square of a sample's tokens, the number
    /// that fits is the harmonic mean between two lengths.
    pub(crate) fn measured_samples(&self, tokens: u32) -> u32 {
        let mut lower: Option<(f64, f64)> = None;
        let tokens = f64::from(tokens.max(1));
        for &(length, samples) in &self.max_samples {
            if length >= tokens {
                let Some((shorter, more)) = lower else { return samples as u32 };
                let part = (tokens - shorter) / (length - shorter);
                let fitting_tokens = 1.0 / ((1.0 - part) / (shorter * more) + part / (length * samples));
                return ((fitting_tokens / tokens) as u32).max(1);
            }
            lower = Some((length, samples));
        }
        let (length, samples) = lower.unwrap_or((1.0, 1.0));
        ((length * samples / tokens) as u32).max(1)
    }
}
