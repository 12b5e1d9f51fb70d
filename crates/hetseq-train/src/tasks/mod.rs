//! The built-in tasks. Users add their own with [`Tasks::with`](crate::Tasks::with).

pub mod bert;
pub mod fine_tuning;
pub mod images;
pub(crate) mod initial_weights;
pub(crate) mod python;
mod splits;
pub mod synthetic_bert;
pub mod translation;
