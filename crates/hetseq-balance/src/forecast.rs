//! Forecast of an update without training, printed by `hetseq plan`: each device's share, the time
//! of the update, the gain over an even split, and the gain from each rank.

use serde::Serialize;

use crate::error::BalanceError;
use crate::planner::{Planner, SplitMode};
use crate::predict::without;
use crate::profile::Profile;

/// The largest group for which every rank's gain is computed. Each takes a plan of the others, and
/// in larger groups one rank hardly matters.
const MAX_RANKS: usize = 256;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Forecast {
    pub split: SplitMode,
    pub samples: usize,
    pub update_s: f64,
    pub samples_per_s: f64,
    /// The time of the same update with an even split.
    pub equal_s: f64,
    pub devices: Vec<DeviceForecast>,
    pub ranks: Vec<RankForecast>,
}

/// A device's share and time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceForecast {
    pub rank: usize,
    pub host: String,
    pub device: String,
    pub samples: u64,
    /// Its part of the samples.
    pub share: f64,
    pub micro_batches: usize,
    pub compute_s: f64,
    /// The part of the update in which it is idle.
    pub idle: f64,
    /// It gets no work because it would make the update slower.
    pub left_out: bool,
}

/// A rank's time, and the effect of removing it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankForecast {
    pub rank: usize,
    pub host: String,
    pub compute_s: f64,
    pub net_s: f64,
    pub host_s: f64,
    pub wait_s: f64,
    /// The relative increase of the update time without it: 0.08 is 8 %, and below zero the group
    /// is faster without it. `None` if it is the only rank, if no other can compute the longest
    /// samples, or in very large groups.
    pub without: Option<f64>,
}

/// Forecasts an update whose samples cost `tokens`, in any order.
pub fn forecast(profile: &Profile, split: SplitMode, tokens: &[u32]) -> Result<Forecast, BalanceError> {
    let mut tokens = tokens.to_vec();
    tokens.sort_unstable();
    let plan = Planner::new(profile).share(split, &tokens)?;
    let update_s = plan.prediction.update_s;
    let equal_s = Planner::new(profile).share(SplitMode::Equal, &tokens)?.prediction.update_s;
    let names = profile.ranks.iter().enumerate().flat_map(|(rank, of_rank)| {
        of_rank.devices.iter().map(move |device| (rank, of_rank.host.clone(), device.name.clone()))
    });
    let mut left_out = vec![false; plan.shares.len()];
    plan.left_out.iter().for_each(|&device| left_out[device] = true);
    let mut devices = Vec::with_capacity(plan.shares.len());
    for (at, (rank, host, device)) in names.enumerate() {
        let (work, predicted) = (&plan.work[at], &plan.prediction.devices[at]);
        devices.push(DeviceForecast {
            rank,
            host,
            device,
            samples: work.samples,
            share: work.samples as f64 / tokens.len().max(1) as f64,
            micro_batches: plan.shares[at].micro.len(),
            compute_s: predicted.compute_s + predicted.after_s,
            idle: predicted.idle,
            left_out: left_out[at],
        });
    }
    let mut ranks = Vec::with_capacity(profile.ranks.len());
    for (rank, (of_rank, predicted)) in profile.ranks.iter().zip(&plan.prediction.ranks).enumerate() {
        ranks.push(RankForecast {
            rank,
            host: of_rank.host.clone(),
            compute_s: predicted.compute_s,
            net_s: predicted.net_s,
            host_s: predicted.host_s,
            wait_s: predicted.idle_s,
            without: if profile.ranks.len() > MAX_RANKS {
                None
            } else {
                without_rank(profile, rank, split, &tokens).map(|seconds| seconds / update_s - 1.0)
            },
        });
    }
    let samples_per_s = if update_s > 0.0 { tokens.len() as f64 / update_s } else { 0.0 };
    Ok(Forecast { split, samples: tokens.len(), update_s, samples_per_s, equal_s, devices, ranks })
}

/// The seconds of an update without the rank.
fn without_rank(profile: &Profile, rank: usize, split: SplitMode, tokens: &[u32]) -> Option<f64> {
    let others = without(profile, rank)?;
    Planner::new(&others).share(split, tokens).ok().map(|plan| plan.prediction.update_s)
}
