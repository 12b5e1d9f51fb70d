//! The speed of each rank's link: which pairs measure, for how long, and what follows for each
//! rank.
//!
//! Pure; `measure.rs` does the measuring. Pairs that measure at the same time are disjoint, so that
//! each has its two links to itself.

use std::time::Duration;

/// The measured network link of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSpeed {
    /// In each direction while the other direction is busy, too. It is the highest speed that the
    /// rank reached with any peer, since a slow peer limits the pair and not the rank.
    pub bytes_per_s: u64,
    /// One way; the median over the peers it measured with.
    pub latency_us: u64,
}

impl LinkSpeed {
    /// The link of a rank without peers.
    pub(crate) const UNLIMITED: LinkSpeed = LinkSpeed { bytes_per_s: u64::MAX, latency_us: 0 };
}

/// The speed that two ranks measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkPair {
    pub(crate) ranks: [usize; 2],
    pub(crate) speed: LinkSpeed,
}

/// Up to this world size all pairs are measured; in a larger world each rank measures with one peer
/// less than this.
const ALL_PAIRS_WORLD: usize = 9;
/// The first block that a pair exchanges, and the largest.
pub(crate) const SMALLEST_BYTES: usize = 256 << 10;
pub(crate) const LARGEST_BYTES: usize = 16 << 20;
/// A swap of this duration is precise enough: what buffers on the way absorb at once is a small
/// part of it.
const LONG_ENOUGH: Duration = Duration::from_millis(50);

/// Returns the number of measuring rounds.
pub(crate) fn rounds(world: usize) -> usize {
    if world <= ALL_PAIRS_WORLD { all_rounds(world) } else { ALL_PAIRS_WORLD - 1 }
}

/// Returns the peer of `rank` in a round, or `None` for the rank that pauses in an odd world. The
/// pairs are those of a round-robin tournament (circle method); a large world uses some of its
/// rounds, evenly spread.
pub(crate) fn partner(world: usize, round: usize, rank: usize) -> Option<usize> {
    let all = all_rounds(world);
    if all == 0 {
        return None;
    }
    let round = round * all / rounds(world);
    // In the circle method, ranks are paired whose numbers add up to twice the round, modulo `all`.
    // A rank that would be paired with itself gets the fixed last one instead, which does not exist
    // in an odd world.
    let fixed = all;
    let opponent = |rank: usize| (2 * round + all - rank) % all;
    let partner = match rank {
        rank if rank == fixed => round,
        rank if opponent(rank) == rank => fixed,
        rank => opponent(rank),
    };
    (partner < world).then_some(partner)
}

/// Returns the number of rounds that measure all pairs: an odd number.
fn all_rounds(world: usize) -> usize {
    if world < 2 { 0 } else { world - 1 + world % 2 }
}

/// Returns whether a pair should try a block of twice the size, after one that took `took` without
/// the round trip, with `left` of its time remaining.
pub(crate) fn is_worth_doubling(bytes: usize, took: Duration, left: Duration) -> bool {
    bytes < LARGEST_BYTES && took < LONG_ENOUGH && took * 2 <= left
}

/// Returns the speed of a swap.
pub(crate) fn bytes_per_s(bytes: usize, took: Duration) -> u64 {
    // No link moves a block faster than the clock resolution.
    (bytes as f64 / took.as_secs_f64().max(1e-6)) as u64
}

/// Returns the median; of an even number of values the larger of the two in the middle, and zero of
/// none.
pub(crate) fn median<T: Copy + Default + Ord>(mut of: Vec<T>) -> T {
    of.sort_unstable();
    of.get(of.len() / 2).copied().unwrap_or_default()
}

/// Returns the link of each rank, from the measurements of all pairs.
pub(crate) fn per_rank(world: usize, pairs: &[LinkPair]) -> Vec<LinkSpeed> {
    let speed = |rank: usize| {
        let measured: Vec<LinkSpeed> =
            pairs.iter().filter(|pair| pair.ranks.contains(&rank)).map(|pair| pair.speed).collect();
        let Some(bytes_per_s) = measured.iter().map(|speed| speed.bytes_per_s).max() else {
            return LinkSpeed::UNLIMITED;
        };
        LinkSpeed { bytes_per_s, latency_us: median(measured.iter().map(|speed| speed.latency_us).collect()) }
    };
    (0..world).map(speed).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pairs_of_a_round_are_disjoint_and_never_repeat(world in 0usize..200) {
            let mut measured = HashSet::new();
            for round in 0..rounds(world) {
                let idle = (0..world).filter(|&rank| partner(world, round, rank).is_none()).count();
                prop_assert_eq!(idle, world % 2);
                for rank in 0..world {
                    let Some(peer) = partner(world, round, rank) else { continue };
                    prop_assert!(peer != rank && peer < world);
                    prop_assert_eq!(partner(world, round, peer), Some(rank));
                    prop_assert!(measured.insert((rank, peer)), "{} and {} are paired twice", rank, peer);
                }
            }
            let each = |rank| measured.iter().filter(|(one, _)| *one == rank).count();
            for rank in 0..world {
                if world <= ALL_PAIRS_WORLD {
                    prop_assert_eq!(each(rank), world - 1);
                } else {
                    prop_assert!((7..=8).contains(&each(rank)), "rank {} has {} peers", rank, each(rank));
                }
            }
        }

        /// Every pair is as fast as its slower link: then each rank gets its own speed, unless it
        /// is faster than all others.
        #[test]
        fn rank_speeds_follow_from_pairs(own in prop::collection::vec(1u64..1_000_000, 2..10)) {
            let world = own.len();
            let mut pairs = Vec::new();
            for round in 0..rounds(world) {
                for rank in 0..world {
                    if let Some(peer) = partner(world, round, rank).filter(|peer| *peer > rank) {
                        let speed = LinkSpeed { bytes_per_s: own[rank].min(own[peer]), latency_us: 7 };
                        pairs.push(LinkPair { ranks: [rank, peer], speed });
                    }
                }
            }
            let mut sorted = own.clone();
            sorted.sort_unstable();
            let second = sorted[world - 2];
            for (rank, speed) in per_rank(world, &pairs).iter().enumerate() {
                prop_assert_eq!(*speed, LinkSpeed { bytes_per_s: own[rank].min(second), latency_us: 7 });
            }
        }

        #[test]
        fn doubling_ends(took_us in 0u64..10_000_000, left_us in 0u64..10_000_000) {
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
    fn only_a_distant_rank_has_a_high_latency() {
        let pair = |ranks, latency_us| LinkPair { ranks, speed: LinkSpeed { bytes_per_s: 1, latency_us } };
        let pairs = [pair([0, 1], 100), pair([0, 2], 50_000), pair([0, 3], 90), pair([1, 2], 50_000)];
        let pairs = [&pairs[..], &[pair([1, 3], 110), pair([2, 3], 49_000)]].concat();
        let latencies: Vec<u64> = per_rank(4, &pairs).iter().map(|speed| speed.latency_us).collect();
        assert_eq!(latencies, [100, 110, 50_000, 110]);
        assert_eq!(per_rank(1, &[]), [LinkSpeed::UNLIMITED]);
    }

    #[test]
    fn a_rate_is_bytes_over_time() {
        assert_eq!(bytes_per_s(1_000_000, Duration::from_millis(10)), 100_000_000);
        assert_eq!(bytes_per_s(1_000_000, Duration::ZERO), 1_000_000_000_000);
    }
}
