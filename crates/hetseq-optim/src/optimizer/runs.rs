//! The ranges of the flat layout whose elements are in one parameter group.
//!
//! Neighbouring parameters of equal groups are merged, so that a step has few, long ranges: with
//! the default groups, as many as there are changes between weights and other parameters. Read by
//! the element-wise optimizers (`sweep.rs`).

use std::collections::HashMap;
use std::ops::Range;

use crate::{Layout, ParameterGroup, ParameterGroups};

/// Ranges that cover the trainable part of the layout in order; none is empty.
#[derive(Debug)]
pub(super) struct GroupRuns {
    /// The end of each range (it starts at the end of the one before) and its position in `groups`.
    runs: Vec<(usize, usize)>,
    /// The distinct groups, in the order of their first elements.
    groups: Vec<ParameterGroup>,
}

impl GroupRuns {
    pub(super) fn new(layout: &Layout, groups: &ParameterGroups) -> GroupRuns {
        let mut found = GroupRuns { runs: Vec::new(), groups: Vec::new() };
        let mut positions = HashMap::new();
        let entries = layout.trainable_entries().iter().zip(groups.as_slice());
        for (entry, group) in entries.filter(|(entry, _)| !entry.range.is_empty()) {
            let position = *positions.entry((group.decays, group.lr_scale.to_bits())).or_insert_with(|| {
                found.groups.push(*group);
                found.groups.len() - 1
            });
            match found.runs.last_mut() {
                Some(last) if last.1 == position => last.0 = entry.range.end,
                _ => found.runs.push((entry.range.end, position)),
            }
        }
        found
    }

    /// The number of elements of the layout's trainable part.
    pub(super) fn len(&self) -> usize {
        self.runs.last().map_or(0, |(end, _)| *end)
    }

    /// The scalars of a step for each distinct group, in the order of the positions that
    /// [`GroupRuns::within`] returns.
    pub(super) fn scalars<S>(&self, scalars: impl Fn(&ParameterGroup) -> S) -> Vec<S> {
        self.groups.iter().map(scalars).collect()
    }

    /// Whether steps leave the parameters of the group at this position unchanged.
    pub(super) fn has_zero_rate(&self, position: usize) -> bool {
        self.groups[position].has_zero_rate()
    }

    /// The ranges within the `len` elements from `start` on, relative to `start`, and the positions
    /// of their groups.
    pub(super) fn within(&self, start: usize, len: usize) -> impl Iterator<Item = (Range<usize>, usize)> + '_ {
        let first = self.runs.partition_point(|(end, _)| *end <= start);
        let mut from = 0;
        self.runs[first..].iter().map_while(move |(end, position)| {
            let to = (end - start).min(len);
            let at = from..to;
            from = to;
            (!at.is_empty()).then_some((at, *position))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        let shapes = [vec![2, 2], vec![3, 1], vec![2], vec![0], vec![1], vec![5, 1]];
        let named = shapes.iter().enumerate();
        Layout::new(named.map(|(i, s)| (i.to_string(), s.clone()))).unwrap()
    }

    fn assert_windows_are_covered(runs: &GroupRuns, expected: &[usize]) {
        let len = expected.len();
        assert_eq!(runs.len(), len);
        for start in 0..=len {
            for length in 0..=len - start {
                let mut seen = Vec::new();
                for (at, position) in runs.within(start, length) {
                    assert_eq!(at.start, seen.len());
                    seen.extend(at.map(|_| position));
                }
                assert_eq!(seen, expected[start..start + length]);
            }
        }
    }

    #[test]
    fn neighbours_of_the_default_groups_are_merged() {
        let layout = layout();
        let runs = GroupRuns::new(&layout, &ParameterGroups::by_shape(&layout));
        assert_eq!(runs.runs, [(7, 0), (10, 1), (15, 0)]);
        let group = |decays| ParameterGroup { lr_scale: 1.0, decays };
        assert_eq!(runs.groups, [group(true), group(false)]);
        let expected: Vec<usize> = (0..15).map(|i| usize::from((7..10).contains(&i))).collect();
        assert_windows_are_covered(&runs, &expected);
    }

    #[test]
    fn another_scale_or_another_decay_starts_a_run() {
        let layout = layout();
        let groups = ParameterGroups::new(&layout, |entry| match entry.name.as_str() {
            "1" => ParameterGroup { lr_scale: 0.5, decays: true },
            // No elements: it must not split the vectors around it.
            "3" => ParameterGroup { lr_scale: 7.0, decays: true },
            "4" => ParameterGroup { lr_scale: 1.0, decays: true },
            _ => ParameterGroup::by_shape(entry),
        });
        let runs = GroupRuns::new(&layout, &groups.unwrap());
        assert_eq!(runs.runs, [(4, 0), (7, 1), (9, 2), (15, 0)]);
        assert_windows_are_covered(&runs, &[0, 0, 0, 0, 1, 1, 1, 2, 2, 0, 0, 0, 0, 0, 0]);
        assert_eq!(runs.scalars(|group| group.lr_scale), [1.0, 0.5, 1.0]);
    }
}
