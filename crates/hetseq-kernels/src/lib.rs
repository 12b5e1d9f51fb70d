//! Operations of our own behind Burn's tensors. Models call these; nothing here knows of tasks or ranks.

pub mod dropout;

pub use dropout::{dropout, dropout_of_rows};
