//! The profile: everything that was measured of a group, and what `hetseq plan --profile` reads.
//!
//! Made by the trainer at the start of a run, or by a person. As JSON only the hosts and one number for each device are
//! needed; everything else has a default:
//!
//! ```
//! let profile: hetseq_balance::Profile = serde_json::from_str(
//!     r#"{
//!         "parameters": 110000000,
//!         "ranks": [
//!             { "host": "big", "devices": [{ "name": "gpu:0", "tokens_per_s": 20000 }], "line": { "bytes_per_s": 1e9 } },
//!             { "host": "small", "devices": [{ "tokens_per_s": 3000, "max_tokens": 2048 }, { "tokens_per_s": 3000 }] }
//!         ]
//!     }"#,
//! )?;
//! assert_eq!(profile.ranks[1].devices.len(), 2);
//! # Ok::<(), serde_json::Error>(())
//! ```
//!
//! Numbers that cannot be are refused when a profile is read. Who makes one in code may put in what it likes: the planner
//! takes a negative time or one that is no number for none.

use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::table::CostTable;

/// A device: what it costs there to compute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceProfile {
    /// Such as `gpu:0`.
    #[serde(default)]
    pub name: String,
    /// As a rule measured points. A number, which may be called `tokens_per_s`, if nothing was measured.
    #[serde(alias = "tokens_per_s")]
    pub table: CostTable,
    /// Seconds after the micro-batches, if there were any: the download of the gradient.
    #[serde(default, deserialize_with = "not_negative")]
    pub after_s: f64,
    /// For [`Split::Weights`](crate::Split::Weights).
    #[serde(default = "one", deserialize_with = "not_negative")]
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
    #[serde(default, deserialize_with = "not_negative")]
    pub host_s: f64,
    #[serde(default)]
    pub line: Line,
    /// What part of the gradient it is to sum up, relative to the others, if set by hand. As soon as one rank has it, those
    /// without count as 1.
    #[serde(default)]
    pub own: Option<f64>,
}

/// A rank's way to the network.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// In each direction; infinite if it is no limit, which is left out or null in JSON.
    #[serde(default = "no_limit", serialize_with = "write_limit", deserialize_with = "read_limit")]
    pub bytes_per_s: f64,
    #[serde(default, deserialize_with = "not_negative")]
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
    /// Of one gradient on the wire; 0 stands for four bytes for each parameter.
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

fn no_limit() -> f64 {
    f64::INFINITY
}

fn write_limit<S: Serializer>(bytes_per_s: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    // JSON has no infinity.
    Some(*bytes_per_s).filter(|bytes_per_s| bytes_per_s.is_finite()).serialize(serializer)
}

fn read_limit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    match Option::<f64>::deserialize(deserializer)? {
        None => Ok(f64::INFINITY),
        Some(bytes_per_s) if bytes_per_s > 0.0 => Ok(bytes_per_s),
        Some(other) => {
            Err(D::Error::invalid_value(Unexpected::Float(other), &"a number above zero, or null for no limit"))
        }
    }
}

fn not_negative<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let number = f64::deserialize(deserializer)?;
    match number >= 0.0 && number.is_finite() {
        true => Ok(number),
        false => Err(D::Error::invalid_value(Unexpected::Float(number), &"zero or a number above it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Point;

    fn profile() -> Profile {
        let point = |samples, micros| Point { samples, tokens: 128, micros, bytes: 1 << 30 };
        let device = |table| DeviceProfile {
            name: "gpu:0".into(),
            table,
            after_s: 0.1,
            weight: 0.3,
            max_tokens: Some(4096),
            max_samples: None,
        };
        let measured = device(CostTable::new(vec![point(1, 10), point(8, 40)]).unwrap());
        let guessed = device(CostTable::proportional(12_345.6));
        let rank = |devices, line| RankProfile { host: "a".into(), devices, host_s: 0.25, line, own: Some(2.0) };
        let lines = [Line::unlimited(), Line { bytes_per_s: 1.1e9, latency_s: 1e-4 }];
        let ranks = vec![rank(vec![measured], lines[0]), rank(vec![guessed], lines[1])];
        Profile { task: "bert".into(), parameters: 7, exchange_bytes: 28, ranks }
    }

    #[test]
    fn a_profile_comes_back_as_it_was_written() {
        let json = serde_json::to_string(&profile()).unwrap();
        assert_eq!(serde_json::from_str::<Profile>(&json).unwrap(), profile());
        let bytes = postcard::to_stdvec(&profile()).unwrap();
        assert_eq!(postcard::from_bytes::<Profile>(&bytes).unwrap(), profile());
    }

    #[test]
    fn little_is_enough() {
        let json = r#"{"ranks":[{"host":"a","devices":[{"tokens_per_s":20000}]}]}"#;
        let profile: Profile = serde_json::from_str(json).unwrap();
        let RankProfile { devices, line, host_s, own, .. } = &profile.ranks[0];
        assert_eq!((*line, *host_s, *own), (Line::unlimited(), 0.0, None));
        assert_eq!(devices[0].table, CostTable::proportional(20_000.0));
        assert_eq!((devices[0].weight, devices[0].after_s), (1.0, 0.0));
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_place() {
        for (device, rest) in [
            (r#"{"tokens_per_s":0}"#, ""),
            (r#"{"tokens_per_s":[]}"#, ""),
            (r#"{"name":"gpu:0"}"#, ""),
            (r#"{"tokens_per_s":5,"after_s":-1}"#, ""),
            (r#"{"tokens_per_s":5,"weight":-1}"#, ""),
            (r#"{"tokens_per_s":5,"max_token":7}"#, ""),
            (r#"{"tokens_per_s":5}"#, r#","line":{"bytes_per_s":0}"#),
            (r#"{"tokens_per_s":5}"#, r#","line":{"latency_s":-0.5}"#),
            (r#"{"tokens_per_s":5}"#, r#","host_s":-0.5"#),
        ] {
            let json = format!(r#"{{"ranks":[{{"host":"a","devices":[{device}]{rest}}}]}}"#);
            let error = serde_json::from_str::<Profile>(&json).unwrap_err().to_string();
            assert!(error.contains("line 1 column"), "{json}: {error}");
        }
    }
}
