//! A rank that differs from rank 0: the differences as data, worded for each reader, and rank 0's
//! list of such ranks.
//!
//! The comparison itself is in `identity.rs`. `membership.rs` refuses such a rank and keeps waiting
//! for the right one; `refusal.rs` carries the differences to the ranks that need to know them.

use serde::{Deserialize, Serialize};

use super::JoinContext;
use super::handshake::{Hello, shown_name};
use crate::error::{shown, shown_line};
use crate::identity::{Difference, Identity};

/// How many differences rank 0 keeps in total. They must fit into one message, whatever the
/// identities contain; with more, the ranks have nothing in common.
const DIFFERENCES_LIMIT: usize = 1000;
/// How many differences a log line names. The refused rank and the final error name all.
const LOGGED_DIFFERENCES: usize = 10;
/// Longer keys and values are cut when shown.
const SHOWN_BYTES: usize = 4096;

/// The reader of a text that names two ranks, so that it can say "here".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Reader {
    Rank0,
    /// The rank that differs from rank 0.
    Other,
    /// A third rank.
    Bystander,
}

/// A rank that differs from rank 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mismatch {
    pub(super) rank0_name: String,
    pub(super) rank: Option<u64>,
    pub(super) name: String,
    pub(super) differences: Vec<Difference>,
    pub(super) reader: Reader,
}

impl Mismatch {
    /// Compares a rank that wants to join with rank 0; `None` if they match.
    pub(super) fn with_rank0(context: &JoinContext<'_>, hello: &Hello) -> Option<Mismatch> {
        let mut differences = context.identity.differences(&hello.identity);
        if hello.world != context.world as u64 {
            let (on_zero, on_other) = (Some(context.world.to_string()), Some(hello.world.to_string()));
            differences.insert(0, Difference { key: "world size".to_owned(), on_zero, on_other });
        }
        Mismatch::of(differences, (&context.name, hello.rank, &shown_name(&hello.name)), Reader::Rank0)
    }

    /// Compares a newcomer with rank 0, `name`. It may have been started with any number of ranks.
    pub(super) fn of_newcomer(name: &str, identity: &Identity, hello: &Hello) -> Option<Mismatch> {
        let differences = identity.differences(&hello.identity);
        Mismatch::of(differences, (name, hello.rank, &shown_name(&hello.name)), Reader::Rank0)
    }

    /// `None` without differences.
    fn of(
        mut differences: Vec<Difference>,
        (rank0_name, rank, name): (&str, Option<u64>, &str),
        reader: Reader,
    ) -> Option<Mismatch> {
        differences.truncate(DIFFERENCES_LIMIT);
        differences.iter_mut().for_each(Difference::shorten);
        let (rank0_name, name) = (rank0_name.to_owned(), name.to_owned());
        (!differences.is_empty()).then_some(Mismatch { rank0_name, rank, name, differences, reader })
    }

    pub(super) fn for_reader(&self, reader: Reader) -> Mismatch {
        Mismatch { reader, ..self.clone() }
    }

    /// All differences, one text for each.
    pub(super) fn lines(&self) -> Vec<String> {
        self.differences.iter().map(|difference| self.describe(difference)).collect()
    }

    /// The rank and the first differences in one line, for a log.
    pub(super) fn summary(&self) -> String {
        let logged = self.differences.iter().take(LOGGED_DIFFERENCES);
        let mut parts: Vec<String> = logged.map(|difference| self.describe(difference)).collect();
        if self.differences.len() > LOGGED_DIFFERENCES {
            parts.push(format!("and {} more", self.differences.len() - LOGGED_DIFFERENCES));
        }
        let text = format!("{} differs from rank 0: {}", named(self.rank, &self.name), parts.join("; "));
        shown_line(&text, text.len())
    }

    /// `optim.lr: 0.1 here, 0.2 on rank 1 (beta)`: the reader's own side first, called "here".
    fn describe(&self, difference: &Difference) -> String {
        let side = |value: &Option<String>, name: &str, is_here: bool| {
            let value = value.as_deref().map_or("absent".to_owned(), |v| shown(v, SHOWN_BYTES));
            if is_here { format!("{value} here") } else { format!("{value} on {name}") }
        };
        let (rank0, other) = (named(Some(0), &self.rank0_name), named(self.rank, &self.name));
        let on_rank0 = side(&difference.on_zero, &rank0, self.reader == Reader::Rank0);
        let on_other = side(&difference.on_other, &other, self.reader == Reader::Other);
        let key = shown(&difference.key, SHOWN_BYTES);
        if self.reader == Reader::Other {
            format!("{key}: {on_other}, {on_rank0}")
        } else {
            format!("{key}: {on_rank0}, {on_other}")
        }
    }
}

/// How ranks differ from rank 0, worded for the reader `own`. `ranks` are the names and identities of
/// all, in rank order. For groups in which each rank knows all others from the start.
#[cfg(any(test, feature = "mpi"))]
pub(crate) fn differences_from_rank0(own: usize, ranks: &[(&str, &Identity)]) -> Vec<String> {
    let Some((&(rank0_name, of_rank0), others)) = ranks.split_first() else { return Vec::new() };
    let mismatch = |(index, &(name, identity)): (usize, &(&str, &Identity))| {
        let rank = index + 1;
        let reader = match own {
            0 => Reader::Rank0,
            own if own == rank => Reader::Other,
            _ => Reader::Bystander,
        };
        Mismatch::of(of_rank0.differences(identity), (rank0_name, Some(rank as u64), name), reader)
    };
    others.iter().enumerate().filter_map(mismatch).flat_map(|mismatch| mismatch.lines()).collect()
}

fn named(rank: Option<u64>, name: &str) -> String {
    let name = shown_line(name, SHOWN_BYTES);
    rank.map_or(name.clone(), |rank| format!("rank {rank} ({name})"))
}

/// The ranks that rank 0 refused because they differ.
#[derive(Default)]
pub(super) struct RefusedRanks(Vec<Mismatch>);

impl RefusedRanks {
    /// Adds a refused rank, in place of an earlier attempt of the same rank on the same machine.
    /// Returns whether anything about it is new.
    pub(super) fn add(&mut self, mismatch: &Mismatch) -> bool {
        if self.0.contains(mismatch) {
            return false;
        }
        self.0.retain(|known| (known.rank, &known.name) != (mismatch.rank, &mismatch.name));
        let kept: usize = self.0.iter().map(|known| known.differences.len()).sum();
        let mut mismatch = mismatch.clone();
        mismatch.differences.truncate(DIFFERENCES_LIMIT.saturating_sub(kept));
        if !mismatch.differences.is_empty() {
            self.0.push(mismatch);
        }
        true
    }

    /// The refused ranks that may be the cause if ranks are missing: all whose number has not
    /// joined since. A process without a number may be any of the missing ones.
    pub(super) fn causes(&self, has_joined: impl Fn(u64) -> bool) -> Vec<Mismatch> {
        self.0.iter().filter(|mismatch| !mismatch.rank.is_some_and(&has_joined)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mismatch(rank: Option<u64>, keys: usize) -> Mismatch {
        let key = |i| if i == 0 { "optim.lr".to_owned() } else { format!("key{i}") };
        let difference = |i| Difference {
            key: key(i),
            on_zero: Some("0.1".to_owned()),
            on_other: (i != 1).then(|| "0.2".to_owned()),
        };
        Mismatch {
            rank0_name: "alpha".to_owned(),
            rank,
            name: "beta".to_owned(),
            differences: (0..keys).map(difference).collect(),
            reader: Reader::Rank0,
        }
    }

    #[test]
    fn a_difference_is_worded_for_its_reader() {
        let seen_by = |rank, reader| mismatch(rank, 2).for_reader(reader).lines();
        assert_eq!(
            seen_by(Some(1), Reader::Rank0),
            ["optim.lr: 0.1 here, 0.2 on rank 1 (beta)", "key1: 0.1 here, absent on rank 1 (beta)"]
        );
        assert_eq!(
            seen_by(Some(1), Reader::Other),
            ["optim.lr: 0.2 here, 0.1 on rank 0 (alpha)", "key1: absent here, 0.1 on rank 0 (alpha)"]
        );
        let bystander = &seen_by(Some(1), Reader::Bystander)[0];
        assert_eq!(bystander, "optim.lr: 0.1 on rank 0 (alpha), 0.2 on rank 1 (beta)");
        assert_eq!(seen_by(None, Reader::Rank0)[0], "optim.lr: 0.1 here, 0.2 on beta");
    }

    #[test]
    fn a_log_line_is_one_line_and_names_the_first_differences() {
        let summary = mismatch(Some(1), 1).summary();
        assert_eq!(summary, "rank 1 (beta) differs from rank 0: optim.lr: 0.1 here, 0.2 on rank 1 (beta)");
        let mut many = mismatch(None, 25);
        many.differences[0].on_other = Some("0.2\nrank 2: all is well".to_owned());
        let summary = many.summary();
        assert!(summary.ends_with("; and 15 more"), "{summary}");
        assert_eq!(summary.lines().count(), 1, "{summary}");
    }

    #[test]
    fn only_ranks_that_have_not_joined_since_are_a_cause() {
        let mut refused = RefusedRanks::default();
        assert!(refused.add(&mismatch(Some(1), 3)));
        assert!(!refused.add(&mismatch(Some(1), 3)), "nothing new");
        assert!(refused.add(&mismatch(Some(1), 2)), "another attempt replaces the first");
        assert!(refused.add(&mismatch(Some(2), 1)));
        assert!(refused.add(&mismatch(None, 1)));
        let causes = |has_joined: fn(u64) -> bool| refused.causes(has_joined);
        assert_eq!(causes(|_| false), [mismatch(Some(1), 2), mismatch(Some(2), 1), mismatch(None, 1)]);
        assert_eq!(causes(|rank| rank == 1), [mismatch(Some(2), 1), mismatch(None, 1)]);
    }

    #[test]
    fn all_differences_fit_into_one_message() {
        let mut refused = RefusedRanks::default();
        for rank in 0..500 {
            refused.add(&mismatch(Some(rank), 30));
        }
        let kept: usize = refused.causes(|_| false).iter().map(|mismatch| mismatch.differences.len()).sum();
        assert_eq!(kept, DIFFERENCES_LIMIT);
    }

    #[test]
    fn each_rank_reads_the_differences_from_its_own_side() {
        let (zero, other) = (Identity::new().with("seed", 1), Identity::new().with("seed", 2));
        let ranks = [("alpha", &zero), ("beta", &zero), ("gamma", &other)];
        let texts = [0, 1, 2].map(|own| differences_from_rank0(own, &ranks).join("; "));
        assert_eq!(
            texts,
            [
                "seed: 1 here, 2 on rank 2 (gamma)",
                "seed: 1 on rank 0 (alpha), 2 on rank 2 (gamma)",
                "seed: 2 here, 1 on rank 0 (alpha)"
            ]
        );
        assert!(differences_from_rank0(0, &ranks[..2]).is_empty());
    }
}
