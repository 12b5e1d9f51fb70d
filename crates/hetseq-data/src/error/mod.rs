//! The error type of this crate.
//!
//! Each variant carries the data a caller needs to handle it. Its message says what happened,
//! where, and what to do. Sources return it; the plan and the cursor cannot fail.

mod corpus_error;
mod finetune_error;

use std::io;
use std::path::PathBuf;

pub use corpus_error::CorpusError;
pub use finetune_error::FinetuneError;

#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// An error of a text corpus.
    #[error(transparent)]
    Corpus(#[from] CorpusError),

    /// An error of labelled text.
    #[error(transparent)]
    Finetune(#[from] FinetuneError),

    /// `reason` comes from `fs_err` and already names the path and the operation.
    #[error("{reason}; check the path, its permissions and the free space")]
    Io { path: PathBuf, reason: io::Error },

    #[error(
        "there is no data directory {}; set the data path to the directory with the idx files",
        .dir.display()
    )]
    MissingDirectory { dir: PathBuf },

    #[error(
        "found none of {} in {}; put one of them there or set the data path to where they are",
        .looked_for.join(", "),
        .dir.display()
    )]
    MissingFile { dir: PathBuf, looked_for: Vec<String> },

    #[error("{} is a damaged or truncated gzip file ({reason}); download or copy it again", .path.display())]
    DamagedGzip { path: PathBuf, reason: io::Error },

    #[error("{} is a damaged or truncated Zstandard file ({reason}); download or copy it again", .path.display())]
    DamagedZstd { path: PathBuf, reason: io::Error },

    #[error("{} is {found}, expected {expected}; check that the files have the right names", .path.display())]
    WrongKind { path: PathBuf, expected: String, found: String },

    #[error(
        "{} ends inside its header, after {found_bytes} of {header_bytes} bytes; download or copy it again",
        .path.display()
    )]
    ShortHeader { path: PathBuf, header_bytes: usize, found_bytes: usize },

    #[error(
        "{}: the header declares {shape} = {expected_bytes} bytes, but only {found_bytes} follow; download or \
         copy it again",
        .path.display()
    )]
    TooShort { path: PathBuf, shape: String, expected_bytes: u128, found_bytes: u64 },

    #[error(
        "{}: the header declares {shape} = {expected_bytes} bytes, but more than that follow; the file was not \
         written completely, or by more than one process: create it again",
        .path.display()
    )]
    TooLong { path: PathBuf, shape: String, expected_bytes: u128 },

    #[error("{} has no samples (its header declares {shape}); training needs at least one", .path.display())]
    NoSamples { path: PathBuf, shape: String },

    #[error(
        "{} holds {images} images but {} holds {labels} labels; the two files do not belong together",
        .images_path.display(),
        .labels_path.display()
    )]
    CountMismatch { images_path: PathBuf, images: usize, labels_path: PathBuf, labels: usize },

    #[error(
        "cannot write {}: {images} images of {height} x {width} are {expected_bytes} bytes, but there are \
         {found_bytes}, or a size does not fit into 32 bits",
        .path.display()
    )]
    UnwritableImages {
        path: PathBuf,
        images: usize,
        height: usize,
        width: usize,
        expected_bytes: u128,
        found_bytes: usize,
    },

    #[error("cannot write {}: {labels} labels are more than the {} an idx file can count", .path.display(), u32::MAX)]
    TooManyLabels { path: PathBuf, labels: usize },

    #[error(
        "{0} has no folder `train`; put the training images of each class in {0}/train/<class>/ and its validation \
         images in {0}/valid/<class>/",
        .dir.display()
    )]
    NoTrainFolder { dir: PathBuf },

    #[error("{} holds no class folders; put the images of each class in a separate folder there", .dir.display())]
    NoClasses { dir: PathBuf },

    #[error(
        "the class folder {} holds no PNG or JPEG files ({other_files} others); put images there or remove the folder",
        .dir.display()
    )]
    EmptyClass { dir: PathBuf, other_files: usize },

    #[error(
        "{} is a class that the training images in {} do not have; rename or remove it, or add training images of it",
        .dir.display(),
        .train.display()
    )]
    UnknownClass { dir: PathBuf, train: PathBuf },

    #[error("{} is a symbolic link to a folder that contains it; remove it", .path.display())]
    LinkLoop { path: PathBuf },

    #[error("{} is not a readable image: {reason}; replace or remove it", .path.display())]
    NotAnImage { path: PathBuf, reason: String },

    #[error("{} is a truncated {format} file ({bytes} bytes); copy it again or remove it", .path.display())]
    TruncatedImage { path: PathBuf, format: &'static str, bytes: usize },

    #[error(
        "{} declares {width} x {height} pixels, but the limit is {limit_pixels} pixels; scale it down or remove it",
        .path.display()
    )]
    ImageTooLarge { path: PathBuf, width: u32, height: u32, limit_pixels: u64 },

    #[error(
        "cannot draw {count} digits of {size} x {size} pixels: each needs at least one pixel, and all of them may \
         take at most {limit_bytes} bytes of memory; draw fewer or smaller digits"
    )]
    UndrawableDigits { count: usize, size: usize, limit_bytes: u64 },

    #[error("`{text}` is not a global batch: {reason}; write 256 or \"256 sequences\", or \"4096 tokens\"")]
    BadGlobalBatch { text: String, reason: &'static str },
}

impl DataError {
    /// Whether the same call fails again until a path, a setting or the data is changed. True for
    /// all errors except those of a disk.
    pub fn is_usage(&self) -> bool {
        use io::ErrorKind::{AlreadyExists, IsADirectory, NotADirectory, NotFound, PermissionDenied};
        match self {
            DataError::Io { reason, .. } => {
                matches!(reason.kind(), NotFound | PermissionDenied | AlreadyExists | NotADirectory | IsADirectory)
            }
            _ => true,
        }
    }
}
