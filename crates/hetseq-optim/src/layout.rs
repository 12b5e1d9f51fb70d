//! The flat layout: the position of each parameter in the one buffer format that gradients,
//! collectives, the optimizer and checkpoints share.
//!
//! It holds names, shapes and ranges, but no values. It covers only parameters that require a
//! gradient; buffers of the model are stored elsewhere. The trainer builds it once from the model.
//! Ranks compare [`Layout::hash`] before the first update.

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
#[derive(Clone, Debug)]
pub struct Layout {
    entries: Vec<LayoutEntry>,
    by_name: HashMap<String, usize>,
    len: usize,
}

impl Layout {
    /// Places the parameters in the given order. A scalar has the empty shape and one element.
    pub fn new(entries: impl IntoIterator<Item = (String, Vec<usize>)>) -> Result<Layout, OptimError> {
        let mut layout = Layout { entries: Vec::new(), by_name: HashMap::new(), len: 0 };
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
        Ok(layout)
    }

    /// The number of elements of all parameters.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The parameters, in the order of their ranges.
    pub fn entries(&self) -> &[LayoutEntry] {
        &self.entries
    }

    /// The parameter called `name`.
    pub fn get(&self, name: &str) -> Option<&LayoutEntry> {
        self.by_name.get(name).and_then(|index| self.entries.get(*index))
    }

    /// A hash of names, shapes and order, equal on every platform and in every build.
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
        let mut first = [0; 8];
        hasher.finalize_xof().fill(&mut first);
        u64::from_le_bytes(first)
    }
}

impl PartialEq for Layout {
    fn eq(&self, other: &Layout) -> bool {
        self.entries == other.entries // the index is derived from them
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
