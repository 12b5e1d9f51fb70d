//! A directory of class folders, `train/<class>/...` and `valid/<class>/...`: lists the image files
//! and their classes, in an order that is the same on every machine. Images are read later, one by
//! one (see [`super::decoded_image`]).
//!
//! Opening only reads directories and file sizes, so a million files take seconds. The fingerprint
//! is computed from names and sizes. The image task opens it once per process.

pub mod draw;
mod list;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use crate::error::DataError;
use list::{ImageClass, ListingProgress};

/// Possible names of the validation folder. The first that exists is used.
pub const VALID_NAMES: [&str; 4] = ["valid", "val", "validation", "test"];
const TRAIN_NAME: &str = "train";

/// The class folders that [`open`] found.
#[derive(Debug, Clone)]
pub struct ClassFolders {
    /// Sorted by name. A sample's class is an index into this list.
    pub classes: Vec<String>,
    pub train: ImageFiles,
    /// Empty if there is no validation folder.
    pub valid: ImageFiles,
    fingerprint: String,
}

/// The image files of one split, class by class, sorted by name.
#[derive(Debug, Clone)]
pub struct ImageFiles {
    root: PathBuf,
    files: Vec<(Box<Path>, u32)>,
}

impl ClassFolders {
    /// 16 hexadecimal digits over classes, file names and file sizes. Ranks compare them before
    /// training.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }
}

impl ImageFiles {
    pub fn len(&self) -> usize {
        self.files.len()
    }

    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Returns the path of sample `index`, or `None` if it does not exist.
    pub fn path(&self, index: usize) -> Option<PathBuf> {
        self.files.get(index).map(|(name, _)| self.root.join(name))
    }

    /// Returns the class of sample `index`, an index into [`ClassFolders::classes`].
    pub fn class(&self, index: usize) -> Option<u32> {
        self.files.get(index).map(|(_, class)| *class)
    }
}

/// Whether `dir` has a folder `train`, which marks class folders.
pub fn has_train_folder(dir: &Path) -> bool {
    dir.join(TRAIN_NAME).is_dir()
}

/// Lists the files. Every two seconds it calls `report` with the number of files found so far.
pub fn open(dir: &Path, report: &(dyn Fn(usize) + Sync)) -> Result<ClassFolders, DataError> {
    if !has_train_folder(dir) {
        return Err(DataError::NoTrainFolder { dir: dir.to_owned() });
    }
    let progress = ListingProgress::new(list::REPORT_INTERVAL, report);
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
        train: ImageFiles::collect(train_root, train.into_iter().zip(0..)),
        valid: ImageFiles::collect(valid_root.unwrap_or_default(), valid.into_iter().zip(valid_classes)),
    })
}

/// All image files in `dir` and its folders, sorted by name, folder by folder. At least one.
pub fn images_in(dir: &Path) -> Result<Vec<PathBuf>, DataError> {
    let progress = ListingProgress::new(list::REPORT_INTERVAL, &|_| {});
    let all = list::class(dir, OsString::new(), &progress)?;
    Ok(all.files.into_iter().map(|file| dir.join(file.path)).collect())
}

impl ImageFiles {
    fn collect(root: PathBuf, classes: impl Iterator<Item = (ImageClass, u32)>) -> ImageFiles {
        let with_class =
            |(class, number): (ImageClass, u32)| class.files.into_iter().map(move |file| (file.path, number));
        ImageFiles { root, files: classes.flat_map(with_class).collect() }
    }
}

/// Compares the bytes of names, so that the order does not depend on the locale.
fn compare(a: &OsStr, b: &OsStr) -> std::cmp::Ordering {
    a.as_encoded_bytes().cmp(b.as_encoded_bytes())
}

/// The classes of a split, sorted, each with its files.
fn classes_in(root: &Path, progress: &ListingProgress<'_>) -> Result<Vec<ImageClass>, DataError> {
    let names: Vec<OsString> = list::folders(root)?;
    if names.is_empty() {
        return Err(DataError::NoClasses { dir: root.to_owned() });
    }
    // Of several errors the first by name is returned: it must not depend on the threads.
    let listed: Vec<_> = names.into_par_iter().map(|name| list::class(root, name, progress)).collect();
    listed.into_iter().collect()
}

fn fingerprint(splits: &[&[ImageClass]]) -> String {
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
