//! The speed of each rank alone: the same samples, without an exchange. The efficiency of a group
//! is relative to the sum of these speeds.

use super::SimulateError;
use super::membership::group_of;
use crate::error::BalanceError;
use crate::planner::{Planner, SplitMode};
use crate::profile::{Profile, RankProfile};

/// Samples per second of each rank. Equal ranks are computed once: a large group mostly has equal
/// machines.
pub(super) fn samples_per_s(profile: &Profile, tokens: &[u32]) -> Result<Vec<f64>, SimulateError> {
    let mut known: Vec<(&RankProfile, f64)> = Vec::new();
    let mut speeds = Vec::with_capacity(profile.ranks.len());
    for (number, rank) in profile.ranks.iter().enumerate() {
        let is_equal = |other: &RankProfile| other.devices == rank.devices && other.host_s == rank.host_s;
        let speed = match known.iter().find(|(other, _)| is_equal(other)) {
            Some(&(_, speed)) => speed,
            None => {
                let speed = of_rank(&group_of(profile, &[number]), tokens)?;
                known.push((rank, speed));
                speed
            }
        };
        speeds.push(speed);
    }
    Ok(speeds)
}

/// Without the samples that are too long for the rank.
fn of_rank(alone: &Profile, tokens: &[u32]) -> Result<f64, SimulateError> {
    let devices = alone.ranks.iter().flat_map(|rank| &rank.devices);
    let reach = devices.map(|device| device.max_tokens.unwrap_or(u32::MAX)).max().unwrap_or(0);
    let within = &tokens[..tokens.partition_point(|&tokens| tokens <= reach)];
    match Planner::new(alone).share(SplitMode::Measured, within) {
        Ok(plan) if plan.prediction.update_s > 0.0 => Ok(within.len() as f64 / plan.prediction.update_s),
        Ok(_) | Err(BalanceError::NoUsableDevice { .. }) => Ok(0.0),
        Err(error) => Err(error.into()),
    }
}
