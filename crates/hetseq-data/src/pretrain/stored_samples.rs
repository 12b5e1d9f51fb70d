//! Samples with stored masks: shards in NVIDIA's layout. Opened by `PretrainData`.
//!
//! All shards are decoded on opening, once and in parallel. So a damaged shard is found before
//! training, and every sample is directly accessible: the plan shuffles over all shards, and each
//! sample of a batch comes from another shard. Decoded rows take a quarter of the size of HDF5. If
//! the rows of all splits together may exceed `memory_mib`, each shard is unpacked into a file in
//! `unpack_dir` and mapped instead; the next run reuses the files.

use std::path::{Path, PathBuf};

use fs_err as fs;
use rayon::prelude::*;

use super::batch::PretrainBatch;
use super::config::PretrainConfig;
use crate::error::{CorpusError, DataError};
use crate::plan::SampleLengths;
use crate::source::bytes::{Bytes, IdWidth, write_atomic};
use crate::source::checksum::ChecksummedFile;
use crate::source::corpus::CorpusSplit;
use crate::source::hdf5::{self, Hdf5Shape};
use crate::source::rows::{Row, Rows};
use crate::source::text::TextFile;

const UNPACKED_DIR: &str = ".unpacked";

/// The samples of all shards, numbered shard by shard in the order of file names.
#[derive(Debug)]
pub struct StoredSamples {
    config: PretrainConfig,
    shards: Vec<Rows>,
    /// The number of samples up to the end of each shard.
    ends: Vec<u32>,
}

impl StoredSamples {
    /// Reads the shards of a split: `.hdf5` and `.h5` files whose names contain its word (`train`,
    /// `training`; `valid`, `validation`, `val`, `test`, `dev`, `eval`). If no file name has such a
    /// word, all files are for training.
    pub fn open(dir: &Path, split: CorpusSplit, config: &PretrainConfig) -> Result<Self, DataError> {
        config.check()?;
        let files = shard_files(dir, split)?;
        let mut shapes: Vec<Hdf5Shape> =
            files.par_iter().map(|path| hdf5::read_shape(path)).collect::<Result<_, _>>()?;
        // Training holds both splits. A bad shard of the other split is reported when it is opened.
        for other in CorpusSplit::ALL.into_iter().filter(|&other| other != split) {
            let files = shard_files(dir, other).unwrap_or_default();
            shapes.par_extend(files.par_iter().filter_map(|path| hdf5::read_shape(path).ok()));
        }
        let unpack_dir = match max_bytes(&shapes, config.vocabulary) > (config.memory_mib as u64) << 20 {
            true => Some(config.unpack_dir.clone().unwrap_or_else(|| dir.join(UNPACKED_DIR))),
            false => None,
        };
        if let Some(dir) = &unpack_dir {
            fs::create_dir_all(dir).map_err(|reason| DataError::Io { path: dir.clone(), reason })?;
        }
        let shards: Vec<Rows> = files
            .par_iter()
            .map(|path| match &unpack_dir {
                None => Rows::new(path, Bytes::Owned(hdf5::read_rows(path, config.vocabulary)?)),
                Some(dir) => unpacked(path, dir, config.vocabulary),
            })
            .collect::<Result<_, _>>()?;

        let samples: u64 = shards.iter().map(|rows| rows.len() as u64).sum();
        if samples >= u64::from(u32::MAX) {
            return Err(CorpusError::TooManySamples { dir: dir.to_owned(), samples }.into());
        }
        let ends = shards.iter().scan(0, |end, rows| {
            *end += rows.len() as u32;
            Some(*end)
        });
        let ends = ends.collect();
        Ok(StoredSamples { config: config.clone(), shards, ends })
    }

    pub fn len(&self) -> usize {
        self.ends.last().map_or(0, |&end| end as usize)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The size of the decoded rows in bytes, in memory or mapped.
    pub fn size(&self) -> u64 {
        self.shards.iter().map(|rows| rows.size() as u64).sum()
    }

    /// The largest id in the data.
    pub fn largest_id(&self) -> u32 {
        self.shards.iter().map(|rows| rows.largest_id).max().unwrap_or(0)
    }

    /// The padded length of the longest batch.
    pub fn longest(&self) -> usize {
        self.config.padded(self.shards.iter().map(|rows| rows.longest_row as usize).max().unwrap_or(0))
    }

    /// The padded length of each sample.
    pub fn lengths(&self) -> SampleLengths {
        let rows = self.shards.iter().flat_map(|rows| (0..rows.len()).map(|row| rows.row_tokens(row)));
        SampleLengths::PerSample(rows.map(|tokens| self.config.padded(tokens) as u32).collect())
    }

    /// A hash of the samples, independent of how they were packed.
    pub fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        self.shards.iter().for_each(|rows| {
            hasher.update(rows.hash());
        });
        hasher.finalize().to_hex()[..16].to_owned()
    }

    /// The files that shards were unpacked into, for checksum verification.
    pub fn checksummed_files(&self) -> Vec<ChecksummedFile> {
        self.shards.iter().filter_map(Rows::checksummed_file).collect()
    }

    /// Builds a batch. Masks are stored, so no key is needed.
    pub fn collate(&self, ids: &[u32]) -> Result<PretrainBatch, DataError> {
        let mut rows = vec![Row::default(); ids.len()];
        for (row, &id) in rows.iter_mut().zip(ids) {
            self.read(id, row)?;
        }
        // NVIDIA pads with 0 for any vocabulary; padding is not attended to.
        Ok(PretrainBatch::new(&rows, 0, &self.config))
    }

    fn read(&self, id: u32, row: &mut Row) -> Result<(), DataError> {
        let at = self.ends.partition_point(|&end| end <= id);
        let Some(rows) = self.shards.get(at) else {
            return Err(CorpusError::NoSuchSample { sample: id, samples: self.len() }.into());
        };
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        rows.read((id - start) as usize, row)
    }
}

/// An upper bound of the size of decoded rows. It counts padding, which is not stored.
fn max_bytes(shapes: &[Hdf5Shape], vocabulary: Option<usize>) -> u64 {
    let id = IdWidth::for_vocabulary(vocabulary.unwrap_or(0)).bytes() as u64;
    let row = |shape: &Hdf5Shape| 11 + id * shape.length as u64 + (2 + id) * shape.predictions as u64;
    shapes.iter().map(|shape| shape.rows as u64 * row(shape)).sum()
}

/// Maps a shard that was unpacked before, or unpacks it now. The file name contains the identity of
/// the shard.
fn unpacked(path: &Path, dir: &Path, vocabulary: Option<usize>) -> Result<Rows, DataError> {
    let bytes = fs::metadata(path).map_err(|reason| DataError::Io { path: path.to_owned(), reason })?.len();
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let identity = TextFile { path: path.to_owned(), name: name.clone(), bytes }.identity()?;
    let target = dir.join(format!("{name}.{identity}.rows"));
    if target.exists()
        && let Ok(rows) = Rows::new(&target, Bytes::map(&target)?)
        && vocabulary.is_none_or(|vocabulary| (rows.largest_id as usize) < vocabulary)
    {
        return Ok(rows);
    }
    let bytes = hdf5::read_rows(path, vocabulary)?;
    write_atomic(&target, |file| file.write_all(&bytes))?;
    drop(bytes);
    Rows::new(&target, Bytes::map(&target)?)
}

/// The HDF5 files of a split in a directory, by name.
pub(super) fn shard_files(dir: &Path, split: CorpusSplit) -> Result<Vec<PathBuf>, DataError> {
    if !dir.is_dir() {
        return Err(CorpusError::NoDirectory { dir: dir.to_owned() }.into());
    }
    let failed = |reason| DataError::Io { path: dir.to_owned(), reason };
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let is_hdf5 = path.extension().is_some_and(|ending| ending == "hdf5" || ending == "h5");
        if is_hdf5 && !name.starts_with('.') {
            files.push((path, split_of(&name)));
        }
    }
    files.sort();
    let none_named = files.iter().all(|(_, named)| named.is_none());
    let is_wanted = |named: Option<CorpusSplit>| named == Some(split) || (none_named && split == CorpusSplit::Train);
    let wanted: Vec<PathBuf> = files.into_iter().filter(|(_, named)| is_wanted(*named)).map(|(path, _)| path).collect();
    if wanted.is_empty() {
        let remedy = match split {
            CorpusSplit::Train => "add .hdf5 files with `train` or `training` in their names",
            CorpusSplit::Valid => "add .hdf5 files with `valid` or `test` in their names",
        };
        return Err(CorpusError::NoSuchSplit { dir: dir.to_owned(), split: split.name(), remedy }.into());
    }
    Ok(wanted)
}

/// The split that a file name contains. Held-out words take precedence, as in
/// `pretraining_test_0.hdf5`.
fn split_of(name: &str) -> Option<CorpusSplit> {
    let name = name.to_lowercase();
    let words =
        || name.split(|c: char| !c.is_alphanumeric()).map(|word| word.trim_end_matches(|c: char| c.is_numeric()));
    let has = |known: &[&str]| words().any(|word| known.contains(&word));
    if has(&["valid", "validation", "val", "test", "testing", "dev", "eval"]) {
        return Some(CorpusSplit::Valid);
    }
    has(&["train", "training"]).then_some(CorpusSplit::Train)
}

/// Whether a directory holds shards in NVIDIA's layout.
pub(super) fn has_shards(dir: &Path) -> bool {
    CorpusSplit::ALL.iter().any(|&split| shard_files(dir, split).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_split_is_found_in_the_file_name() {
        use CorpusSplit::{Train, Valid};
        for (name, split) in [
            ("wikicorpus_en_training_0.hdf5", Some(Train)),
            ("wikicorpus_en_test_12.hdf5", Some(Valid)),
            ("train0.h5", Some(Train)),
            ("pretraining.valid-3.hdf5", Some(Valid)),
            ("latest_part_1.hdf5", None),
            ("TRAIN.hdf5", Some(Train)),
        ] {
            assert_eq!(split_of(name), split, "{name}");
        }
    }
}
