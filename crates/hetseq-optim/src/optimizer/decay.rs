//! The ranges of the flat layout that take weight decay.
//!
//! Neighbouring parameters of one kind are merged, so that a step has few, long ranges. [`decays`]
//! decides per parameter. Read by the element-wise optimizers (`sweep.rs`).

use std::ops::Range;

use crate::{Layout, decays};

/// Ranges that cover the layout in order; none is empty.
#[derive(Debug)]
pub(super) struct DecayMap {
    /// The end of each range (it starts at the end of the one before) and whether it decays.
    ranges: Vec<(usize, bool)>,
}

impl DecayMap {
    pub(super) fn new(layout: &Layout) -> DecayMap {
        let mut ranges: Vec<(usize, bool)> = Vec::new();
        for entry in layout.entries().iter().filter(|e| !e.range.is_empty()) {
            let (end, decays) = (entry.range.end, decays(entry));
            match ranges.last_mut() {
                Some(last) if last.1 == decays => last.0 = end,
                _ => ranges.push((end, decays)),
            }
        }
        DecayMap { ranges }
    }

    /// The number of elements of the layout.
    pub(super) fn len(&self) -> usize {
        self.ranges.last().map_or(0, |(end, _)| *end)
    }

    /// The ranges within the `len` elements from `start` on, relative to `start`.
    pub(super) fn within(&self, start: usize, len: usize) -> impl Iterator<Item = (Range<usize>, bool)> + '_ {
        let first = self.ranges.partition_point(|(end, _)| *end <= start);
        let mut from = 0;
        self.ranges[first..].iter().map_while(move |(end, decays)| {
            let to = (end - start).min(len);
            let at = from..to;
            from = to;
            (!at.is_empty()).then_some((at, *decays))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_window_is_covered_once_with_the_right_flag() {
        let shapes = [vec![2, 2], vec![3, 1], vec![2], vec![0], vec![1], vec![5, 1]];
        let named = shapes.iter().enumerate();
        let layout = Layout::new(named.map(|(i, s)| (i.to_string(), s.clone()))).unwrap();
        let map = DecayMap::new(&layout);
        assert_eq!(map.ranges, [(7, true), (10, false), (15, true)]);
        let flags: Vec<bool> = (0..15).map(|i| !(7..10).contains(&i)).collect();
        for start in 0..=15 {
            for len in 0..=15 - start {
                let mut seen = Vec::new();
                for (at, decays) in map.within(start, len) {
                    assert_eq!(at.start, seen.len());
                    seen.extend(at.map(|_| decays));
                }
                assert_eq!(seen, flags[start..start + len]);
            }
        }
    }
}
