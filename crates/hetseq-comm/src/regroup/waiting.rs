//! Why a regroup machine waits, for log messages.

use std::fmt;

use super::rank_set::RankSet;

/// What has to arrive before the machine can continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// The decision of the proposer, or the loss of its link.
    Proposer(usize),
    /// The promises of these ranks, or the loss of their links.
    Promises(RankSet),
    /// Enough accepts from these ranks.
    Accepts(RankSet),
    /// The run directory's answer.
    Directory,
    /// Nothing: the machine has installed or stopped.
    Nothing,
}

impl fmt::Display for Waiting {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Waiting::Proposer(rank) => write!(out, "waiting for the proposal of rank {rank}"),
            Waiting::Promises(ranks) => write!(out, "waiting for the answers of ranks {ranks}"),
            Waiting::Accepts(ranks) => write!(out, "waiting for ranks {ranks} to accept the new group"),
            Waiting::Directory => write!(out, "waiting for the run directory"),
            Waiting::Nothing => write!(out, "waiting for nothing"),
        }
    }
}
