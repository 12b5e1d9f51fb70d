//! The exchange: who sums which part of the gradient up, and how long each rank needs for its part of that.
//!
//! Called by the planner, by `hetseq plan`, and by whoever lays out the exchange. It knows of lines only: what is sent over
//! them, and how, is the business of `hetseq-comm`.
//!
//! In a direct exchange of S bytes among n ranks, each sends every other one the part that the other owns, and receives its
//! own from all; then the sums go the opposite way. So rank i, which owns the part w of the gradient, sends
//! `S (1 - w) + (n - 1) S w = S (1 + (n - 2) w)` bytes, and receives as many. A slow line should own little.

use crate::profile::Line;

/// Lines that differ by less than this own equal parts: what was measured of them is no more precise.
const ALIKE: f64 = 1.25;
/// The largest part that is still told apart from what an infinitely fast line could do.
const FASTEST: f64 = 1e15;

/// What part of the gradient each rank should own, that is, sum up. The parts sum to 1; with them the slowest rank is done
/// earliest.
pub fn ownership(lines: &[Line]) -> Vec<f64> {
    let ranks = lines.len() as f64;
    let even = vec![1.0 / ranks.max(1.0); lines.len()];
    let speeds: Vec<f64> = lines.iter().map(speed).collect();
    let (slowest, fastest) = speeds.iter().fold((f64::INFINITY, 0.0f64), |(low, high), &v| (low.min(v), high.max(v)));
    // Between two ranks the same bytes go either way, whoever owns what.
    if lines.len() < 3 || fastest <= slowest * ALIKE {
        return even;
    }
    // Ranks that own something all take the same time t, w = (v t - 1) / (n - 2), and the parts sum to 1. From the fastest
    // on, ranks own something as long as that leaves them more than nothing.
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

/// Parts that sum to 1 in these proportions; none if no proportion is a positive number.
pub(crate) fn normalised(proportions: &[f64]) -> Option<Vec<f64>> {
    let sane = |part: &f64| if *part > 0.0 { part.min(FASTEST) } else { 0.0 };
    let sum: f64 = proportions.iter().map(sane).sum();
    (sum > 0.0).then(|| proportions.iter().map(|part| sane(part) / sum).collect())
}

/// Seconds of its own that each rank needs for a direct exchange of a gradient of `bytes`.
pub fn exchange_seconds(bytes: u64, lines: &[Line], ownership: &[f64]) -> Vec<f64> {
    let parts: Vec<f64> = (0..lines.len()).map(|rank| ownership.get(rank).copied().unwrap_or(0.0)).collect();
    let seconds = |(line, bytes): (&Line, f64)| match lines.len() {
        0 | 1 => 0.0,
        _ => bytes / speed(line) + 2.0 * latency_s(line),
    };
    lines.iter().zip(exchange_bytes_each(bytes, &parts)).map(seconds).collect()
}

/// What each rank sends, and receives, in a direct exchange of a gradient of `bytes`.
pub(crate) fn exchange_bytes_each(bytes: u64, ownership: &[f64]) -> Vec<f64> {
    let others = ownership.len().saturating_sub(2) as f64;
    ownership.iter().map(|part| bytes as f64 * (1.0 + others * part)).collect()
}

/// Seconds that an exchange in a ring takes, for all ranks alike: it is as fast as its slowest line.
pub fn ring_seconds(bytes: u64, lines: &[Line]) -> f64 {
    let steps = 2.0 * (lines.len() as f64 - 1.0);
    if lines.len() < 2 {
        return 0.0;
    }
    let slowest = lines.iter().map(speed).fold(f64::INFINITY, f64::min);
    let latency_s = lines.iter().map(latency_s).fold(0.0, f64::max);
    steps / lines.len() as f64 * bytes as f64 / slowest + steps * latency_s
}

/// What is no positive number was not measured, and is taken for no limit.
fn speed(line: &Line) -> f64 {
    if line.bytes_per_s > 0.0 { line.bytes_per_s.min(FASTEST) } else { FASTEST }
}

fn latency_s(line: &Line) -> f64 {
    if line.latency_s > 0.0 { line.latency_s } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(bytes_per_s: f64) -> Line {
        Line { bytes_per_s, latency_s: 0.0 }
    }

    fn slowest_s(lines: &[Line], parts: &[f64]) -> f64 {
        exchange_seconds(1_000_000, lines, parts).into_iter().fold(0.0, f64::max)
    }

    proptest! {
        #[test]
        fn nobody_is_done_earlier_with_other_parts(
            speeds in prop::collection::vec(1e3f64..1e6, 1..8), others in prop::collection::vec(0.0f64..1.0, 8),
        ) {
            let lines: Vec<Line> = speeds.iter().copied().map(line).collect();
            let parts = ownership(&lines);
            prop_assert!((parts.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            prop_assert!(parts.iter().all(|&part| part >= 0.0));
            let others = normalised(&others[..lines.len()]).unwrap_or(parts.clone());
            // Lines that are nearly alike own the same, which costs at most their difference.
            prop_assert!(slowest_s(&lines, &parts) <= slowest_s(&lines, &others) * ALIKE);
            let differ = speeds.iter().fold(0.0f64, |a, &b| a.max(b)) > ALIKE * speeds.iter().fold(1e9f64, |a, &b| a.min(b));
            if differ || lines.len() < 3 {
                prop_assert!(slowest_s(&lines, &parts) <= slowest_s(&lines, &others) * (1.0 + 1e-9));
            }
        }

        #[test]
        fn strange_lines_do_no_harm(
            lines in prop::collection::vec((any::<f64>(), any::<f64>()), 0..6), bytes in any::<u64>(),
        ) {
            let lines: Vec<Line> =
                lines.into_iter().map(|(bytes_per_s, latency_s)| Line { bytes_per_s, latency_s }).collect();
            let parts = ownership(&lines);
            prop_assert!(parts.iter().all(|part| (0.0..=1.0 + 1e-9).contains(part)), "{parts:?}");
            prop_assert!(exchange_seconds(bytes, &lines, &parts).iter().all(|seconds| *seconds >= 0.0));
            prop_assert!(ring_seconds(bytes, &lines) >= 0.0);
        }
    }

    #[test]
    fn a_slow_line_owns_nothing_where_others_are_much_faster() {
        let parts = ownership(&[line(1e9), line(1e9), line(1e8)]);
        assert_eq!(parts, [0.5, 0.5, 0.0]);
        // It still sends its gradient once and receives the sum once.
        let seconds = exchange_seconds(1_000_000_000, &[line(1e9), line(1e9), line(1e8)], &parts);
        assert_eq!(seconds, [1.5, 1.5, 10.0]);
    }

    #[test]
    fn lines_that_are_nearly_alike_own_the_same() {
        assert_eq!(ownership(&[line(1e9), line(1.1e9), line(1.2e9), line(1e9)]), [0.25; 4]);
        assert_eq!(ownership(&[line(1e9), line(1e6)]), [0.5, 0.5]);
        assert_eq!(ownership(&[Line::unlimited()]), [1.0]);
        assert_eq!(ownership(&[]), [0.0; 0]);
    }

    #[test]
    fn unlimited_lines_take_no_time_and_own_all() {
        let lines = [Line::unlimited(), line(1e6), Line::unlimited()];
        let parts = ownership(&lines);
        assert_eq!(parts, [0.5, 0.0, 0.5]);
        let seconds = exchange_seconds(1_000_000, &lines, &parts);
        assert!(seconds[0] < 1e-6 && (seconds[1] - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_ring_is_as_fast_as_its_slowest_line() {
        let lines = [line(1e9), Line { bytes_per_s: 1e8, latency_s: 0.001 }, line(1e9), line(1e9)];
        assert!((ring_seconds(100_000_000, &lines) - (1.5 + 0.006)).abs() < 1e-9);
        assert_eq!(ring_seconds(100, &lines[..1]), 0.0);
    }
}
