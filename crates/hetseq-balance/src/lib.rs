//! Who computes which part of an update, and how long that will take.

pub mod drift;
pub mod error;
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
pub use network::{exchange_seconds, ownership, ring_seconds};
pub use planner::{Done, Plan, Planner, Replanned, Split, Work};
pub use predict::{DevicePrediction, Prediction, RankPrediction, predict, predict_without, without};
pub use profile::{DeviceProfile, Line, Profile, RankProfile};
pub use share::Share;
pub use simulate::{Setup, Simulation, simulate};
pub use table::{CostTable, Point};
