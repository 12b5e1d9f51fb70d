//! Why a rank may not join, as data: it is sent to the ranks that it concerns, and each words it
//! from its own point of view.
//!
//! Created by the side that answers a connection; converted into a [`CommError`] by the side that
//! reads it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::mismatch::{Mismatch, Reader};
use crate::error::{CommError, Rejections, shown, shown_line};
use crate::secret::{ADVICE, SecretKind};

/// Values and reasons longer than this are cut when shown.
const SHOWN_BYTES: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Refusal {
    /// Another process has this rank already, or the rank does not exist.
    RankTaken {
        rank: u64,
        name: String,
        address: String,
    },
    /// The two sides have their secrets from different kinds of sources.
    SecretKind {
        dialer: SecretKind,
        answerer: SecretKind,
    },
    /// The dialer cannot read the file with the secret.
    NoSecretYet,
    SecretWrong,
    /// One side encrypts and the other does not.
    Encryption {
        dialer: bool,
    },
    /// The connection is for another group.
    OtherGroup,
    /// The dialer uses another version of the protocol.
    Protocol {
        theirs: u8,
        ours: u8,
    },
    /// The rank differs from rank 0.
    Mismatch(Mismatch),
    /// Some ranks never joined, so the run is cancelled for those that did.
    Missing {
        ranks: Vec<u64>,
        world: u64,
        rendezvous: String,
        waited: Duration,
        notes: Vec<String>,
        /// Ranks that were refused because they differ: almost always the cause.
        refused: Box<[Mismatch]>,
    },
    /// The group exists and accepts no more ranks.
    AlreadyStarted {
        seconds_ago: u64,
        world: u64,
    },
    /// The ranks still wait for each other.
    NotYet,
    /// Another process leads, and all ranks join that one.
    Moved,
    /// A rank failed after all had joined.
    Failed {
        rank: u64,
        name: String,
        reason: String,
    },
}

impl Refusal {
    /// Returns the same refusal, worded for another reader.
    pub(super) fn for_reader(&self, reader: Reader) -> Refusal {
        let mut refusal = self.clone();
        match &mut refusal {
            Refusal::Mismatch(mismatch) => mismatch.reader = reader,
            Refusal::Missing { refused, .. } => refused.iter_mut().for_each(|mismatch| mismatch.reader = reader),
            _ => {}
        }
        refusal
    }

    /// Converts into the error of a rank that was refused by `by`.
    pub(super) fn into_error(self, by: &str) -> CommError {
        let refused = |reason: &str| CommError::Refused { by: by.to_owned(), reason: reason.to_owned() };
        match self {
            Refusal::RankTaken { .. }
            | Refusal::SecretKind { .. }
            | Refusal::NoSecretYet
            | Refusal::SecretWrong
            | Refusal::Encryption { .. }
            | Refusal::OtherGroup
            | Refusal::AlreadyStarted { .. }
            | Refusal::NotYet
            | Refusal::Moved
            | Refusal::Protocol { .. } => refused(&self.reason()),
            Refusal::Mismatch(mismatch) => CommError::Mismatch { differences: mismatch.lines() },
            Refusal::Missing { ranks, world, rendezvous, waited, notes, refused } => CommError::Missing {
                ranks: ranks.into_iter().map(|rank| rank as usize).collect(),
                world: world as usize,
                rendezvous: shown_line(&rendezvous, SHOWN_BYTES),
                waited,
                rejections: Box::new(Rejections {
                    differences: refused.iter().flat_map(Mismatch::lines).collect(),
                    notes: notes.iter().map(|note| shown_line(note, SHOWN_BYTES)).collect(),
                }),
            },
            Refusal::Failed { rank, name, reason } => CommError::Rendezvous {
                with: format!("rank {rank} ({})", shown_line(&name, SHOWN_BYTES)),
                detail: shown(&reason, SHOWN_BYTES),
            },
        }
    }

    /// A short name for the reject log.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Refusal::RankTaken { .. } => "duplicate rank",
            Refusal::SecretKind { .. } => "different kind of secret",
            Refusal::NoSecretYet => "no secret",
            Refusal::SecretWrong => "wrong secret",
            Refusal::Encryption { .. } => "different comm.encrypt",
            Refusal::OtherGroup => "different run",
            Refusal::Protocol { .. } => "different protocol version",
            Refusal::Mismatch(_) => "different configuration",
            Refusal::Missing { .. } => "missing ranks",
            Refusal::AlreadyStarted { .. } => "too late",
            Refusal::NotYet => "too early",
            Refusal::Moved => "moved",
            Refusal::Failed { .. } => "failed rank",
        }
    }

    /// The reason in one line, for the log of the refusing side and for errors.
    pub(super) fn reason(&self) -> String {
        match self {
            Refusal::RankTaken { rank, name, address } => format!(
                "rank {rank} is already taken by {} ({}); give every process its own rank",
                shown_line(name, SHOWN_BYTES),
                shown_line(address, SHOWN_BYTES)
            ),
            Refusal::SecretKind { dialer, answerer } => {
                let what = match (dialer, answerer) {
                    (SecretKind::Given, SecretKind::File) => {
                        "HETSEQ_SECRET is set on the connecting rank but not on the rank it connects to"
                    }
                    (SecretKind::File, SecretKind::Given) => {
                        "HETSEQ_SECRET is set on the rank it connects to but not on the connecting rank"
                    }
                    _ => "the connecting rank and the rank it connects to do not both have a secret",
                };
                format!("{what}; {ADVICE}")
            }
            Refusal::NoSecretYet => {
                format!("it does not see the file with this run's secret; if the directory is not shared, {ADVICE}")
            }
            Refusal::SecretWrong => format!("the shared secrets differ; {ADVICE}"),
            Refusal::Encryption { dialer } => format!(
                "comm.encrypt is {dialer} on the connecting rank and {} on the rank it connects to; set it to the same \
                 value on all ranks",
                !dialer
            ),
            Refusal::OtherGroup => "the connection belongs to another or earlier run".to_owned(),
            Refusal::Protocol { theirs, ours } => {
                format!("protocol version {theirs} instead of {ours}; use the same hetseq binary on all ranks")
            }
            Refusal::AlreadyStarted { seconds_ago, world } => format!(
                "this run has already started: it began {} ago with {world} ranks. Wait until it ends, or stop it and \
                 start all ranks again",
                elapsed(*seconds_ago)
            ),
            Refusal::NotYet => "the run has not started yet".to_owned(),
            Refusal::Moved => "the ranks join another rank 0 now".to_owned(),
            Refusal::Mismatch(_) => "its configuration, data or build differs from rank 0's".to_owned(),
            Refusal::Missing { .. } => "not all ranks joined".to_owned(),
            Refusal::Failed { .. } => "another rank failed".to_owned(),
        }
    }
}

/// `40 s`, `12 min`, `3 h`, `2 days`: in the largest unit of which there are at least two.
fn elapsed(seconds: u64) -> String {
    let units = [(86_400, "days"), (3600, "h"), (60, "min")];
    let fitting = units.into_iter().find(|(length, _)| seconds >= 2 * length);
    let (length, unit) = fitting.unwrap_or((1, "s"));
    format!("{} {unit}", seconds / length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elapsed_time_uses_readable_units() {
        let shown: Vec<String> = [0, 90, 120, 7199, 7200, 200_000].map(elapsed).into();
        assert_eq!(shown, ["0 s", "90 s", "2 min", "119 min", "2 h", "2 days"]);
    }

    #[test]
    fn peer_text_cannot_add_a_line_to_a_log() {
        let taken = |text: &str| Refusal::RankTaken { rank: 1, name: text.to_owned(), address: text.to_owned() };
        assert_eq!(taken("beta\nrank 2: all is well").reason().lines().count(), 1);
    }
}
