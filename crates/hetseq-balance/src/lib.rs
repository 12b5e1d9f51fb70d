//! Who computes which part of an update, and how long that will take.
//!
//! Machines differ, and an update is over when the last of them is done. So every device gets as much as lets all finish at
//! the same moment. That needs a model of time; this is all of it:
//!
//! ```text
//! device i computes   factor_i * (seconds of its micro-batches by its table)    nothing at all without samples
//!        then loads   after_s_i                                                 its gradient to the host
//! rank r goes on when its slowest device is done, and takes
//!                     host_s_r   adding its devices up, optimizer, parameters   always
//!                     net_s_r    its part of the exchange, by its line          always
//! the update takes    the most that any rank takes
//! ```
//!
//! Who is done early sends while others still compute, so the exchange adds to each rank's own time and not to everybody's.
//! A device therefore finishes, as far as sharing is concerned, at its own time plus `host_s + net_s` of its rank.
//!
//! - [`table`]: what micro-batches cost on a device, measured at a few sizes at the start of a run.
//! - [`profile`]: everything that was measured of a group; people can write one too.
//! - [`network`]: from lines to who sums which part of the gradient up, and the seconds that takes.
//! - [`share`](mod@share): from the samples of an update and what devices take to who computes which.
//! - [`drift`]: what devices really take against what was measured at the start: the factors.
//! - [`planner`]: holds all that, tells changes from noise, and decides when a new plan is worth it. Ask this one.
//! - [`predict`](mod@predict): what an update takes, and would take with an even split or without a rank.
//!
//! Which samples form an update is not decided here (`hetseq-data` does that), nor is anything measured: the trainer does.
//! Whatever is planned, the update is the same sum over the same samples. Everything is pure: no clock, no I/O, no unkeyed
//! random number, only + - * / and comparisons on f64 in a fixed order. Every rank feeds its own planner the same integers
//! and gets the same bits, so that the ranks never have to tell each other who does what.
//!
//! ```
//! use hetseq_balance::{CostTable, DeviceProfile, Done, Line, Planner, Profile, RankProfile, Split};
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
//!     line: Line::unlimited(),
//!     own: None,
//! };
//! let ranks = vec![rank("big", 30_000.0), rank("small", 10_000.0)];
//! let mut planner = Planner::new(&Profile { task: "bert".into(), parameters: 0, exchange_bytes: 0, ranks });
//!
//! // 400 samples of 128 tokens: three quarters to the big one, 32 at a time.
//! let plan = planner.share(Split::Measured, &[128; 400])?;
//! assert_eq!(plan.shares[0].samples(), 0..300);
//! assert_eq!(plan.shares[1].micro.len(), 4);
//! assert!((plan.prediction.update_s - 1.28).abs() < 1e-9);
//!
//! // What they really took; the next plan heeds it if that gains something.
//! let done = plan.work.iter().map(|work| Done { base_s: work.base_s, micros: 1_280_000, after_micros: 0 });
//! planner.observe(&done.collect::<Vec<_>>());
//! # Ok::<(), hetseq_balance::BalanceError>(())
//! ```

mod caps;
pub mod drift;
pub mod error;
pub mod forecast;
mod level;
pub mod network;
pub mod planner;
pub mod predict;
pub mod profile;
pub mod share;
pub mod simulate;
pub mod table;

pub use error::BalanceError;
pub use forecast::{Forecast, forecast};
pub use network::{exchange_seconds, ownership, ring_seconds};
pub use planner::{Done, Plan, Planner, Replanned, Split, Work};
pub use predict::{DevicePrediction, Prediction, RankPrediction, predict, predict_without, without};
pub use profile::{DeviceProfile, Line, Profile, RankProfile};
pub use share::Share;
pub use simulate::{Setup, Simulation, simulate};
pub use table::{CostTable, Point};
