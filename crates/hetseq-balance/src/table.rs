//! What micro-batches cost on a device: measured points, and everything between and beyond them.
//!
//! Pure, and made of integers, so that all ranks read the same seconds from the same points. Filled by whoever measures
//! (the trainer's probe, or a person who writes a profile); asked by `share` and the predictions. It knows nothing of
//! drift: what it says is multiplied by the device's factor elsewhere.
//!
//! Seconds are piecewise linear in the samples of a micro-batch, and linear between measured lengths. Beyond what was
//! measured nothing is promised that was not seen: time per sample never falls below the last measured one. More samples
//! never cost less, whatever noise was measured, so that the samples that fit into a time can be found.

pub(crate) mod curve;
mod grid;
mod stored;

use crate::error::BalanceError;
pub(crate) use curve::Curve;
use grid::{Beyond, Grid};
use serde::{Deserialize, Serialize};

/// Beyond these a speed is no measurement. They keep every product and sum of seconds well inside f64.
const SPEED_LIMITS: (f64, f64) = (1e-15, 1e15);

/// A micro-batch that was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    pub samples: u32,
    /// Of each sample, padded.
    pub tokens: u32,
    pub micros: u64,
    /// The most memory of the process while it ran; 0 if unknown.
    #[serde(default)]
    pub bytes: u64,
}

/// What micro-batches cost on a device.
///
/// In JSON a list of [`Point`]s, or a plain number if nothing was measured: tokens per second.
#[derive(Clone, Debug, PartialEq)]
pub struct CostTable {
    points: Vec<Point>,
    /// Counts only without points.
    tokens_per_s: f64,
    seconds: Grid,
    bytes: Grid,
    /// Each measured length, and the most samples of it.
    most: Vec<(f64, f64)>,
}

impl CostTable {
    /// From measured points, in any order. Where the same micro-batch was measured twice, the smaller time counts.
    pub fn new(mut points: Vec<Point>) -> Result<CostTable, BalanceError> {
        if points.is_empty() {
            return Err(BalanceError::EmptyTable);
        }
        if let Some(&Point { samples, tokens, .. }) = points.iter().find(|p| p.samples == 0 || p.tokens == 0) {
            return Err(BalanceError::EmptyPoint { samples, tokens });
        }
        points.sort_by_key(|p| (p.tokens, p.samples, p.micros));
        // The first of equals stays, which is the fastest; of memory the most.
        points.dedup_by(|slower, p| {
            let same = (slower.tokens, slower.samples) == (p.tokens, p.samples);
            p.bytes = if same { p.bytes.max(slower.bytes) } else { p.bytes };
            same
        });
        // Zero is a clock that is too coarse.
        let seconds = |p: &Point| Some(p.micros.max(1) as f64 * 1e-6);
        let bytes = |p: &Point| (p.bytes > 0).then_some(p.bytes as f64);
        let most = |p: &Point| (f64::from(p.tokens), f64::from(p.samples));
        Ok(CostTable {
            seconds: Grid::new(&points, seconds, Beyond::Seconds),
            bytes: Grid::new(&points, bytes, Beyond::Bytes),
            most: points.chunk_by(|a, b| a.tokens == b.tokens).filter_map(<[Point]>::last).map(most).collect(),
            tokens_per_s: 1.0,
            points,
        })
    }

    /// Nothing measured: time is tokens divided by the speed. What is no positive number counts as hopelessly slow.
    pub fn proportional(tokens_per_s: f64) -> CostTable {
        // In this order NaN becomes the lower limit.
        let tokens_per_s = tokens_per_s.max(SPEED_LIMITS.0).min(SPEED_LIMITS.1);
        let (seconds, bytes) = (Grid::default(), Grid::default());
        CostTable { points: Vec::new(), tokens_per_s, seconds, bytes, most: Vec::new() }
    }

    /// Whether there are measured points.
    pub fn is_measured(&self) -> bool {
        !self.points.is_empty()
    }

    /// By length, then by samples; none if nothing was measured.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// Of a micro-batch of so many samples, padded to so many tokens each.
    pub fn seconds(&self, samples: u32, tokens: u32) -> f64 {
        if samples == 0 {
            return 0.0;
        }
        match self.is_measured() {
            true => self.seconds.at(samples, tokens.max(1)),
            false => f64::from(samples) * f64::from(tokens.max(1)) / self.tokens_per_s,
        }
    }

    /// The most memory of the process while it computes such a micro-batch, rather too much than too little; 0 if unknown.
    pub fn bytes(&self, samples: u32, tokens: u32) -> u64 {
        // The cast stops at the largest number.
        if self.bytes.is_empty() { 0 } else { self.bytes.at(samples.max(1), tokens.max(1)).ceil() as u64 }
    }

    /// The number of samples with the least time per sample, within what was measured for samples of this length; of those
    /// within 2 % of the least, the smallest. One if nothing was measured.
    pub fn best_samples(&self, tokens: u32) -> u32 {
        if self.is_measured() { self.curve(tokens).best_up_to(self.measured_samples(tokens)) } else { 1 }
    }

    /// The most samples whose memory fits; 0 if not even one does, `u32::MAX` if the memory is unknown.
    pub fn largest_samples(&self, tokens: u32, limit_bytes: u64) -> u32 {
        let fits = |samples: u32| self.bytes(samples, tokens) <= limit_bytes;
        if fits(u32::MAX) {
            return u32::MAX;
        }
        // `low` fits, or is none; `high` does not.
        let (mut low, mut high) = (0, u32::MAX);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(middle) { low = middle } else { high = middle }
        }
        low
    }

    /// Seconds as a function of samples alone.
    pub(crate) fn curve(&self, tokens: u32) -> Curve {
        match self.is_measured() {
            true => self.seconds.curve(tokens.max(1)),
            false => Curve::proportional(f64::from(tokens.max(1)) / self.tokens_per_s),
        }
    }

    /// How many samples of this length were measured, or would have fitted. If memory grows with the tokens of a
    /// micro-batch and with the square of a sample's, what fits is the harmonic mean between two lengths.
    pub(crate) fn measured_samples(&self, tokens: u32) -> u32 {
        let mut lower: Option<(f64, f64)> = None;
        let tokens = f64::from(tokens.max(1));
        for &(length, samples) in &self.most {
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
