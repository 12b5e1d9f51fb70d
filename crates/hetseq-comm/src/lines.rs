//! How fast the ranks' lines are: who meets whom to find out, how long they try, and what follows from it for each rank.
//!
//! Pure; `measure.rs` does the meeting. Pairs that meet at the same time are disjoint, so that each has its two lines to
//! itself.

use std::time::Duration;

/// What the network gives one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// In each direction while the other is used, too: the most that the rank reached with anybody, since a slow peer limits
    /// the pair and not the rank.
    pub bytes_per_s: u64,
    /// One way, to the middle one of those it met.
    pub latency_us: u64,
}

impl Line {
    /// Of a rank that has no others.
    pub(crate) const UNLIMITED: Line = Line { bytes_per_s: u64::MAX, latency_us: 0 };
}

/// What two ranks found out together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) ranks: [usize; 2],
    pub(crate) line: Line,
}

/// Everybody meets everybody up to this world; beyond, so many less one.
const ALL_MEET: usize = 9;
/// The first block that a pair swaps, and the largest.
pub(crate) const SMALLEST_BYTES: usize = 256 << 10;
pub(crate) const LARGEST_BYTES: usize = 16 << 20;
/// A swap that took this long is measured well enough: what buffers on the way swallow at once is a small part of it.
const LONG_ENOUGH: Duration = Duration::from_millis(50);

/// In how many rounds the ranks meet.
pub(crate) fn rounds(world: usize) -> usize {
    if world <= ALL_MEET { all_rounds(world) } else { ALL_MEET - 1 }
}

/// Whom `rank` meets in a round; nobody, if the world is odd and it is its turn. All pairs of a tournament in a circle, of
/// which a large world takes some rounds, spread over all.
pub(crate) fn partner(world: usize, round: usize, rank: usize) -> Option<usize> {
    let all = all_rounds(world);
    if all == 0 {
        return None;
    }
    let round = round * all / rounds(world);
    // All but the last seat move round a table; those meet whose seats add up to the round's number. Who would meet
    // itself meets the one who sits still, which in an odd world is nobody.
    let still = all;
    let seat = |rank: usize| (2 * round + all - rank) % all;
    let partner = match rank {
        rank if rank == still => round,
        rank if seat(rank) == rank => still,
        rank => seat(rank),
    };
    (partner < world).then_some(partner)
}

/// The rounds in which everybody meets everybody: an odd number.
fn all_rounds(world: usize) -> usize {
    if world < 2 { 0 } else { world - 1 + world % 2 }
}

/// Whether a pair should try a block of twice the size, after one that took `took` without the way there and back, and
/// with `left` of its time.
pub(crate) fn is_worth_doubling(bytes: usize, took: Duration, left: Duration) -> bool {
    bytes < LARGEST_BYTES && took < LONG_ENOUGH && took * 2 <= left
}

pub(crate) fn bytes_per_s(bytes: usize, took: Duration) -> u64 {
    // No line moves a block in less than the clock can tell.
    (bytes as f64 / took.as_secs_f64().max(1e-6)) as u64
}

/// The middle one; of an even number the larger of the two. Zero of none.
pub(crate) fn median<T: Copy + Default + Ord>(mut of: Vec<T>) -> T {
    of.sort_unstable();
    of.get(of.len() / 2).copied().unwrap_or_default()
}

/// The line of each rank, from what all pairs found.
pub(crate) fn lines(world: usize, pairs: &[Pair]) -> Vec<Line> {
    let line = |rank: usize| {
        let met: Vec<Line> = pairs.iter().filter(|pair| pair.ranks.contains(&rank)).map(|pair| pair.line).collect();
        let Some(bytes_per_s) = met.iter().map(|line| line.bytes_per_s).max() else { return Line::UNLIMITED };
        Line { bytes_per_s, latency_us: median(met.iter().map(|line| line.latency_us).collect()) }
    };
    (0..world).map(line).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pairs_of_a_round_are_disjoint_and_never_meet_again(world in 0usize..200) {
            let mut met = HashSet::new();
            for round in 0..rounds(world) {
                let idle = (0..world).filter(|&rank| partner(world, round, rank).is_none()).count();
                prop_assert_eq!(idle, world % 2);
                for rank in 0..world {
                    let Some(peer) = partner(world, round, rank) else { continue };
                    prop_assert!(peer != rank && peer < world);
                    prop_assert_eq!(partner(world, round, peer), Some(rank));
                    prop_assert!(met.insert((rank, peer)), "{} meets {} again", rank, peer);
                }
            }
            let each = |rank| met.iter().filter(|(one, _)| *one == rank).count();
            for rank in 0..world {
                if world <= ALL_MEET {
                    prop_assert_eq!(each(rank), world - 1);
                } else {
                    prop_assert!((7..=8).contains(&each(rank)), "rank {} meets {}", rank, each(rank));
                }
            }
        }

        /// Every pair is as fast as its slower line: then each rank gets its own line, unless it is faster than all others.
        #[test]
        fn lines_come_out_of_pairs(own in prop::collection::vec(1u64..1_000_000, 2..10)) {
            let world = own.len();
            let mut pairs = Vec::new();
            for round in 0..rounds(world) {
                for rank in 0..world {
                    if let Some(peer) = partner(world, round, rank).filter(|peer| *peer > rank) {
                        let line = Line { bytes_per_s: own[rank].min(own[peer]), latency_us: 7 };
                        pairs.push(Pair { ranks: [rank, peer], line });
                    }
                }
            }
            let mut sorted = own.clone();
            sorted.sort_unstable();
            let second = sorted[world - 2];
            for (rank, line) in lines(world, &pairs).iter().enumerate() {
                prop_assert_eq!(*line, Line { bytes_per_s: own[rank].min(second), latency_us: 7 });
            }
        }

        #[test]
        fn trying_ends(took_us in 0u64..10_000_000, left_us in 0u64..10_000_000) {
            let mut bytes = SMALLEST_BYTES;
            let (took, left) = (Duration::from_micros(took_us), Duration::from_micros(left_us));
            while is_worth_doubling(bytes, took, left) {
                prop_assert!(took <= LONG_ENOUGH && took * 2 <= left);
                bytes *= 2;
            }
            prop_assert!(bytes <= LARGEST_BYTES);
        }
    }

    #[test]
    fn the_far_one_has_the_latency_not_all_of_them() {
        let pair = |ranks, latency_us| Pair { ranks, line: Line { bytes_per_s: 1, latency_us } };
        let pairs = [pair([0, 1], 100), pair([0, 2], 50_000), pair([0, 3], 90), pair([1, 2], 50_000)];
        let pairs = [&pairs[..], &[pair([1, 3], 110), pair([2, 3], 49_000)]].concat();
        let latencies: Vec<u64> = lines(4, &pairs).iter().map(|line| line.latency_us).collect();
        assert_eq!(latencies, [100, 110, 50_000, 110]);
        assert_eq!(lines(1, &[]), [Line::UNLIMITED]);
    }

    #[test]
    fn a_rate_is_bytes_over_time() {
        assert_eq!(bytes_per_s(1_000_000, Duration::from_millis(10)), 100_000_000);
        assert_eq!(bytes_per_s(1_000_000, Duration::ZERO), 1_000_000_000_000);
    }
}
