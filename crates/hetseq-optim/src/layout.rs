//! The flat layout: the position of each parameter in the one buffer format that gradients,
//! collectives, the optimizer and checkpoints share.
//!
//! It holds names, shapes and ranges, but no values. It covers trainable and frozen parameters, in
//! this order; buffers of the model are stored elsewhere. The trainer builds it once from the
//! model. Ranks compare [`Layout::hash`] before the first update.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::OptimError;

/// One parameter. Its elements are `range` of the flat buffer, in row-major order of `shape`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayoutEntry {
    pub name: String,
    pub shape: Vec<usize>,
    pub range: Range<usize>,
}

/// Parameters in a stable order, back to back, without gaps.
///
/// Frozen parameters come last. So gradients and optimizer state, which only trainable parameters
/// have, are buffers with the same positions and a smaller length, [`Layout::trainable_len`].
#[derive(Clone, Debug)]
pub struct Layout {
    entries: Vec<LayoutEntry>,
    by_name: HashMap<String, usize>,
    len: usize,
    /// The number of entries before the first frozen one.
    trainable: usize,
}

impl Layout {
    /// Places the parameters in the given order, all trainable. A scalar has the empty shape and one
    /// element.
    pub fn new(entries: impl IntoIterator<Item = (String, Vec<usize>)>) -> Result<Layout, OptimError> {
        let mut layout = Layout { entries: Vec::new(), by_name: HashMap::new(), len: 0, trainable: 0 };
        for (name, shape) in entries {
            let index = layout.entries.len();
            match layout.by_name.entry(name.clone()) {
                Slot::Occupied(first) => {
                    return Err(OptimError::DuplicateParameter { name, first: *first.get(), second: index });
                }
                Slot::Vacant(slot) => slot.insert(index),
            };
            let size = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
            let Some(end) = size.and_then(|size| layout.len.checked_add(size)) else {
                return Err(OptimError::LayoutTooLarge { name, shape });
            };
            layout.entries.push(LayoutEntry { name, shape, range: layout.len..end });
            layout.len = end;
        }
        layout.trainable = layout.entries.len();
        Ok(layout)
    }

    /// Moves the parameters for which `is_frozen` returns true behind all others. Otherwise the
    /// order stays.
    pub fn freeze(self, is_frozen: impl Fn(&LayoutEntry) -> bool) -> Layout {
        let (frozen, mut entries): (Vec<_>, Vec<_>) = self.entries.into_iter().partition(is_frozen);
        let trainable = entries.len();
        entries.extend(frozen);
        let mut start = 0;
        for entry in &mut entries {
            entry.range = start..start + entry.range.len();
            start = entry.range.end;
        }
        let by_name = entries.iter().enumerate().map(|(index, entry)| (entry.name.clone(), index)).collect();
        Layout { entries, by_name, len: self.len, trainable }
    }

    /// The number of elements of all parameters.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of elements of the trainable parameters, which are the first ones.
    pub fn trainable_len(&self) -> usize {
        self.trainable_entries().last().map_or(0, |entry| entry.range.end)
    }

    /// The parameters, in the order of their ranges.
    pub fn entries(&self) -> &[LayoutEntry] {
        &self.entries
    }

    /// The trainable parameters, in the order of their ranges.
    pub fn trainable_entries(&self) -> &[LayoutEntry] {
        &self.entries[..self.trainable]
    }

    /// The frozen parameters, in the order of their ranges.
    pub fn frozen_entries(&self) -> &[LayoutEntry] {
        &self.entries[self.trainable..]
    }

    /// Whether a parameter called `name` exists and is frozen.
    pub fn is_frozen(&self, name: &str) -> bool {
        self.by_name.get(name).is_some_and(|index| *index >= self.trainable)
    }

    /// The parameter called `name`.
    pub fn get(&self, name: &str) -> Option<&LayoutEntry> {
        self.by_name.get(name).and_then(|index| self.entries.get(*index))
    }

    /// A hash of names, shapes, order and what is frozen, equal on every platform and in every
    /// build.
    ///
    /// Lengths precede contents, so that no two layouts hash the same bytes.
    pub fn hash(&self) -> u64 {
        let mut hasher = blake3::Hasher::new();
        let number = |hasher: &mut blake3::Hasher, n: usize| {
            hasher.update(&(n as u64).to_le_bytes());
        };
        number(&mut hasher, self.entries.len());
        for entry in &self.entries {
            number(&mut hasher, entry.name.len());
            hasher.update(entry.name.as_bytes());
            number(&mut hasher, entry.shape.len());
            for dimension in &entry.shape {
                number(&mut hasher, *dimension);
            }
        }
        // Without frozen parameters nothing is added: older checkpoints hold that hash.
        if self.trainable < self.entries.len() {
            number(&mut hasher, self.trainable);
        }
        let mut first = [0; 8];
        hasher.finalize_xof().fill(&mut first);
        u64::from_le_bytes(first)
    }
}

impl PartialEq for Layout {
    fn eq(&self, other: &Layout) -> bool {
        // The index and the length are derived from these.
        self.entries == other.entries && self.trainable == other.trainable
    }
}

/// Whether weight decay applies to a parameter: to weights with two or more dimensions, not to
/// biases and norms.
///
/// Norm parameters and biases are vectors or scalars, so the number of dimensions separates them
/// from weights in any model. Names that end in `bias` are excluded too, for biases with extra
/// dimensions (a relative-position bias table, a `[1, n]` bias). Embeddings decay.
pub fn decays(entry: &LayoutEntry) -> bool {
    entry.shape.len() >= 2 && !entry.name.ends_with("bias")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(entries: &[(&str, &[usize])]) -> Layout {
        Layout::new(entries.iter().map(|(n, s)| ((*n).to_owned(), (*s).to_vec()))).unwrap()
    }

    #[test]
    fn parameters_have_no_gaps() {
        let layout = layout(&[("a.weight", &[2, 3]), ("a.bias", &[3]), ("scale", &[]), ("none", &[0, 4])]);
        let ranges: Vec<_> = layout.entries().iter().map(|e| e.range.clone()).collect();
        assert_eq!(ranges, [0..6, 6..9, 9..10, 10..10]);
        assert_eq!(layout.len(), 10);
        assert_eq!(layout.get("a.bias").unwrap().shape, [3]);
        assert!(layout.get("b").is_none());
    }

    #[test]
    fn a_duplicate_name_is_refused() {
        let error = Layout::new(["w", "v", "w"].map(|n| (n.to_owned(), vec![1]))).unwrap_err();
        assert_eq!(error, OptimError::DuplicateParameter { name: "w".into(), first: 0, second: 2 });
    }

    #[test]
    fn sizes_that_overflow_are_refused() {
        let error = Layout::new([("w".to_owned(), vec![usize::MAX, 2])]).unwrap_err();
        assert!(matches!(error, OptimError::LayoutTooLarge { .. }));
        let two = [("v".to_owned(), vec![1]), ("w".to_owned(), vec![usize::MAX])];
        assert!(Layout::new(two).is_err());
    }

    #[test]
    fn the_hash_depends_on_names_shapes_and_order_only() {
        let base = layout(&[("ab", &[2, 3]), ("c", &[4])]);
        // Recorded once: a change means that old checkpoints no longer match.
        assert_eq!(base.hash(), 0xb81a_7e44_c9b1_b2fa);
        assert_eq!(base.clone().hash(), base.hash());
        for other in [
            layout(&[("a", &[2, 3]), ("bc", &[4])]),
            layout(&[("ab", &[3, 2]), ("c", &[4])]),
            layout(&[("ab", &[6]), ("c", &[4])]),
            layout(&[("c", &[4]), ("ab", &[2, 3])]),
            layout(&[("ab", &[2, 3])]),
        ] {
            assert_ne!(other.hash(), base.hash());
        }
    }

    #[test]
    fn frozen_parameters_come_last_in_the_same_order() {
        let shapes: [(&str, &[usize]); 5] = [("a", &[2, 3]), ("b", &[]), ("c", &[0]), ("d", &[4]), ("e", &[2])];
        let layout = layout(&shapes).freeze(|entry| ["a", "d"].contains(&entry.name.as_str()));
        let places: Vec<_> = layout.entries().iter().map(|e| (e.name.as_str(), e.range.clone())).collect();
        assert_eq!(places, [("b", 0..1), ("c", 1..1), ("e", 1..3), ("a", 3..9), ("d", 9..13)]);
        assert_eq!((layout.trainable_len(), layout.len()), (3, 13));
        assert_eq!(layout.trainable_entries(), &layout.entries()[..3]);
        assert_eq!(layout.get("d").unwrap().range, 9..13);
        let frozen = ["a", "b", "c", "d", "e", "f"].map(|name| layout.is_frozen(name));
        assert_eq!(frozen, [true, false, false, true, false, false]);
    }

    #[test]
    fn freezing_changes_the_hash_even_if_the_order_stays() {
        let base = layout(&[("ab", &[2, 3]), ("c", &[4]), ("d", &[])]);
        assert_eq!(base.clone().freeze(|_| false), base);
        assert_eq!(base.clone().freeze(|_| false).hash(), base.hash());
        let freeze = |names: &[&str]| base.clone().freeze(|entry| names.contains(&entry.name.as_str()));
        let all = [&[][..], &["d"], &["c", "d"], &["ab", "c", "d"], &["ab"], &["c"]].map(freeze);
        let hashes: std::collections::HashSet<u64> = all.iter().map(Layout::hash).collect();
        assert_eq!(hashes.len(), all.len());
        assert_ne!(all[0], all[1]);
    }

    #[test]
    fn only_weights_decay() {
        let layout = layout(&[
            ("dense.weight", &[2, 3]),
            ("embeddings.weight", &[7, 3]),
            ("conv.weight", &[4, 2, 3, 3]),
            ("dense.bias", &[3]),
            ("norm.gamma", &[3]),
            ("temperature", &[]),
            ("position_bias", &[4, 8]),
        ]);
        let decaying: Vec<_> = layout.entries().iter().map(decays).collect();
        assert_eq!(decaying, [true, true, true, false, false, false, false]);
    }
}
