//! Notices a loss that rises instead of falling, long before a value overflows. Pure: the loop adds
//! the loss of each update, and gets a warning at most once.

use std::collections::VecDeque;

/// Updates whose losses are compared with those at the start.
const WINDOW: usize = 20;
/// Updates at the start.
const START: usize = 5;
/// Losses of ordinary noise are never all this many times as high as the median at the start.
const ABOVE_START: f64 = 2.0;
/// As [`ABOVE_START`], for the first loss alone, which is less certain. Later ones may have exploded.
const ABOVE_FIRST: f64 = 10.0;
/// A loss that explodes, and may come back: the units of a network die, and it learns nothing more.
const EXPLODED: f64 = 1000.0;
const EXPLOSIONS: usize = 3;

/// The losses of a run, or of the part since it was resumed.
#[derive(Debug)]
pub(super) struct LossWatch {
    is_resumed: bool,
    first: Vec<f64>,
    last: VecDeque<f64>,
    has_warned: bool,
}

impl LossWatch {
    pub(super) fn new(is_resumed: bool) -> Self {
        LossWatch { is_resumed, first: Vec::new(), last: VecDeque::new(), has_warned: false }
    }

    /// Adds the loss of the next update. Returns a warning if the last losses are far above those at
    /// the start.
    pub(super) fn add(&mut self, loss: f64, lr: f64) -> Option<String> {
        if self.first.len() < START {
            self.first.push(loss);
        }
        if self.last.len() == WINDOW {
            self.last.pop_front();
        }
        self.last.push_back(loss);
        let risen = self.risen().filter(|_| !self.has_warned)?;
        self.has_warned = true;
        Some(format!(
            "the loss has risen from {} to {}: the run probably diverges. Lower optim.lr ({lr} now), set optim.clip_norm, or \
             lengthen the warm-up (optim.schedule)",
            shown(self.reference()),
            shown(risen)
        ))
    }

    /// The height of a loss that is far above the start.
    fn risen(&mut self) -> Option<f64> {
        let (start, reference) = (median(&self.first), self.reference());
        if reference <= 0.0 {
            return None;
        }
        let exploded = self.last.iter().filter(|loss| **loss > EXPLODED * reference);
        if exploded.count() >= EXPLOSIONS {
            return self.last.iter().copied().reduce(f64::max);
        }
        let lowest = self.last.iter().copied().fold(f64::INFINITY, f64::min);
        let is_high = (start > 0.0 && lowest > ABOVE_START * start) || lowest > ABOVE_FIRST * reference;
        (is_high && self.last.len() == WINDOW).then(|| median(self.last.make_contiguous()))
    }

    /// The first loss of a new model does not depend on chance. Those of a trained one may all be small,
    /// and differ by much.
    fn reference(&self) -> f64 {
        let first = self.first.first().copied().unwrap_or_default();
        if self.is_resumed { self.first.iter().copied().fold(first, f64::max) } else { first }
    }
}

fn median(losses: &[f64]) -> f64 {
    let mut sorted = losses.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

fn shown(loss: f64) -> String {
    if loss.abs() < 1e5 { format!("{loss:.3}") } else { format!("{loss:.1e}") }
}

#[cfg(test)]
mod tests {
    use hetseq_random::Key;

    use super::*;

    /// The update that warns.
    fn warns_at(is_resumed: bool, losses: impl Iterator<Item = f64>) -> Option<usize> {
        let mut watch = LossWatch::new(is_resumed);
        let warned: Vec<usize> =
            losses.enumerate().filter_map(|(at, loss)| watch.add(loss, 0.1).map(|_| at + 1)).collect();
        assert!(warned.len() <= 1, "warns once: {warned:?}");
        warned.first().copied()
    }

    #[test]
    fn a_loss_that_stays_far_above_its_start_is_noticed() {
        assert_eq!(warns_at(false, (0..40).map(|_| 2.3).chain((0..40).map(|_| 5.0))), Some(60));
        // It explodes at once, and stays there.
        assert_eq!(warns_at(false, [2.3, 80.0, 900.0].into_iter().chain((0..40).map(|_| 500.0))), Some(21));
        let rising = (0..100).map(|n| 2.0 * 1.05_f64.powi(n));
        let exploding = [2.3, 2.4, 2.6, 9e4, 4e8, 1e6].into_iter().chain((0..40).map(|_| 2.3));
        assert_eq!(warns_at(false, exploding), Some(6));
        assert!(warns_at(false, rising).is_some_and(|update| update < 60));
    }

    #[test]
    fn ordinary_training_is_not() {
        let key = Key::root(1);
        // Falls, with noise of half its size, and with spikes of a few updates.
        let noise = |n: u64| 0.5 + key.bits64(n) as f64 / u64::MAX as f64;
        let falling = |n: u64| (2.0 / (1.0 + n as f64 / 100.0)) * noise(n);
        assert_eq!(warns_at(false, (0..5000).map(falling)), None);
        let spikes = (0..5000).map(|n| if n % 100 < 15 { 40.0 } else { falling(n) });
        assert_eq!(warns_at(false, spikes), None);
        // Resumed near the end, where single losses differ by much.
        assert_eq!(warns_at(true, (0..5000).map(|n| 1e-3 * noise(n).powi(4))), None);
        let outliers = (0..5000).map(|n| 1e-3 * noise(n) * if n % 10 == 0 { 500.0 } else { 1.0 });
        assert_eq!(warns_at(true, outliers), None);
        assert_eq!(warns_at(false, (0..100).map(|_| -1.0)), None, "no reference");
    }

    #[test]
    fn the_warning_says_what_to_do() {
        let mut watch = LossWatch::new(false);
        let warning = (0..80).find_map(|n| watch.add(if n < 20 { 2.302 } else { 31.5 }, 0.5)).unwrap();
        assert!(
            warning.starts_with("the loss has risen from 2.302 to 31.500: the run probably diverges."),
            "{warning}"
        );
        assert!(warning.contains("Lower optim.lr (0.5 now)"), "{warning}");
    }
}
