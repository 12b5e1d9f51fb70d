//! A set of ranks of one generation, as it travels in messages.
//!
//! It knows no world: a set from a peer may contain any number. `machine.rs` checks it with
//! [`RankSet::fits`] before use.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Ranks in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct RankSet(BTreeSet<usize>);

impl RankSet {
    pub(crate) fn new() -> RankSet {
        RankSet::default()
    }

    /// Returns whether the rank was not yet in the set.
    pub(crate) fn insert(&mut self, rank: usize) -> bool {
        self.0.insert(rank)
    }

    pub(crate) fn extend(&mut self, ranks: &RankSet) {
        self.0.extend(ranks.iter());
    }

    pub(crate) fn contains(&self, rank: usize) -> bool {
        self.0.contains(&rank)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    pub(crate) fn is_subset(&self, other: &RankSet) -> bool {
        self.0.is_subset(&other.0)
    }

    /// Returns whether all ranks are below `world`.
    pub(crate) fn fits(&self, world: usize) -> bool {
        self.0.last().is_none_or(|&highest| highest < world)
    }

    /// Returns the ranks below `world`.
    pub(crate) fn below(&self, world: usize) -> RankSet {
        self.0.range(..world).copied().collect()
    }

    /// Returns the number of `rank` in the next generation, if this set becomes its members.
    pub(crate) fn position(&self, rank: usize) -> Option<usize> {
        self.contains(rank).then(|| self.0.range(..rank).count())
    }
}

impl FromIterator<usize> for RankSet {
    fn from_iter<I: IntoIterator<Item = usize>>(ranks: I) -> RankSet {
        RankSet(ranks.into_iter().collect())
    }
}

impl<const N: usize> From<[usize; N]> for RankSet {
    fn from(ranks: [usize; N]) -> RankSet {
        RankSet(ranks.into())
    }
}

/// Ranges, so that a thousand ranks fit into a log line: `0-3, 5, 7`.
impl fmt::Display for RankSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranks = self.iter().peekable();
        let mut first_range = true;
        while let Some(start) = ranks.next() {
            let mut end = start;
            while let Some(next) = ranks.next_if(|&next| next == end + 1) {
                end = next;
            }
            let separator = if first_range { "" } else { ", " };
            first_range = false;
            match end - start {
                0 => write!(out, "{separator}{start}")?,
                1 => write!(out, "{separator}{start}, {end}")?,
                _ => write!(out, "{separator}{start}-{end}")?,
            }
        }
        Ok(())
    }
}
