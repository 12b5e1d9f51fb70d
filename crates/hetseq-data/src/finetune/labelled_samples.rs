//! What all samples for fine-tuning can do. The tasks of `hetseq-train` call it for the training
//! and the validation samples alike.

use crate::arrays::Batch;
use crate::error::DataError;
use crate::plan::SampleLengths;

/// Samples of labelled text, numbered from 0.
pub trait LabelledSamples: Send + Sync {
    /// 16 hexadecimal digits that differ between any two sets of samples. Ranks compare them.
    fn fingerprint(&self) -> String;

    /// The padded length of each sample.
    fn lengths(&self) -> SampleLengths;

    /// Builds a batch of the given samples. A sample that does not exist is an error.
    fn collate(&self, ids: &[u32]) -> Result<Batch, DataError>;
}
