//! Everything observable: one event enum, the sinks that show it, the meters behind a summary, and the scores of
//! translations.
//!
//! The trainer on rank 0 emits events; nothing else writes to `metrics.jsonl` or to the terminal while a run goes on.

pub mod bleu;
pub mod chrf;
mod corpus;
mod event;
mod format;
mod ngrams;
pub mod report;
pub mod sink;
mod words;
mod workers;

pub use bleu::{Bleu, BleuSums, Smoothing, Tokenizer};
pub use chrf::{Chrf, ChrfSums};
pub use corpus::{Corpus, SACREBLEU, UnequalLines};
pub use event::{Change, Event, RankReport, WorkerReport};
pub use format::{bytes, duration, median, thousands};
pub use report::Report;
pub use sink::{Background, Console, Journal, Sink, terminal};
pub use workers::{RankSeconds, Workers};
