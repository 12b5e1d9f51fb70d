//! The planner's inputs and outputs: the split mode, a plan, and the measured times of its work.

use serde::{Deserialize, Serialize};

use crate::predict::Prediction;
use crate::share::Share;

/// How an update is split among the devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SplitMode {
    /// All devices finish together, according to measured times.
    #[default]
    Measured,
    /// In proportion to weights that the user set.
    Weights,
    /// The same for every device.
    Equal,
}

/// The split of one update. Every `Vec` with one entry per device is in the profile's order.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// One per device.
    pub shares: Vec<Share>,
    /// One per device.
    pub work: Vec<AssignedWork>,
    pub prediction: Prediction,
    /// Set if newer timings are adopted from this update on.
    pub replanned: Option<Replanned>,
    /// Devices that get no work because they would make the update slower.
    pub left_out: Vec<usize>,
}

/// The amount of work in a device's share.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub struct AssignedWork {
    pub samples: u64,
    /// As computed, padding included.
    pub tokens: u64,
    /// Seconds by the table, with factor 1.
    pub base_s: f64,
}

/// A device's measured time for its work in an update.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub struct WorkTime {
    /// Of the [`AssignedWork`] that it got.
    pub base_s: f64,
    /// Own time for the micro-batches.
    pub micros: u64,
    /// Own time after them: the download of the gradient.
    pub after_micros: u64,
}

/// The effect of a new plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Replanned {
    /// 0.08 is 8 %.
    pub gain: f64,
    /// The predicted time of the update with the old plan.
    pub before_s: f64,
    /// The predicted time of the update with the new plan.
    pub after_s: f64,
}
