//! Who exchanges second halves with whom in an epoch, and where the halves part.
//!
//! For next-sentence prediction half of the samples must have a second segment that does not follow the first. Taking one
//! from anywhere would leave the sample's own second half unused and use another twice. Instead, in each epoch the samples
//! of a length class are paired at random, each pair tosses a coin, and on heads the two exchange their second halves.
//! So every sentence is used once in every epoch, and each label has probability one half.
//!
//! Halves part at a sentence's end, or in the middle of the only sentence. A pair chooses its two places together, at
//! random among those with which neither sample gets longer than its class allows; if there are none, among the closest,
//! and the longest sentence loses a few tokens at its end. The places are chosen before the coin is tossed, so that
//! they tell nothing about the label.
//!
//! Two samples of the same document do not exchange: their halves might well follow each other. Where such pairs are
//! likely, in a corpus of few documents, the others exchange more often, so that the labels stay even.

use std::ops::Range;

use hetseq_random::Key;

/// The samples of `class`, paired at random; the partner of `sample`. One may be left over.
pub(super) fn partner(sample: u32, class: Range<u32>, epoch: Key) -> Option<u32> {
    let order = Permutation::new(class.end.saturating_sub(class.start), epoch);
    let place = order.place(sample.checked_sub(class.start)?)? ^ 1;
    order.item(place).map(|item| class.start + item)
}

/// A keyed permutation of `0..count` that needs no table: a Feistel network over the next power of four, walked until it
/// comes back into the range.
struct Permutation {
    count: u32,
    half_bits: u32,
    key: Key,
}

const ROUNDS: u32 = 4;

impl Permutation {
    fn new(count: u32, key: Key) -> Self {
        let bits = u32::BITS - count.saturating_sub(1).leading_zeros();
        Permutation { count, half_bits: bits.div_ceil(2).max(1), key }
    }

    fn round(&self, round: u32, half: u32) -> u32 {
        self.key.bits(round << 16 | half) & ((1 << self.half_bits) - 1)
    }

    /// Where `item` stands.
    fn place(&self, item: u32) -> Option<u32> {
        self.walk(item, |at| {
            let (mut left, mut right) = (at >> self.half_bits, at & ((1 << self.half_bits) - 1));
            for round in 0..ROUNDS {
                (left, right) = (right, left ^ self.round(round, right));
            }
            left << self.half_bits | right
        })
    }

    /// What stands at `place`: the same backwards.
    fn item(&self, place: u32) -> Option<u32> {
        self.walk(place, |at| {
            let (mut left, mut right) = (at >> self.half_bits, at & ((1 << self.half_bits) - 1));
            for round in (0..ROUNDS).rev() {
                (left, right) = (right ^ self.round(round, left), left);
            }
            left << self.half_bits | right
        })
    }

    fn walk(&self, start: u32, step: impl Fn(u32) -> u32) -> Option<u32> {
        if start >= self.count {
            return None;
        }
        let mut at = step(start);
        while at >= self.count {
            at = step(at);
        }
        Some(at)
    }
}

/// How likely a pair of different documents exchanges, if a pair is of one document with this probability.
pub(super) fn heads(same_document: f64) -> f64 {
    (0.5 / (1.0 - same_document.clamp(0.0, 0.999))).min(1.0)
}

/// Where two samples part, each a number of tokens from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Places {
    pub(super) first: usize,
    pub(super) second: usize,
}

/// Chooses among the places where each sample may part (`first`, `second`; not empty), given their lengths.
pub(super) fn places(first: (&[usize], usize), second: (&[usize], usize), limit: usize, key: Key) -> Places {
    let excess = |x: usize, y: usize| {
        let exchanged = [x + (second.1 - y), y + (first.1 - x)];
        exchanged.map(|length| length.saturating_sub(limit)).into_iter().max().unwrap_or(0)
    };
    let all = || first.0.iter().flat_map(|&x| second.0.iter().map(move |&y| (x, y)));
    let least = all().map(|(x, y)| excess(x, y)).min().unwrap_or(0);
    let best = || all().filter(|&(x, y)| excess(x, y) == least);
    let count = best().count() as u64;
    let chosen = best().nth(key.below(0, count.max(1)) as usize);
    chosen.map_or(Places { first: first.1, second: second.1 }, |(first, second)| Places { first, second })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_permutation_has_every_item_in_one_place() {
        for count in [1, 2, 3, 4, 5, 17, 64, 1000, 4097] {
            let order = Permutation::new(count, Key::root(u64::from(count)));
            let mut places: Vec<u32> = (0..count).map(|item| order.place(item).unwrap()).collect();
            assert!(places.iter().enumerate().all(|(item, &place)| order.item(place) == Some(item as u32)));
            places.sort_unstable();
            assert_eq!(places, (0..count).collect::<Vec<_>>());
            assert_eq!(order.place(count), None);
        }
    }

    #[test]
    fn partners_are_each_others_and_spread_over_the_class() {
        let class = 100..1101;
        let mut alone = 0;
        let mut near = 0;
        for sample in class.clone() {
            match partner(sample, class.clone(), Key::root(3)) {
                None => alone += 1,
                Some(other) => {
                    assert_eq!(partner(other, class.clone(), Key::root(3)), Some(sample));
                    assert!(other != sample && class.contains(&other));
                    near += u32::from(other.abs_diff(sample) < 100);
                }
            }
        }
        assert_eq!(alone, 1, "an odd number");
        // Within 100 of 1,000 in a line: 19 %; 5 deviations of sqrt(500 * 0.19 * 0.81) pairs are 88 of 1,000 samples.
        assert!((102..278).contains(&near), "{near}");
        let moved = class
            .clone()
            .filter(|&s| partner(s, class.clone(), Key::root(3)) != partner(s, class.clone(), Key::root(4)));
        assert!(moved.count() > 950, "another epoch has other pairs");
    }

    #[test]
    fn a_class_of_one_or_none_has_no_pairs() {
        assert_eq!(partner(5, 5..6, Key::root(1)), None);
        assert_eq!(partner(5, 0..0, Key::root(1)), None);
        assert_eq!(partner(4, 5..9, Key::root(1)), None);
    }

    proptest! {
        #[test]
        fn places_fit_if_any_do(
            a in prop::collection::btree_set(1usize..99, 1..8), b in prop::collection::btree_set(1usize..99, 1..8), seed: u64,
        ) {
            let (a, b): (Vec<usize>, Vec<usize>) = (a.into_iter().collect(), b.into_iter().collect());
            let (limit, lengths) = (110, (100, 105));
            let fits = |x: usize, y: usize| x + lengths.1 - y <= limit && y + lengths.0 - x <= limit;
            let chosen = places((&a, lengths.0), (&b, lengths.1), limit, Key::root(seed));
            prop_assert!(a.contains(&chosen.first) && b.contains(&chosen.second));
            let any = a.iter().any(|&x| b.iter().any(|&y| fits(x, y)));
            prop_assert_eq!(fits(chosen.first, chosen.second), any);
        }
    }
}
