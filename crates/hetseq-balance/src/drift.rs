//! Drift: what a device was seen to need against what its table says.
//!
//! Fed after each update with integers that the header carried for *every* device, and read before the next, on every rank
//! alike: pure, only + - * /, square roots and comparisons, so that all ranks hold the same bits. It reads no clock and never
//! sees waiting time. The planner owns one for each device; a change of membership starts new ones.
//!
//! A device's *factor* is how many times as long as by its table it takes. One measurement is the mean over a *block* of
//! updates, whose length the planner decides: a long update is a block, short ones are measured together. Otherwise a
//! scheduler that runs another program for a time slice would change the factor. From measurements to factors:
//! 1. A device that was never probed takes its first update for a warm-up, which holds kernel compilation, first
//!    allocations and cold caches, and drops it; the block after it is its factor. A probed one starts at 1.
//! 2. The *spread* is how far blocks usually are from the factor. Two or more blocks in a row that are off to the same side by
//!    more than 10 % and more than three times the spread, for 0.35 s or longer, are a change. The factor jumps to the mean of
//!    all but the first of them, in which the change happened.
//! 3. Otherwise the factor is smoothed, see [`Level`].
//!
//! The spread also says how exactly the factor is known. The planner believes only differences that exceed that.
//!
//! A device that has had no work is looked at again after 100 updates, then after 200, 400 and so on: whatever made it slow
//! may have passed. It is then believed to be just fast enough for one sample, twice: the first is a warm-up, the second
//! counts fully.

use crate::level::{Level, SLICE_S, Spread};

/// Blocks in a row that are further off than this, relatively, are a change,
const JUMP: f64 = 0.10;
/// if they are also so many times as far off as blocks usually are,
const JUMP_SPREADS: f64 = 3.0;
/// and if that lasts so long: other programs often use a core for 0.1 s, and two of them may follow each other.
const JUMP_S: f64 = 0.35;
/// A jump counts as a measurement that is so far off at most: where jumps are frequent, they are noise too.
const JUMP_COUNTS: f64 = 0.5;
/// After how many updates without work a device is looked at for the first time.
const LOOK_AGAIN: u64 = 100;
/// Beyond these a factor is no measurement.
const LIMITS: (f64, f64) = (1e-12, 1e12);

/// One device's factor; see the [module](self).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Drift {
    factor: Level,
    /// Relative to the factor.
    spread: Spread,
    state: State,
    block: Block,
    run: Run,
    /// Updates in a row without work.
    idle: u64,
    /// After how many of those it is looked at again.
    look_after: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Never probed, and nothing seen.
    Cold,
    /// Never probed, but warm: the next block is the factor.
    Warm,
    /// It gets a sample after being without work for long. The first is a warm-up: a GPU may compile programs for a micro-batch of
    /// a new shape. A second one is then due, and the block in which it is computed is the factor.
    WarmingUp,
    SecondDue,
    LookedAt,
    Followed,
}

/// The updates since the last measurement in which the device had work.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Block {
    updates: u32,
    base_s: f64,
    seconds: f64,
}

/// Blocks in a row that are far off to the same side.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Run {
    blocks: u32,
    is_above: bool,
    /// How long they took.
    seconds: f64,
    /// Of all but the first, in which the change happened.
    sum: f64,
    /// Before the first.
    spread: Spread,
}

impl Drift {
    pub(crate) fn new(is_probed: bool) -> Drift {
        Drift {
            factor: Level::new(1.0),
            spread: Spread::default(),
            state: if is_probed { State::Followed } else { State::Cold },
            block: Block::default(),
            run: Run::default(),
            idle: 0,
            look_after: LOOK_AGAIN,
        }
    }

    /// How many times as long as by its table the device takes.
    pub(crate) fn factor(&self) -> f64 {
        self.factor.value()
    }

    /// How far off the factor may be, relatively.
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

    /// Whether it is time to give it a sample to see how fast it is.
    pub(crate) fn wants_a_look(&self) -> bool {
        self.state == State::SecondDue || self.idle >= self.look_after
    }

    /// It gets work to be looked at, whether or not that turns out to be worth its while.
    pub(crate) fn look_again(&mut self) {
        self.block = Block::default();
        self.idle = 0;
        if self.state == State::SecondDue {
            self.state = State::LookedAt;
            return;
        }
        self.state = State::WarmingUp;
        self.look_after = self.look_after.saturating_mul(2);
    }

    /// An update is over in which the device took `micros` for what its table says takes `base_s`; nothing of either if it
    /// had no work.
    pub(crate) fn observe(&mut self, base_s: f64, micros: u64) {
        if !(base_s > 0.0 && base_s.is_finite()) {
            self.idle = self.idle.saturating_add(1);
            return;
        }
        self.idle = 0;
        let after_warm_up = match self.state {
            State::Cold => Some(State::Warm),
            State::WarmingUp => Some(State::SecondDue),
            _ => None,
        };
        if let Some(state) = after_warm_up {
            self.state = state;
            return;
        }
        self.block.updates = self.block.updates.saturating_add(1);
        self.block.base_s += base_s;
        // Zero is a clock that is too coarse.
        self.block.seconds += micros.max(1) as f64 * 1e-6;
    }

    /// The block is over, and lasted `block_s`.
    pub(crate) fn close(&mut self, block_s: f64) {
        let Block { updates, base_s, seconds } = std::mem::take(&mut self.block);
        if updates == 0 {
            return;
        }
        let measured = (seconds / base_s).clamp(LIMITS.0, LIMITS.1);
        self.spread.assume(SLICE_S * f64::from(updates).sqrt() / seconds);
        match self.state {
            State::Followed => self.follow(measured, block_s),
            State::Cold | State::Warm | State::WarmingUp | State::SecondDue | State::LookedAt => {
                self.factor.start(measured);
                self.state = State::Followed;
            }
        }
    }

    fn follow(&mut self, measured: f64, block_s: f64) {
        // One that works again is as good as any other.
        self.look_after = LOOK_AGAIN;
        let factor = self.factor();
        let is_above = measured > factor;
        let off = if is_above { measured / factor } else { factor / measured } - 1.0;
        if self.run.blocks == 0 {
            self.run.spread = self.spread;
        }
        let far = JUMP.max(JUMP_SPREADS * self.run.spread.value());
        if self.factor.is_measured() {
            self.spread.follow(off.min(far));
        }
        if off <= far {
            self.run = Run::default();
        } else if self.run.blocks > 0 && self.run.is_above == is_above {
            self.run.blocks += 1;
            self.run.seconds += block_s;
            self.run.sum += measured;
        } else {
            self.run = Run { blocks: 1, is_above, seconds: block_s, sum: 0.0, spread: self.run.spread };
        }
        let Run { blocks, seconds, sum, spread, .. } = self.run;
        if blocks >= 2 && seconds >= JUMP_S {
            self.factor.set(sum / f64::from(blocks - 1), blocks - 1, spread);
            self.spread = spread;
            self.spread.follow(off.min(JUMP_COUNTS));
            self.run = Run::default();
        } else {
            self.factor.follow(measured, block_s, self.spread);
        }
    }
}

/// Seconds that hardly change.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Smoothed {
    seconds: Level,
    spread: Spread,
    updates: u32,
    sum_s: f64,
}

impl Smoothed {
    /// Begins with what was measured before; 0 if nothing was.
    pub(crate) fn new(seconds: f64) -> Smoothed {
        Smoothed { seconds: Level::new(seconds), spread: Spread::default(), updates: 0, sum_s: 0.0 }
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.seconds.value()
    }

    /// How far off the seconds may be.
    pub(crate) fn error_s(&self) -> f64 {
        self.seconds.error()
    }

    pub(crate) fn observe(&mut self, micros: u64) {
        self.updates = self.updates.saturating_add(1);
        self.sum_s += micros as f64 * 1e-6;
    }

    /// The block is over, and lasted `block_s`.
    pub(crate) fn close(&mut self, block_s: f64) {
        let (updates, sum_s) = (f64::from(std::mem::take(&mut self.updates)), std::mem::take(&mut self.sum_s));
        if updates == 0.0 {
            return;
        }
        let measured = sum_s / updates;
        self.spread.assume(SLICE_S / updates.sqrt());
        if self.seconds.is_measured() {
            self.spread.follow((measured - self.seconds()).abs());
        }
        self.seconds.follow(measured, block_s, self.spread);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hetseq_random::Key;

    fn probed() -> Drift {
        Drift::new(true)
    }

    /// A second of work, in which the device is so many times as slow.
    fn see(drift: &mut Drift, factor: f64) {
        drift.observe(1.0, (factor * 1e6) as u64);
        drift.close(factor);
    }

    #[test]
    fn a_change_is_followed_after_two_measurements_and_back_again() {
        let mut drift = probed();
        for factor in [1.0, 1.01, 0.99, 1.0, 3.3] {
            see(&mut drift, factor);
        }
        assert!((drift.factor() - 1.0).abs() < 0.01, "one measurement is an outlier");
        see(&mut drift, 3.2);
        assert!((drift.factor() - 3.2).abs() < 1e-9);
        see(&mut drift, 1.0);
        assert!((drift.factor() - 3.2).abs() < 0.1);
        see(&mut drift, 1.02);
        assert!((drift.factor() - 1.02).abs() < 1e-9);
    }

    #[test]
    fn a_table_that_is_off_from_the_start_is_put_right_after_two_measurements() {
        let mut drift = probed();
        see(&mut drift, 0.5);
        assert_eq!(drift.factor(), 1.0);
        see(&mut drift, 0.5);
        assert!((drift.factor() - 0.5).abs() < 1e-9);
    }

    #[test]
    fn one_outlier_changes_nothing_wherever_it_falls() {
        for outlier in 0..12 {
            for wrong in [1e-5, 1e5] {
                let mut drift = probed();
                for update in 0..12 {
                    see(&mut drift, if update == outlier { wrong } else { 1.0 });
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
                // From 1 to 1.2 within the second half: too slow for a jump.
                let truth = 1.0 + 0.001 * f64::from(update.max(200) - 200);
                see(&mut drift, truth * f64::from(key.between(update, 0.95, 1.05)));
                assert!(
                    (drift.factor() / truth - 1.0).abs() < 0.05,
                    "seed {seed}, update {update}: {}",
                    drift.factor()
                );
            }
        }
    }

    #[test]
    fn what_was_never_probed_warms_up_first() {
        let mut drift = Drift::new(false);
        see(&mut drift, 50.0);
        assert!(!drift.is_known() && drift.factor() == 1.0);
        see(&mut drift, 4.0);
        assert!(drift.is_known() && (drift.factor() - 4.0).abs() < 1e-9);
    }

    #[test]
    fn a_device_without_work_is_looked_at_ever_more_rarely() {
        let mut drift = probed();
        let mut looks = Vec::new();
        for update in 0..1600 {
            if drift.wants_a_look() {
                looks.push(update);
                drift.look_again();
                // The first time a GPU compiles programs for the shape.
                see(&mut drift, if looks.len() % 2 == 1 { 500.0 } else { 9.0 });
            }
            drift.observe(0.0, 0);
        }
        assert_eq!(looks, [100, 101, 301, 302, 702, 703, 1503, 1504]);
        assert!((drift.factor() - 9.0).abs() < 1e-9, "what was seen in a second look counts fully");
    }

    #[test]
    fn strange_numbers_do_no_harm() {
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
        let mut smoothed = Smoothed::new(0.0);
        for micros in [2_000_000, 9_000_000, 2_000_000] {
            smoothed.observe(micros);
            smoothed.close(1.0);
        }
        assert_eq!(smoothed.seconds(), 2.0);
    }
}
