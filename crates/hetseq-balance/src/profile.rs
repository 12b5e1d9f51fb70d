//! The profile: all measurements of a group, and the file format of `hetseq plan --profile`.
//!
//! Written by the trainer at the start of a run, or by hand. In JSON only the hosts and one number
//! for each device are required; everything else has a default:
//!
//! ```
//! let profile: hetseq_balance::Profile = serde_json::from_str(
//!     r#"{
//!         "parameters": 110000000,
//!         "ranks": [
//!             { "host": "big", "devices": [{ "name": "gpu:0", "tokens_per_s": 20000 }],
//!               "link": { "bytes_per_s": 1e9 } },
//!             { "host": "small", "devices": [{ "tokens_per_s": 3000, "max_tokens": 2048 },
//!                                            { "tokens_per_s": 3000 }] }
//!         ]
//!     }"#,
//! )?;
//! assert_eq!(profile.ranks[1].devices.len(), 2);
//! # Ok::<(), serde_json::Error>(())
//! ```
//!
//! Invalid numbers are rejected when a profile is read. Code can construct any profile: the planner
//! treats a time that is negative or not a number as zero.

use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::table::CostTable;

/// A device's costs and caps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceProfile {
    /// Such as `gpu:0`.
    #[serde(default)]
    pub name: String,
    /// Usually measured points. A number, which may be called `tokens_per_s`, if nothing was
    /// measured.
    #[serde(alias = "tokens_per_s")]
    pub table: CostTable,
    /// Seconds after the micro-batches, if there are any: the download of the gradient.
    #[serde(default, deserialize_with = "not_negative")]
    pub after_s: f64,
    /// For [`SplitMode::Weights`](crate::SplitMode::Weights).
    #[serde(default = "one", deserialize_with = "not_negative")]
    pub weight: f64,
    /// The largest number of padded tokens in a micro-batch.
    #[serde(default)]
    pub max_tokens: Option<u32>,
    /// The largest number of samples in a micro-batch.
    #[serde(default)]
    pub max_samples: Option<u32>,
}

/// A process and its devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankProfile {
    pub host: String,
    pub devices: Vec<DeviceProfile>,
    /// Its own seconds per update besides computing and exchanging.
    #[serde(default, deserialize_with = "not_negative")]
    pub host_s: f64,
    #[serde(default, alias = "line")]
    pub link: LinkProfile,
    /// The part of the gradient that it sums up, relative to the others, if set by hand. If one
    /// rank has it, those without count as 1.
    #[serde(default, alias = "own")]
    pub shard_weight: Option<f64>,
}

/// A rank's link to the network.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkProfile {
    /// In each direction; infinite if there is no limit, which is omitted or null in JSON.
    #[serde(default = "no_limit", serialize_with = "write_limit", deserialize_with = "read_limit")]
    pub bytes_per_s: f64,
    #[serde(default, deserialize_with = "not_negative")]
    pub latency_s: f64,
}

/// All measurements of a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    #[serde(default)]
    pub task: String,
    #[serde(default)]
    pub parameters: u64,
    /// Bytes of one gradient on the wire; 0 means four bytes per parameter.
    #[serde(default)]
    pub exchange_bytes: u64,
    pub ranks: Vec<RankProfile>,
}

impl LinkProfile {
    /// A link that takes no time.
    pub fn unlimited() -> LinkProfile {
        LinkProfile { bytes_per_s: f64::INFINITY, latency_s: 0.0 }
    }
}

impl Default for LinkProfile {
    fn default() -> Self {
        LinkProfile::unlimited()
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
            Err(D::Error::invalid_value(Unexpected::Float(other), &"a positive number, or null for no limit"))
        }
    }
}

fn not_negative<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let number = f64::deserialize(deserializer)?;
    match number >= 0.0 && number.is_finite() {
        true => Ok(number),
        false => Err(D::Error::invalid_value(Unexpected::Float(number), &"zero or a positive number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::CostPoint;

    fn profile() -> Profile {
        let point = |samples, micros| CostPoint { samples, tokens: 128, micros, bytes: 1 << 30 };
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
        let rank =
            |devices, link| RankProfile { host: "a".into(), devices, host_s: 0.25, link, shard_weight: Some(2.0) };
        let links = [LinkProfile::unlimited(), LinkProfile { bytes_per_s: 1.1e9, latency_s: 1e-4 }];
        let ranks = vec![rank(vec![measured], links[0]), rank(vec![guessed], links[1])];
        Profile { task: "bert".into(), parameters: 7, exchange_bytes: 28, ranks }
    }

    #[test]
    fn a_profile_survives_a_round_trip() {
        let json = serde_json::to_string(&profile()).unwrap();
        assert_eq!(serde_json::from_str::<Profile>(&json).unwrap(), profile());
        let bytes = postcard::to_stdvec(&profile()).unwrap();
        assert_eq!(postcard::from_bytes::<Profile>(&bytes).unwrap(), profile());
    }

    #[test]
    fn a_host_and_one_number_are_enough() {
        let json = r#"{"ranks":[{"host":"a","devices":[{"tokens_per_s":20000}]}]}"#;
        let profile: Profile = serde_json::from_str(json).unwrap();
        let RankProfile { devices, link, host_s, shard_weight, .. } = &profile.ranks[0];
        assert_eq!((*link, *host_s, *shard_weight), (LinkProfile::unlimited(), 0.0, None));
        assert_eq!(devices[0].table, CostTable::proportional(20_000.0));
        assert_eq!((devices[0].weight, devices[0].after_s), (1.0, 0.0));
    }

    #[test]
    fn invalid_numbers_are_rejected_with_line_and_column() {
        for (device, rest) in [
            (r#"{"tokens_per_s":0}"#, ""),
            (r#"{"tokens_per_s":[]}"#, ""),
            (r#"{"name":"gpu:0"}"#, ""),
            (r#"{"tokens_per_s":5,"after_s":-1}"#, ""),
            (r#"{"tokens_per_s":5,"weight":-1}"#, ""),
            (r#"{"tokens_per_s":5,"max_token":7}"#, ""),
            (r#"{"tokens_per_s":5}"#, r#","link":{"bytes_per_s":0}"#),
            (r#"{"tokens_per_s":5}"#, r#","link":{"latency_s":-0.5}"#),
            (r#"{"tokens_per_s":5}"#, r#","host_s":-0.5"#),
        ] {
            let json = format!(r#"{{"ranks":[{{"host":"a","devices":[{device}]{rest}}}]}}"#);
            let error = serde_json::from_str::<Profile>(&json).unwrap_err().to_string();
            assert!(error.contains("line 1 column"), "{json}: {error}");
        }
    }
}
