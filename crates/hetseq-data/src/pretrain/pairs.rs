//! Who exchanges second halves with whom in an epoch, and where the halves part.
//!
//! For next-sentence prediction half of the samples must have a second segment that does not follow the first. Taking one
//! from anywhere would leave the sample's own second half unused and use another twice. Instead, in each epoch the samples
//! of a class are paired at random, each pair tosses a coin, and on heads the two exchange their second halves. So
//! no token is used twice in an epoch, and each label has probability one half.
//!
//! Nothing but the meaning of the text may tell the label. So all else is settled before the coin is tossed, and is as
//! likely on either side of it:
//!
//! - Halves part at a sentence's end, a sample of a single sentence within it; the two kinds are of different classes.
//! - A pair chooses its two places together, at random among those with which all four possible samples, those of heads and
//!   those of tails, have a length of their class. Within a class all lengths are about equally likely, so both labels
//!   have the same lengths.
//! - If there are no such places, it takes those whose second halves are closest in length, and cuts both at their ends,
//!   whatever the coin will say, to one length and so that both end within a sentence or both with one. Then lengths,
//!   and where text breaks off, are the same on heads and on tails.
//! - Little is cut, because pairs are found in random groups of four: of the three ways to make two pairs of them, the one
//!   that costs the least.
//!
//! Two samples of the same document do not exchange: their halves might well follow each other. They part and are cut like
//! the others. Where such pairs are likely, in a corpus of few documents, the others exchange more often, so that the
//! labels stay even.

use std::ops::{Range, RangeInclusive};

use hetseq_random::Key;

/// How many samples look for partners among themselves.
pub(super) const GROUP: usize = 4;

/// The ways to make pairs of them.
const WAYS: [[[usize; 2]; 2]; 3] = [[[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0, 3], [1, 2]]];

/// The samples of `class`, in random groups; the group of `sample`. The last one may have fewer.
pub(super) fn group(sample: u32, class: Range<u32>, epoch: Key) -> impl Iterator<Item = u32> {
    let order = Permutation::new(class.end.saturating_sub(class.start), epoch);
    let place = sample.checked_sub(class.start).and_then(|item| order.place(item));
    let places = place.into_iter().flat_map(|place| (0..GROUP as u32).map(move |at| place - place % GROUP as u32 + at));
    places.filter_map(move |place| order.item(place)).map(move |item| class.start + item)
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

/// What there is to know of a sample to part it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Side<'a> {
    /// Where sentences end within it, in tokens from its beginning, ascending. Samples of one class all have some or none.
    pub(super) places: &'a [usize],
    pub(super) length: usize,
    /// Whether a sentence ends where it ends.
    pub(super) ends_sentence: bool,
}

impl Side<'_> {
    /// How much is left after the first `place` tokens.
    fn rest(&self, place: usize) -> usize {
        self.length.saturating_sub(place)
    }

    fn is_sentence_end(&self, place: usize) -> bool {
        if place == self.length { self.ends_sentence } else { self.places.binary_search(&place).is_ok() }
    }
}

/// Two samples that may exchange their second halves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pair {
    /// Which ones of the group.
    pub(super) members: [usize; 2],
    /// Where each parts, in tokens from its beginning.
    pub(super) places: [usize; 2],
    /// How much of either second half is used at most; the rest is cut off.
    pub(super) most: usize,
    /// How many tokens that costs.
    lost: usize,
}

/// Pairs a group of a class, whose samples have `lengths`. One that is left over has no partner.
pub(super) fn pair_up(group: &[Side<'_>], lengths: &RangeInclusive<usize>, key: Key) -> [Option<Pair>; 2] {
    let ways = if group.len() == GROUP { &WAYS[..] } else { &WAYS[..1] };
    let mut best = ([None; 2], usize::MAX);
    for (at, way) in ways.iter().enumerate() {
        let mut pairs = [None; 2];
        for (pair, &[one, other]) in pairs.iter_mut().zip(way) {
            if let (Some(&first), Some(&second)) = (group.get(one), group.get(other)) {
                *pair = Some(part([one, other], [first, second], lengths, key.index(at as u64).index(one as u64)));
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

/// Parts two samples of a class.
fn part(members: [usize; 2], sides: [Side<'_>; 2], lengths: &RangeInclusive<usize>, key: Key) -> Pair {
    let [one, other] = sides;
    if one.places.is_empty() || other.places.is_empty() {
        // Within the sentence, so that both second halves are of one length.
        let half = (one.length.min(other.length) / 2).max(1);
        return Pair { members, places: [one.rest(half), other.rest(half)], most: half, lost: 0 };
    }
    // The places of the other with which both exchanged samples have a length of the class, if this one parts at `x`.
    let fit = |x: usize| {
        let (least, most) = (*lengths.start(), *lengths.end());
        let from = (x + other.length).saturating_sub(most).max((x + least).saturating_sub(one.length));
        let to = (x + other.length).saturating_sub(least).min((x + most).saturating_sub(one.length));
        let start = other.places.partition_point(|&y| y < from);
        &other.places[start..other.places.partition_point(|&y| y <= to).max(start)]
    };
    let count: usize = one.places.iter().map(|&x| fit(x).len()).sum();
    let mut choice = key.below(0, count.max(1) as u64) as usize;
    for &x in one.places {
        match fit(x).get(choice) {
            Some(&y) => return Pair { members, places: [x, y], most: usize::MAX, lost: 0 },
            None => choice -= fit(x).len(),
        }
    }
    let all = one.places.iter().flat_map(|&x| other.places.iter().map(move |&y| [x, y]));
    let closest = all.min_by_key(|&[x, y]| one.rest(x).abs_diff(other.rest(y)));
    let [x, y] = closest.unwrap_or([one.length, other.length]);
    let shorter = one.rest(x).min(other.rest(y));
    let is_alike = |&most: &usize| one.is_sentence_end(x + most) == other.is_sentence_end(y + most);
    let most = (1..=shorter).rev().find(is_alike).unwrap_or(shorter);
    Pair { members, places: [x, y], most, lost: one.rest(x) + other.rest(y) - 2 * most }
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
    fn groups_are_the_same_for_all_in_them_and_spread_over_the_class() {
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
        // Within 100 of 1,000 in a line: 19 % of 3,000; 5 deviations of sqrt(1,500 * 0.19 * 0.81) are 152 of twice as many.
        assert!((418..722).contains(&near), "{near}");
        assert!(moved > 950, "another epoch has other groups");
    }

    #[test]
    fn a_class_of_few_or_none_has_small_groups() {
        let of = |sample, class| group(sample, class, Key::root(1)).collect::<Vec<u32>>();
        assert_eq!(of(5, 5..6), [5]);
        assert_eq!(of(5, 0..0), [0; 0]);
        assert_eq!(of(4, 5..9), [0; 0]);
        let side = Side { places: &[50], length: 100, ends_sentence: true };
        for (count, paired) in [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2)] {
            let pairs = pair_up(&vec![side; count], &(90..=105), Key::root(1));
            assert_eq!(pairs.iter().flatten().count(), paired, "{count}");
        }
    }

    #[test]
    fn a_group_makes_the_pairs_that_cost_least() {
        let side = |places| Side { places, length: 100, ends_sentence: true };
        let (early, late) = (side(&[20]), side(&[70]));
        for group in [[early, early, late, late], [early, late, early, late], [early, late, late, early]] {
            let pairs = pair_up(&group, &(95..=105), Key::root(1)).map(Option::unwrap);
            assert!(pairs.iter().all(|pair| pair.places[0] == pair.places[1] && pair.lost == 0), "{pairs:?}");
        }
        let [one, other] = pair_up(&[early, late, late, late], &(95..=105), Key::root(1)).map(Option::unwrap);
        assert_eq!((one.most, one.lost, other.lost), (29, 80 - 29 + 1, 0), "both lose the end of a sentence");
    }

    #[test]
    fn single_sentences_part_within_and_their_second_halves_are_of_one_length() {
        let side = |length| Side { places: &[], length, ends_sentence: true };
        let [Some(pair), None] = pair_up(&[side(30), side(21)], &(14..=30), Key::root(1)) else { panic!() };
        assert_eq!((pair.places, pair.most, pair.lost), ([20, 11], 10, 0));
    }

    proptest! {
        #[test]
        fn either_side_of_the_coin_looks_the_same(
            a in prop::collection::btree_set(1usize..99, 1..8), b in prop::collection::btree_set(1usize..104, 1..8),
            ends_sentence: bool, seed: u64,
        ) {
            let (a, b): (Vec<usize>, Vec<usize>) = (a.into_iter().collect(), b.into_iter().collect());
            let one = Side { places: &a, length: 100, ends_sentence };
            let other = Side { places: &b, length: 105, ends_sentence };
            let lengths = 95..=110;
            let Pair { places: [x, y], most, lost, .. } = part([0, 1], [one, other], &lengths, Key::root(seed));
            prop_assert!(a.contains(&x) && b.contains(&y));
            let fits = |x: usize, y: usize| lengths.contains(&(x + 105 - y)) && lengths.contains(&(y + 100 - x));
            let any = a.iter().any(|&x| b.iter().any(|&y| fits(x, y)));
            prop_assert_eq!(most == usize::MAX, any, "what fits is not cut");
            prop_assert_eq!(fits(x, y), any);
            prop_assert_eq!(lost, (100 - x).saturating_sub(most) + (105 - y).saturating_sub(most));
            if !any {
                prop_assert!(most >= 1 && x + most <= 100 && y + most <= 105);
                // Only with as few tokens as ends of sentences is there no choice.
                let is_alike = one.is_sentence_end(x + most) == other.is_sentence_end(y + most);
                prop_assert!(is_alike || most <= a.len() + b.len(), "{} {} {}", x, y, most);
            }
        }
    }
}
