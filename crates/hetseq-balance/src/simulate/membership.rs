//! Which ranks compute which updates together. Pure; called by `simulate`.

use std::ops::Range;

use super::Absence;
use crate::profile::Profile;

/// Consecutive updates that the same ranks compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MemberSpan {
    pub(super) updates: Range<u64>,
    /// Ascending; empty if all ranks are away.
    pub(super) members: Vec<usize>,
}

/// Splits updates 1 to `updates` into spans, in order. Neighbours have different members.
pub(super) fn spans(ranks: usize, updates: u64, absences: &[Absence]) -> Vec<MemberSpan> {
    let end = updates + 1;
    let mut cuts = vec![1, end];
    for absence in absences {
        cuts.push(absence.at_update);
        cuts.extend(absence.back_at_update);
    }
    cuts.retain(|&cut| (1..=end).contains(&cut));
    cuts.sort_unstable();
    cuts.dedup();
    let mut spans: Vec<MemberSpan> = Vec::new();
    for cut in cuts.windows(2) {
        let members = members(ranks, cut[0], absences);
        match spans.last_mut() {
            Some(last) if last.members == members => last.updates.end = cut[1],
            _ => spans.push(MemberSpan { updates: cut[0]..cut[1], members }),
        }
    }
    spans
}

fn members(ranks: usize, update: u64, absences: &[Absence]) -> Vec<usize> {
    let mut is_present = vec![true; ranks];
    for absence in absences {
        let away = absence.at_update..absence.back_at_update.unwrap_or(u64::MAX);
        if away.contains(&update) && absence.rank < ranks {
            is_present[absence.rank] = false;
        }
    }
    (0..ranks).filter(|&rank| is_present[rank]).collect()
}

/// The group that consists of these ranks.
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
        let span = |updates, members: &[usize]| MemberSpan { updates, members: members.to_vec() };
        assert_eq!(spans(2, 9, &[]), [span(1..10, &[0, 1])]);
        let away = [absence(1, 4, Some(7))];
        assert_eq!(spans(2, 9, &away), [span(1..4, &[0, 1]), span(4..7, &[0]), span(7..10, &[0, 1])]);
        // One leaves when the other returns. Overlapping absences count once, and late ones do not
        // count.
        let away = [absence(1, 4, Some(7)), absence(0, 7, None), absence(0, 8, Some(9)), absence(1, 50, None)];
        assert_eq!(spans(2, 9, &away), [span(1..4, &[0, 1]), span(4..7, &[0]), span(7..10, &[1])]);
        assert_eq!(spans(1, 9, &[absence(0, 1, None)]), [span(1..10, &[])]);
    }
}
