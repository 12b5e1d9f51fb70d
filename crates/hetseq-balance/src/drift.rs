//! Drift: a device's actual time relative to its cost table.
//!
//! The planner owns one `Drift` per device, and a change of membership starts new ones. After
//! each update it gets integers that the update header carried for *every* device, the same on
//! every rank. It is pure: only + - * /, square roots and comparisons, so all ranks hold the same
//! bits. It reads no clock and never sees waiting time.
//!
//! A device's *factor* is its time divided by the time in its table. One measurement is the mean
//! over a *block* of updates. The planner decides the length of a block: a long update is one
//! block, short ones are measured together. Otherwise a scheduler that runs another program
//! for a time slice would change the factor. From measurements to factors:
//! 1. For a device that was never probed, the first update is a warm-up with kernel compilation,
//!    first allocations and cold caches; it is dropped, and the next block is the factor. A probed
//!    device starts at 1.
//! 2. The *spread* is the usual distance of a block from the factor. Two or more blocks in a row
//!    count as a change if they are off to the same side by more than 10 % and by more than three
//!    times the spread, for 0.35 s or longer. The factor jumps to the mean of all but the first of
//!    them, during which the change happened.
//! 3. Otherwise the factor is smoothed, see `Estimate`.
//!
//! The spread also gives the standard deviation of the factor. The planner ignores differences that
//! are within it.
//!
//! A device without work is rechecked after 100 updates, then after 200, 400 and so on, since the
//! cause of its slowness may be gone. For a recheck the planner pretends that it is just fast
//! enough for one sample, twice: the first is a warm-up, the second counts fully.

use crate::estimate::{Estimate, SLICE_S, Spread};

/// Blocks in a row are a change if their relative deviation exceeds this,
const JUMP: f64 = 0.10;
/// and if it exceeds the usual deviation this many times,
const JUMP_SPREADS: f64 = 3.0;
/// and if that lasts this long. Other programs often use a core for 0.1 s, and two may follow each
/// other.
const JUMP_S: f64 = 0.35;
/// The largest deviation that a jump adds to the spread: frequent jumps are noise too.
const JUMP_COUNTS: f64 = 0.5;
/// Updates without work before the first recheck of a device.
const RECHECK_AFTER: u64 = 100;
/// A factor outside these limits is not a measurement.
const LIMITS: (f64, f64) = (1e-12, 1e12);

/// One device's factor; see the [module](self).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Drift {
    factor: Estimate,
    /// Relative to the factor.
    spread: Spread,
    state: State,
    block: Block,
    outliers: Outliers,
    /// Updates in a row without work.
    idle: u64,
    /// Idle updates until the next recheck.
    recheck_after: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Never probed and never measured.
    Cold,
    /// Never probed, but warm: the next block is the factor.
    Warm,
    /// First sample of a recheck: a warm-up, since a GPU may compile programs for a micro-batch of
    /// a new shape.
    RecheckWarmUp,
    /// The warm-up is done and the second sample is not yet assigned.
    RecheckPending,
    /// Second sample of a recheck: its block is the factor.
    Recheck,
    /// Measured block by block.
    Tracking,
}

/// Sums over the updates with work since the last measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Block {
    updates: u32,
    base_s: f64,
    seconds: f64,
}

/// Blocks in a row that are far off to the same side.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Outliers {
    blocks: u32,
    is_above: bool,
    /// The time they took.
    seconds: f64,
    /// The sum of all but the first, during which the change happened.
    sum: f64,
    /// The spread before the first.
    spread: Spread,
}

impl Drift {
    pub(crate) fn new(is_probed: bool) -> Drift {
        Drift {
            factor: Estimate::new(1.0),
            spread: Spread::default(),
            state: if is_probed { State::Tracking } else { State::Cold },
            block: Block::default(),
            outliers: Outliers::default(),
            idle: 0,
            recheck_after: RECHECK_AFTER,
        }
    }

    /// The device's time divided by the time in its table.
    pub(crate) fn factor(&self) -> f64 {
        self.factor.value()
    }

    /// The standard deviation of the factor, relative to it.
    pub(crate) fn error(&self) -> f64 {
        self.factor.error()
    }

    /// Whether the factor means anything: the device was probed or measured.
    pub(crate) fn is_known(&self) -> bool {
        !matches!(self.state, State::Cold | State::Warm)
    }

    /// Whether the device had work in the last update.
    pub(crate) fn is_working(&self) -> bool {
        self.idle == 0
    }

    /// Whether the device should get a sample to measure its current speed.
    pub(crate) fn needs_recheck(&self) -> bool {
        self.state == State::RecheckPending || self.idle >= self.recheck_after
    }

    /// Records that the device gets a sample for a recheck.
    pub(crate) fn start_recheck(&mut self) {
        self.block = Block::default();
        self.idle = 0;
        if self.state == State::RecheckPending {
            self.state = State::Recheck;
            return;
        }
        self.state = State::RecheckWarmUp;
        self.recheck_after = self.recheck_after.saturating_mul(2);
    }

    /// Adds an update in which the device took `micros` for work that takes `base_s` by its table;
    /// both are 0 if it had no work.
    pub(crate) fn observe(&mut self, base_s: f64, micros: u64) {
        if !(base_s > 0.0 && base_s.is_finite()) {
            self.idle = self.idle.saturating_add(1);
            return;
        }
        self.idle = 0;
        let after_warm_up = match self.state {
            State::Cold => Some(State::Warm),
            State::RecheckWarmUp => Some(State::RecheckPending),
            _ => None,
        };
        if let Some(state) = after_warm_up {
            self.state = state;
            return;
        }
        self.block.updates = self.block.updates.saturating_add(1);
        self.block.base_s += base_s;
        // Zero means that the clock is too coarse.
        self.block.seconds += micros.max(1) as f64 * 1e-6;
    }

    /// Ends a block that lasted `block_s`.
    pub(crate) fn close(&mut self, block_s: f64) {
        let Block { updates, base_s, seconds } = std::mem::take(&mut self.block);
        if updates == 0 {
            return;
        }
        let measured = (seconds / base_s).clamp(LIMITS.0, LIMITS.1);
        self.spread.assume(SLICE_S * f64::from(updates).sqrt() / seconds);
        match self.state {
            State::Tracking => self.track(measured, block_s),
            State::Cold | State::Warm | State::RecheckWarmUp | State::RecheckPending | State::Recheck => {
                self.factor.start(measured);
                self.state = State::Tracking;
            }
        }
    }

    fn track(&mut self, measured: f64, block_s: f64) {
        // The device works again, so the next pause starts with a short recheck interval.
        self.recheck_after = RECHECK_AFTER;
        let factor = self.factor();
        let is_above = measured > factor;
        let off = if is_above { measured / factor } else { factor / measured } - 1.0;
        if self.outliers.blocks == 0 {
            self.outliers.spread = self.spread;
        }
        let far = JUMP.max(JUMP_SPREADS * self.outliers.spread.value());
        if self.factor.is_measured() {
            self.spread.add(off.min(far));
        }
        if off <= far {
            self.outliers = Outliers::default();
        } else if self.outliers.blocks > 0 && self.outliers.is_above == is_above {
            self.outliers.blocks += 1;
            self.outliers.seconds += block_s;
            self.outliers.sum += measured;
        } else {
            let spread = self.outliers.spread;
            self.outliers = Outliers { blocks: 1, is_above, seconds: block_s, sum: 0.0, spread };
        }
        let Outliers { blocks, seconds, sum, spread, .. } = self.outliers;
        if blocks >= 2 && seconds >= JUMP_S {
            self.factor.set(sum / f64::from(blocks - 1), blocks - 1, spread);
            self.spread = spread;
            self.spread.add(off.min(JUMP_COUNTS));
            self.outliers = Outliers::default();
        } else {
            self.factor.add(measured, block_s, self.spread);
        }
    }
}

/// A duration that hardly changes, smoothed over blocks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SmoothedSeconds {
    seconds: Estimate,
    spread: Spread,
    updates: u32,
    sum_s: f64,
}

impl SmoothedSeconds {
    /// Starts with an earlier measurement; 0 if there is none.
    pub(crate) fn new(seconds: f64) -> SmoothedSeconds {
        SmoothedSeconds { seconds: Estimate::new(seconds), spread: Spread::default(), updates: 0, sum_s: 0.0 }
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.seconds.value()
    }

    /// The standard deviation in seconds.
    pub(crate) fn error_s(&self) -> f64 {
        self.seconds.error()
    }

    pub(crate) fn observe(&mut self, micros: u64) {
        self.updates = self.updates.saturating_add(1);
        self.sum_s += micros as f64 * 1e-6;
    }

    /// Ends a block that lasted `block_s`.
    pub(crate) fn close(&mut self, block_s: f64) {
        let (updates, sum_s) = (f64::from(std::mem::take(&mut self.updates)), std::mem::take(&mut self.sum_s));
        if updates == 0.0 {
            return;
        }
        let measured = sum_s / updates;
        self.spread.assume(SLICE_S / updates.sqrt());
        if self.seconds.is_measured() {
            self.spread.add((measured - self.seconds()).abs());
        }
        self.seconds.add(measured, block_s, self.spread);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hetseq_random::Key;

    fn probed() -> Drift {
        Drift::new(true)
    }

    /// One second of work, in which the device is `factor` times as slow.
    fn measure(drift: &mut Drift, factor: f64) {
        drift.observe(1.0, (factor * 1e6) as u64);
        drift.close(factor);
    }

    #[test]
    fn a_change_is_followed_after_two_measurements_and_back_again() {
        let mut drift = probed();
        for factor in [1.0, 1.01, 0.99, 1.0, 3.3] {
            measure(&mut drift, factor);
        }
        assert!((drift.factor() - 1.0).abs() < 0.01, "one measurement is an outlier");
        measure(&mut drift, 3.2);
        assert!((drift.factor() - 3.2).abs() < 1e-9);
        measure(&mut drift, 1.0);
        assert!((drift.factor() - 3.2).abs() < 0.1);
        measure(&mut drift, 1.02);
        assert!((drift.factor() - 1.02).abs() < 1e-9);
    }

    #[test]
    fn a_table_that_is_wrong_from_the_start_is_corrected_after_two_measurements() {
        let mut drift = probed();
        measure(&mut drift, 0.5);
        assert_eq!(drift.factor(), 1.0);
        measure(&mut drift, 0.5);
        assert!((drift.factor() - 0.5).abs() < 1e-9);
    }

    #[test]
    fn one_outlier_changes_nothing_at_any_position() {
        for outlier in 0..12 {
            for wrong in [1e-5, 1e5] {
                let mut drift = probed();
                for update in 0..12 {
                    measure(&mut drift, if update == outlier { wrong } else { 1.0 });
                    assert!((drift.factor() - 1.0).abs() < 1e-9, "update {update}, outlier at {outlier}");
                }
            }
        }
    }

    #[test]
    fn noise_hardly_moves_the_factor_and_a_slow_change_does() {
        for seed in 0..50 {
            let (mut drift, key) = (probed(), Key::root(seed));
            for update in 0..400 {
                // From 1 to 1.2 during the second half: too slow for a jump.
                let truth = 1.0 + 0.001 * f64::from(update.max(200) - 200);
                measure(&mut drift, truth * f64::from(key.between(update, 0.95, 1.05)));
                assert!(
                    (drift.factor() / truth - 1.0).abs() < 0.05,
                    "seed {seed}, update {update}: {}",
                    drift.factor()
                );
            }
        }
    }

    #[test]
    fn a_device_that_was_never_probed_warms_up_first() {
        let mut drift = Drift::new(false);
        measure(&mut drift, 50.0);
        assert!(!drift.is_known() && drift.factor() == 1.0);
        measure(&mut drift, 4.0);
        assert!(drift.is_known() && (drift.factor() - 4.0).abs() < 1e-9);
    }

    #[test]
    fn a_device_without_work_is_rechecked_less_and_less_often() {
        let mut drift = probed();
        let mut rechecks = Vec::new();
        for update in 0..1600 {
            if drift.needs_recheck() {
                rechecks.push(update);
                drift.start_recheck();
                // In the first update a GPU compiles programs for the shape.
                measure(&mut drift, if rechecks.len() % 2 == 1 { 500.0 } else { 9.0 });
            }
            drift.observe(0.0, 0);
        }
        assert_eq!(rechecks, [100, 101, 301, 302, 702, 703, 1503, 1504]);
        assert!((drift.factor() - 9.0).abs() < 1e-9, "the second measurement of a recheck counts fully");
    }

    #[test]
    fn invalid_numbers_do_no_harm() {
        let mut drift = probed();
        for base_s in [f64::NAN, -1.0, 0.0, f64::INFINITY, f64::MIN_POSITIVE, 1e300] {
            for micros in [0, 1, u64::MAX] {
                drift.observe(base_s, micros);
                drift.close(1.0);
                assert!(drift.factor() > 0.0 && drift.factor().is_finite());
            }
        }
    }

    #[test]
    fn seconds_follow_the_median() {
        let mut smoothed = SmoothedSeconds::new(0.0);
        for micros in [2_000_000, 9_000_000, 2_000_000] {
            smoothed.observe(micros);
            smoothed.close(1.0);
        }
        assert_eq!(smoothed.seconds(), 2.0);
    }
}
