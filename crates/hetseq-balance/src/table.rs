//! What micro-batches cost on a device: measured points, and interpolation between them.

use serde::{Deserialize, Serialize};

use crate::error::BalanceError;

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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CostTable {
    points: Vec<Point>,
    tokens_per_s: f64,
}

impl CostTable {
    /// From measured points. Where the same micro-batch was measured twice, the smaller time counts.
    pub fn new(mut points: Vec<Point>) -> Result<CostTable, BalanceError> {
        if points.is_empty() {
            return Err(BalanceError::EmptyTable);
        }
        if let Some(&Point { samples, tokens, .. }) = points.iter().find(|p| p.samples == 0 || p.tokens == 0) {
            return Err(BalanceError::EmptyPoint { samples, tokens });
        }
        points.sort_by_key(|p| (p.tokens, p.samples, p.micros));
        points.dedup_by_key(|p| (p.tokens, p.samples));
        Ok(CostTable { points, tokens_per_s: 1.0 })
    }

    /// Nothing measured: time is tokens divided by the speed.
    pub fn proportional(tokens_per_s: f64) -> CostTable {
        CostTable { points: Vec::new(), tokens_per_s }
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
        let work = f64::from(samples) * f64::from(tokens);
        let nearest = self.points.iter().min_by_key(|p| (p.tokens.abs_diff(tokens), p.samples.abs_diff(samples)));
        match nearest {
            Some(p) => p.micros as f64 * 1e-6 * work / (f64::from(p.samples) * f64::from(p.tokens)),
            None => work / self.tokens_per_s,
        }
    }

    /// Memory of such a micro-batch; 0 if unknown.
    pub fn bytes(&self, samples: u32, tokens: u32) -> u64 {
        let fits = |p: &&Point| p.samples >= samples && p.tokens >= tokens;
        self.points.iter().filter(fits).map(|p| p.bytes).min().unwrap_or(0)
    }

    /// The number of samples with the least time per sample.
    pub fn best_samples(&self, tokens: u32) -> u32 {
        let per_sample = |samples: u32| self.seconds(samples, tokens) / f64::from(samples);
        let samples = self.points.iter().map(|p| p.samples);
        samples.min_by(|&a, &b| per_sample(a).total_cmp(&per_sample(b)).then(a.cmp(&b))).unwrap_or(1)
    }

    /// The most samples whose memory fits; 0 if not even one does.
    pub fn largest_samples(&self, tokens: u32, limit_bytes: u64) -> u32 {
        let fits = |samples: &u32| self.bytes(*samples, tokens) <= limit_bytes;
        self.points.iter().map(|p| p.samples).filter(fits).max().unwrap_or(0)
    }
}
