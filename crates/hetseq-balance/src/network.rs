//! The exchange: who sums which part of the gradient up, and how long each rank needs for its part of that.
//!
//! Called by the planner. Sums go directly to the owners of their parts, or around in a ring.

use crate::profile::Line;

/// Lines that differ by less than this own equal parts: what was measured of them is no more precise.
#[allow(dead_code)]
const ALIKE: f64 = 1.25;

/// What part of the gradient each rank owns, that is, sums up: it sums to 1.
pub fn ownership(lines: &[Line]) -> Vec<f64> {
    vec![1.0 / lines.len().max(1) as f64; lines.len()]
}

/// Seconds of its own that each rank needs for a direct exchange of a gradient of `bytes`.
pub fn exchange_seconds(bytes: u64, lines: &[Line], ownership: &[f64]) -> Vec<f64> {
    let others = lines.len().saturating_sub(2) as f64;
    let seconds =
        |(line, part): (&Line, &f64)| bytes as f64 * (1.0 + others * part) / line.bytes_per_s + 2.0 * line.latency_s;
    match lines.len() {
        0 | 1 => vec![0.0; lines.len()],
        _ => lines.iter().zip(ownership).map(seconds).collect(),
    }
}

/// Seconds that an exchange in a ring takes, for all ranks alike.
pub fn ring_seconds(bytes: u64, lines: &[Line]) -> f64 {
    let ranks = lines.len() as f64;
    if lines.len() < 2 {
        return 0.0;
    }
    let slowest = lines.iter().map(|line| line.bytes_per_s).fold(f64::INFINITY, f64::min);
    let latency_s = lines.iter().map(|line| line.latency_s).fold(0.0, f64::max);
    2.0 * (ranks - 1.0) / ranks * bytes as f64 / slowest + 2.0 * (ranks - 1.0) * latency_s
}
