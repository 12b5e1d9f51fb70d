//! Multisets of n-grams as sorted numbers, so that intersection and union are one pass over both.
//! Used by [`bleu`](crate::scores::bleu) and [`chrf`](crate::scores::chrf).

use std::cmp::Ordering;

/// The n-grams of one order in a line, sorted, with repetitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ngrams(Vec<u128>);

/// An n-gram is one number, its items next to each other. Six characters fit, or four words.
pub(crate) const CHARACTER_BITS: u32 = 21;
pub(crate) const WORD_BITS: u32 = 32;

impl Ngrams {
    /// Builds the n-grams of `items` that have `bits` bits each. `order` times `bits` must be 1 to
    /// 128.
    pub(crate) fn new(items: &[u32], order: usize, bits: u32) -> Self {
        debug_assert!((1..=128).contains(&(order as u32 * bits)));
        let mask = u128::MAX >> (u128::BITS - order as u32 * bits);
        let mut window = 0;
        let mut ngrams = Vec::with_capacity((items.len() + 1).saturating_sub(order));
        for (at, &item) in items.iter().enumerate() {
            window = (window << bits | u128::from(item)) & mask;
            if at + 1 >= order {
                ngrams.push(window);
            }
        }
        ngrams.sort_unstable();
        Ngrams(ngrams)
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// The size of the intersection: each n-gram counts as often as in the multiset with fewer of
    /// it.
    pub(crate) fn shared(&self, other: &Ngrams) -> u64 {
        let (mut left, mut right, mut shared) = (self.0.iter().peekable(), other.0.iter().peekable(), 0);
        while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
            let order = a.cmp(b);
            shared += u64::from(order == Ordering::Equal);
            left.next_if(|_| order != Ordering::Greater);
            right.next_if(|_| order != Ordering::Less);
        }
        shared
    }

    /// The union: each n-gram occurs as often as in the multiset with more of it.
    pub(crate) fn union(self, other: Ngrams) -> Ngrams {
        let (mut left, mut right) = (self.0.into_iter().peekable(), other.0.into_iter().peekable());
        let mut union = Vec::new();
        while let (Some(&a), Some(&b)) = (left.peek(), right.peek()) {
            union.push(a.min(b));
            left.next_if(|_| a <= b);
            right.next_if(|_| b <= a);
        }
        union.extend(left);
        union.extend(right);
        Ngrams(union)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn count(ngrams: &Ngrams, ngram: u128) -> usize {
        ngrams.0.iter().filter(|&&other| other == ngram).count()
    }

    proptest! {
        #[test]
        fn intersection_and_union_equal_plain_counting(
            left in prop::collection::vec(0u32..4, 0..30), right in prop::collection::vec(0u32..4, 0..30), order in 1usize..=4,
        ) {
            let (left, right) = (Ngrams::new(&left, order, WORD_BITS), Ngrams::new(&right, order, WORD_BITS));
            let union = left.clone().union(right.clone());
            let mut kinds: Vec<u128> = left.0.iter().chain(&right.0).copied().collect();
            kinds.sort_unstable();
            prop_assert!(union.0.is_sorted());
            kinds.dedup();
            let fewer = kinds.iter().map(|&kind| count(&left, kind).min(count(&right, kind))).sum::<usize>();
            prop_assert_eq!(left.shared(&right), fewer as u64);
            for kind in kinds {
                prop_assert_eq!(count(&union, kind), count(&left, kind).max(count(&right, kind)));
            }
        }
    }

    #[test]
    fn windows_have_the_length_of_the_order_and_distinct_items() {
        let items: Vec<u32> = "abcabc".chars().map(u32::from).collect();
        for (order, many, different) in [(1, 6, 3), (2, 5, 3), (3, 4, 3), (6, 1, 1), (7 - 1, 1, 1)] {
            let mut ngrams = Ngrams::new(&items, order, CHARACTER_BITS);
            assert_eq!(ngrams.len(), many);
            ngrams.0.dedup();
            assert_eq!(ngrams.len(), different, "{order}");
        }
        assert_eq!(Ngrams::new(&items[..2], 3, CHARACTER_BITS).len(), 0);
        let (most, rest) = (u32::from(char::MAX), [0; 6]);
        assert_ne!(Ngrams::new(&[most; 6], 6, CHARACTER_BITS), Ngrams::new(&rest, 6, CHARACTER_BITS));
        assert_ne!(Ngrams::new(&[u32::MAX, 0, 0, 1], 4, WORD_BITS), Ngrams::new(&[0, 0, 0, 1], 4, WORD_BITS));
    }
}
