//! What an update will take: per device and rank the seconds of each kind.

use crate::profile::Profile;

/// An update, as the model of time sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prediction {
    pub update_s: f64,
    pub devices: Vec<DevicePrediction>,
    pub ranks: Vec<RankPrediction>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DevicePrediction {
    pub compute_s: f64,
    /// The download of the gradient; none without work.
    pub after_s: f64,
    /// The part of the update in which the device does nothing: 0 to 1.
    pub idle: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RankPrediction {
    /// Until its slowest device is done.
    pub compute_s: f64,
    pub host_s: f64,
    pub net_s: f64,
    /// Waiting for other ranks.
    pub idle_s: f64,
}

/// The group without a rank; none if there is no such rank or no other.
pub fn without(profile: &Profile, rank: usize) -> Option<Profile> {
    if rank >= profile.ranks.len() || profile.ranks.len() < 2 {
        return None;
    }
    let mut rest = profile.clone();
    rest.ranks.remove(rank);
    Some(rest)
}
