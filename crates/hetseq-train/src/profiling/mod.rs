//! Measurements of the machines before the first update: devices (`probe`), links between ranks
//! (`links`), and the profile of the whole cluster that every rank plans from (`cluster`).

pub(crate) mod cluster;
pub mod links;
pub(crate) mod probe;
mod probe_cache;
mod sizes;
