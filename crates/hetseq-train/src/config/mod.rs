//! The run's config: its typed form (`schema`, `optim`, `frozen`) and the checks of its values
//! (`validate`), reading it from `run.toml` and `--set` (`file`, `overrides`, `renamed`), and which keys must be
//! equal on all ranks (`rank_match`). `reference` documents all keys.

mod file;
mod frozen;
mod optim;
mod overrides;
pub(crate) mod rank_match;
mod reference;
mod renamed;
mod schema;
mod validate;

pub use file::{ConfigSource, suggest};
pub(crate) use optim::Optim;
pub use reference::config_reference;
pub(crate) use renamed::task as current_task_name;
pub use schema::*;
