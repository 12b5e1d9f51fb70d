//! Everything observable: one event enum, the sinks that show it, and the meters behind a summary.
//!
//! The trainer on rank 0 emits events; nothing else writes to `metrics.jsonl` or to the terminal while a run goes on.

mod event;
mod format;
pub mod report;
pub mod sink;
mod workers;

pub use event::{Change, Event, RankReport, WorkerReport};
pub use format::{bytes, duration, median, thousands};
pub use report::Report;
pub use sink::{Console, Journal, Sink};
pub use workers::{RankSeconds, Workers};
