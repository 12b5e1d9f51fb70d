//! What goes into the regroup machine and what comes out of it: messages, inputs, outputs, and the
//! reasons to stop.
//!
//! Plain data. The driver encodes [`RegroupMessage`] with postcard and puts the generation into the
//! frame header; messages of another generation never reach the machine.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::rank_set::RankSet;

/// Who decides between two halves of a split group. One arbiter per run, equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Arbiter {
    /// The members of the generation: more than half of them, or half including rank 0.
    Quorum,
    /// The shared run directory: the first proposal that is linked as `membership/<g+1>`.
    Directory,
}

/// A message between two members of the same generation.
///
/// The ballot of a proposal is its proposer's rank, and a rank proposes at most once per
/// generation, so the link on which a message arrives implies the ballot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum RegroupMessage {
    /// The sender has lost its links to these ranks. Starts the machine of a member that has
    /// noticed nothing.
    Suspect { lost: RankSet },
    /// The sender is the lowest rank that it still reaches, and wants to propose. It may ask again,
    /// and is answered again.
    Prepare,
    /// Answers `Prepare`: the sender accepts nothing from lower ranks any more. If it `leaves`, it
    /// votes, but is not proposed as a member.
    Promise { lost: RankSet, has_newcomer: bool, accepted: Option<Accepted>, leaves: bool },
    /// The members of the next generation, if a quorum accepts. With the number after the last rank:
    /// the newcomer.
    Propose { members: RankSet },
    /// Answers `Propose`.
    Accept,
    /// The decided members of the next generation. The last message of a generation on a link.
    Install { members: RankSet },
}

/// A proposal that a member has accepted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Accepted {
    /// The proposer's rank.
    pub(crate) ballot: usize,
    pub(crate) members: RankSet,
}

/// An event for the machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Input {
    /// The link to this rank ended, for whatever reason. The driver has closed it.
    LinkLost(usize),
    Received {
        from: usize,
        message: RegroupMessage,
    },
    /// The answer to [`Output::AskDirectory`]: what `membership/<g+1>` contains now, or why it
    /// could not be written and read.
    Arbitrated(Result<RankSet, String>),
}

/// An action for the driver, to carry out in the order of the list.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Output {
    Send {
        to: usize,
        message: RegroupMessage,
    },
    /// Link a file with these members as `membership/<g+1>`, read it back, and report what it
    /// contains. A proposer without a quorum can often ask at once, while a larger part of the
    /// group still waits for its busy members: give that part some time first.
    AskDirectory {
        members: RankSet,
        has_quorum: bool,
    },
    /// These ranks, in this order, are generation g+1. The last output.
    Install {
        members: RankSet,
    },
    /// This rank must not continue. The last output. Messages before it still have to leave.
    Stop(StopReason),
}

/// The reason why a rank must not continue.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Error)]
pub(crate) enum StopReason {
    #[error(
        "only {reachable} of {world} ranks are connected and {needed} are needed: \
         the others may continue without them"
    )]
    NoQuorum { reachable: usize, needed: usize, world: usize },

    #[error("the group continues without this rank, with ranks {members}")]
    Excluded { members: RankSet },

    #[error("only {left} ranks are left, fewer than elastic.min_workers = {min_workers}")]
    TooFew { left: usize, min_workers: usize },

    #[error("cannot decide the next membership in the run directory: {0}")]
    DirectoryFailed(String),
}
