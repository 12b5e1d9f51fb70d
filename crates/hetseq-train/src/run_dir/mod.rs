//! The run directory: events (`events`), small files (`run_files`), files of earlier runs
//! (`archive`), requests to stop
//! (`stop_file`), and the lock that excludes a second process (`lock`). Checkpoints have a separate
//! module, [`crate::checkpoint`].

pub(crate) mod archive;
pub(crate) mod audit;
pub(crate) mod events;
pub(crate) mod lock;
pub(crate) mod run_files;
pub(crate) mod stop_file;
