//! The profile: everything that was measured of a group.

use serde::{Deserialize, Serialize};

use crate::table::CostTable;

/// A device: what it costs there to compute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceProfile {
    /// Such as `gpu:0`.
    #[serde(default)]
    pub name: String,
    pub table: CostTable,
    /// Seconds after the micro-batches, if there were any: the download of the gradient.
    #[serde(default)]
    pub after_s: f64,
    /// For [`Split::Weights`](crate::Split::Weights).
    #[serde(default = "one")]
    pub weight: f64,
    /// The most padded tokens in a micro-batch.
    #[serde(default)]
    pub max_tokens: Option<u32>,
    /// The most samples in a micro-batch.
    #[serde(default)]
    pub max_samples: Option<u32>,
}

/// A process and its devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankProfile {
    pub host: String,
    pub devices: Vec<DeviceProfile>,
    /// Seconds of its own per update beside computing and exchanging.
    #[serde(default)]
    pub host_s: f64,
    #[serde(default)]
    pub line: Line,
    /// What part of the gradient it is to sum up, if set by hand; relative to the others.
    #[serde(default)]
    pub own: Option<f64>,
}

/// A rank's way to the network.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// In each direction; infinite if it is no limit.
    pub bytes_per_s: f64,
    #[serde(default)]
    pub latency_s: f64,
}

/// What was measured of a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    #[serde(default)]
    pub task: String,
    #[serde(default)]
    pub parameters: u64,
    /// Of one gradient on the wire.
    #[serde(default)]
    pub exchange_bytes: u64,
    pub ranks: Vec<RankProfile>,
}

impl Line {
    /// A line that takes no time.
    pub fn unlimited() -> Line {
        Line { bytes_per_s: f64::INFINITY, latency_s: 0.0 }
    }
}

impl Default for Line {
    fn default() -> Self {
        Line::unlimited()
    }
}

fn one() -> f64 {
    1.0
}
