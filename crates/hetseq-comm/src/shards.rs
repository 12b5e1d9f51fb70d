//! The partition of a flat vector among ranks: contiguous ranges in rank order that cover it
//! exactly.
//!
//! Pure arithmetic, no communication. The trainer builds one per layout. Collectives exchange data
//! along its borders, so every rank must build it from the same numbers.

use std::ops::Range;

/// One contiguous range of `0..len` per rank; a range may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shards {
    /// `world + 1` ascending borders: rank r owns `borders[r]..borders[r + 1]`.
    borders: Vec<usize>,
}

impl Shards {
    /// Ranges whose sizes differ by at most one. A world of 0 counts as 1, because the data needs
    /// an owner.
    pub fn even(len: usize, world: usize) -> Shards {
        let world = world.max(1);
        // In 128 bits, so that the product cannot overflow for any length.
        let border = |rank: usize| (len as u128 * rank as u128 / world as u128) as usize;
        Shards { borders: (0..=world).map(border).collect() }
    }

    /// Ranges proportional to the weights, within one element of the exact share. A weight that is
    /// zero, negative or not finite owns nothing; if none is positive, the split is even.
    pub fn weighted(len: usize, weights: &[f64]) -> Shards {
        let largest = weights.iter().copied().filter(|w| w.is_finite()).fold(0.0, f64::max);
        if largest <= 0.0 || weights.iter().all(|weight| *weight == largest) {
            return Shards::even(len, weights.len());
        }
        // Scaled by the largest, so that the sum cannot overflow.
        let usable = |weight: f64| if weight.is_finite() && weight > 0.0 { weight / largest } else { 0.0 };
        let total: f64 = weights.iter().map(|w| usable(*w)).sum();
        let mut borders = Vec::with_capacity(weights.len() + 1);
        borders.push(0);
        let mut before = 0.0;
        for weight in weights {
            before += usable(*weight);
            // `before` reaches `total` exactly at the last positive weight: the same additions in
            // the same order. The clamp guards the border against rounding of lengths that f64
            // cannot hold.
            let border = if before >= total { len } else { ((len as f64) * (before / total)).round() as usize };
            borders.push(border.clamp(borders[borders.len() - 1], len));
        }
        Shards { borders }
    }

    /// Returns the range that `rank` owns; empty for a rank outside of the world.
    pub fn of(&self, rank: usize) -> Range<usize> {
        match (self.borders.get(rank), rank.checked_add(1).and_then(|next| self.borders.get(next))) {
            (Some(&start), Some(&end)) => start..end,
            _ => self.len()..self.len(),
        }
    }

    /// Returns the number of elements covered.
    pub fn len(&self) -> usize {
        self.borders.last().copied().unwrap_or(0)
    }

    /// Returns whether it covers no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of ranks.
    pub fn world(&self) -> usize {
        self.borders.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn assert_covers(shards: &Shards, len: usize, world: usize) {
        assert_eq!((shards.len(), shards.world()), (len, world));
        let mut next = 0;
        for rank in 0..world {
            let range = shards.of(rank);
            assert_eq!(range.start, next);
            assert!(range.end >= range.start);
            next = range.end;
        }
        assert_eq!(next, len);
        assert!(shards.of(world).is_empty() && shards.of(usize::MAX).is_empty());
    }

    #[test]
    fn a_rank_without_weight_owns_nothing() {
        let shards = Shards::weighted(100, &[1.0, 0.0, 3.0, f64::NAN, -2.0]);
        assert_eq!((0..5).map(|r| shards.of(r)).collect::<Vec<_>>(), vec![0..25, 25..25, 25..100, 100..100, 100..100]);
    }

    #[test]
    fn no_usable_weight_means_even() {
        assert_eq!(Shards::weighted(9, &[0.0, -1.0, f64::INFINITY]), Shards::even(9, 3));
        assert_covers(&Shards::weighted(9, &[]), 9, 1);
        assert_covers(&Shards::even(9, 0), 9, 1);
    }

    proptest! {
        #[test]
        fn even_covers_and_balances(len in prop_oneof![0usize..200, any::<usize>()], world in 1usize..70) {
            let shards = Shards::even(len, world);
            assert_covers(&shards, len, world);
            let sizes: Vec<usize> = (0..world).map(|r| shards.of(r).len()).collect();
            prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
        }

        #[test]
        fn weighted_covers_and_is_proportional(
            len in 0usize..1_000_000_000,
            weights in prop::collection::vec(prop_oneof![Just(0.0), 1e-3f64..1e3, 1e300f64..1e308], 1..40),
        ) {
            let shards = Shards::weighted(len, &weights);
            assert_covers(&shards, len, weights.len());
            let largest = weights.iter().copied().fold(0.0, f64::max);
            if largest > 0.0 {
                let total: f64 = weights.iter().map(|w| w / largest).sum();
                for (rank, weight) in weights.iter().enumerate() {
                    let exact = len as f64 * (weight / largest) / total;
                    prop_assert!((shards.of(rank).len() as f64 - exact).abs() <= 1.01);
                }
            }
        }

        #[test]
        fn weighted_accepts_any_number(len in any::<usize>(), weights in prop::collection::vec(any::<f64>(), 0..20)) {
            assert_covers(&Shards::weighted(len, &weights), len, weights.len().max(1));
        }
    }
}
