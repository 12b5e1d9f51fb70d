//! Pairs samples for next-sentence prediction: which samples exchange their second halves in an
//! epoch, and where each sample is split. Called by `text_samples`.
//!
//! Half of the samples must have a second segment that does not follow the first. Taking it from
//! anywhere would leave the sample's own second half unused and use another one twice. Instead, in
//! each epoch the samples of a class are paired at random and each pair tosses a coin. On heads the
//! two samples exchange their second halves. So no token is used twice in an epoch, and each label
//! has probability one half.
//!
//! The label must follow from the meaning of the text only. Therefore everything else is decided
//! before the coin is tossed and is equally likely for both results:
//!
//! - A sample is split at a sentence end; a sample of a single sentence is split inside it. The two
//!   kinds belong to different classes.
//! - A pair chooses its two split points together, at random among those for which all four
//!   possible samples (two on heads, two on tails) have a length of their class. Within a class all
//!   lengths are about equally likely, so both labels have the same lengths.
//! - If there are no such split points, the pair takes those whose second halves are closest in
//!   length, and truncates both, for both results of the coin. Both get the same length, and both
//!   end inside a sentence or both end with one. So lengths and truncated ends are the same on
//!   heads and on tails.
//! - Little text is truncated, because pairs are formed in random groups of four: of the three ways
//!   to form two pairs, the one that loses the fewest tokens is used.
//!
//! Two samples of the same document do not exchange, because their halves may follow each other.
//! They are split and truncated like the others. In a corpus of few documents such pairs are
//! likely; there the other pairs exchange more often, so that the labels stay balanced.

use std::ops::{Range, RangeInclusive};

use hetseq_random::Key;

/// Samples per group; pairs are formed within a group.
pub(super) const GROUP: usize = 4;

/// All ways to form two pairs from a group.
const PAIRINGS: [[[usize; 2]; 2]; 3] = [[[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0, 3], [1, 2]]];

/// The group of `sample`, if the samples of `class` are split into random groups. The last group
/// may be smaller.
pub(super) fn group(sample: u32, class: Range<u32>, epoch: Key) -> impl Iterator<Item = u32> {
    let order = Permutation::new(class.end.saturating_sub(class.start), epoch);
    let position = sample.checked_sub(class.start).and_then(|item| order.position(item));
    let first = position.map(|position| position - position % GROUP as u32);
    let positions = first.into_iter().flat_map(|first| (0..GROUP as u32).map(move |at| first + at));
    positions.filter_map(move |position| order.item(position)).map(move |item| class.start + item)
}

/// A keyed permutation of `0..count` without a table: a Feistel network over the next power of
/// four, applied repeatedly until the result is in the range (cycle walking).
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

    /// The position of `item`.
    fn position(&self, item: u32) -> Option<u32> {
        self.walk(item, |at| {
            let (mut left, mut right) = (at >> self.half_bits, at & ((1 << self.half_bits) - 1));
            for round in 0..ROUNDS {
                (left, right) = (right, left ^ self.round(round, right));
            }
            left << self.half_bits | right
        })
    }

    /// The item at `position`: the inverse of [`Permutation::position`].
    fn item(&self, position: u32) -> Option<u32> {
        self.walk(position, |at| {
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

/// The probability that a pair from different documents exchanges, if `same_document` is the
/// probability that a pair is from one document.
pub(super) fn exchange_probability(same_document: f64) -> f64 {
    (0.5 / (1.0 - same_document.clamp(0.0, 0.999))).min(1.0)
}

/// The properties of a sample that pairing needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct PairMember<'a> {
    /// Possible split points: the sentence ends inside the sample, in tokens from its start,
    /// ascending. Either all samples of a class have some, or none has.
    pub(super) sentence_ends: &'a [usize],
    pub(super) length: usize,
    /// Whether the sample ends with a sentence.
    pub(super) ends_sentence: bool,
}

impl PairMember<'_> {
    /// The number of tokens after the first `split`.
    fn rest(&self, split: usize) -> usize {
        self.length.saturating_sub(split)
    }

    fn is_sentence_end(&self, at: usize) -> bool {
        if at == self.length { self.ends_sentence } else { self.sentence_ends.binary_search(&at).is_ok() }
    }
}

/// Two samples that may exchange their second halves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentPair {
    /// Their indices in the group.
    pub(super) members: [usize; 2],
    /// The split point of each, in tokens from its start.
    pub(super) splits: [usize; 2],
    /// The largest length of either second half; the rest is truncated.
    pub(super) max_second: usize,
    /// The number of truncated tokens.
    lost: usize,
}

/// Forms pairs in a group of a class whose samples have `lengths`. A left-over sample has no
/// partner.
pub(super) fn pair_up(group: &[PairMember<'_>], lengths: &RangeInclusive<usize>, key: Key) -> [Option<SegmentPair>; 2] {
    let pairings = if group.len() == GROUP { &PAIRINGS[..] } else { &PAIRINGS[..1] };
    let mut best = ([None; 2], usize::MAX);
    for (at, pairing) in pairings.iter().enumerate() {
        let mut pairs = [None; 2];
        for (pair, &[one, other]) in pairs.iter_mut().zip(pairing) {
            if let (Some(&first), Some(&second)) = (group.get(one), group.get(other)) {
                let key = key.index(at as u64).index(one as u64);
                *pair = Some(split_pair([one, other], [first, second], lengths, key));
            }
        }
        let lost = pairs.iter().flatten().map(|pair| pair.lost).sum();
        if lost < best.1 {
            best = (pairs, lost);
        }
        if lost == 0 {
            break;
        }
    }
    best.0
}

/// Splits two samples of a class.
fn split_pair(
    members: [usize; 2],
    [one, other]: [PairMember<'_>; 2],
    lengths: &RangeInclusive<usize>,
    key: Key,
) -> SegmentPair {
    if one.sentence_ends.is_empty() || other.sentence_ends.is_empty() {
        // Inside the sentence, so that both second halves have the same length.
        let half = (one.length.min(other.length) / 2).max(1);
        return SegmentPair { members, splits: [one.rest(half), other.rest(half)], max_second: half, lost: 0 };
    }
    // The split points of `other` that give both exchanged samples a length of the class, if `one`
    // is split at `x`.
    let fit = |x: usize| {
        let (min, max) = (*lengths.start(), *lengths.end());
        let from = (x + other.length).saturating_sub(max).max((x + min).saturating_sub(one.length));
        let to = (x + other.length).saturating_sub(min).min((x + max).saturating_sub(one.length));
        let start = other.sentence_ends.partition_point(|&y| y < from);
        &other.sentence_ends[start..other.sentence_ends.partition_point(|&y| y <= to).max(start)]
    };
    let count: usize = one.sentence_ends.iter().map(|&x| fit(x).len()).sum();
    let mut choice = key.below(0, count.max(1) as u64) as usize;
    for &x in one.sentence_ends {
        match fit(x).get(choice) {
            Some(&y) => return SegmentPair { members, splits: [x, y], max_second: usize::MAX, lost: 0 },
            None => choice -= fit(x).len(),
        }
    }
    let all = one.sentence_ends.iter().flat_map(|&x| other.sentence_ends.iter().map(move |&y| [x, y]));
    let closest = all.min_by_key(|&[x, y]| one.rest(x).abs_diff(other.rest(y)));
    let [x, y] = closest.unwrap_or([one.length, other.length]);
    let shorter = one.rest(x).min(other.rest(y));
    let is_alike = |&length: &usize| one.is_sentence_end(x + length) == other.is_sentence_end(y + length);
    let max_second = (1..=shorter).rev().find(is_alike).unwrap_or(shorter);
    SegmentPair { members, splits: [x, y], max_second, lost: one.rest(x) + other.rest(y) - 2 * max_second }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_permutation_has_every_item_at_one_position() {
        for count in [1, 2, 3, 4, 5, 17, 64, 1000, 4097] {
            let order = Permutation::new(count, Key::root(u64::from(count)));
            let mut positions: Vec<u32> = (0..count).map(|item| order.position(item).unwrap()).collect();
            assert!(positions.iter().enumerate().all(|(item, &position)| order.item(position) == Some(item as u32)));
            positions.sort_unstable();
            assert_eq!(positions, (0..count).collect::<Vec<_>>());
            assert_eq!(order.position(count), None);
        }
    }

    #[test]
    fn groups_are_consistent_and_spread_over_the_class() {
        let class = 100..1101;
        let of = |sample, seed| group(sample, class.clone(), Key::root(seed)).collect::<Vec<u32>>();
        let (mut small, mut near, mut moved) = (0, 0, 0);
        for sample in class.clone() {
            let group = of(sample, 3);
            assert!(group.contains(&sample) && group.iter().all(|&other| class.contains(&other)));
            assert!(group.iter().all(|&other| of(other, 3) == group));
            small += u32::from(group.len() < GROUP);
            near += group.iter().filter(|&&other| other != sample && other.abs_diff(sample) < 100).count();
            moved += u32::from(of(sample, 4) != group);
        }
        assert_eq!(small, 1, "1,001 samples");
        // Within 100 of 1,000 in a row: 19 % of 3,000. Each pair counts twice: 5 standard
        // deviations are 2 * 5 * sqrt(1,500 * 0.19 * 0.81) = 152.
        assert!((418..722).contains(&near), "{near}");
        assert!(moved > 950, "another epoch has other groups");
    }

    #[test]
    fn a_class_of_few_or_none_has_small_groups() {
        let of = |sample, class| group(sample, class, Key::root(1)).collect::<Vec<u32>>();
        assert_eq!(of(5, 5..6), [5]);
        assert_eq!(of(5, 0..0), [0; 0]);
        assert_eq!(of(4, 5..9), [0; 0]);
        let member = PairMember { sentence_ends: &[50], length: 100, ends_sentence: true };
        for (count, paired) in [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2)] {
            let pairs = pair_up(&vec![member; count], &(90..=105), Key::root(1));
            assert_eq!(pairs.iter().flatten().count(), paired, "{count}");
        }
    }

    #[test]
    fn a_group_forms_the_pairs_that_lose_the_fewest_tokens() {
        let member = |sentence_ends| PairMember { sentence_ends, length: 100, ends_sentence: true };
        let (early, late) = (member(&[20]), member(&[70]));
        for group in [[early, early, late, late], [early, late, early, late], [early, late, late, early]] {
            let pairs = pair_up(&group, &(95..=105), Key::root(1)).map(Option::unwrap);
            assert!(pairs.iter().all(|pair| pair.splits[0] == pair.splits[1] && pair.lost == 0), "{pairs:?}");
        }
        let [one, other] = pair_up(&[early, late, late, late], &(95..=105), Key::root(1)).map(Option::unwrap);
        assert_eq!((one.max_second, one.lost, other.lost), (29, 80 - 29 + 1, 0), "both lose the end of a sentence");
    }

    #[test]
    fn single_sentences_are_split_inside_and_their_second_halves_have_the_same_length() {
        let member = |length| PairMember { sentence_ends: &[], length, ends_sentence: true };
        let [Some(pair), None] = pair_up(&[member(30), member(21)], &(14..=30), Key::root(1)) else { panic!() };
        assert_eq!((pair.splits, pair.max_second, pair.lost), ([20, 11], 10, 0));
    }

    proptest! {
        #[test]
        fn both_results_of_the_coin_look_the_same(
            a in prop::collection::btree_set(1usize..99, 1..8), b in prop::collection::btree_set(1usize..104, 1..8),
            ends_sentence: bool, seed: u64,
        ) {
            let (a, b): (Vec<usize>, Vec<usize>) = (a.into_iter().collect(), b.into_iter().collect());
            let one = PairMember { sentence_ends: &a, length: 100, ends_sentence };
            let other = PairMember { sentence_ends: &b, length: 105, ends_sentence };
            let lengths = 95..=110;
            let SegmentPair { splits: [x, y], max_second, lost, .. } =
                split_pair([0, 1], [one, other], &lengths, Key::root(seed));
            prop_assert!(a.contains(&x) && b.contains(&y));
            let fits = |x: usize, y: usize| lengths.contains(&(x + 105 - y)) && lengths.contains(&(y + 100 - x));
            let any = a.iter().any(|&x| b.iter().any(|&y| fits(x, y)));
            prop_assert_eq!(max_second == usize::MAX, any, "a pair that fits is not truncated");
            prop_assert_eq!(fits(x, y), any);
            prop_assert_eq!(lost, (100 - x).saturating_sub(max_second) + (105 - y).saturating_sub(max_second));
            if !any {
                prop_assert!(max_second >= 1 && x + max_second <= 100 && y + max_second <= 105);
                // There may be no such length only if there are no more tokens than sentence ends.
                let is_alike = one.is_sentence_end(x + max_second) == other.is_sentence_end(y + max_second);
                prop_assert!(is_alike || max_second <= a.len() + b.len(), "{} {} {}", x, y, max_second);
            }
        }
    }
}
