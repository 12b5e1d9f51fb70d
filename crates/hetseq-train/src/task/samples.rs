//! The samples of a micro-batch, as a task's `collate` gets them: ids, random keys, and a way to
//! skip samples that cannot be read. Created by the loader.

use std::sync::{Mutex, PoisonError};

use hetseq_random::Key;

use super::skipped_samples::SkippedSample;

/// A part of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Split {
    Train,
    Valid,
}

/// The samples of one micro-batch, to be collated.
#[derive(Debug)]
pub struct Samples<'a> {
    pub split: Split,
    /// Indices into [`TaskData::lengths`](super::TaskData::lengths) of this split.
    pub ids: &'a [u32],
    epoch_key: Key,
    skipped: Mutex<Vec<SkippedSample>>,
}

impl<'a> Samples<'a> {
    pub(crate) fn new(split: Split, ids: &'a [u32], epoch_key: Key) -> Self {
        Samples { split, ids, epoch_key, skipped: Mutex::default() }
    }

    /// The random key of sample `id` in this epoch, for augmentation or masking. It is the same on
    /// every worker.
    pub fn key(&self, id: u32) -> Key {
        self.epoch_key.index(u64::from(id))
    }

    /// The key of all samples in this epoch, for a task that derives keys itself.
    pub(crate) fn epoch_key(&self) -> Key {
        self.epoch_key
    }

    /// Skips the sample `id`. `reason` must name the file.
    ///
    /// The samples of an update are fixed, so a skipped sample keeps its place in the micro-batch.
    /// The task must give it a weight of zero: no loss, no score, and nothing in the batch's
    /// counts. The reason is logged once, and the end of the run reports how many samples were
    /// skipped.
    pub fn skip(&self, id: u32, reason: impl std::fmt::Display) {
        let mut skipped = self.skipped.lock().unwrap_or_else(PoisonError::into_inner);
        skipped.push(SkippedSample { sample: id, reason: reason.to_string() });
    }

    /// The skipped samples, sorted by id, so that the order does not depend on threads.
    pub(crate) fn into_skipped(self) -> Vec<SkippedSample> {
        let mut skipped = self.skipped.into_inner().unwrap_or_else(PoisonError::into_inner);
        skipped.sort_by_key(|skipped| skipped.sample);
        skipped
    }
}
