//! How many samples the next round of a validation has. Pure; all ranks get the same times, and so
//! the same rounds. Used by `evaluate.rs`.
//!
//! Ranks look for a request to stop after each round. So a round of a slow model is short, and that
//! of a fast one large enough to keep its devices busy.

use std::ops::Range;

/// Samples per device and round, at most: enough to keep a device busy, few enough that the split of
/// later rounds can follow its speed.
const MOST_PER_DEVICE: usize = 128;
/// The time that a round should take at most, so that a stop is noticed soon.
const TARGET_S: f64 = 0.5;
/// The next round is at most this much larger: the first times of a device are not yet its speed.
const GROWTH: usize = 4;

/// See the [module](self).
pub(super) struct ValidRounds {
    samples: usize,
    devices: usize,
    /// Samples in rounds so far.
    begun: usize,
    size: usize,
}

impl ValidRounds {
    /// Rounds over `samples` samples on `devices` devices. `predicted_s` is the predicted time of the
    /// largest round.
    pub(super) fn new(samples: usize, devices: usize, predicted_s: f64) -> Self {
        let mut rounds = ValidRounds { samples, devices, begun: 0, size: 0 };
        rounds.size = rounds.largest();
        if predicted_s > TARGET_S {
            rounds.size = rounds.fitting(rounds.size, predicted_s);
        }
        rounds
    }

    /// The size of the largest round.
    pub(super) fn largest(&self) -> usize {
        MOST_PER_DEVICE * self.devices.max(1)
    }

    /// The samples of the next round; none after the last.
    pub(super) fn next(&mut self) -> Option<Range<usize>> {
        let round = self.begun..self.samples.min(self.begun + self.size);
        self.begun = round.end;
        (!round.is_empty()).then_some(round)
    }

    /// Takes the time of the slowest device in a round of `samples` samples.
    pub(super) fn observe(&mut self, samples: usize, slowest_s: f64) {
        if slowest_s > 0.0 {
            self.size = self.fitting(samples, slowest_s).min(GROWTH * self.size.max(samples));
        }
    }

    /// The size of a round that takes the target time, if one of `samples` samples takes `seconds`.
    fn fitting(&self, samples: usize, seconds: f64) -> usize {
        let fitting = samples as f64 * TARGET_S / seconds;
        (fitting as usize).clamp(self.devices.max(1), self.largest())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes of all rounds, on two devices that take `per_sample_s` for a sample.
    fn sizes(samples: usize, predicted_s: f64, per_sample_s: f64) -> Vec<usize> {
        let mut rounds = ValidRounds::new(samples, 2, predicted_s);
        let mut sizes = Vec::new();
        while let Some(round) = rounds.next() {
            assert_eq!(round.start, sizes.iter().sum::<usize>());
            rounds.observe(round.len(), round.len() as f64 / 2.0 * per_sample_s);
            sizes.push(round.len());
        }
        assert_eq!(sizes.iter().sum::<usize>(), samples);
        sizes
    }

    #[test]
    fn a_fast_model_has_large_rounds() {
        assert_eq!(sizes(1000, 0.1, 1e-4), [256, 256, 256, 232]);
        assert_eq!(sizes(0, 0.1, 1e-4), Vec::<usize>::new());
    }

    #[test]
    fn a_round_of_a_slow_model_takes_half_a_second_or_one_sample_per_device() {
        assert_eq!(sizes(100, 2.56, 0.02), [50, 50]);
        assert_eq!(sizes(9, 500.0, 7.0), [2, 2, 2, 2, 1]);
    }

    #[test]
    fn a_wrong_prediction_is_corrected() {
        // Nothing was measured before, and the model is fast.
        assert_eq!(sizes(1000, 1e9, 1e-4), [2, 8, 32, 128, 256, 256, 256, 62]);
        // It is slower than predicted.
        assert_eq!(sizes(300, 0.1, 0.02), [256, 44]);
    }
}
