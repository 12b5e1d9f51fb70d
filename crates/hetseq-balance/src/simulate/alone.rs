//! What each rank could do by itself: the same samples, nobody to exchange with. The sum of that is what a group is held
//! against.

use super::SimulateError;
use super::membership::group_of;
use crate::error::BalanceError;
use crate::planner::{Planner, Split};
use crate::profile::{Profile, RankProfile};

/// Ranks that are alike are asked once: a large group is mostly made of equal machines.
pub(super) fn samples_per_s(profile: &Profile, tokens: &[u32]) -> Result<Vec<f64>, SimulateError> {
    let mut asked: Vec<(&RankProfile, f64)> = Vec::new();
    let mut speeds = Vec::with_capacity(profile.ranks.len());
    for (number, rank) in profile.ranks.iter().enumerate() {
        let is_alike = |other: &RankProfile| other.devices == rank.devices && other.host_s == rank.host_s;
        let speed = match asked.iter().find(|(other, _)| is_alike(other)) {
            Some(&(_, speed)) => speed,
            None => {
                let speed = of_rank(&group_of(profile, &[number]), tokens)?;
                asked.push((rank, speed));
                speed
            }
        };
        speeds.push(speed);
    }
    Ok(speeds)
}

/// Samples that are too long for it count for others.
fn of_rank(alone: &Profile, tokens: &[u32]) -> Result<f64, SimulateError> {
    let devices = alone.ranks.iter().flat_map(|rank| &rank.devices);
    let reach = devices.map(|device| device.max_tokens.unwrap_or(u32::MAX)).max().unwrap_or(0);
    let within = &tokens[..tokens.partition_point(|&tokens| tokens <= reach)];
    match Planner::new(alone).share(Split::Measured, within) {
        Ok(plan) if plan.prediction.update_s > 0.0 => Ok(within.len() as f64 / plan.prediction.update_s),
        Ok(_) | Err(BalanceError::NoUsableDevice { .. }) => Ok(0.0),
        Err(error) => Err(error.into()),
    }
}
