//! The events of a run: one enum (`event`), its destinations (`sink`), totals per device and rank
//! (`worker_totals`), and the report made from the events afterwards (`report`).

mod event;
pub mod report;
pub mod sink;
mod worker_totals;

pub use event::{Change, Event, RankReport, ShareChange, WorkerReport};
pub use worker_totals::{RankSeconds, WorkerTotals};
