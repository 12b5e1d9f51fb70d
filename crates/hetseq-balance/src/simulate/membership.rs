//! Which ranks do which updates together. Pure.

use std::ops::Range;

use super::Absence;
use crate::profile::Profile;

/// Updates that the same ranks do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) updates: Range<u64>,
    /// Ascending; empty if nobody is there.
    pub(super) members: Vec<usize>,
}

/// All updates from 1 on, in order. Neighbours have different members.
pub(super) fn spans(ranks: usize, updates: u64, absences: &[Absence]) -> Vec<Span> {
    let end = updates + 1;
    let mut cuts = vec![1, end];
    for absence in absences {
        cuts.push(absence.at_update);
        cuts.extend(absence.back_at_update);
    }
    cuts.retain(|&cut| (1..=end).contains(&cut));
    cuts.sort_unstable();
    cuts.dedup();
    let mut spans: Vec<Span> = Vec::new();
    for cut in cuts.windows(2) {
        let members = members(ranks, cut[0], absences);
        match spans.last_mut() {
            Some(last) if last.members == members => last.updates.end = cut[1],
            _ => spans.push(Span { updates: cut[0]..cut[1], members }),
        }
    }
    spans
}

fn members(ranks: usize, update: u64, absences: &[Absence]) -> Vec<usize> {
    let mut is_there = vec![true; ranks];
    for absence in absences {
        let away = absence.at_update..absence.back_at_update.unwrap_or(u64::MAX);
        if away.contains(&update) && absence.rank < ranks {
            is_there[absence.rank] = false;
        }
    }
    (0..ranks).filter(|&rank| is_there[rank]).collect()
}

/// These ranks of a group, as a group.
pub(super) fn group_of(profile: &Profile, members: &[usize]) -> Profile {
    let &Profile { ref task, parameters, exchange_bytes, ref ranks } = profile;
    let ranks = members.iter().map(|&rank| ranks[rank].clone()).collect();
    Profile { task: task.clone(), parameters, exchange_bytes, ranks }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn absence(rank: usize, at_update: u64, back_at_update: Option<u64>) -> Absence {
        Absence { rank, at_update, back_at_update }
    }

    #[test]
    fn every_update_is_in_one_span() {
        let span = |updates, members: &[usize]| Span { updates, members: members.to_vec() };
        assert_eq!(spans(2, 9, &[]), [span(1..10, &[0, 1])]);
        let away = [absence(1, 4, Some(7))];
        assert_eq!(spans(2, 9, &away), [span(1..4, &[0, 1]), span(4..7, &[0]), span(7..10, &[0, 1])]);
        // One leaves when the other is back; what is said twice counts once; what comes too late does not count.
        let away = [absence(1, 4, Some(7)), absence(0, 7, None), absence(0, 8, Some(9)), absence(1, 50, None)];
        assert_eq!(spans(2, 9, &away), [span(1..4, &[0, 1]), span(4..7, &[0]), span(7..10, &[1])]);
        assert_eq!(spans(1, 9, &[absence(0, 1, None)]), [span(1..10, &[])]);
    }
}
