//! The planner: the one object that the trainer, `hetseq plan` and `hetseq simulate` ask.

use serde::{Deserialize, Serialize};

use crate::drift::Drift;
use crate::error::BalanceError;
use crate::network;
use crate::predict::{DevicePrediction, Prediction, RankPrediction};
use crate::profile::{DeviceProfile, Line, Profile};
use crate::share::{DeviceLoad, Share, share};
use crate::table::CostTable;

/// How an update is split among the devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    /// So that all finish together, by what was measured.
    #[default]
    Measured,
    /// In proportion to weights that the user set.
    Weights,
    /// The same for every device.
    Equal,
}

/// Who computes what of an update.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// One per device.
    pub shares: Vec<Share>,
    /// One per device.
    pub work: Vec<Work>,
    pub prediction: Prediction,
    /// That newer factors were adopted for this update and from now on.
    pub replanned: Option<Replanned>,
    /// Devices that get nothing because they would make the update slower.
    pub left_out: Vec<usize>,
}

#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub struct Work {
    pub samples: u64,
    /// As computed, padding included.
    pub tokens: u64,
    /// By the table, factor 1.
    pub base_s: f64,
}

/// What a device did in an update.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub struct Done {
    /// Of the [`Work`] it was given.
    pub base_s: f64,
    /// Own time over the micro-batches.
    pub micros: u64,
    /// Own time after them: the download.
    pub after_micros: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Replanned {
    /// 0.08 is 8 %.
    pub gain: f64,
    pub before_s: f64,
    pub after_s: f64,
}

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct Planner {
    profile: Profile,
    devices: Vec<Device>,
    host_s: Vec<f64>,
    net_s: Vec<f64>,
    ownership: Vec<f64>,
}

#[derive(Clone, Debug, PartialEq)]
struct Device {
    rank: usize,
    profile: DeviceProfile,
    drift: Drift,
}

impl Planner {
    pub fn new(profile: &Profile) -> Planner {
        let mut devices = Vec::new();
        for (rank, of_rank) in profile.ranks.iter().enumerate() {
            let device = |profile: &DeviceProfile| Device { rank, profile: profile.clone(), drift: Drift::new() };
            devices.extend(of_rank.devices.iter().map(device));
        }
        let lines: Vec<Line> = profile.ranks.iter().map(|rank| rank.line).collect();
        let ownership = network::ownership(&lines);
        Planner {
            devices,
            host_s: profile.ranks.iter().map(|rank| rank.host_s).collect(),
            net_s: network::exchange_seconds(profile.exchange_bytes, &lines, &ownership),
            ownership,
            profile: profile.clone(),
        }
    }

    /// Who computes what of an update whose samples cost `tokens`, which should ascend.
    ///
    /// Newer factors are adopted only if that is predicted to gain more than the dead band.
    pub fn share(&mut self, split: Split, tokens: &[u32]) -> Result<Plan, BalanceError> {
        let even = CostTable::proportional(1.0);
        let loads: Vec<DeviceLoad> = self.devices.iter().map(|device| self.load(device, split, &even)).collect();
        let shares = share(tokens, &loads)?;
        let work: Vec<Work> = self.devices.iter().zip(&shares).map(|(d, share)| d.work(share, tokens)).collect();
        let prediction = self.predict(&work);
        let left_out = (0..shares.len()).filter(|&device| shares[device].is_empty()).collect();
        Ok(Plan { shares, work, prediction, replanned: None, left_out })
    }

    /// What every device did in an update that was shared by [`Plan::work`]; one per device, in order.
    pub fn observe(&mut self, done: &[Done]) {
        for (device, done) in self.devices.iter_mut().zip(done) {
            device.drift.observe(done.base_s, done.micros);
        }
    }

    /// Per rank, own time beside computing and exchanging.
    pub fn observe_hosts(&mut self, host_micros: &[u64]) {
        for (host_s, &micros) in self.host_s.iter_mut().zip(host_micros) {
            *host_s += (micros as f64 * 1e-6 - *host_s) * 0.25;
        }
    }

    /// A device ran out of memory: from now on at most so many tokens in a micro-batch.
    pub fn cap_tokens(&mut self, device: usize, max_tokens: u32) {
        if let Some(device) = self.devices.get_mut(device) {
            let cap = &mut device.profile.max_tokens;
            *cap = Some(cap.map_or(max_tokens, |cap| cap.min(max_tokens)));
        }
    }

    /// Caps for a device without any, as in validation.
    pub fn with_usual_caps(mut self, max_tokens: Option<u32>, max_samples: Option<u32>) -> Planner {
        for DeviceProfile { max_tokens: tokens, max_samples: samples, .. } in
            self.devices.iter_mut().map(|device| &mut device.profile)
        {
            if tokens.is_none() && samples.is_none() {
                (*tokens, *samples) = (max_tokens, max_samples);
            }
        }
        self
    }

    /// What part of the gradient each rank sums up.
    pub fn ownership(&self) -> &[f64] {
        &self.ownership
    }

    pub fn devices(&self) -> usize {
        self.devices.len()
    }

    /// As measured at the start; what changed since is in [`Planner::factors`].
    pub fn profile(&self) -> Profile {
        self.profile.clone()
    }

    /// The newest factors: how many times as long as by its table each device takes.
    pub fn factors(&self) -> Vec<f64> {
        self.devices.iter().map(|device| device.drift.factor).collect()
    }

    fn load<'a>(&'a self, device: &'a Device, split: Split, even: &'a CostTable) -> DeviceLoad<'a> {
        let DeviceProfile { table, weight, max_tokens, max_samples, .. } = &device.profile;
        let (pace, factor, overhead_s) = match split {
            Split::Measured => (table, device.drift.factor, self.overhead_s(device)),
            Split::Weights => (even, 1.0 / weight, 0.0),
            Split::Equal => (even, 1.0, 0.0),
        };
        let (max_tokens, max_samples) = (*max_tokens, *max_samples);
        DeviceLoad { table: pace, factor, overhead_s, max_tokens, max_samples, measured: Some(table) }
    }

    fn overhead_s(&self, device: &Device) -> f64 {
        device.profile.after_s + self.host_s[device.rank] + self.net_s[device.rank]
    }

    fn predict(&self, work: &[Work]) -> Prediction {
        let mut ranks: Vec<RankPrediction> = (self.host_s.iter().zip(&self.net_s))
            .map(|(&host_s, &net_s)| RankPrediction { host_s, net_s, ..RankPrediction::default() })
            .collect();
        let mut devices = Vec::with_capacity(work.len());
        for (device, work) in self.devices.iter().zip(work) {
            let compute_s = work.base_s * device.drift.factor;
            let after_s = if work.samples > 0 { device.profile.after_s } else { 0.0 };
            devices.push(DevicePrediction { compute_s, after_s, idle: 0.0 });
            let rank = &mut ranks[device.rank];
            rank.compute_s = rank.compute_s.max(compute_s + after_s);
        }
        let update_s = ranks.iter().map(|rank| rank.compute_s + rank.host_s + rank.net_s).fold(0.0, f64::max);
        for device in &mut devices {
            device.idle = if update_s > 0.0 { 1.0 - (device.compute_s + device.after_s) / update_s } else { 0.0 };
        }
        for rank in &mut ranks {
            rank.idle_s = update_s - rank.compute_s - rank.host_s - rank.net_s;
        }
        Prediction { update_s, devices, ranks }
    }
}

impl Device {
    fn work(&self, share: &Share, tokens: &[u32]) -> Work {
        let mut work = Work::default();
        for micro in &share.micro {
            let longest = tokens[micro.clone()].iter().copied().max().unwrap_or(1).max(1);
            work.samples += micro.len() as u64;
            work.tokens += micro.len() as u64 * u64::from(longest);
            work.base_s += self.profile.table.seconds(micro.len() as u32, longest);
        }
        work
    }
}
