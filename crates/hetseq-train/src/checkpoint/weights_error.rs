//! Why weights cannot be read from files. Returned by `weights` and `tensors`; becomes
//! [`TrainError::Checkpoint`](crate::TrainError::Checkpoint) or an error of the task that named the
//! files.

use std::path::PathBuf;

use safetensors::SafeTensorError;
use thiserror::Error;

#[derive(Debug, Error)]
pub enum WeightsError {
    #[error("there is no file or directory {}", .0.display())]
    NotFound(PathBuf),
    #[error("there is no {files} in {}", .dir.display())]
    NoWeights { dir: PathBuf, files: String },
    /// Its message names the file.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("{}: {reason}", .path.display())]
    Index { path: PathBuf, reason: String },
    #[error("{} is damaged: {reason}", .path.display())]
    Damaged { path: PathBuf, reason: SafeTensorError },
    #[error("{} cannot be read as a PyTorch file: {reason}", .path.display())]
    PyTorch { path: PathBuf, reason: String },
    #[error("{}: {tensor} {problem}", .path.display())]
    Tensor { path: PathBuf, tensor: String, problem: TensorProblem },
    #[error("{} holds no tensors", .0.display())]
    Empty(PathBuf),
    #[error("{} has no tensor {first}{}, which the model of this config has", .path.display(), and_more(*.others))]
    MissingTensor { path: PathBuf, first: String, others: usize },
    #[error("{}: {what}; the run that saved it diverged. Use an earlier one", .path.display())]
    NotFinite { path: PathBuf, what: String },
}

/// What is wrong with one tensor. Follows its name in messages.
#[derive(Debug, Error)]
pub enum TensorProblem {
    #[error("is {found:?}, the model of this config expects {expected:?}")]
    Shape { found: Vec<usize>, expected: Vec<usize> },
    #[error("is {0}, not F32")]
    NotF32(String),
    #[error("is not a floating-point tensor")]
    NotFloat,
    #[error("is truncated")]
    Truncated,
    #[error("is {value} at element {at}")]
    NotFinite { value: f32, at: usize },
    #[error("cannot be read: {0}")]
    Unreadable(String),
}

fn and_more(others: usize) -> String {
    if others == 0 { String::new() } else { format!(" (and {others} more)") }
}
