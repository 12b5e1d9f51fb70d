//! The run's config: its typed form (`schema`, `optim`, `frozen`) and the checks of its values
//! (`validate`), reading it from `run.toml` and `--set` (`file`, `overrides`, `renamed`), and which keys must be
//! equal on all ranks (`rank_match`).

mod file;
mod frozen;
mod optim;
mod overrides;
pub(crate) mod rank_match;
mod renamed;
mod schema;
mod validate;

pub use file::{ConfigSource, suggest};
pub(crate) use optim::Optim;
pub(crate) use renamed::task as current_task_name;
pub use schema::*;
