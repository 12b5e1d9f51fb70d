//! Decides which device computes which part of an update, and predicts how long that takes.
//!
//! Machines differ in speed, and an update ends when the slowest is done. So each device gets as
//! much work as lets all devices finish at the same moment. This needs a model of time, and this is
//! the whole model:
//!
//! ```text
//! device i computes  factor_i * (seconds of its micro-batches, by its table)  0 without samples
//!       then copies  after_s_i   its gradient to the host                     0 without samples
//! rank r continues when its slowest device is done, and takes
//!                    host_s_r    sum of its devices, optimizer, parameters    always
//!                    net_s_r     its part of the exchange, limited by its link  always
//! the update takes   the maximum over all ranks
//! ```
//!
//! A rank that is done early sends while others still compute. So the exchange adds to each rank's
//! own time, not to the time of all ranks. For the split, a device therefore finishes at its own
//! time plus `host_s + net_s` of its rank.
//!
//! - [`table`]: the cost of micro-batches on a device, measured at a few sizes when a run starts.
//! - [`profile`]: all measurements of a group; can also be written by hand.
//! - [`network`]: from link speeds to each rank's shard of the gradient and its exchange time.
//! - [`share`](mod@share): from the samples of an update and the devices' costs to each device's
//!   micro-batches.
//! - [`drift`]: the devices' actual times relative to the initial measurement: the factors.
//! - [`planner`]: combines all of this, separates changes from noise, and decides when a new plan
//!   is worth it. This is the entry point.
//! - [`predict`](mod@predict): the time of an update, also with an even split or without a rank.
//!
//! `hetseq-data` decides which samples form an update, and the trainer does all measuring. The plan
//! does not change the result: the update is the same sum over the same samples. Everything is
//! pure: no clock, no I/O, no unkeyed random number, only + - * / and comparisons on f64 in a fixed
//! order. Every rank feeds its own planner the same integers and gets the same bits, so ranks never
//! have to send each other their plans.
//!
//! ```
//! use hetseq_balance::{CostTable, DeviceProfile, LinkProfile, Planner, Profile, RankProfile};
//! use hetseq_balance::{SplitMode, WorkTime};
//!
//! let rank = |host: &str, tokens_per_s| RankProfile {
//!     host: host.into(),
//!     devices: vec![DeviceProfile {
//!         name: "gpu:0".into(),
//!         table: CostTable::proportional(tokens_per_s),
//!         after_s: 0.0,
//!         weight: 1.0,
//!         max_tokens: Some(4096),
//!         max_samples: None,
//!     }],
//!     host_s: 0.0,
//!     link: LinkProfile::unlimited(),
//!     shard_weight: None,
//! };
//! let ranks = vec![rank("big", 30_000.0), rank("small", 10_000.0)];
//! let profile = Profile { task: "bert".into(), parameters: 0, exchange_bytes: 0, ranks };
//! let mut planner = Planner::new(&profile);
//!
//! // 400 samples of 128 tokens: three quarters go to the big one, 32 at a time.
//! let plan = planner.share(SplitMode::Measured, &[128; 400])?;
//! assert_eq!(plan.shares[0].samples(), 0..300);
//! assert_eq!(plan.shares[1].micro.len(), 4);
//! assert!((plan.prediction.update_s - 1.28).abs() < 1e-9);
//!
//! // The actual times; the next plan uses them if that gains something.
//! let time = |base_s| WorkTime { base_s, micros: 1_280_000, after_micros: 0 };
//! planner.observe(&plan.work.iter().map(|work| time(work.base_s)).collect::<Vec<_>>());
//! # Ok::<(), hetseq_balance::BalanceError>(())
//! ```

mod caps;
pub mod drift;
pub mod error;
mod estimate;
pub mod forecast;
pub mod network;
pub mod planner;
pub mod predict;
pub mod profile;
pub mod share;
pub mod simulate;
pub mod table;

pub use error::BalanceError;
pub use forecast::{Forecast, forecast};
pub use network::{exchange_seconds, ring_seconds, shard_weights};
pub use planner::{AssignedWork, Plan, Planner, Replanned, SplitMode, WorkTime};
pub use predict::{DevicePrediction, Prediction, RankPrediction, predict, predict_without, without};
pub use profile::{DeviceProfile, LinkProfile, Profile, RankProfile};
pub use share::Share;
pub use simulate::{Setup, Simulation, simulate};
pub use table::{CostPoint, CostTable};
