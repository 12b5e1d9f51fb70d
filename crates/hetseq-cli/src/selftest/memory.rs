//! How a device uses memory: whether it grows while training, and how large a micro-batch may be.
//! Bounded in time and memory: the largest one is extrapolated, not tried. Called by
//! `tested_device.rs`.

use std::time::{Duration, Instant};

use hetseq_metrics::thousands;
use hetseq_train::DeviceSpec;
use hetseq_train::bench::{TrialRequest, trial_of_geometry};
use hetseq_train::devices::backend;

use super::checks::{CheckResult, Subject, SubjectKind};
use super::compare::CheckStatus;
use crate::devices::gib;

/// Micro-batches that are tried.
const SIZES: [usize; 6] = [8, 16, 32, 64, 128, 256];
/// No larger one is tried after a training of two updates that took longer.
const LONGEST: Duration = Duration::from_secs(4);
/// Updates in which memory must no longer grow, after the first ones.
const UPDATES: usize = 12;
const SETTLED: usize = 4;

pub(super) fn check(subject: &Subject, spec: Option<&DeviceSpec>) -> Result<Vec<CheckResult>, String> {
    let run = |geometry: &str, batch, updates| {
        let request = TrialRequest { devices: subject.name.clone(), batch, updates, fault: None };
        trial_of_geometry(geometry, &request).map_err(|error| error.to_string())
    };
    let started = Instant::now();
    let held = run("tiny", 4, UPDATES)?.held_bytes;
    let is_fast = started.elapsed() < LONGEST / 4;
    let (Some(&before), Some(&after)) = (held.get(SETTLED), held.last()) else {
        let figures = match subject.kind {
            SubjectKind::Cpu => "the device computes in the memory of this process",
            _ => "the device does not report the memory that it holds",
        };
        return Ok(vec![CheckResult::new("memory", CheckStatus::Ok, figures)]);
    };
    let status = if after > before { CheckStatus::Differs } else { CheckStatus::Ok };
    let figures = format!("{} held after {SETTLED} updates, {} after {UPDATES}", mib(before), mib(after));
    let growth = CheckResult::new("memory while training", status, figures);
    let geometry = if is_fast { "small" } else { "tiny" };
    let free = spec.and_then(|spec| backend::free_bytes(&spec.kind));
    let mut seen: Vec<(usize, u64)> = Vec::new();
    for batch in SIZES {
        let started = Instant::now();
        let held = run(geometry, batch, 2)?.held_bytes.last().copied().unwrap_or(0);
        seen.push((batch, held));
        if started.elapsed() > LONGEST || free.is_some_and(|free| held > free / 4) {
            break;
        }
    }
    let (batch, held) = seen.last().copied().unwrap_or_default();
    let mut figures = format!("BERT ({geometry}): {batch} sequences hold {}", mib(held));
    match (largest_batch(&seen, free), free) {
        (Some(largest), Some(free)) => {
            figures.push_str(&format!(", about {} would fit into {}", thousands(largest as u64), gib(free)));
        }
        (None, Some(free)) => figures.push_str(&format!(" of {}", gib(free))),
        (_, None) => figures.push_str("; the driver does not report the size of its memory"),
    }
    Ok(vec![growth, CheckResult::new("memory of a micro-batch", CheckStatus::Ok, figures)])
}

/// Extrapolates linearly from the two largest micro-batches, if the larger one needed more.
fn largest_batch(seen: &[(usize, u64)], free: Option<u64>) -> Option<usize> {
    let [.., (small, low), (large, high)] = *seen else { return None };
    let per_sample = high.checked_sub(low).filter(|&more| more > 0)? as f64 / (large - small) as f64;
    let left = free?.saturating_sub(high) as f64;
    Some(large + (left / per_sample) as usize)
}

fn mib(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_micro_batch_is_extrapolated() {
        let seen = [(8, 100), (16, 100), (32, 260)];
        assert_eq!(largest_batch(&seen, Some(1260)), Some(132));
        // Memory that is already there for other sizes says nothing about this one.
        assert_eq!(largest_batch(&seen[..2], Some(1260)), None);
        assert_eq!(largest_batch(&seen, None), None);
        assert_eq!(largest_batch(&[], Some(1)), None);
        assert_eq!(largest_batch(&seen, Some(1)), Some(32));
    }
}
