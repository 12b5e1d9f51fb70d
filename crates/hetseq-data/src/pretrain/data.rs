//! What a task opens: samples for pre-training, whichever way they are kept.

use std::path::Path;

use hetseq_random::Key;

use super::batch::PretrainBatch;
use super::config::PretrainConfig;
use super::stored::{StoredSamples, has_shards};
use super::text::TextSamples;
use crate::error::DataError;
use crate::plan::Costs;
use crate::source::checksum::Sealed;
use crate::source::corpus::{CorpusSplit, Manifest, TextCorpus, TextCounts};

/// Samples of one split.
#[derive(Debug)]
pub enum PretrainData {
    /// Masked and paired anew in every epoch.
    Text(TextSamples),
    /// Masked when they were made.
    Stored(StoredSamples),
}

impl PretrainData {
    /// Opens what is in a directory: a corpus of `hetseq prep bert`, or shards in NVIDIA's layout.
    pub fn open(dir: &Path, split: CorpusSplit, config: &PretrainConfig) -> Result<Self, DataError> {
        let is_compact = match Manifest::<TextCounts>::read(dir)? {
            Some(manifest) => manifest.format == Manifest::COMPACT,
            // An unfinished or empty directory is best explained by what it most likely should have been.
            None => !has_shards(dir),
        };
        Ok(match is_compact {
            true => PretrainData::Text(TextSamples::new(TextCorpus::open(dir, split)?, config)?),
            false => PretrainData::Stored(StoredSamples::open(dir, split, config)?),
        })
    }

    /// How many samples an epoch has: always the same, and below 2^32.
    pub fn len(&self) -> usize {
        match self {
            PretrainData::Text(samples) => samples.len(),
            PretrainData::Stored(samples) => samples.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tokens that each sample takes in a batch at most, padding counted.
    pub fn costs(&self) -> Costs {
        match self {
            PretrainData::Text(samples) => samples.costs(),
            PretrainData::Stored(samples) => samples.costs(),
        }
    }

    /// 16 hexadecimal digits that differ between any two sets of samples: ranks compare them.
    pub fn fingerprint(&self) -> String {
        match self {
            PretrainData::Text(samples) => samples.fingerprint(),
            PretrainData::Stored(samples) => samples.fingerprint(),
        }
    }

    /// The mapped files, to be compared with their checksums; those in NVIDIA's layout have none.
    pub fn sealed(&self) -> Vec<Sealed> {
        match self {
            PretrainData::Text(samples) => samples.corpus().sealed(),
            PretrainData::Stored(samples) => samples.sealed(),
        }
    }

    /// How many ids a model needs to know.
    pub fn vocabulary_size(&self) -> usize {
        match self {
            PretrainData::Text(samples) => samples.vocabulary().size(),
            PretrainData::Stored(samples) => samples.largest_id() as usize + 1,
        }
    }

    /// The width of the widest batch.
    pub fn longest(&self) -> usize {
        match self {
            PretrainData::Text(samples) => samples.longest(),
            PretrainData::Stored(samples) => samples.longest(),
        }
    }

    /// Puts samples side by side. `key` gives the key of any sample in this epoch, also of those not asked for.
    pub fn collate(&self, ids: &[u32], key: &dyn Fn(u32) -> Key) -> Result<PretrainBatch, DataError> {
        match self {
            PretrainData::Text(samples) => samples.collate(ids, key),
            PretrainData::Stored(samples) => samples.collate(ids),
        }
    }
}
