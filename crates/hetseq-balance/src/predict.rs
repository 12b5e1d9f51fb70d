//! Predicted time of an update: the seconds of each kind, per device and rank.
//!
//! The planner predicts every update that it splits. `hetseq plan` also needs the time with an even
//! split, and the time without a rank: one with a slow link or a long overhead may cost more than
//! it gives. Predictions do not include waits inside a rank or late data.

use crate::error::BalanceError;
use crate::planner::{Planner, SplitMode};
use crate::profile::Profile;

/// The time of an update by the model of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prediction {
    pub update_s: f64,
    pub devices: Vec<DevicePrediction>,
    pub ranks: Vec<RankPrediction>,
}

/// The predicted time of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DevicePrediction {
    pub compute_s: f64,
    /// The download of the gradient; 0 without work.
    pub after_s: f64,
    /// The part of the update in which the device is idle: 0 to 1.
    pub idle: f64,
}

/// The predicted time of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RankPrediction {
    /// Until its slowest device is done, download included.
    pub compute_s: f64,
    pub host_s: f64,
    pub net_s: f64,
    /// Waiting for other ranks.
    pub idle_s: f64,
}

impl Prediction {
    /// Combines (rank, compute seconds, seconds after that) of each device and (host, network)
    /// seconds of each rank.
    pub(crate) fn new(
        devices: impl Iterator<Item = (usize, f64, f64)>,
        ranks: impl Iterator<Item = (f64, f64)>,
    ) -> Self {
        let rank = |(host_s, net_s)| RankPrediction { host_s, net_s, ..RankPrediction::default() };
        let mut prediction = Prediction { ranks: ranks.map(rank).collect(), ..Prediction::default() };
        for (rank, compute_s, after_s) in devices {
            prediction.devices.push(DevicePrediction { compute_s, after_s, idle: 0.0 });
            if let Some(rank) = prediction.ranks.get_mut(rank) {
                rank.compute_s = rank.compute_s.max(compute_s + after_s);
            }
        }
        let done = |rank: &RankPrediction| rank.compute_s + rank.host_s + rank.net_s;
        let update_s = prediction.ranks.iter().map(done).fold(0.0, f64::max);
        for rank in &mut prediction.ranks {
            rank.idle_s = update_s - done(rank);
        }
        for device in &mut prediction.devices {
            let busy_s = device.compute_s + device.after_s;
            device.idle = if update_s > 0.0 { (1.0 - busy_s / update_s).clamp(0.0, 1.0) } else { 0.0 };
        }
        Prediction { update_s, ..prediction }
    }
}

/// Predicts an update whose samples cost `tokens`, at the start of a run.
pub fn predict(profile: &Profile, split: SplitMode, tokens: &[u32]) -> Result<Prediction, BalanceError> {
    Ok(Planner::new(profile).share(split, tokens)?.prediction)
}

/// Predicts an update without a rank; `None` if there is no such rank or no other.
pub fn predict_without(profile: &Profile, rank: usize, tokens: &[u32]) -> Result<Option<Prediction>, BalanceError> {
    without(profile, rank).map(|rest| predict(&rest, SplitMode::Measured, tokens)).transpose()
}

/// Returns the group without a rank; `None` if there is no such rank or no other.
pub fn without(profile: &Profile, rank: usize) -> Option<Profile> {
    if rank >= profile.ranks.len() || profile.ranks.len() < 2 {
        return None;
    }
    let mut rest = profile.clone();
    rest.ranks.remove(rank);
    Some(rest)
}
