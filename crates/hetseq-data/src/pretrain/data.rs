//! Pre-training samples, built from text or stored. Opened by the BERT task.

use std::path::Path;

use hetseq_random::Key;

use super::batch::PretrainBatch;
use super::config::PretrainConfig;
use super::stored_samples::{StoredSamples, has_shards};
use super::text_samples::TextSamples;
use crate::error::DataError;
use crate::plan::SampleLengths;
use crate::source::checksum::ChecksummedFile;
use crate::source::corpus::{CorpusManifest, CorpusSplit, TextCorpus, TextCounts};

/// Samples of one split.
#[derive(Debug)]
pub enum PretrainData {
    /// New masks and pairs in every epoch.
    Text(TextSamples),
    /// Masks stored with the data.
    Stored(StoredSamples),
}

impl PretrainData {
    /// Opens a directory: a corpus of `hetseq prep bert`, or shards in NVIDIA's layout.
    pub fn open(dir: &Path, split: CorpusSplit, config: &PretrainConfig) -> Result<Self, DataError> {
        let is_compact = match CorpusManifest::<TextCounts>::read(dir)? {
            Some(manifest) => manifest.format == CorpusManifest::COMPACT,
            // For an unfinished or empty directory, the error of a text corpus is the most helpful.
            None => !has_shards(dir),
        };
        Ok(match is_compact {
            true => PretrainData::Text(TextSamples::new(TextCorpus::open(dir, split)?, config)?),
            false => PretrainData::Stored(StoredSamples::open(dir, split, config)?),
        })
    }

    /// The number of samples per epoch; the same in all epochs, and below 2^32.
    pub fn len(&self) -> usize {
        match self {
            PretrainData::Text(samples) => samples.len(),
            PretrainData::Stored(samples) => samples.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The largest padded length of each sample.
    pub fn lengths(&self) -> SampleLengths {
        match self {
            PretrainData::Text(samples) => samples.lengths(),
            PretrainData::Stored(samples) => samples.lengths(),
        }
    }

    /// 16 hexadecimal digits that differ between any two sets of samples. Ranks compare them.
    pub fn fingerprint(&self) -> String {
        match self {
            PretrainData::Text(samples) => samples.fingerprint(),
            PretrainData::Stored(samples) => samples.fingerprint(),
        }
    }

    /// The mapped files, for checksum verification; files in NVIDIA's layout have no checksums.
    pub fn checksummed_files(&self) -> Vec<ChecksummedFile> {
        match self {
            PretrainData::Text(samples) => samples.corpus().checksummed_files(),
            PretrainData::Stored(samples) => samples.checksummed_files(),
        }
    }

    /// The vocabulary size that a model needs.
    pub fn vocabulary_size(&self) -> usize {
        match self {
            PretrainData::Text(samples) => samples.vocabulary().size(),
            PretrainData::Stored(samples) => samples.largest_id() as usize + 1,
        }
    }

    /// The padded length of the longest batch.
    pub fn longest(&self) -> usize {
        match self {
            PretrainData::Text(samples) => samples.longest(),
            PretrainData::Stored(samples) => samples.longest(),
        }
    }

    /// Builds a batch. `key` returns the key of any sample in this epoch, also of samples outside
    /// `ids`.
    pub fn collate(&self, ids: &[u32], key: &dyn Fn(u32) -> Key) -> Result<PretrainBatch, DataError> {
        match self {
            PretrainData::Text(samples) => samples.collate(ids, key),
            PretrainData::Stored(samples) => samples.collate(ids),
        }
    }
}
