//! What training on a group would be like: a discrete-event simulation that asks the same [`Planner`](crate::Planner) as
//! the trainer does, with times from tables instead of clocks.
//!
//! `hetseq simulate` calls it. It knows about noise, machines that somebody else begins to use, and ranks that leave and
//! come back. It does not know about reading data, validation and checkpoints, and lines do not disturb each other.
//!
//! `timeline` plays the events of updates that the same ranks do together, `membership` says which those are, and `alone`
//! what each rank could do by itself.

mod alone;
mod membership;
mod timeline;

use serde::Serialize;

use crate::error::BalanceError;
use crate::planner::Split;
use crate::profile::Profile;
use membership::Span;
use timeline::Timeline;

/// What is measured in update k decides about the shares of update k + `AHEAD`: the header of the next update carries it,
/// and then the loader is one update ahead, as with `run.prefetch = 1`.
pub const AHEAD: u64 = 2;

/// A disturbance beyond this is a typing error, and times would no longer be numbers to reckon with.
const MOST_FACTOR: f64 = 1e6;

/// What is to be simulated. Updates count from 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// Of each sample of an update; every update has the same.
    pub tokens: Vec<u32>,
    pub updates: u64,
    pub split: Split,
    pub seed: u64,
    /// Each device's time differs in each update by up to this part, up or down: 0.05 is 5 %.
    pub jitter: f64,
    pub disturbances: Vec<Disturbance>,
    pub absences: Vec<Absence>,
    /// How long nobody trains when a rank has left or is back.
    pub pause_s: f64,
}

impl Setup {
    /// `samples` samples of `tokens` tokens in each update, by measured speed, undisturbed.
    pub fn uniform(samples: usize, tokens: u32, updates: u64) -> Setup {
        Setup {
            tokens: vec![tokens; samples],
            updates,
            split: Split::Measured,
            seed: 1,
            jitter: 0.0,
            disturbances: Vec::new(),
            absences: Vec::new(),
            pause_s: 0.0,
        }
    }
}

/// Somebody else uses the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Disturbance {
    pub rank: usize,
    /// The rank's device, counted from 0; all of them if none.
    pub device: Option<usize>,
    pub from_update: u64,
    /// The last one.
    pub to_update: u64,
    /// How many times as long everything takes there.
    pub factor: f64,
}

/// A rank leaves the group, and the others go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absence {
    pub rank: usize,
    /// The first update without it.
    pub at_update: u64,
    /// The first update with it again; never if none.
    pub back_at_update: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SimulateError {
    #[error(transparent)]
    Balance(#[from] BalanceError),

    #[error("nothing to simulate: there must be at least one rank, one update and one sample in each")]
    Nothing,

    #[error("rank {rank} is to {what}, but the profile has ranks 0 to {last}")]
    NoSuchRank { rank: usize, what: &'static str, last: usize },

    #[error("device {device} of rank {rank} is to be disturbed, but that rank has {devices}")]
    NoSuchDevice { rank: usize, device: usize, devices: usize },

    #[error("{what} is {value}; it must be {must_be}")]
    BadSetup { what: &'static str, value: String, must_be: &'static str },

    #[error("nobody is left to compute update {update}: every rank is to be away; let one stay, or come back earlier")]
    NobodyLeft { update: u64 },

    #[error(
        "an update would take {seconds:.1e} seconds by this profile; look for a speed, a line or a time in it that is zero, \
         endless or mistyped"
    )]
    Endless { seconds: f64 },
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Simulation {
    /// How long each update took, until the last rank was ready for the next.
    pub update_s: Vec<f64>,
    /// What the planner expected of it when it was shared.
    pub predicted_s: Vec<f64>,
    pub samples: u64,
    /// In all, pauses included.
    pub seconds: f64,
    pub paused_s: f64,
    pub samples_per_s: f64,
    /// The sum of what each rank would do by itself, with nobody to exchange with.
    pub alone_samples_per_s: f64,
    /// The part of that sum which the group achieves.
    pub efficiency: f64,
    pub ranks: Vec<RankTime>,
    /// Rank by rank.
    pub devices: Vec<DeviceTime>,
    pub replans: Vec<Replan>,
}

impl Simulation {
    /// The middle one, which a pause or a disturbance does not move.
    pub fn median_update_s(&self) -> f64 {
        let mut seconds = self.update_s.clone();
        seconds.sort_by(f64::total_cmp);
        seconds.get(seconds.len() / 2).copied().unwrap_or(0.0)
    }
}

/// Where a rank's time went; together that is [`Simulation::seconds`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct RankTime {
    pub samples: u64,
    /// Until its slowest device was done.
    pub compute_s: f64,
    /// For other ranks, and at the very end.
    pub wait_s: f64,
    pub net_s: f64,
    pub host_s: f64,
    /// Away, or in the pauses that changes of the group take.
    pub away_s: f64,
    /// What it would do by itself.
    pub alone_samples_per_s: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct DeviceTime {
    pub rank: usize,
    pub samples: u64,
    pub compute_s: f64,
}

/// Newer factors were adopted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Replan {
    /// The first update that was shared so.
    pub update: u64,
    pub gain: f64,
    pub before_s: f64,
    pub after_s: f64,
}

/// Plays the whole of it.
pub fn simulate(profile: &Profile, setup: &Setup) -> Result<Simulation, SimulateError> {
    check(profile, setup)?;
    let mut setup = setup.clone();
    setup.tokens.sort_unstable();
    let mut done = Simulation {
        ranks: vec![RankTime::default(); profile.ranks.len()],
        devices: (profile.ranks.iter().enumerate())
            .flat_map(|(rank, of_rank)| vec![DeviceTime { rank, ..DeviceTime::default() }; of_rank.devices.len()])
            .collect(),
        ..Simulation::default()
    };
    for (number, span) in membership::spans(profile.ranks.len(), setup.updates, &setup.absences).iter().enumerate() {
        if span.members.is_empty() {
            return Err(SimulateError::NobodyLeft { update: span.updates.start });
        }
        if number > 0 {
            done.pause(setup.pause_s);
        }
        let began_s = done.seconds;
        Timeline::new(profile, &setup, span, &mut done)?.play()?;
        done.settle(span, began_s);
    }
    let alone = alone::samples_per_s(profile, &setup.tokens)?;
    for (rank, samples_per_s) in done.ranks.iter_mut().zip(&alone) {
        rank.alone_samples_per_s = *samples_per_s;
    }
    let ratio = |amount: f64, of: f64| if of > 0.0 { amount / of } else { 0.0 };
    done.samples = done.devices.iter().map(|device| device.samples).sum();
    done.samples_per_s = ratio(done.samples as f64, done.seconds);
    done.alone_samples_per_s = alone.iter().sum();
    done.efficiency = ratio(done.samples_per_s, done.alone_samples_per_s);
    Ok(done)
}

impl Simulation {
    fn pause(&mut self, seconds: f64) {
        self.seconds += seconds;
        self.paused_s += seconds;
        for rank in &mut self.ranks {
            rank.away_s += seconds;
        }
    }

    /// Ranks that were ready before the last one waited for it; those that were not there were away.
    fn settle(&mut self, span: &Span, began_s: f64) {
        let mut is_member = vec![false; self.ranks.len()];
        for &rank in &span.members {
            is_member[rank] = true;
        }
        for (rank, is_member) in self.ranks.iter_mut().zip(is_member) {
            if is_member {
                let told = rank.compute_s + rank.wait_s + rank.net_s + rank.host_s + rank.away_s;
                rank.wait_s += (self.seconds - told).max(0.0);
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
            return Err(SimulateError::NoSuchRank { rank, what: "be disturbed", last });
        };
        if let Some(device) = device.filter(|&device| device >= of_rank.devices.len()) {
            return Err(SimulateError::NoSuchDevice { rank, device, devices: of_rank.devices.len() });
        }
        if !(MOST_FACTOR.recip()..=MOST_FACTOR).contains(&factor) {
            return bad("the factor of a disturbance", factor, "0.000001 to 1,000,000: 3 is three times as slow");
        }
        if from_update == 0 || to_update < from_update {
            return bad("the last update of a disturbance", to_update as f64, "at least its first, counted from 1");
        }
    }
    for &Absence { rank, at_update, back_at_update } in &setup.absences {
        if rank > last {
            return Err(SimulateError::NoSuchRank { rank, what: "leave", last });
        }
        if at_update == 0 || back_at_update.is_some_and(|back| back <= at_update) {
            let value = back_at_update.unwrap_or(at_update) as f64;
            return bad("the update in which a rank is back", value, "after the one in which it leaves, from 1");
        }
    }
    Ok(())
}
