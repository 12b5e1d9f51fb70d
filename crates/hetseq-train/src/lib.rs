//! The training loop, the devices it runs on, tasks, checkpoints and evaluation. Start reading at
//! [`trainer`].
//!
//! A custom task implements [`Task`] and is registered beside the built-in ones ([`Tasks`]). The
//! command line is in `hetseq-cli`.

pub mod bench;
pub mod checkpoint;
mod config;
mod data;
pub mod devices;
mod error;
pub mod inference;
pub mod prelude;
pub mod profiling;
mod run;
mod run_dir;
mod task;
pub mod tasks;
mod trainer;

/// Hash of the source code. All ranks of a run must have the same. Builds with and without GPUs do.
pub const BUILD: &str = env!("HETSEQ_BUILD");
/// The version text of programs built on this crate.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (build ", env!("HETSEQ_BUILD"), ")");

/// For the models of custom tasks, which then need no version of it of their own.
pub use burn;
pub use checkpoint::{Checkpoints, SaveError};
pub use config::{
    Config, ConfigSource, Every, LeaveWhen, OnSaveError, Reset, Resume, config_reference, suggest, wire_format,
};
pub use devices::{Api, DeviceKind, DeviceSpec, EngineProgram, PrecisionPolicy, devices_named};
pub use error::TrainError;
pub use hetseq_kernels::Dtype;
pub use run::RunOptions;
pub use run_dir::stop_file::StopFile;
pub use task::{Task, TaskData, TaskError, Tasks};
pub use trainer::{Evaluation, RunOutcome, wait_until_free};

/// Counts what fuzz tests allocate.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: hetseq_fuzz::CountingAllocator = hetseq_fuzz::CountingAllocator;
