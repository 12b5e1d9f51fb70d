//! The training and validation data of a task, where validation may be missing. Used by the tasks
//! that read text.

use hetseq_data::error::CorpusError;
use hetseq_data::{CorpusSplit, DataError, SampleLengths};

use crate::task::Split;

pub(super) struct Splits<D> {
    pub(super) train: D,
    /// `None` if the data has no validation split.
    pub(super) valid: Option<D>,
}

impl<D> Splits<D> {
    /// Opens the splits of a corpus.
    pub(super) fn open(open: impl Fn(CorpusSplit) -> Result<D, DataError>) -> Result<Self, DataError> {
        let train = open(CorpusSplit::Train)?;
        let valid = match open(CorpusSplit::Valid) {
            Ok(data) => Some(data),
            Err(DataError::Corpus(CorpusError::NoSuchSplit { .. })) => None,
            Err(error) => return Err(error),
        };
        Ok(Splits { train, valid })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &D> {
        [Some(&self.train), self.valid.as_ref()].into_iter().flatten()
    }

    /// The data of a split that has samples.
    pub(super) fn of(&self, split: Split) -> &D {
        match (split, &self.valid) {
            (Split::Valid, Some(valid)) => valid,
            _ => &self.train,
        }
    }

    /// Lengths of the samples of a split; a missing one has none.
    pub(super) fn lengths(&self, split: Split, lengths: impl Fn(&D) -> SampleLengths) -> SampleLengths {
        match (split, &self.valid) {
            (Split::Valid, None) => SampleLengths::PerSample(Vec::new()),
            _ => lengths(self.of(split)),
        }
    }

    pub(super) fn fingerprint(&self, fingerprint: impl Fn(&D) -> String) -> String {
        let valid = self.valid.as_ref().map_or_else(|| "none".to_owned(), &fingerprint);
        format!("{} {valid}", fingerprint(&self.train))
    }
}
