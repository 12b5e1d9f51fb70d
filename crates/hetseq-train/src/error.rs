//! Errors of a run. Each message says what happened, where, and what to do, and is complete by
//! itself: it includes its causes.

use std::path::{Path, PathBuf};

use hetseq_balance::BalanceError;
use hetseq_comm::CommError;
use hetseq_data::DataError;
use hetseq_engine::EngineError;
use hetseq_optim::OptimError;
use thiserror::Error;

use crate::checkpoint::SaveError;
use crate::data::loader::LoaderError;
use crate::task::TaskError;

#[derive(Debug, Error)]
pub enum TrainError {
    /// The config is wrong: file, line, key, nearest key.
    #[error("{0}")]
    Config(String),
    /// The task could not open its data or build its model.
    #[error("task {task}: {reason}")]
    Task { task: String, reason: Box<TaskError> },
    /// A sample could not be read or collated while training.
    #[error("task {task}, collating a micro-batch: {reason}")]
    Collate { task: String, reason: Box<TaskError> },
    /// The task's own code failed while computing.
    #[error("task {task}, computing a micro-batch: {reason}")]
    Forward { task: String, reason: Box<TaskError> },
    #[error("the loader failed: {0}")]
    Loader(#[from] LoaderError),
    #[error(transparent)]
    Comm(#[from] CommError),
    /// This rank could not encode a message for the others.
    #[error("a message to the other ranks cannot be encoded: {reason}. This is a bug in this program, not your config")]
    Encode { reason: String },
    #[error(
        "rank {rank} sent a message that cannot be decoded: {reason}. It runs another program, or its memory is faulty: \
         compare `hetseq --version` on all ranks"
    )]
    Decode { rank: usize, reason: String },
    /// The group failed while training.
    #[error("{reason}. The last checkpoint is {last}; the same command resumes from there")]
    Interrupted { reason: Box<CommError>, last: String },
    /// This rank stops though nothing is wrong with it: too few ranks are left, or the others
    /// continue without it.
    #[error("{reason}. {saved}")]
    CutOff {
        reason: String,
        saved: String,
        /// Addresses of those that continue, if a new process can join them.
        rejoin: Vec<String>,
    },
    #[error(transparent)]
    Data(#[from] DataError),
    /// The updates cannot be split among these devices.
    #[error(transparent)]
    Balance(#[from] BalanceError),
    #[error(transparent)]
    Optim(#[from] OptimError),
    #[error("{device} failed while {doing}: {reason}")]
    Device { device: String, doing: &'static str, reason: String },
    #[error("{doing}: {reason}")]
    Io { doing: String, reason: std::io::Error },
    /// A checkpoint could not be written, and the run cannot or must not continue without it.
    #[error(
        "{save_error}. {consequence}. The last complete checkpoint is {last}; the same command resumes from there when the \
         cause is fixed"
    )]
    Unsaved { save_error: Box<SaveError>, consequence: &'static str, last: String },
    #[error("checkpoint {path}: {reason}")]
    Checkpoint { path: PathBuf, reason: String },
    /// A checkpoint is not as it was saved.
    #[error(
        "checkpoint {path} is damaged: {reason}. Restore it from a copy, use another checkpoint, or start a new run"
    )]
    Damaged { path: PathBuf, reason: String },
    #[error(
        "update {update}: the gradient is not finite (norm {norm}), {in_a_row} times in a row (run.max_bad_updates); loss was \
         {loss}. The parameters were left as they were before. Lower optim.lr, set optim.clip_norm or lengthen the warm-up, \
         and resume from {last}"
    )]
    NotFinite { update: u64, norm: f64, loss: f64, in_a_row: u64, last: String },
    #[error(
        "update {update} made a value that is not finite: {what}. The run has diverged, and nothing after {last} was saved. \
         Lower optim.lr, set optim.clip_norm or lengthen the warm-up (optim.schedule), and start again: the same command \
         resumes from there"
    )]
    Diverged { update: u64, what: String, last: String },
    #[error(
        "update {update}: the ranks no longer agree on {what} ({detail}). The cause is faulty hardware or a bug in this \
         program, not your config; nothing after the last good checkpoint was saved. Resume from {last}"
    )]
    Disagreement {
        update: u64,
        what: &'static str,
        detail: String,
        last: String,
        /// The ranks that differ from the majority, if there is one and they can take its state.
        odd_ranks: Vec<usize>,
    },
    /// This rank's parameters were wrong too often.
    #[error(
        "update {update}: the parameters of this machine differ from those of all others for the {times}th time. Its memory or \
         its processor is faulty: test it (memtest), and do not train on it until then. The other ranks continue without it"
    )]
    FaultyReplica { update: u64, times: u32 },
}

impl TrainError {
    /// Whether the user's input is wrong, so that a retry without a change is pointless (exit code
    /// 2).
    pub fn is_usage(&self) -> bool {
        matches!(self, TrainError::Config(_) | TrainError::Task { .. })
            || matches!(self, TrainError::Comm(CommError::Mismatch { .. } | CommError::Differ { .. }))
            || matches!(self, TrainError::Comm(CommError::WithoutMpi | CommError::NotLaunched))
            || matches!(self, TrainError::Comm(CommError::OtherLauncher { .. }))
            || matches!(self, TrainError::Optim(_) | TrainError::Data(_) | TrainError::Balance(_))
    }

    /// Whether only this rank is affected, so that the others can continue without it.
    pub(crate) fn is_of_this_rank(&self) -> bool {
        match self {
            TrainError::Device { .. }
            | TrainError::Loader(_)
            | TrainError::Io { .. }
            | TrainError::FaultyReplica { .. } => true,
            // A process that reads samples ended or hangs.
            TrainError::Collate { reason, .. } => {
                matches!(&**reason, TaskError::Engine(error) if !matches!(error, EngineError::Task(_)))
            }
            _ => false,
        }
    }

    /// The error for a checkpoint that cannot be used.
    pub(crate) fn checkpoint<R: ToString>(path: &Path) -> impl FnOnce(R) -> TrainError {
        let path = path.to_owned();
        move |reason| TrainError::Checkpoint { path, reason: reason.to_string() }
    }

    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> TrainError {
        let doing = doing.into();
        move |reason| TrainError::Io { doing, reason }
    }
}
