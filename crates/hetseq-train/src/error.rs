//! What can go wrong in a run. Each message says what happened, where, and what to do, and is whole by itself: causes
//! stand in it, not behind it.

use std::path::PathBuf;

use hetseq_balance::BalanceError;
use hetseq_comm::CommError;
use hetseq_data::DataError;
use hetseq_optim::OptimError;
use thiserror::Error;

use crate::checkpoint::Trouble;
use crate::task::TaskError;

#[derive(Debug, Error)]
pub enum TrainError {
    /// The config is wrong: file, line, key, nearest key.
    #[error("{0}")]
    Config(String),
    /// The task could not open its data or build its model.
    #[error("task {task}: {reason}")]
    Task { task: &'static str, reason: TaskError },
    /// A sample could not be read or gathered while training.
    #[error("task {task}, gathering a micro-batch: {reason}")]
    Collate { task: &'static str, reason: TaskError },
    #[error(transparent)]
    Comm(#[from] CommError),
    /// The group broke up while training.
    #[error("{reason}. The last checkpoint is {last}; the same command goes on from there")]
    Interrupted { reason: Box<CommError>, last: String },
    #[error(transparent)]
    Data(#[from] DataError),
    /// The updates cannot be shared among these devices.
    #[error(transparent)]
    Balance(#[from] BalanceError),
    #[error(transparent)]
    Optim(#[from] OptimError),
    #[error("{device} failed while {doing}: {reason}")]
    Device { device: String, doing: &'static str, reason: String },
    #[error("{doing}: {reason}")]
    Io { doing: String, reason: std::io::Error },
    /// A checkpoint could not be written, and the run cannot or shall not go on without it.
    #[error(
        "{trouble}. {consequence}. The last complete checkpoint is {last}; the same command goes on from there when the \
         cause is mended"
    )]
    Unsaved { trouble: Box<Trouble>, consequence: &'static str, last: String },
    #[error("checkpoint {path}: {reason}")]
    Checkpoint { path: PathBuf, reason: String },
    /// It is not as it was saved.
    #[error(
        "checkpoint {path} is damaged: {reason}. Restore it from a copy, use another checkpoint, or start a new run"
    )]
    Damaged { path: PathBuf, reason: String },
    #[error(
        "update {update}: the gradient is not finite (norm {norm}); loss was {loss}. The parameters were left as they \
         were before it. Lower optim.lr, set optim.clip_norm or lengthen the warm-up, and resume from {last}"
    )]
    NotFinite { update: u64, norm: f64, loss: f64, last: String },
    #[error(
        "update {update} made a value that is not finite: {place}. The run has diverged, and nothing after {last} was saved. \
         Lower optim.lr, set optim.clip_norm or lengthen the warm-up (optim.schedule), and start again: the same command \
         resumes from there"
    )]
    Diverged { update: u64, place: String, last: String },
    #[error(
        "update {update}: the ranks no longer agree on {what} ({detail}). This is a fault of hardware or of this \
         program, not of your config; nothing after the last good checkpoint was saved. Resume from {last}"
    )]
    Disagreement { update: u64, what: &'static str, detail: String, last: String },
}

impl TrainError {
    /// Whether the user's input was at fault, so that a retry without a change is pointless (exit code 2).
    pub fn is_usage(&self) -> bool {
        matches!(self, TrainError::Config(_) | TrainError::Task { .. })
            || matches!(self, TrainError::Comm(CommError::Mismatch { .. }))
            || matches!(self, TrainError::Optim(_) | TrainError::Data(_) | TrainError::Balance(_))
    }

    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> TrainError {
        let doing = doing.into();
        move |reason| TrainError::Io { doing, reason }
    }
}
