//! Text preparation: text files to a tokenizer and shards of tokens. Called by `hetseq prep`.
//!
//! `bert` prepares documents for pre-training, `translate` prepares parallel text. Both cut the
//! input into chunks (`chunks`) and store their progress in the output directory (`directory`), so
//! that an interrupted preparation can resume. The same input and settings give the same bytes for
//! any number of cores.

pub mod bert;
mod chunks;
mod directory;
pub mod translate;

use crate::source::corpus::{CorpusManifest, TextCounts};

/// Receives the progress of a preparation and can stop it.
pub trait PrepObserver: Sync {
    /// A phase called `what` begins, which reads `bytes` of input.
    fn begin(&self, what: &str, bytes: u64);
    /// The phase has read `bytes` of its input so far.
    fn progress(&self, bytes: u64);
    /// Polled often; true stops the preparation at a point from which it can resume.
    fn is_stopped(&self) -> bool;
}

/// The result of a preparation.
#[derive(Debug, Clone, PartialEq)]
pub enum PrepOutcome<C = TextCounts> {
    /// `was_there`: the directory was already complete; nothing was done.
    Finished { manifest: CorpusManifest<C>, was_there: bool },
    /// Stopped by the observer; the same settings resume it.
    Stopped,
}
