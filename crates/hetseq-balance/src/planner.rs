//! The planner: the one object that the trainer, `hetseq plan` and `hetseq simulate` ask who computes what.
//!
//! It holds what was measured of the group at the start ([`Profile`]) and how that has changed since (`drift`), and shares
//! updates by it (`share`). Every rank owns one and feeds it the same integers in the same order, so that all plan alike.
//! It reads no clock, does no I/O, and does not know which update it is.
//!
//! What was learnt is not used at once, else shares would jitter from noise. Times are averaged over blocks of updates that
//! last 80 ms at least, since the scheduler of a busy machine delays short updates by several times their length. Plans are
//! made by what is *published*. What was learnt differs from that by noise too: only what exceeds it is *believed*, and that is
//! published when it is predicted to gain more than 2 %.

mod published;
mod rank;

use serde::{Deserialize, Serialize};

use crate::caps::TokenCap;
use crate::drift::{Drift, Smoothed};
use crate::error::BalanceError;
use crate::network;
use crate::predict::Prediction;
use crate::profile::{DeviceProfile, Line, Profile};
use crate::share::{DeviceLoad, Share, share};
use crate::table::CostTable;
use published::{Pace, PaceError};
use rank::Rank;

/// What a new plan must gain, relatively, to be worth a change.
const DEAD_BAND: f64 = 0.02;
/// Updates are measured together until they have lasted so long, so that one of 100 ms is a block even if it is a bit faster.
const BLOCK_S: f64 = 0.08;
/// A device that is looked at gets a sample that would take this part of the update.
const LOOK: f64 = 0.9;

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
    ranks: Vec<Rank>,
    ownership: Vec<f64>,
    /// What plans are made by, one per device.
    published: Vec<Pace>,
    block: Block,
    /// Whether a block is over since the last plan.
    has_news: bool,
    /// What the last plan was predicted to take.
    last_s: f64,
}

#[derive(Clone, Debug, PartialEq)]
struct Device {
    rank: usize,
    /// As measured at the start.
    profile: DeviceProfile,
    cap: TokenCap,
    drift: Drift,
    after: Smoothed,
    /// It failed, and gets nothing any more.
    is_retired: bool,
}

/// How long the updates since the last measurement have lasted. Sums over updates of the longest time that any device or rank
/// needed; the parts overlap.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
struct Block {
    compute_s: f64,
    host_s: f64,
    exchange_s: f64,
}

impl Block {
    fn seconds(&self) -> f64 {
        self.compute_s.max(self.host_s).max(self.exchange_s)
    }
}

/// Shares, and what they take.
struct Shared {
    shares: Vec<Share>,
    work: Vec<Work>,
    prediction: Prediction,
}

impl Planner {
    pub fn new(profile: &Profile) -> Planner {
        let sane = |seconds: f64| if seconds > 0.0 && seconds.is_finite() { seconds } else { 0.0 };
        let mut devices = Vec::new();
        for (rank, of_rank) in profile.ranks.iter().enumerate() {
            let device = |profile: &DeviceProfile| Device {
                rank,
                drift: Drift::new(profile.table.is_measured()),
                after: Smoothed::new(sane(profile.after_s)),
                cap: TokenCap::new(profile.max_tokens),
                profile: profile.clone(),
                is_retired: false,
            };
            devices.extend(of_rank.devices.iter().map(device));
        }
        let lines: Vec<Line> = profile.ranks.iter().map(|rank| rank.line).collect();
        let by_hand: Vec<f64> = profile.ranks.iter().map(|rank| rank.own.unwrap_or(1.0)).collect();
        let is_by_hand = profile.ranks.iter().any(|rank| rank.own.is_some());
        let ownership = Some(by_hand).filter(|_| is_by_hand).and_then(|parts| network::normalised(&parts));
        let ownership = ownership.unwrap_or_else(|| network::ownership(&lines));
        let net_s = network::exchange_seconds(exchange_bytes(profile), &lines, &ownership);
        let ranks =
            profile.ranks.iter().zip(net_s).map(|(rank, line_s)| Rank::new(sane(rank.host_s), line_s)).collect();
        let mut planner = Planner {
            profile: profile.clone(),
            devices,
            ranks,
            ownership,
            published: Vec::new(),
            block: Block::default(),
            has_news: false,
            last_s: 0.0,
        };
        planner.published = planner.newest();
        planner
    }

    /// The same group, but gradients go around in a ring instead of directly to their owners.
    pub fn in_a_ring(mut self) -> Planner {
        let lines: Vec<Line> = self.profile.ranks.iter().map(|rank| rank.line).collect();
        let net_s = network::ring_seconds(exchange_bytes(&self.profile), &lines);
        for rank in &mut self.ranks {
            rank.line_s = net_s;
        }
        self.published = self.newest();
        self
    }

    /// Who computes what of an update whose samples cost `tokens`, which should ascend.
    ///
    /// What was learnt since the last publication is adopted as far as it is no noise, if that is predicted to gain more than
    /// 2 %.
    pub fn share(&mut self, split: Split, tokens: &[u32]) -> Result<Plan, BalanceError> {
        let newest = self.newest();
        let mut shared = self.shared(split, tokens, &self.published, &newest)?;
        let mut replanned = None;
        if split == Split::Measured && std::mem::take(&mut self.has_news) {
            let believed = published::believed(&self.published, &newest, &self.errors());
            if let Some(better) = self.better(tokens, &shared, &believed, &newest)? {
                let (before_s, after_s) = (shared.prediction.update_s, better.prediction.update_s);
                replanned = Some(Replanned { gain: 1.0 - after_s / before_s, before_s, after_s });
                (shared, self.published) = (better, believed);
            }
        }
        self.last_s = shared.prediction.update_s;
        if split == Split::Measured
            && let Some(looked_at) = self.look_again(tokens)
        {
            let paces = |paces: &[Pace]| looked_at.apply(paces);
            shared = self.shared(split, tokens, &paces(&self.published), &paces(&newest))?;
        }
        let left_out = if split == Split::Measured { self.left_out(tokens, &shared, &newest) } else { Vec::new() };
        let Shared { shares, work, prediction } = shared;
        Ok(Plan { shares, work, prediction, replanned, left_out })
    }

    /// What every device did in an update that was shared by [`Plan::work`]; one per device, in order.
    pub fn observe(&mut self, done: &[Done]) {
        for (device, done) in self.devices.iter_mut().zip(done) {
            device.drift.observe(done.base_s, done.micros);
            if done.base_s > 0.0 {
                device.after.observe(done.after_micros);
                device.cap.calm_update();
            }
        }
        self.block.compute_s += self.longest_s(done.iter().map(|done| done.micros.saturating_add(done.after_micros)));
        self.close_block();
    }

    /// Per rank, own time beside computing and exchanging.
    pub fn observe_hosts(&mut self, host_micros: &[u64]) {
        for (rank, &micros) in self.ranks.iter_mut().zip(host_micros) {
            rank.host.observe(micros);
        }
        self.block.host_s += self.longest_s(host_micros.iter().copied());
        self.close_block();
    }

    /// Per rank, microseconds for which it was busy with an exchange, and for which it waited in it.
    pub fn observe_exchange(&mut self, exchanges: &[(u64, u64)]) {
        for (rank, &(busy, waited)) in self.ranks.iter_mut().zip(exchanges) {
            rank.observe_exchange(busy, waited);
        }
        self.block.exchange_s += self.longest_s(exchanges.iter().map(|&(busy, waited)| busy.saturating_add(waited)));
        self.close_block();
    }

    /// What an update adds to the length of the block: no more than was predicted, since one long delay must not be a block.
    fn longest_s(&self, micros: impl Iterator<Item = u64>) -> f64 {
        let longest_s = micros.max().unwrap_or(0) as f64 * 1e-6;
        if self.last_s > 0.0 { longest_s.min(self.last_s) } else { longest_s }
    }

    /// If the block has lasted long enough, its means are measurements.
    fn close_block(&mut self) {
        let block_s = self.block.seconds();
        if block_s < BLOCK_S {
            return;
        }
        for device in &mut self.devices {
            device.drift.close(block_s);
            device.after.close(block_s);
        }
        for rank in &mut self.ranks {
            rank.close(block_s);
        }
        (self.block, self.has_news) = (Block::default(), true);
    }

    /// A device ran out of memory in the update just observed: its micro-batches have at most `max_tokens` tokens for a number of
    /// updates, which is returned; then more is tried again.
    pub fn cap_tokens(&mut self, device: usize, max_tokens: u32) -> u32 {
        self.devices.get_mut(device).map_or(0, |device| device.cap.ran_out(max_tokens))
    }

    /// A device failed: from now on it gets nothing, whatever the split. The last one stays, since somebody has to compute.
    pub fn retire(&mut self, device: usize) {
        let others = self.devices.iter().enumerate().filter(|(at, other)| *at != device && !other.is_retired).count();
        if let Some(device) = self.devices.get_mut(device).filter(|_| others > 0) {
            device.is_retired = true;
        }
    }

    /// Caps for devices without any, as in validation.
    pub fn with_usual_caps(mut self, max_tokens: Option<u32>, max_samples: Option<u32>) -> Planner {
        for Device { profile, cap, .. } in &mut self.devices {
            if cap.tokens().is_none() && profile.max_samples.is_none() {
                (*cap, profile.max_samples) = (TokenCap::new(max_tokens), max_samples);
            }
        }
        self
    }

    /// Lets devices whose cap is `cap` tokens take a sample of `tokens` tokens, alone in its micro-batch. For validation,
    /// which keeps nothing for a backward pass and so needs less memory than what the cap was measured with.
    pub fn raise_caps(&mut self, cap: u32, tokens: u32) {
        for device in self.devices.iter_mut().filter(|device| device.cap.tokens() == Some(cap)) {
            device.cap = TokenCap::new(Some(tokens.max(cap)));
        }
    }

    /// What part of the gradient each rank sums up.
    pub fn ownership(&self) -> &[f64] {
        &self.ownership
    }

    pub fn devices(&self) -> usize {
        self.devices.len()
    }

    /// The group as it is known by now: what was measured at the start, with all that was learnt since.
    pub fn profile(&self) -> Profile {
        let mut profile = self.profile.clone();
        let mut devices = self.devices.iter().zip(self.newest());
        let exchanges = network::exchange_bytes_each(exchange_bytes(&profile), &self.ownership);
        for (at, rank) in profile.ranks.iter_mut().enumerate() {
            for device in &mut rank.devices {
                let Some((known, pace)) = devices.next() else { break };
                device.table = device.table.scaled(pace.factor);
                (device.after_s, device.max_tokens) = (pace.after_s, known.cap.usual());
            }
            let known = &self.ranks[at];
            rank.host_s = known.host.seconds();
            if known.net_s() != known.line_s && known.net_s() > 0.0 {
                rank.line.bytes_per_s = exchanges[at] / known.net_s();
                rank.own = Some(self.ownership[at]);
            }
        }
        profile
    }

    /// The newest factors: how many times as long as by its table each device takes.
    pub fn factors(&self) -> Vec<f64> {
        self.newest().iter().map(|pace| pace.factor).collect()
    }

    /// What is known now of each device.
    fn newest(&self) -> Vec<Pace> {
        let unknown = self.average_factor();
        let pace = |device: &Device| {
            let rank = &self.ranks[device.rank];
            Pace {
                factor: if device.drift.is_known() { device.drift.factor() } else { unknown },
                after_s: device.after.seconds(),
                rank_s: rank.host.seconds() + rank.net_s(),
            }
        };
        self.devices.iter().map(pace).collect()
    }

    /// Of the devices that were never probed but measured since, by their speeds; 1 if there are none.
    fn average_factor(&self) -> f64 {
        let learnt = |device: &&Device| !device.profile.table.is_measured() && device.drift.is_known();
        let (mut speeds, mut count) = (0.0, 0.0);
        for device in self.devices.iter().filter(learnt) {
            speeds += 1.0 / device.drift.factor();
            count += 1.0;
        }
        if count > 0.0 { count / speeds } else { 1.0 }
    }

    /// How far off that may be, and whether the device had work in the last update.
    fn errors(&self) -> Vec<PaceError> {
        let error = |device: &Device| PaceError {
            factor: device.drift.error(),
            after_s: device.after.error_s(),
            rank_s: self.ranks[device.rank].error_s(),
            is_working: device.drift.is_working() && !device.is_retired,
        };
        self.devices.iter().map(error).collect()
    }

    /// What would be shared by what is believed, if that gains enough.
    fn better(
        &self,
        tokens: &[u32],
        now: &Shared,
        believed: &[Pace],
        newest: &[Pace],
    ) -> Result<Option<Shared>, BalanceError> {
        if !published::differ(&self.published, believed, self.last_s) {
            return Ok(None);
        }
        let other = self.shared(Split::Measured, tokens, believed, newest)?;
        // By noise, one of the two may gain something and the other nothing.
        let believed_s = (update_s(&now.work, believed), update_s(&other.work, believed));
        let newest_s = (now.prediction.update_s, other.prediction.update_s);
        let is_better = |(before_s, after_s): (f64, f64)| after_s < before_s * (1.0 - DEAD_BAND);
        Ok(Some(other).filter(|_| is_better(believed_s) && is_better(newest_s)))
    }

    /// Shares by some paces, and predicts by others.
    fn shared(&self, split: Split, tokens: &[u32], by: &[Pace], truth: &[Pace]) -> Result<Shared, BalanceError> {
        let even = CostTable::proportional(1.0);
        let active = self.devices.iter().zip(by).filter(|(device, _)| !device.is_retired);
        let loads: Vec<DeviceLoad> = active.map(|(device, pace)| load(device, pace, split, &even)).collect();
        let mut shared = share(tokens, &loads)?.into_iter();
        let of_device = |device: &Device| if device.is_retired { None } else { shared.next() }.unwrap_or_default();
        let shares: Vec<Share> = self.devices.iter().map(of_device).collect();
        let work: Vec<Work> =
            self.devices.iter().zip(&shares).map(|(device, share)| device.work(share, tokens)).collect();
        let seconds = |((device, work), pace): ((&Device, &Work), &Pace)| {
            let after_s = if work.samples > 0 { pace.after_s } else { 0.0 };
            (device.rank, work.base_s * pace.factor, after_s)
        };
        let prediction = Prediction::new(
            self.devices.iter().zip(&work).zip(truth).map(seconds),
            self.ranks.iter().map(|rank| (rank.host.seconds(), rank.net_s())),
        );
        Ok(Shared { shares, work, prediction })
    }

    /// Who has been without work for so long that it gets a sample to see how fast it is now, and how fast each must be
    /// believed to be for that; none if there is nobody.
    fn look_again(&mut self, tokens: &[u32]) -> Option<published::LookedAt> {
        let shortest = tokens.iter().copied().min()?.max(1);
        let time_s = self.last_s * LOOK;
        let mut looked_at = published::LookedAt::default();
        for (at, device) in self.devices.iter_mut().enumerate() {
            let one_s = device.profile.table.seconds(1, shortest);
            if !device.is_retired && device.drift.wants_a_look() && time_s > 0.0 && one_s > 0.0 {
                device.drift.look_again();
                // Nothing but computing is believed to take time: else a slow line would hide it for ever.
                looked_at.push(at, time_s / one_s);
            }
        }
        (!looked_at.is_empty()).then_some(looked_at)
    }

    /// Devices without work that would be done with one sample only after all others.
    fn left_out(&self, tokens: &[u32], shared: &Shared, newest: &[Pace]) -> Vec<usize> {
        let Some(shortest) = tokens.iter().copied().min() else { return Vec::new() };
        let update_s = shared.prediction.update_s;
        let is_left_out = |&at: &usize| {
            let one_s = newest[at].finish_s(self.devices[at].profile.table.seconds(1, shortest.max(1)));
            !self.devices[at].is_retired && shared.work[at].samples == 0 && one_s > update_s
        };
        (0..self.devices.len()).filter(is_left_out).collect()
    }
}

/// What `share` has to know of a device.
fn load<'a>(device: &'a Device, pace: &Pace, split: Split, even: &'a CostTable) -> DeviceLoad<'a> {
    let DeviceProfile { ref table, weight, max_samples, .. } = device.profile;
    let max_tokens = device.cap.tokens();
    let (by, factor, overhead_s) = match split {
        Split::Measured => (table, pace.factor, pace.overhead_s()),
        Split::Weights => (even, 1.0 / weight, 0.0),
        Split::Equal => (even, 1.0, 0.0),
    };
    DeviceLoad { table: by, factor, overhead_s, max_tokens, max_samples, measured: Some(table) }
}

/// When the last device is done.
fn update_s(work: &[Work], paces: &[Pace]) -> f64 {
    let finish_s = |(work, pace): (&Work, &Pace)| match work.samples {
        0 => pace.rank_s,
        _ => pace.finish_s(work.base_s),
    };
    work.iter().zip(paces).map(finish_s).fold(0.0, f64::max)
}

fn exchange_bytes(profile: &Profile) -> u64 {
    match profile.exchange_bytes {
        0 => profile.parameters.saturating_mul(4),
        bytes => bytes,
    }
}

impl Device {
    fn work(&self, share: &Share, tokens: &[u32]) -> Work {
        let mut work = Work::default();
        for micro in &share.micro {
            let longest = tokens[micro.clone()].iter().copied().max().unwrap_or(1).max(1);
            work.samples += micro.len() as u64;
            work.tokens += micro.len() as u64 * u64::from(longest);
            work.base_s += self.profile.table.seconds(u32::try_from(micro.len()).unwrap_or(u32::MAX), longest);
        }
        work
    }
}
