//! Checkpoints: the store on disk (`store`), background writing (`writer`, `snapshot`),
//! verification (`manifest`, `verify`), and uses of a finished checkpoint (`weights`, `export`,
//! `average`).

pub mod average;
mod disk_space;
pub mod export;
pub(crate) mod finite;
mod manifest;
mod retention;
mod save_error;
mod shapes;
mod snapshot;
mod store;
mod tensors;
#[cfg(test)]
pub(crate) mod tests;
mod verify;
pub mod weights;
mod weights_error;
mod writer;

pub(crate) use disk_space::free_bytes;
pub use save_error::SaveError;
pub(crate) use shapes::stored_shapes;
pub(crate) use snapshot::{RunConstants, Snapshot, size_bytes};
pub use store::Checkpoints;
pub(crate) use store::{Restored, STATE, Saved, WEIGHTS, load, step_of};
pub(crate) use tensors::{write_entries, write_flat};
pub(crate) use verify::{CheckpointPart, first_intact, verify};
pub use weights_error::{TensorProblem, WeightsError};
pub(crate) use writer::{CheckpointWriter, RETRY, SaveStatus};
