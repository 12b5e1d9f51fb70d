//! The training loop and what it is made of. Read [`trainer`] first; everything else serves it.
//!
//! A user's own task implements [`Task`] and is registered beside the built-in ones ([`Tasks`]); the command line is in
//! `hetseq-cli`.

pub mod average;
pub mod bench;
mod checkpoint;
mod config;
mod crew;
mod data_check;
mod devices;
pub mod engine;
mod error;
mod evaluate;
pub mod export;
mod finite;
mod flat;
pub mod generate;
mod header;
mod identity;
mod itinerary;
pub mod lines;
mod loader;
mod loss_scale;
mod memory;
mod observer;
mod overrides;
pub mod prelude;
mod probe;
mod registry;
mod replica;
mod roster;
mod run;
mod run_files;
mod run_lock;
mod signals;
mod skips;
mod source;
mod start;
mod state;
mod task;
pub mod tasks;
mod trainer;
pub mod weights;

/// Tells builds of one version apart: ranks of a run must have the same. The same for builds with
/// and without GPUs.
pub const BUILD: &str = env!("HETSEQ_BUILD");
/// What a program built on this crate prints as its version.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (build ", env!("HETSEQ_BUILD"), ")");

pub use checkpoint::{Checkpoints, Trouble};
pub use config::{Config, Every, OnError, Reset, Resume, WireType};
pub use devices::{Api, DeviceSpec, Place, Wanted, devices_named};
pub use error::TrainError;
pub use evaluate::Evaluation;
pub use registry::Tasks;
pub use run::RunOptions;
pub use source::{ConfigSource, suggest};
pub use task::{Task, TaskError};
pub use trainer::End;
