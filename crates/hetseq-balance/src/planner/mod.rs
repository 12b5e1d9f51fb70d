//! The planner: decides which device computes what. Used by the trainer, `hetseq plan` and
//! `hetseq simulate`.
//!
//! It holds the measurements of the group from the start of the run ([`Profile`]) and the changes
//! since then (`drift`), and splits updates accordingly (`share`). Every rank owns one and feeds it
//! the same integers in the same order, so all ranks make the same plans. It reads no clock, does
//! no I/O, and does not know the number of the update.
//!
//! New measurements are not used at once, otherwise shares would jitter from noise. Times are
//! averaged over blocks of updates that last at least 80 ms, since the scheduler of a busy machine
//! delays short updates by several times their length (`observe`). Plans use the *adopted* timings.
//! The *latest* timings differ from these by noise too, so only the part that exceeds the noise
//! counts (`timing`). The result, the *denoised* timings, is adopted when it is predicted to gain
//! more than 2 % (`split`).

mod observe;
mod plan;
mod rank;
mod split;
mod timing;

use crate::caps::TokenCap;
use crate::drift::{Drift, SmoothedSeconds};
use crate::network;
use crate::profile::{DeviceProfile, LinkProfile, Profile};
use observe::Block;
pub use plan::{AssignedWork, Plan, Replanned, SplitMode, WorkTime};
use rank::Rank;
use timing::{DeviceTiming, TimingError};

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct Planner {
    profile: Profile,
    devices: Vec<Device>,
    ranks: Vec<Rank>,
    shard_weights: Vec<f64>,
    /// The timings that plans use, one per device.
    adopted: Vec<DeviceTiming>,
    block: Block,
    /// Whether a block ended since the last plan.
    has_new_block: bool,
    /// The predicted time of the last plan.
    last_s: f64,
}

#[derive(Clone, Debug, PartialEq)]
struct Device {
    rank: usize,
    /// As measured at the start.
    profile: DeviceProfile,
    cap: TokenCap,
    drift: Drift,
    after: SmoothedSeconds,
    /// It failed and gets no more work.
    is_retired: bool,
}

impl Planner {
    pub fn new(profile: &Profile) -> Planner {
        let sane = |seconds: f64| if seconds > 0.0 && seconds.is_finite() { seconds } else { 0.0 };
        let mut devices = Vec::new();
        for (rank, of_rank) in profile.ranks.iter().enumerate() {
            let device = |profile: &DeviceProfile| Device {
                rank,
                drift: Drift::new(profile.table.is_measured()),
                after: SmoothedSeconds::new(sane(profile.after_s)),
                cap: TokenCap::new(profile.max_tokens),
                profile: profile.clone(),
                is_retired: false,
            };
            devices.extend(of_rank.devices.iter().map(device));
        }
        let links: Vec<LinkProfile> = profile.ranks.iter().map(|rank| rank.link).collect();
        let by_user: Vec<f64> = profile.ranks.iter().map(|rank| rank.shard_weight.unwrap_or(1.0)).collect();
        let is_by_user = profile.ranks.iter().any(|rank| rank.shard_weight.is_some());
        let shard_weights = Some(by_user).filter(|_| is_by_user).and_then(|weights| network::normalised(&weights));
        let shard_weights = shard_weights.unwrap_or_else(|| network::shard_weights(&links));
        let net_s = network::exchange_seconds(exchange_bytes(profile), &links, &shard_weights);
        let ranks =
            profile.ranks.iter().zip(net_s).map(|(rank, link_s)| Rank::new(sane(rank.host_s), link_s)).collect();
        let mut planner = Planner {
            profile: profile.clone(),
            devices,
            ranks,
            shard_weights,
            adopted: Vec::new(),
            block: Block::default(),
            has_new_block: false,
            last_s: 0.0,
        };
        planner.adopted = planner.latest();
        planner
    }

    /// The same group with a ring all-reduce instead of a direct exchange with the owners of
    /// shards.
    pub fn with_ring(mut self) -> Planner {
        let links: Vec<LinkProfile> = self.profile.ranks.iter().map(|rank| rank.link).collect();
        let net_s = network::ring_seconds(exchange_bytes(&self.profile), &links);
        for rank in &mut self.ranks {
            rank.link_s = net_s;
        }
        self.adopted = self.latest();
        self
    }

    /// Sets caps for devices without any, as in validation.
    pub fn with_default_caps(mut self, max_tokens: Option<u32>, max_samples: Option<u32>) -> Planner {
        for Device { profile, cap, .. } in &mut self.devices {
            if cap.tokens().is_none() && profile.max_samples.is_none() {
                (*cap, profile.max_samples) = (TokenCap::new(max_tokens), max_samples);
            }
        }
        self
    }

    /// Limits a device's micro-batches to `max_tokens` tokens after it ran out of memory in the
    /// update just observed. Returns the number of updates after which more is tried again.
    pub fn cap_tokens(&mut self, device: usize, max_tokens: u32) -> u32 {
        self.devices.get_mut(device).map_or(0, |device| device.cap.ran_out(max_tokens))
    }

    /// Lets devices whose cap is `cap` tokens take a sample of `tokens` tokens, alone in its
    /// micro-batch. For validation, which stores nothing for a backward pass and so needs less
    /// memory than the cap assumes.
    pub fn raise_caps(&mut self, cap: u32, tokens: u32) {
        for device in self.devices.iter_mut().filter(|device| device.cap.tokens() == Some(cap)) {
            device.cap = TokenCap::new(Some(tokens.max(cap)));
        }
    }

    /// Gives a failed device no more work in any split mode. The last device stays, since one must
    /// compute.
    pub fn retire(&mut self, device: usize) {
        let others = self.devices.iter().enumerate().filter(|(at, other)| *at != device && !other.is_retired).count();
        if let Some(device) = self.devices.get_mut(device).filter(|_| others > 0) {
            device.is_retired = true;
        }
    }

    /// The part of the gradient that each rank sums up.
    pub fn shard_weights(&self) -> &[f64] {
        &self.shard_weights
    }

    /// The number of devices.
    pub fn devices(&self) -> usize {
        self.devices.len()
    }

    /// The profile of the group with everything learned since the start.
    pub fn profile(&self) -> Profile {
        let mut profile = self.profile.clone();
        let mut devices = self.devices.iter().zip(self.latest());
        let exchanges = network::exchange_bytes_each(exchange_bytes(&profile), &self.shard_weights);
        for (at, rank) in profile.ranks.iter_mut().enumerate() {
            for device in &mut rank.devices {
                let Some((known, timing)) = devices.next() else { break };
                device.table = device.table.scaled(timing.factor);
                (device.after_s, device.max_tokens) = (timing.after_s, known.cap.usual());
            }
            let known = &self.ranks[at];
            rank.host_s = known.host.seconds();
            if known.net_s() != known.link_s && known.net_s() > 0.0 {
                rank.link.bytes_per_s = exchanges[at] / known.net_s();
                rank.shard_weight = Some(self.shard_weights[at]);
            }
        }
        profile
    }

    /// The latest factors: each device's time divided by the time in its table.
    pub fn factors(&self) -> Vec<f64> {
        self.latest().iter().map(|timing| timing.factor).collect()
    }

    /// The latest timing of each device.
    fn latest(&self) -> Vec<DeviceTiming> {
        let unknown = self.average_factor();
        let timing = |device: &Device| {
            let rank = &self.ranks[device.rank];
            DeviceTiming {
                factor: if device.drift.is_known() { device.drift.factor() } else { unknown },
                after_s: device.after.seconds(),
                rank_s: rank.host.seconds() + rank.net_s(),
            }
        };
        self.devices.iter().map(timing).collect()
    }

    /// The average, by speed, over devices that were never probed but measured since; 1 if there
    /// are none.
    fn average_factor(&self) -> f64 {
        let is_learned = |device: &&Device| !device.profile.table.is_measured() && device.drift.is_known();
        let (mut speeds, mut count) = (0.0, 0.0);
        for device in self.devices.iter().filter(is_learned) {
            speeds += 1.0 / device.drift.factor();
            count += 1.0;
        }
        if count > 0.0 { count / speeds } else { 1.0 }
    }

    /// The standard deviations of the latest timings, and whether each device had work in the last
    /// update.
    fn errors(&self) -> Vec<TimingError> {
        let error = |device: &Device| TimingError {
            factor: device.drift.error(),
            after_s: device.after.error_s(),
            rank_s: self.ranks[device.rank].error_s(),
            is_working: device.drift.is_working() && !device.is_retired,
        };
        self.devices.iter().map(error).collect()
    }
}

fn exchange_bytes(profile: &Profile) -> u64 {
    match profile.exchange_bytes {
        0 => profile.parameters.saturating_mul(4),
        bytes => bytes,
    }
}
