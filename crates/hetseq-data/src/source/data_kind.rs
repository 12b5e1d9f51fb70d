//! What a directory holds, by the names of its files: for messages about data of another task.
//! Called by tasks before they open their data, and by `hetseq prep verify`.

use std::path::Path;

use fs_err as fs;

use super::corpus::{self, CorpusManifest};
use super::folder;
use super::parallel_corpus::PairCounts;
use crate::error::{CorpusError, DataError};

/// A kind of training data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataKind {
    /// Text for BERT, of `hetseq prep bert`.
    Text,
    /// Shards in NVIDIA's layout.
    Shards,
    /// Pairs of lines, of `hetseq prep translate`.
    Pairs,
    /// Images in MNIST's idx files or in class folders.
    Images,
}

impl DataKind {
    /// The kind of data in `dir`. `None` if there is none, or another one.
    pub fn of(dir: &Path) -> Result<Option<Self>, DataError> {
        if !dir.is_dir() {
            return Ok(None);
        }
        if let Some(format) = corpus::format(dir)? {
            return Ok(match format.as_str() {
                CorpusManifest::COMPACT => Some(DataKind::Text),
                CorpusManifest::HDF5 => Some(DataKind::Shards),
                CorpusManifest::<PairCounts>::PAIRS => Some(DataKind::Pairs),
                _ => None,
            });
        }
        let failed = |reason| DataError::Io { path: dir.to_owned(), reason };
        let mut kind = None;
        for entry in fs::read_dir(dir).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name().to_string_lossy().to_lowercase();
            if name.ends_with(".hdf5") || name.ends_with(".h5") {
                return Ok(Some(DataKind::Shards));
            }
            if name.contains("-idx3-ubyte") {
                kind = Some(DataKind::Images);
            }
        }
        Ok(kind.or_else(|| folder::has_train_folder(dir).then_some(DataKind::Images)))
    }

    /// Refuses a directory with data of another kind than `expected`. Others, and missing ones, are
    /// left to the reader, which knows what it looks for.
    pub fn check(dir: &Path, expected: &[DataKind]) -> Result<(), DataError> {
        match DataKind::of(dir)? {
            Some(found) if !expected.contains(&found) => {
                let expected = expected.first().copied().unwrap_or(DataKind::Text);
                Err(CorpusError::OtherTask { dir: dir.to_owned(), found, expected }.into())
            }
            _ => Ok(()),
        }
    }

    /// What it is, in words.
    pub fn description(self) -> &'static str {
        match self {
            DataKind::Text => "text for BERT",
            DataKind::Shards => "HDF5 shards for BERT",
            DataKind::Pairs => "pairs of lines for translation",
            DataKind::Images => "images",
        }
    }

    /// The task that trains on it.
    pub fn task(self) -> &'static str {
        match self {
            DataKind::Text | DataKind::Shards => "bert-pretrain",
            DataKind::Pairs => "translation",
            DataKind::Images => "images",
        }
    }

    /// What makes such data.
    pub fn made_by(self) -> &'static str {
        match self {
            DataKind::Text | DataKind::Shards => "hetseq prep bert",
            DataKind::Pairs => "hetseq prep translate",
            DataKind::Images => "hetseq prep digits",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_is_found_by_the_files() {
        let kind = |files: &[(&str, &str)]| {
            let dir = tempfile::tempdir().unwrap();
            for (name, text) in files {
                let path = dir.path().join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            DataKind::of(dir.path()).unwrap()
        };
        assert_eq!(kind(&[]), None);
        assert_eq!(kind(&[("corpus.json", r#"{"format": "compact"}"#)]), Some(DataKind::Text));
        assert_eq!(kind(&[("corpus.json", r#"{"format": "pairs"}"#)]), Some(DataKind::Pairs));
        assert_eq!(kind(&[("a_training_0.hdf5", "")]), Some(DataKind::Shards));
        assert_eq!(kind(&[("train-images-idx3-ubyte.gz", "")]), Some(DataKind::Images));
        assert_eq!(kind(&[("notes.txt", "")]), None);
        assert_eq!(DataKind::of(Path::new("/nowhere")).unwrap(), None);
    }
}
