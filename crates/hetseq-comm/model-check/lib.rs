//! Model check of `regroup/`: the very files of hetseq-comm, driven through all schedules of small
//! groups by stateright. Not a part of the main workspace; `Cargo.toml` says why.
//!
//! `group_state.rs` is a group of ranks with its links, as the driver will run it; `updates.rs` an
//! abstract training on top; `group_model.rs` the adversary and the properties. `tests/` chooses
//! the sizes.

#[allow(dead_code, unused_imports, reason = "the model uses only a part")]
#[path = "../src/regroup/mod.rs"]
mod regroup;

mod group_model;
mod group_state;
mod updates;

pub use group_model::{Checked, Limits, check};
