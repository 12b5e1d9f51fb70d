//! Writes that survive a power cut: a file has its old or its new content, never a part, and new
//! directories persist. Used by every crate that writes files. Directories that are complete or
//! absent (checkpoints, exports) are built on [`create_dir_all`] and [`sync_dir`]. Also [`expand_home`], for paths
//! that users write.

mod atomic_file;
mod directory;
mod home;

pub use atomic_file::{AtomicFile, create_new, replace, write_atomic};
pub use directory::{create_dir_all, sync_dir};
pub use home::expand_home;
