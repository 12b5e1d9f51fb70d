//! The pace: how fast each device is, from what it was seen to do, and the three ways to split an update.
//!
//! Fed after each update with what the header carried for *every* device (padded tokens and own compute time, as
//! integers) and read before the next, on every rank alike: pure, only + - * / and comparisons, so that all ranks hold
//! the same bits. It reads no clock and never sees waiting time. The trainer owns one for each set of members; a change
//! of membership starts a new one.
//!
//! From a measurement to a speed:
//! 1. The first measurement of a device is dropped: it holds kernel compilation, first allocations and cold caches.
//! 2. The median of the last three: a single outlier (a page-in, a stolen core) has no effect at all. Before there are
//!    three, the device counts as not measured.
//! 3. An exponential average of those medians with weight 1/4.
//! 4. A dead band: the speed that shares are made from moves only if it is off by more than 2 %, so that shares do not
//!    jitter from noise.
//!
//! A device that is not measured counts as the average of those that are, so the split is even until four updates were measured. A
//! device that gets nothing keeps its last speed; nothing gives it work only to look again. If it was slow for long, for
//! a passing reason, and its share rounded to zero, it stays idle until the membership changes.

use serde::{Deserialize, Serialize};

use crate::share::DeviceLoad;

/// The weight of a new measurement in the exponential average.
const NEWEST_WEIGHT: f64 = 0.25;
/// Relative change below which the published speed stays.
const DEAD_BAND: f64 = 0.02;

/// How an update is split among the devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    /// In proportion to the measured speeds.
    #[default]
    Measured,
    /// In proportion to weights that the user set.
    Weights,
    /// The same for every device.
    Equal,
}

/// Measured speeds, one per device of the run.
#[derive(Debug, Clone, PartialEq)]
pub struct Pace {
    devices: Vec<Device>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Device {
    is_warm: bool,
    /// How many measurements were kept.
    measured: u64,
    /// The last three measurements, tokens per second; the newest replaces the oldest.
    recent: [f64; 3],
    smoothed: f64,
    /// What shares are made from; None until measured.
    published: Option<f64>,
}

impl Pace {
    pub fn new(devices: usize) -> Self {
        Pace { devices: vec![Device::default(); devices] }
    }

    /// Device `device` computed `tokens` padded tokens in `micros` microseconds of its own time. Nothing computed is
    /// nothing learnt.
    pub fn observe(&mut self, device: usize, tokens: u64, micros: u64) {
        if tokens == 0 {
            return;
        }
        if let Some(device) = self.devices.get_mut(device) {
            // Zero is a clock that is too coarse.
            device.observe(tokens as f64 * 1e6 / micros.max(1) as f64);
        }
    }

    /// What [`share`](crate::share::share) needs, for every device. A weight or cap that is missing is 1 or none.
    pub fn loads(&self, split: Split, weights: &[f64], caps: &[(Option<u32>, Option<u32>)]) -> Vec<DeviceLoad> {
        let unmeasured = self.average_speed();
        let load = |(i, device): (usize, &Device)| {
            let (max_tokens, max_samples) = caps.get(i).copied().unwrap_or_default();
            let speed = match split {
                Split::Measured => device.published.unwrap_or(unmeasured),
                Split::Weights => weights.get(i).copied().unwrap_or(1.0),
                Split::Equal => 1.0,
            };
            DeviceLoad { speed, overhead_s: 0.0, max_tokens, max_samples }
        };
        self.devices.iter().enumerate().map(load).collect()
    }

    /// Of the devices that were measured; 1 if none was.
    fn average_speed(&self) -> f64 {
        let (mut sum, mut count) = (0.0, 0u32);
        for speed in self.devices.iter().filter_map(|device| device.published) {
            sum += speed;
            count += 1;
        }
        if count == 0 { 1.0 } else { sum / f64::from(count) }
    }
}

impl Device {
    fn observe(&mut self, speed: f64) {
        if !self.is_warm {
            self.is_warm = true;
            return;
        }
        self.recent.rotate_left(1);
        self.recent[2] = speed;
        self.measured = self.measured.saturating_add(1);
        if self.measured < 3 {
            return;
        }
        let [a, b, c] = self.recent;
        let median = a.max(b).min(a.min(b).max(c));
        self.smoothed = match self.published {
            None => median,
            Some(_) => self.smoothed + (median - self.smoothed) * NEWEST_WEIGHT,
        };
        let stays = |shown: f64| (self.smoothed - shown).abs() <= shown * DEAD_BAND;
        if !self.published.is_some_and(stays) {
            self.published = Some(self.smoothed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hetseq_random::Key;

    fn speeds(pace: &Pace) -> Vec<f64> {
        pace.loads(Split::Measured, &[], &[]).iter().map(|load| load.speed).collect()
    }

    /// `micros` for `tokens` at `speed` tokens per second, off by up to `noise` either way.
    fn micros(key: Key, update: u32, tokens: u64, speed: f64, noise: f32) -> u64 {
        let factor = f64::from(key.between(update, 1.0 - noise, 1.0 + noise));
        (tokens as f64 / speed * 1e6 * factor) as u64
    }

    #[test]
    fn unequal_devices_are_told_apart_within_five_observations() {
        for seed in 0..200 {
            let true_speeds = [40_000.0, 20_000.0, 10_000.0];
            let mut pace = Pace::new(3);
            for update in 0..5 {
                for (device, &speed) in true_speeds.iter().enumerate() {
                    let key = Key::root(seed).index(device as u64);
                    // The first update takes ten times as long, as when kernels are compiled.
                    let slowdown = if update == 0 { 10 } else { 1 };
                    pace.observe(device, 4096, slowdown * micros(key, update, 4096, speed, 0.04));
                }
            }
            for (measured, truth) in speeds(&pace).iter().zip(true_speeds) {
                assert!((measured / truth - 1.0).abs() < 0.05, "seed {seed}: {measured} instead of {truth}");
            }
        }
    }

    #[test]
    fn the_first_four_updates_are_even() {
        let mut pace = Pace::new(2);
        for _ in 0..4 {
            assert_eq!(speeds(&pace), [1.0, 1.0]);
            pace.observe(0, 100, 1_000_000);
            pace.observe(1, 400, 1_000_000);
        }
        assert_eq!(speeds(&pace), [100.0, 400.0]);
    }

    #[test]
    fn a_device_without_a_measurement_counts_as_average() {
        let mut pace = Pace::new(3);
        for _ in 0..4 {
            pace.observe(0, 100, 1_000_000);
            pace.observe(1, 300, 1_000_000);
        }
        assert_eq!(speeds(&pace), [100.0, 300.0, 200.0]);
    }

    #[test]
    fn one_outlier_changes_nothing_wherever_it_falls() {
        for outlier in 0..12 {
            for wrong_micros in [1, 10_000_000_000] {
                let mut pace = Pace::new(1);
                for update in 0..12 {
                    pace.observe(0, 1000, if update == outlier { wrong_micros } else { 1_000_000 });
                    let expected = if update < 3 { 1.0 } else { 1000.0 };
                    assert_eq!(speeds(&pace), [expected], "update {update}, outlier at {outlier}");
                }
            }
        }
    }

    #[test]
    fn a_lasting_change_is_followed() {
        let mut pace = Pace::new(1);
        for update in 0..30 {
            pace.observe(0, 1000, if update < 10 { 1_000_000 } else { 4_000_000 });
        }
        assert!((speeds(&pace)[0] / 250.0 - 1.0).abs() < 0.03);
    }

    #[test]
    fn noise_inside_the_dead_band_does_not_move_the_speed() {
        let mut pace = Pace::new(1);
        for _ in 0..5 {
            pace.observe(0, 1000, 1_000_000);
        }
        let before = pace.loads(Split::Measured, &[], &[]);
        for update in 0..100 {
            pace.observe(0, 1000, micros(Key::root(1), update, 1000, 1000.0, 0.02));
            assert_eq!(pace.loads(Split::Measured, &[], &[]), before);
        }
    }

    #[test]
    fn what_cannot_be_measured_is_ignored() {
        let mut pace = Pace::new(1);
        pace.observe(7, 100, 100);
        for _ in 0..4 {
            pace.observe(0, 1000, 0);
            pace.observe(0, 0, 1_000_000);
        }
        assert_eq!(speeds(&pace), [1e9]);
        pace.observe(0, u64::MAX, 0);
        assert!(speeds(&pace)[0].is_finite());
    }

    #[test]
    fn the_split_chooses_what_counts() {
        let mut pace = Pace::new(2);
        for _ in 0..4 {
            pace.observe(0, 100, 1_000_000);
            pace.observe(1, 300, 1_000_000);
        }
        let caps = [(Some(512), None), (None, Some(8))];
        let loads = pace.loads(Split::Weights, &[3.0], &caps);
        assert_eq!((loads[0].speed, loads[1].speed), (3.0, 1.0));
        assert_eq!((loads[0].max_tokens, loads[1].max_samples), (Some(512), Some(8)));
        let loads = pace.loads(Split::Equal, &[3.0], &[]);
        assert_eq!((loads[0].speed, loads[1].speed), (1.0, 1.0));
    }

    #[test]
    fn the_config_spells_the_split_in_lower_case() {
        assert_eq!(serde_json::to_string(&Split::Measured).unwrap(), "\"measured\"");
        assert_eq!(serde_json::from_str::<Split>("\"weights\"").unwrap(), Split::Weights);
    }
}
