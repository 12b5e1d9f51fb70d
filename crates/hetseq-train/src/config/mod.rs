//! The run's config: its typed form (`schema`, `every`, `optim`, `frozen`) and the checks of its values
//! (`validate`), reading it from `run.toml` and `--set` (`file`, `overrides`, `renamed`), messages about wrong
//! names and missing keys (`names`, `missing_keys`, `nearby_files`), and which keys must be equal on all ranks
//! (`rank_match`). `reference` documents all keys.

mod every;
mod file;
mod frozen;
mod missing_keys;
pub(crate) mod names;
mod nearby_files;
mod optim;
mod overrides;
pub(crate) mod rank_match;
mod reference;
mod renamed;
mod schema;
mod syntax;
mod validate;

pub use every::Every;
pub use file::ConfigSource;
pub use names::suggest;
pub(crate) use optim::Optim;
pub use reference::config_reference;
pub(crate) use renamed::task as current_task_name;
pub use schema::*;
