//! Why a rank may not take part, as data: it travels to the ranks it concerns, and each words it from
//! its own point of view.
//!
//! Made by whoever answers a connection; turned into a [`CommError`] by whoever reads it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{CommError, shown, shown_line};
use crate::identity::Difference;
use crate::secret::{ADVICE, SecretKind};

/// Values and reasons longer than this are cut when shown.
const SHOWN_BYTES: usize = 4096;

/// Whom a refusal that names two ranks is told to, so that it can say "here".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Reader {
    Zero,
    Other,
    Bystander,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Refusal {
    /// The rank has this number already, or it is nobody's to take.
    Taken {
        rank: u64,
        name: String,
        address: String,
    },
    /// One side has its secret from elsewhere than the other.
    SecretKind {
        newcomer: SecretKind,
        here: SecretKind,
    },
    /// The newcomer does not see the file with the secret.
    NoSecretYet,
    SecretWrong,
    /// One side encrypts and the other does not.
    Encryption {
        newcomer: bool,
    },
    /// A connection for a group that is not this one.
    OtherGroup,
    /// It speaks another version of the protocol.
    Protocol {
        theirs: u8,
        ours: u8,
    },
    /// A rank runs something else than rank 0, so the run is called off for all.
    Mismatch {
        zero_name: String,
        rank: Option<u64>,
        name: String,
        differences: Vec<Difference>,
        reader: Reader,
    },
    /// Ranks that never came, so the run is called off for those that did.
    Missing {
        ranks: Vec<u64>,
        world: u64,
        rendezvous: String,
        waited: Duration,
        notes: Vec<String>,
    },
    /// The group exists and takes nobody in.
    UnderWay {
        seconds_ago: u64,
        world: u64,
    },
    /// Another rank 0 leads the meeting, and everybody goes there.
    Moved,
    /// A rank failed after all had come.
    Failed {
        rank: u64,
        name: String,
        reason: String,
    },
}

impl Refusal {
    /// The same, told to somebody else.
    pub(super) fn to(&self, whom: Reader) -> Refusal {
        let mut told = self.clone();
        if let Refusal::Mismatch { reader, .. } = &mut told {
            *reader = whom;
        }
        told
    }

    /// As an error for whoever got it from `by`.
    pub(super) fn into_error(self, by: &str) -> CommError {
        let refused = |reason: &str| CommError::Refused { by: by.to_owned(), reason: reason.to_owned() };
        match self {
            Refusal::Taken { .. }
            | Refusal::SecretKind { .. }
            | Refusal::NoSecretYet
            | Refusal::SecretWrong
            | Refusal::Encryption { .. }
            | Refusal::OtherGroup
            | Refusal::UnderWay { .. }
            | Refusal::Moved
            | Refusal::Protocol { .. } => refused(&self.reason()),
            Refusal::Mismatch { zero_name, rank, name, differences, reader } => {
                let named = |rank: Option<u64>, name: &str| match rank {
                    Some(rank) => format!("rank {rank} ({})", shown_line(name, SHOWN_BYTES)),
                    None => shown_line(name, SHOWN_BYTES),
                };
                let (zero, other) = (named(Some(0), &zero_name), named(rank, &name));
                let worded = |d: &Difference| worded(d, &zero, &other, reader);
                CommError::Mismatch { differences: differences.iter().map(worded).collect() }
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

    /// In a word or two.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Refusal::Taken { .. } => "a rank taken twice",
            Refusal::SecretKind { .. } => "another kind of secret",
            Refusal::NoSecretYet => "no secret",
            Refusal::SecretWrong => "a wrong secret",
            Refusal::Encryption { .. } => "another comm.encrypt",
            Refusal::OtherGroup => "another run",
            Refusal::Protocol { .. } => "another protocol version",
            Refusal::Mismatch { .. } => "another configuration",
            Refusal::Missing { .. } => "ranks missing",
            Refusal::UnderWay { .. } => "too late",
            Refusal::Moved => "moved",
            Refusal::Failed { .. } => "a failed rank",
        }
    }

    /// In one line, for the log of the side that refuses.
    pub(super) fn reason(&self) -> String {
        match self {
            Refusal::Taken { rank, name, address } => format!(
                "rank {rank} is already taken by {} ({}); give every process its own rank",
                shown_line(name, SHOWN_BYTES),
                shown_line(address, SHOWN_BYTES)
            ),
            Refusal::SecretKind { newcomer, here } => {
                let what = match (newcomer, here) {
                    (SecretKind::Given, SecretKind::File) => {
                        "HETSEQ_SECRET is set on the newcomer but not on the rank it came to"
                    }
                    (SecretKind::File, SecretKind::Given) => {
                        "HETSEQ_SECRET is set on the rank it came to but not on the newcomer"
                    }
                    _ => "the newcomer and the rank it came to do not both have a secret",
                };
                format!("{what}; {ADVICE}")
            }
            Refusal::NoSecretYet => {
                format!("it does not see the file with this run's secret; if the directory is not shared, {ADVICE}")
            }
            Refusal::SecretWrong => format!("the shared secrets differ; {ADVICE}"),
            Refusal::Encryption { newcomer } => format!(
                "comm.encrypt is {newcomer} on the newcomer and {} on the rank it came to; set it to the same on all \
                 ranks",
                !newcomer
            ),
            Refusal::OtherGroup => "the connection belongs to another or earlier run".to_owned(),
            Refusal::Protocol { theirs, ours } => {
                format!("protocol version {theirs} instead of {ours}; use the same hetseq binary on all ranks")
            }
            Refusal::UnderWay { seconds_ago, world } => format!(
                "this run is under way: it began {} ago with {world} ranks. Wait until it ends, or end it and start all \
                 ranks again",
                elapsed(*seconds_ago)
            ),
            Refusal::Moved => "the ranks meet at another rank 0 now".to_owned(),
            Refusal::Mismatch { .. } => "it does not run the same thing as rank 0".to_owned(),
            Refusal::Missing { .. } => "not all ranks came".to_owned(),
            Refusal::Failed { .. } => "another rank failed".to_owned(),
        }
    }
}

/// `40 s`, `12 min`, `3 h`, `2 days`: in the largest unit of which there are two.
fn elapsed(seconds: u64) -> String {
    let units = [(86_400, "days"), (3600, "h"), (60, "min")];
    let fitting = units.into_iter().find(|(length, _)| seconds >= 2 * length);
    let (length, unit) = fitting.unwrap_or((1, "s"));
    format!("{} {unit}", seconds / length)
}

/// `optim.lr: 0.1 here, 0.2 on rank 1 (beta)`, with the reader's own side first and called "here".
fn worded(difference: &Difference, zero: &str, other: &str, reader: Reader) -> String {
    let side = |value: &Option<String>, name: &str, is_here: bool| {
        let value = value.as_deref().map_or("absent".to_owned(), |v| shown(v, SHOWN_BYTES));
        if is_here { format!("{value} here") } else { format!("{value} on {name}") }
    };
    let on_zero = side(&difference.on_zero, zero, reader == Reader::Zero);
    let on_other = side(&difference.on_other, other, reader == Reader::Other);
    let key = shown(&difference.key, SHOWN_BYTES);
    if reader == Reader::Other {
        format!("{key}: {on_other}, {on_zero}")
    } else {
        format!("{key}: {on_zero}, {on_other}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_worded_as_people_do() {
        let worded: Vec<String> = [0, 90, 120, 7199, 7200, 200_000].map(elapsed).into();
        assert_eq!(worded, ["0 s", "90 s", "2 min", "119 min", "2 h", "2 days"]);
    }

    #[test]
    fn nobody_adds_a_line_to_a_log() {
        let taken = |text: &str| Refusal::Taken { rank: 1, name: text.to_owned(), address: text.to_owned() };
        assert_eq!(taken("beta\nrank 2: all is well").reason().lines().count(), 1);
    }

    #[test]
    fn a_difference_is_worded_for_its_reader() {
        let refusal = |rank| Refusal::Mismatch {
            zero_name: "alpha".into(),
            rank,
            name: "beta".into(),
            differences: vec![
                Difference { key: "optim.lr".into(), on_zero: Some("0.1".into()), on_other: Some("0.2".into()) },
                Difference { key: "data".into(), on_zero: None, on_other: Some("ff".into()) },
            ],
            reader: Reader::Zero,
        };
        let seen_by = |rank, reader| match refusal(rank).to(reader).into_error("rank 0") {
            CommError::Mismatch { differences } => differences,
            other => panic!("{other}"),
        };
        assert_eq!(
            seen_by(Some(1), Reader::Zero),
            ["optim.lr: 0.1 here, 0.2 on rank 1 (beta)", "data: absent here, ff on rank 1 (beta)"]
        );
        assert_eq!(
            seen_by(Some(1), Reader::Other),
            ["optim.lr: 0.2 here, 0.1 on rank 0 (alpha)", "data: ff here, absent on rank 0 (alpha)"]
        );
        let bystander = &seen_by(Some(1), Reader::Bystander)[0];
        assert_eq!(bystander, "optim.lr: 0.1 on rank 0 (alpha), 0.2 on rank 1 (beta)");
        assert_eq!(seen_by(None, Reader::Zero)[0], "optim.lr: 0.1 here, 0.2 on beta");
    }
}
