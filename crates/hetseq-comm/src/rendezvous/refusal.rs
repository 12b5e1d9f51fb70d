//! Why a rank may not join, as data: it is sent to the ranks that it concerns, and each words it
//! from its own point of view.
//!
//! Created by the side that answers a connection; converted into a [`CommError`] by the side that
//! reads it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{CommError, shown, shown_line};
use crate::identity::Difference;
use crate::secret::{ADVICE, SecretKind};

/// Values and reasons longer than this are cut when shown.
const SHOWN_BYTES: usize = 4096;

/// The reader of a refusal that names two ranks, so that the text can say "here".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Reader {
    Rank0,
    /// The rank that differs from rank 0.
    Other,
    /// A third rank.
    Bystander,
}

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
    /// A rank differs from rank 0, so the run is cancelled for all.
    Mismatch {
        rank0_name: String,
        rank: Option<u64>,
        name: String,
        differences: Vec<Difference>,
        reader: Reader,
    },
    /// Some ranks never joined, so the run is cancelled for those that did.
    Missing {
        ranks: Vec<u64>,
        world: u64,
        rendezvous: String,
        waited: Duration,
        notes: Vec<String>,
    },
    /// The group exists and accepts no more ranks.
    AlreadyStarted {
        seconds_ago: u64,
        world: u64,
    },
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
    pub(super) fn for_reader(&self, new_reader: Reader) -> Refusal {
        let mut refusal = self.clone();
        if let Refusal::Mismatch { reader, .. } = &mut refusal {
            *reader = new_reader;
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
            | Refusal::Moved
            | Refusal::Protocol { .. } => refused(&self.reason()),
            Refusal::Mismatch { rank0_name, rank, name, differences, reader } => {
                let named = |rank: Option<u64>, name: &str| match rank {
                    Some(rank) => format!("rank {rank} ({})", shown_line(name, SHOWN_BYTES)),
                    None => shown_line(name, SHOWN_BYTES),
                };
                let (rank0, other) = (named(Some(0), &rank0_name), named(rank, &name));
                let described = |difference: &Difference| describe(difference, &rank0, &other, reader);
                CommError::Mismatch { differences: differences.iter().map(described).collect() }
            }
            Refusal::Missing { ranks, world, rendezvous, waited, notes } => CommError::Missing {
                ranks: ranks.into_iter().map(|rank| rank as usize).collect(),
                world: world as usize,
                rendezvous: shown_line(&rendezvous, SHOWN_BYTES),
                waited,
                notes: notes.iter().map(|note| shown_line(note, SHOWN_BYTES)).collect(),
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
            Refusal::Mismatch { .. } => "different configuration",
            Refusal::Missing { .. } => "missing ranks",
            Refusal::AlreadyStarted { .. } => "too late",
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
            Refusal::Moved => "the ranks join another rank 0 now".to_owned(),
            Refusal::Mismatch { .. } => "its configuration, data or build differs from rank 0's".to_owned(),
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

/// `optim.lr: 0.1 here, 0.2 on rank 1 (beta)`: the reader's own side first, called "here".
fn describe(difference: &Difference, rank0: &str, other: &str, reader: Reader) -> String {
    let side = |value: &Option<String>, name: &str, is_here: bool| {
        let value = value.as_deref().map_or("absent".to_owned(), |v| shown(v, SHOWN_BYTES));
        if is_here { format!("{value} here") } else { format!("{value} on {name}") }
    };
    let on_rank0 = side(&difference.on_zero, rank0, reader == Reader::Rank0);
    let on_other = side(&difference.on_other, other, reader == Reader::Other);
    let key = shown(&difference.key, SHOWN_BYTES);
    if reader == Reader::Other {
        format!("{key}: {on_other}, {on_rank0}")
    } else {
        format!("{key}: {on_rank0}, {on_other}")
    }
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

    #[test]
    fn a_difference_is_worded_for_its_reader() {
        let refusal = |rank| Refusal::Mismatch {
            rank0_name: "alpha".into(),
            rank,
            name: "beta".into(),
            differences: vec![
                Difference { key: "optim.lr".into(), on_zero: Some("0.1".into()), on_other: Some("0.2".into()) },
                Difference { key: "data".into(), on_zero: None, on_other: Some("ff".into()) },
            ],
            reader: Reader::Rank0,
        };
        let seen_by = |rank, reader| match refusal(rank).for_reader(reader).into_error("rank 0") {
            CommError::Mismatch { differences } => differences,
            other => panic!("{other}"),
        };
        assert_eq!(
            seen_by(Some(1), Reader::Rank0),
            ["optim.lr: 0.1 here, 0.2 on rank 1 (beta)", "data: absent here, ff on rank 1 (beta)"]
        );
        assert_eq!(
            seen_by(Some(1), Reader::Other),
            ["optim.lr: 0.2 here, 0.1 on rank 0 (alpha)", "data: ff here, absent on rank 0 (alpha)"]
        );
        let bystander = &seen_by(Some(1), Reader::Bystander)[0];
        assert_eq!(bystander, "optim.lr: 0.1 on rank 0 (alpha), 0.2 on rank 1 (beta)");
        assert_eq!(seen_by(None, Reader::Rank0)[0], "optim.lr: 0.1 here, 0.2 on beta");
    }
}
