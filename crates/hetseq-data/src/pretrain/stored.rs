//! Samples that were masked when they were made: shards in NVIDIA's layout, used as they are.
//!
//! All shards are decoded when they are opened, once and in parallel, so that a damaged one is found before training and
//! not in the middle of it, and so that any sample can be had at once: the plan shuffles over all shards, and each sample of
//! a batch comes from another one. Decoded rows are a quarter of what HDF5 holds. If those of all splits together may not
//! fit into `memory_mib`, each shard is unpacked into a file in `unpack_dir` and mapped instead; the next run finds the
//! files there.

use std::path::{Path, PathBuf};

use fs_err as fs;
use rayon::prelude::*;

use super::batch::PretrainBatch;
use super::config::PretrainConfig;
use crate::error::{CorpusError, DataError};
use crate::plan::Costs;
use crate::source::bytes::{Bytes, IdWidth, write_whole};
use crate::source::checksum::Sealed;
use crate::source::corpus::CorpusSplit;
use crate::source::hdf5::{self, Hdf5Shape};
use crate::source::rows::{Row, Rows};
use crate::source::text::TextFile;

const UNPACKED_DIR: &str = ".unpacked";

/// Shards as samples, numbered shard by shard in the order of file names.
#[derive(Debug)]
pub struct StoredSamples {
    config: PretrainConfig,
    shards: Vec<Rows>,
    /// The number of samples up to the end of each shard.
    ends: Vec<u32>,
}

impl StoredSamples {
    /// Reads the shards of a split: `.hdf5` and `.h5` files with a word for it in their names (`train`, `training`; `valid`,
    /// `validation`, `val`, `test`, `dev`, `eval`). Where no file has such a word, all are for training.
    pub fn open(dir: &Path, split: CorpusSplit, config: &PretrainConfig) -> Result<Self, DataError> {
        config.check()?;
        let files = shard_files(dir, split)?;
        let mut shapes: Vec<Hdf5Shape> =
            files.par_iter().map(|path| hdf5::read_shape(path)).collect::<Result<_, _>>()?;
        // Training holds both splits. A bad shard of the other one is reported when that is opened.
        for other in CorpusSplit::ALL.into_iter().filter(|&other| other != split) {
            let files = shard_files(dir, other).unwrap_or_default();
            shapes.par_extend(files.par_iter().filter_map(|path| hdf5::read_shape(path).ok()));
        }
        let unpack_dir = match needs(&shapes, config.vocabulary) > (config.memory_mib as u64) << 20 {
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

    /// Bytes of decoded rows, in memory or mapped.
    pub fn size(&self) -> u64 {
        self.shards.iter().map(|rows| rows.size() as u64).sum()
    }

    /// The largest id that occurs.
    pub fn largest_id(&self) -> u32 {
        self.shards.iter().map(|rows| rows.largest_id).max().unwrap_or(0)
    }

    /// The width of the widest batch.
    pub fn longest(&self) -> usize {
        self.config.padded(self.shards.iter().map(|rows| rows.longest_row as usize).max().unwrap_or(0))
    }

    pub fn costs(&self) -> Costs {
        let rows = self.shards.iter().flat_map(|rows| (0..rows.len()).map(|row| rows.row_tokens(row)));
        Costs::PerSample(rows.map(|tokens| self.config.padded(tokens) as u32).collect())
    }

    /// Identifies the samples, however they were packed.
    pub fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        self.shards.iter().for_each(|rows| {
            hasher.update(rows.hash());
        });
        hasher.finalize().to_hex()[..16].to_owned()
    }

    /// The files that shards were unpacked into, to be compared with their checksums.
    pub fn sealed(&self) -> Vec<Sealed> {
        self.shards.iter().filter_map(Rows::sealed).collect()
    }

    /// Puts samples side by side. Their masks are what they are: no key is needed.
    pub fn collate(&self, ids: &[u32]) -> Result<PretrainBatch, DataError> {
        let mut rows = vec![Row::default(); ids.len()];
        for (row, &id) in rows.iter_mut().zip(ids) {
            self.read(id, row)?;
        }
        // NVIDIA pads with 0, whatever the vocabulary; what is there is not attended to.
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

/// The most bytes that decoded rows can take; padding, which is left out, is still counted.
fn needs(shapes: &[Hdf5Shape], vocabulary: Option<usize>) -> u64 {
    let id = IdWidth::for_vocabulary(vocabulary.unwrap_or(0)).bytes() as u64;
    let row = |shape: &Hdf5Shape| 11 + id * shape.length as u64 + (2 + id) * shape.predictions as u64;
    shapes.iter().map(|shape| shape.rows as u64 * row(shape)).sum()
}

/// Maps a shard that was unpacked before, or unpacks it now. The file's name tells whether it is of this shard.
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
    write_whole(&target, |file| file.write_all(&bytes))?;
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
    let none_says = files.iter().all(|(_, said)| said.is_none());
    let is_wanted = |said: Option<CorpusSplit>| said == Some(split) || (none_says && split == CorpusSplit::Train);
    let wanted: Vec<PathBuf> = files.into_iter().filter(|(_, said)| is_wanted(*said)).map(|(path, _)| path).collect();
    if wanted.is_empty() {
        let remedy = match split {
            CorpusSplit::Train => "there must be .hdf5 files with `train` or `training` in their names",
            CorpusSplit::Valid => "there must be .hdf5 files with `valid` or `test` in their names",
        };
        return Err(CorpusError::NoSuchSplit { dir: dir.to_owned(), split: split.name(), remedy }.into());
    }
    Ok(wanted)
}

/// What a name says; held-out words win, as in `pretraining_test_0.hdf5`.
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
    fn names_say_what_a_shard_is_for() {
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
