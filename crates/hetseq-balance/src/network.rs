//! The exchange of gradients: each rank's shard, and the time that each rank needs for the
//! exchange.
//!
//! Called by the planner and by `hetseq bench comm`. It only knows link speeds; `hetseq-comm` does
//! the exchange.
//!
//! In a direct exchange of S bytes among n ranks, each rank sends every other rank that rank's
//! shard and receives its own shard from all; then the sums go the opposite way. So a rank that
//! owns the part w of the gradient sends `S (1 - w) + (n - 1) S w = S (1 + (n - 2) w)` bytes, and
//! receives as many. A rank with a slow link should own little.

use crate::profile::LinkProfile;

/// Links whose speeds differ by less than this factor own equal shards: measurements are not more
/// precise.
const EQUAL_SPEED_RATIO: f64 = 1.25;
/// The largest speed or proportion; larger ones count as infinite.
const FASTEST: f64 = 1e15;

/// The part of the gradient that each rank should own, that is, sum up. The parts sum to 1, and
/// minimise the time of the slowest rank.
pub fn shard_weights(links: &[LinkProfile]) -> Vec<f64> {
    let ranks = links.len() as f64;
    let even = vec![1.0 / ranks.max(1.0); links.len()];
    let speeds: Vec<f64> = links.iter().map(speed).collect();
    let (slowest, fastest) = speeds.iter().fold((f64::INFINITY, 0.0f64), |(low, high), &v| (low.min(v), high.max(v)));
    // Two ranks exchange the same bytes for any shards.
    if links.len() < 3 || fastest <= slowest * EQUAL_SPEED_RATIO {
        return even;
    }
    // All ranks with a shard take the same time t, w = (v t - 1) / (n - 2), and the parts sum to 1.
    // Ranks are added from the fastest on, as long as their part is positive.
    let mut from_fastest = speeds.clone();
    from_fastest.sort_by(|a, b| b.total_cmp(a));
    let (mut time, mut sum) = (f64::INFINITY, 0.0);
    for (owners, speed) in from_fastest.into_iter().enumerate() {
        if speed * time <= 1.0 {
            break;
        }
        sum += speed;
        time = (ranks - 2.0 + (owners + 1) as f64) / sum;
    }
    let parts: Vec<f64> = speeds.iter().map(|speed| ((speed * time - 1.0) / (ranks - 2.0)).max(0.0)).collect();
    normalised(&parts).unwrap_or(even)
}

/// Parts that sum to 1 in these proportions; `None` if no proportion is a positive number.
pub(crate) fn normalised(proportions: &[f64]) -> Option<Vec<f64>> {
    let sane = |part: &f64| if *part > 0.0 { part.min(FASTEST) } else { 0.0 };
    let sum: f64 = proportions.iter().map(sane).sum();
    (sum > 0.0).then(|| proportions.iter().map(|part| sane(part) / sum).collect())
}

/// Each rank's own seconds for a direct exchange of a gradient of `bytes`.
pub fn exchange_seconds(bytes: u64, links: &[LinkProfile], shard_weights: &[f64]) -> Vec<f64> {
    let parts: Vec<f64> = (0..links.len()).map(|rank| shard_weights.get(rank).copied().unwrap_or(0.0)).collect();
    let seconds = |(link, bytes): (&LinkProfile, f64)| match links.len() {
        0 | 1 => 0.0,
        _ => bytes / speed(link) + 2.0 * latency_s(link),
    };
    links.iter().zip(exchange_bytes_each(bytes, &parts)).map(seconds).collect()
}

/// The bytes that each rank sends, and receives, in a direct exchange of a gradient of `bytes`.
pub(crate) fn exchange_bytes_each(bytes: u64, shard_weights: &[f64]) -> Vec<f64> {
    let others = shard_weights.len().saturating_sub(2) as f64;
    shard_weights.iter().map(|part| bytes as f64 * (1.0 + others * part)).collect()
}

/// The seconds of a ring all-reduce, the same for all ranks: it is as fast as its slowest link.
pub fn ring_seconds(bytes: u64, links: &[LinkProfile]) -> f64 {
    let steps = 2.0 * (links.len() as f64 - 1.0);
    if links.len() < 2 {
        return 0.0;
    }
    let slowest = links.iter().map(speed).fold(f64::INFINITY, f64::min);
    let latency_s = links.iter().map(latency_s).fold(0.0, f64::max);
    steps / links.len() as f64 * bytes as f64 / slowest + steps * latency_s
}

/// A speed that is not a positive number was not measured, and counts as unlimited.
fn speed(link: &LinkProfile) -> f64 {
    if link.bytes_per_s > 0.0 { link.bytes_per_s.min(FASTEST) } else { FASTEST }
}

fn latency_s(link: &LinkProfile) -> f64 {
    if link.latency_s > 0.0 { link.latency_s } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn link(bytes_per_s: f64) -> LinkProfile {
        LinkProfile { bytes_per_s, latency_s: 0.0 }
    }

    fn slowest_s(links: &[LinkProfile], parts: &[f64]) -> f64 {
        exchange_seconds(1_000_000, links, parts).into_iter().fold(0.0, f64::max)
    }

    proptest! {
        #[test]
        fn no_other_weights_are_faster(
            speeds in prop::collection::vec(1e3f64..1e6, 1..8), others in prop::collection::vec(0.0f64..1.0, 8),
        ) {
            let links: Vec<LinkProfile> = speeds.iter().copied().map(link).collect();
            let parts = shard_weights(&links);
            prop_assert!((parts.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            prop_assert!(parts.iter().all(|&part| part >= 0.0));
            let others = normalised(&others[..links.len()]).unwrap_or(parts.clone());
            // Links of nearly the same speed own the same, which costs at most their difference.
            prop_assert!(slowest_s(&links, &parts) <= slowest_s(&links, &others) * EQUAL_SPEED_RATIO);
            let differ = speeds.iter().fold(0.0f64, |a, &b| a.max(b)) > EQUAL_SPEED_RATIO * speeds.iter().fold(1e9f64, |a, &b| a.min(b));
            if differ || links.len() < 3 {
                prop_assert!(slowest_s(&links, &parts) <= slowest_s(&links, &others) * (1.0 + 1e-9));
            }
        }

        #[test]
        fn invalid_links_do_no_harm(
            links in prop::collection::vec((any::<f64>(), any::<f64>()), 0..6), bytes in any::<u64>(),
        ) {
            let links: Vec<LinkProfile> =
                links.into_iter().map(|(bytes_per_s, latency_s)| LinkProfile { bytes_per_s, latency_s }).collect();
            let parts = shard_weights(&links);
            prop_assert!(parts.iter().all(|part| (0.0..=1.0 + 1e-9).contains(part)), "{parts:?}");
            prop_assert!(exchange_seconds(bytes, &links, &parts).iter().all(|seconds| *seconds >= 0.0));
            prop_assert!(ring_seconds(bytes, &links) >= 0.0);
        }
    }

    #[test]
    fn a_slow_link_owns_nothing_if_others_are_much_faster() {
        let parts = shard_weights(&[link(1e9), link(1e9), link(1e8)]);
        assert_eq!(parts, [0.5, 0.5, 0.0]);
        // It still sends its gradient once and receives the sum once.
        let seconds = exchange_seconds(1_000_000_000, &[link(1e9), link(1e9), link(1e8)], &parts);
        assert_eq!(seconds, [1.5, 1.5, 10.0]);
    }

    #[test]
    fn links_of_nearly_the_same_speed_own_the_same() {
        assert_eq!(shard_weights(&[link(1e9), link(1.1e9), link(1.2e9), link(1e9)]), [0.25; 4]);
        assert_eq!(shard_weights(&[link(1e9), link(1e6)]), [0.5, 0.5]);
        assert_eq!(shard_weights(&[LinkProfile::unlimited()]), [1.0]);
        assert_eq!(shard_weights(&[]), [0.0; 0]);
    }

    #[test]
    fn unlimited_links_take_no_time_and_own_everything() {
        let links = [LinkProfile::unlimited(), link(1e6), LinkProfile::unlimited()];
        let parts = shard_weights(&links);
        assert_eq!(parts, [0.5, 0.0, 0.5]);
        let seconds = exchange_seconds(1_000_000, &links, &parts);
        assert!(seconds[0] < 1e-6 && (seconds[1] - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_ring_is_as_fast_as_its_slowest_link() {
        let links = [link(1e9), LinkProfile { bytes_per_s: 1e8, latency_s: 0.001 }, link(1e9), link(1e9)];
        assert!((ring_seconds(100_000_000, &links) - (1.5 + 0.006)).abs() < 1e-9);
        assert_eq!(ring_seconds(100, &links[..1]), 0.0);
    }
}
