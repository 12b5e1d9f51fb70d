//! Everything observable: the `events` of a run with their sinks and report, and `scores` of
//! translations and other predictions.
//!
//! The trainer on rank 0 emits events. During a run, nothing else writes to `metrics.jsonl` or to
//! the terminal.

pub mod events;
mod format;
pub mod scores;

pub use events::report::{self, Report};
pub use events::sink::{Background, Journal, Sink, terminal};
pub use events::{Change, Event, RankReport, RankSeconds, ShareChange, WorkerReport, WorkerTotals};
pub use format::{bytes, count, duration, median, rate, thousands};
pub use scores::{Bleu, BleuSums, BleuTokenizer, Chrf, ChrfSums, Corpus, SACREBLEU, Smoothing, UnequalLines};
pub use scores::{ClassSums, CorrelationSums, F1Averages, F1Score, LabelCounts, ScoreError, spearman};
pub use scores::{EntityReport, EntitySpan, EntitySums, TagScheme, entity_spans, entity_types};
pub use scores::{GoldEntity, GoldMention, LinkSums, PredictedMention};
