//! Discrete-event simulation of training on a group. It uses the same [`Planner`](crate::Planner)
//! as the trainer, with times from tables instead of clocks.
//!
//! Called by `hetseq simulate`. It simulates noise, machines that other programs use for a while,
//! and ranks that leave and return. It does not simulate reading data, validation and checkpoints,
//! and links do not slow each other down.
//!
//! `membership` splits the updates into spans with the same ranks, `timeline` simulates the events
//! of a span, and `alone` computes the speed of each rank alone.

mod alone;
mod membership;
mod timeline;

use serde::Serialize;

use crate::error::BalanceError;
use crate::planner::SplitMode;
use crate::profile::Profile;
use membership::MemberSpan;
use timeline::Timeline;

/// Measurements of update k affect the shares of update k + `AHEAD`: the header of the next update
/// carries them, and the loader is one more update ahead, as with `run.prefetch = 1`.
pub const AHEAD: u64 = 2;

/// The largest factor of a disturbance. Beyond it is a typing error, and times would lose their
/// precision.
const MAX_FACTOR: f64 = 1e6;

/// Input of a simulation. Updates count from 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// The tokens of each sample; every update has the same samples.
    pub tokens: Vec<u32>,
    pub updates: u64,
    pub split: SplitMode,
    pub seed: u64,
    /// The largest relative noise of a device's time in an update, up or down: 0.05 is 5 %.
    pub jitter: f64,
    pub disturbances: Vec<Disturbance>,
    pub absences: Vec<Absence>,
    /// The pause of training each time a rank leaves or returns.
    pub pause_s: f64,
}

impl Setup {
    /// `samples` samples of `tokens` tokens in each update, split by measured speed, without
    /// disturbances.
    pub fn uniform(samples: usize, tokens: u32, updates: u64) -> Setup {
        Setup {
            tokens: vec![tokens; samples],
            updates,
            split: SplitMode::Measured,
            seed: 1,
            jitter: 0.0,
            disturbances: Vec::new(),
            absences: Vec::new(),
            pause_s: 0.0,
        }
    }
}

/// A time in which other programs use a rank's machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Disturbance {
    pub rank: usize,
    /// The rank's device, counted from 0; `None` for all of them.
    pub device: Option<usize>,
    pub from_update: u64,
    /// The last one, inclusive.
    pub to_update: u64,
    /// The slowdown: 3 is three times as slow.
    pub factor: f64,
}

/// A time in which a rank is away and the others continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absence {
    pub rank: usize,
    /// The first update without it.
    pub at_update: u64,
    /// The first update with it again; `None` if it does not return.
    pub back_at_update: Option<u64>,
}

/// A setup or a profile that cannot be simulated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SimulateError {
    #[error(transparent)]
    Balance(#[from] BalanceError),

    #[error("nothing to simulate: at least one rank, one update and one sample per update are required")]
    Nothing,

    #[error("cannot {what} rank {rank}: the profile has ranks 0 to {last}")]
    NoSuchRank { rank: usize, what: &'static str, last: usize },

    #[error("cannot disturb device {device} of rank {rank}, which has {devices} (counted from 0)")]
    NoSuchDevice { rank: usize, device: usize, devices: usize },

    #[error("{what} is {value}; it must be {must_be}")]
    BadSetup { what: &'static str, value: String, must_be: &'static str },

    #[error("no rank is left to compute update {update}: all are away; let one stay, or return earlier")]
    NoRankLeft { update: u64 },

    #[error(
        "an update would take {seconds:.1e} seconds with this profile; look for a speed, a link or a time in it that is \
         zero, infinite or mistyped"
    )]
    Endless { seconds: f64 },
}

/// Result of a simulation.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Simulation {
    /// The time of each update, until the last rank was ready for the next.
    pub update_s: Vec<f64>,
    /// The planner's prediction of each update.
    pub predicted_s: Vec<f64>,
    pub samples: u64,
    /// In total, pauses included.
    pub seconds: f64,
    pub paused_s: f64,
    pub samples_per_s: f64,
    /// The sum over ranks of the speed that each has alone, without an exchange.
    pub alone_samples_per_s: f64,
    /// The part of that sum that the group achieves.
    pub efficiency: f64,
    pub ranks: Vec<SimulatedRank>,
    /// Ordered by rank.
    pub devices: Vec<SimulatedDevice>,
    pub replans: Vec<Replan>,
}

impl Simulation {
    /// The median, which a pause or a disturbance does not affect.
    pub fn median_update_s(&self) -> f64 {
        let mut seconds = self.update_s.clone();
        seconds.sort_by(f64::total_cmp);
        seconds.get(seconds.len() / 2).copied().unwrap_or(0.0)
    }
}

/// Where a rank's time went; the seconds add up to [`Simulation::seconds`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SimulatedRank {
    pub samples: u64,
    /// Until its slowest device was done.
    pub compute_s: f64,
    /// For other ranks, also at the very end.
    pub wait_s: f64,
    pub net_s: f64,
    pub host_s: f64,
    /// Away, or in the pauses when ranks leave or return.
    pub away_s: f64,
    /// The speed that it has alone.
    pub alone_samples_per_s: f64,
}

/// A device's totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SimulatedDevice {
    pub rank: usize,
    pub samples: u64,
    pub compute_s: f64,
}

/// A new plan, because newer timings were adopted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Replan {
    /// The first update with the new plan.
    pub update: u64,
    pub gain: f64,
    pub before_s: f64,
    pub after_s: f64,
}

/// Runs the simulation.
pub fn simulate(profile: &Profile, setup: &Setup) -> Result<Simulation, SimulateError> {
    check(profile, setup)?;
    let mut setup = setup.clone();
    setup.tokens.sort_unstable();
    let mut result = Simulation {
        ranks: vec![SimulatedRank::default(); profile.ranks.len()],
        devices: (profile.ranks.iter().enumerate())
            .flat_map(|(rank, of_rank)| {
                vec![SimulatedDevice { rank, ..SimulatedDevice::default() }; of_rank.devices.len()]
            })
            .collect(),
        ..Simulation::default()
    };
    for (number, span) in membership::spans(profile.ranks.len(), setup.updates, &setup.absences).iter().enumerate() {
        if span.members.is_empty() {
            return Err(SimulateError::NoRankLeft { update: span.updates.start });
        }
        if number > 0 {
            result.pause(setup.pause_s);
        }
        let began_s = result.seconds;
        Timeline::new(profile, &setup, span, &mut result)?.run()?;
        result.add_waits(span, began_s);
    }
    let alone = alone::samples_per_s(profile, &setup.tokens)?;
    for (rank, samples_per_s) in result.ranks.iter_mut().zip(&alone) {
        rank.alone_samples_per_s = *samples_per_s;
    }
    let ratio = |amount: f64, of: f64| if of > 0.0 { amount / of } else { 0.0 };
    result.samples = result.devices.iter().map(|device| device.samples).sum();
    result.samples_per_s = ratio(result.samples as f64, result.seconds);
    result.alone_samples_per_s = alone.iter().sum();
    result.efficiency = ratio(result.samples_per_s, result.alone_samples_per_s);
    Ok(result)
}

impl Simulation {
    fn pause(&mut self, seconds: f64) {
        self.seconds += seconds;
        self.paused_s += seconds;
        for rank in &mut self.ranks {
            rank.away_s += seconds;
        }
    }

    /// Adds the remaining time of a span: waiting for members that were ready before the last one,
    /// absence for all others.
    fn add_waits(&mut self, span: &MemberSpan, began_s: f64) {
        let mut is_member = vec![false; self.ranks.len()];
        for &rank in &span.members {
            is_member[rank] = true;
        }
        for (rank, is_member) in self.ranks.iter_mut().zip(is_member) {
            if is_member {
                let known_s = rank.compute_s + rank.wait_s + rank.net_s + rank.host_s + rank.away_s;
                rank.wait_s += (self.seconds - known_s).max(0.0);
            } else {
                rank.away_s += self.seconds - began_s;
            }
        }
    }
}

fn check(profile: &Profile, setup: &Setup) -> Result<(), SimulateError> {
    if profile.ranks.is_empty() || setup.updates == 0 || setup.tokens.is_empty() {
        return Err(SimulateError::Nothing);
    }
    let last = profile.ranks.len() - 1;
    let bad = |what, value: f64, must_be| Err(SimulateError::BadSetup { what, value: value.to_string(), must_be });
    if !(0.0..1.0).contains(&setup.jitter) {
        return bad("the jitter", setup.jitter, "0 or more and below 1, such as 0.05");
    }
    if !(setup.pause_s.is_finite() && setup.pause_s >= 0.0) {
        return bad("the pause", setup.pause_s, "zero seconds or more");
    }
    for &Disturbance { rank, device, from_update, to_update, factor } in &setup.disturbances {
        let Some(of_rank) = profile.ranks.get(rank) else {
            return Err(SimulateError::NoSuchRank { rank, what: "disturb", last });
        };
        if let Some(device) = device.filter(|&device| device >= of_rank.devices.len()) {
            return Err(SimulateError::NoSuchDevice { rank, device, devices: of_rank.devices.len() });
        }
        if !(MAX_FACTOR.recip()..=MAX_FACTOR).contains(&factor) {
            return bad("the factor of a disturbance", factor, "0.000001 to 1,000,000: 3 is three times as slow");
        }
        if from_update == 0 || to_update < from_update {
            return bad("the last update of a disturbance", to_update as f64, "at least its first, counted from 1");
        }
    }
    for &Absence { rank, at_update, back_at_update } in &setup.absences {
        if rank > last {
            return Err(SimulateError::NoSuchRank { rank, what: "remove", last });
        }
        if at_update == 0 || back_at_update.is_some_and(|back| back <= at_update) {
            let value = back_at_update.unwrap_or(at_update) as f64;
            return bad(
                "the update in which a rank returns",
                value,
                "after the one in which it leaves, counted from 1",
            );
        }
    }
    Ok(())
}
