//! A directory of class folders, `train/<class>/...` and `valid/<class>/...`: which picture files there are, of which
//! class, in one order that is the same on every machine. Pictures are read later, one by one (see [`super::picture`]).
//!
//! Opening reads directories and sizes only, so that a million files take seconds; names and sizes are also the
//! fingerprint. The image task opens it once per process.

pub mod draw;
mod list;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use crate::error::DataError;
use list::{Class, Progress};

/// Folders that may hold the images to validate on; the first that exists counts.
pub const VALID_NAMES: [&str; 4] = ["valid", "val", "validation", "test"];
const TRAIN_NAME: &str = "train";

/// What [`open`] found.
#[derive(Debug, Clone)]
pub struct ClassFolders {
    /// Sorted by name; a sample's class is a place in this list.
    pub classes: Vec<String>,
    pub train: Files,
    /// Empty if there is no such folder.
    pub valid: Files,
    fingerprint: String,
}

/// The picture files of one split, class by class, sorted by name.
#[derive(Debug, Clone)]
pub struct Files {
    root: PathBuf,
    files: Vec<(Box<Path>, u32)>,
}

impl ClassFolders {
    /// 16 hexadecimal digits over classes, file names and file sizes: ranks compare them before they train together.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }
}

impl Files {
    pub fn len(&self) -> usize {
        self.files.len()
    }

    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Where sample `index` is; None if there is no such sample.
    pub fn path(&self, index: usize) -> Option<PathBuf> {
        self.files.get(index).map(|(name, _)| self.root.join(name))
    }

    /// The class of sample `index`, a place in [`ClassFolders::classes`].
    pub fn class(&self, index: usize) -> Option<u32> {
        self.files.get(index).map(|(_, class)| *class)
    }
}

/// Whether `dir` looks like class folders: whether there is a folder `train`.
pub fn is_here(dir: &Path) -> bool {
    dir.join(TRAIN_NAME).is_dir()
}

/// Lists the files. `say` is told how many have been found so far, every two seconds if it takes that long.
pub fn open(dir: &Path, say: &(dyn Fn(usize) + Sync)) -> Result<ClassFolders, DataError> {
    if !is_here(dir) {
        return Err(DataError::NoTrainFolder { dir: dir.to_owned() });
    }
    let progress = Progress::new(list::SAY_EVERY, say);
    let train_root = dir.join(TRAIN_NAME);
    let train = classes_in(&train_root, &progress)?;
    let valid_root = VALID_NAMES.iter().map(|name| dir.join(name)).find(|path| path.is_dir());
    let valid = match &valid_root {
        Some(root) => classes_in(root, &progress)?,
        None => Vec::new(),
    };
    let mut valid_classes = Vec::with_capacity(valid.len());
    for class in &valid {
        let known = train.binary_search_by(|known| compare(&known.name, &class.name));
        let unknown = |_| DataError::UnknownClass {
            dir: valid_root.clone().unwrap_or_default().join(&class.name),
            train: train_root.clone(),
        };
        valid_classes.push(known.map_err(unknown)? as u32);
    }
    Ok(ClassFolders {
        classes: train.iter().map(|class| class.name.to_string_lossy().into_owned()).collect(),
        fingerprint: fingerprint(&[&train, &valid]),
        train: Files::gather(train_root, train.into_iter().zip(0..)),
        valid: Files::gather(valid_root.unwrap_or_default(), valid.into_iter().zip(valid_classes)),
    })
}

impl Files {
    fn gather(root: PathBuf, classes: impl Iterator<Item = (Class, u32)>) -> Files {
        let named = |(class, number): (Class, u32)| class.files.into_iter().map(move |file| (file.path, number));
        Files { root, files: classes.flat_map(named).collect() }
    }
}

/// By the bytes of the name: the same order whatever the machine's language.
fn compare(a: &OsStr, b: &OsStr) -> std::cmp::Ordering {
    a.as_encoded_bytes().cmp(b.as_encoded_bytes())
}

/// The classes of a split, sorted, each with its files.
fn classes_in(root: &Path, progress: &Progress<'_>) -> Result<Vec<Class>, DataError> {
    let names: Vec<OsString> = list::folders(root)?;
    if names.is_empty() {
        return Err(DataError::NoClasses { dir: root.to_owned() });
    }
    // Of several errors the first by name: which one is told must not depend on the threads.
    let listed: Vec<_> = names.into_par_iter().map(|name| list::class(root, name, progress)).collect();
    listed.into_iter().collect()
}

fn fingerprint(splits: &[&[Class]]) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut text = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    for split in splits {
        text(&(split.len() as u64).to_le_bytes());
        for class in *split {
            text(class.name.as_encoded_bytes());
            text(&(class.files.len() as u64).to_le_bytes());
            for file in &class.files {
                text(file.path.as_os_str().as_encoded_bytes());
                text(&file.bytes.to_le_bytes());
            }
        }
    }
    hasher.finalize().to_hex()[..16].to_owned()
}
