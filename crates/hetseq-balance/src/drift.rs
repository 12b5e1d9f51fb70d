//! Drift: what a device was seen to need against what its table says.
//!
//! Fed after each update with integers that the header carried for *every* device, and read before the next, on every rank
//! alike: pure, only + - * / and comparisons, so that all ranks hold the same bits. It reads no clock and never sees
//! waiting time. The planner owns one for each device; a change of membership starts new ones.
//!
//! A device's *factor* is how many times as long as by its table it takes. From measurements to factors:
//! 1. A device that was never probed takes its first measurement for a warm-up, which holds kernel compilation, first
//!    allocations and cold caches, and drops it; the second is its factor. A probed one starts at 1.
//! 2. Two measurements in a row that are off by more than 30 % to the same side are a change, not noise: the newer counts.
//! 3. Else the median of the last three counts, so that a single outlier (a page-in, a stolen core) has no effect at all. The
//!    first median is the factor, since three updates tell more than a short probe; each further one moves it by less, down to
//!    an eighth of the way, so that noise has little effect and a slow change still has its own.
//!
//! A device that has had no work is looked at again after 100 updates, then after 200, 400 and so on: whatever made it slow
//! may have passed. It is then believed to be just fast enough for one sample, and what it does with that counts fully.

/// The least weight of a new median in the average.
const LEAST_WEIGHT: f64 = 0.125;
/// Further off than this, twice in a row to the same side, is a change.
const JUMP: f64 = 0.30;
/// After how many updates without work a device is looked at for the first time.
const LOOK_AGAIN: u64 = 100;
/// Beyond these a factor is no measurement.
const LIMITS: (f64, f64) = (1e-12, 1e12);

/// One device's factor; see the [module](self).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Drift {
    factor: f64,
    state: State,
    /// The last measurements, the newest last.
    recent: [f64; 3],
    /// How many there have been since the factor was last set to one.
    known: u32,
    /// Whether the factor was set to a measurement since that was last asked.
    has_jumped: bool,
    /// Updates in a row without work.
    idle: u64,
    /// After how many of those it is looked at again.
    look_after: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Never probed, and nothing seen.
    Cold,
    /// Never probed, but warm: the next measurement is the factor.
    Warm,
    /// The next measurement is the factor, since it was without work for long.
    LookedAt,
    Followed,
}

impl Drift {
    pub(crate) fn new(is_probed: bool) -> Drift {
        let state = if is_probed { State::Followed } else { State::Cold };
        Drift { factor: 1.0, state, recent: [1.0; 3], known: 0, has_jumped: false, idle: 0, look_after: LOOK_AGAIN }
    }

    /// How many times as long as by its table the device takes.
    pub(crate) fn factor(&self) -> f64 {
        self.factor
    }

    /// Whether the factor means anything: the device was probed or measured.
    pub(crate) fn is_known(&self) -> bool {
        matches!(self.state, State::Followed | State::LookedAt)
    }

    /// Whether the factor was set to a measurement, instead of moved towards it, since this was last asked.
    pub(crate) fn take_jump(&mut self) -> bool {
        std::mem::take(&mut self.has_jumped)
    }

    /// Whether it is time to give it a sample to see how fast it is.
    pub(crate) fn wants_a_look(&self) -> bool {
        self.idle >= self.look_after
    }

    /// It gets work to be looked at, whether or not that turns out to be worth its while.
    pub(crate) fn look_again(&mut self) {
        self.state = State::LookedAt;
        self.idle = 0;
        self.look_after = self.look_after.saturating_mul(2);
    }

    /// An update is over in which the device took `micros` for what its table says takes `base_s`; nothing of either if it
    /// had no work.
    pub(crate) fn observe(&mut self, base_s: f64, micros: u64) {
        if !(base_s > 0.0 && base_s.is_finite()) {
            self.idle = self.idle.saturating_add(1);
            return;
        }
        // Zero is a clock that is too coarse.
        let measured = (micros.max(1) as f64 * 1e-6 / base_s).clamp(LIMITS.0, LIMITS.1);
        self.idle = 0;
        match self.state {
            State::Cold => self.state = State::Warm,
            State::Warm | State::LookedAt => self.set(measured),
            State::Followed => self.follow(measured),
        }
    }

    fn follow(&mut self, measured: f64) {
        // One that works again is as good as any other.
        self.look_after = LOOK_AGAIN;
        let before = if self.known > 0 { self.recent[2] } else { self.factor };
        self.recent.rotate_left(1);
        self.recent[2] = measured;
        self.known = self.known.saturating_add(1);
        let is_above = |seen: f64| seen > self.factor * (1.0 + JUMP);
        let is_below = |seen: f64| seen < self.factor / (1.0 + JUMP);
        if (is_above(before) && is_above(measured)) || (is_below(before) && is_below(measured)) {
            self.set(measured);
            return;
        }
        if self.known >= 3 {
            self.factor += (median(self.recent) - self.factor) * weight(self.known);
            self.has_jumped |= self.known == 3;
        }
    }

    fn set(&mut self, factor: f64) {
        self.factor = factor;
        self.state = State::Followed;
        (self.recent, self.known) = ([factor; 3], 1);
        self.has_jumped = true;
    }
}

/// Seconds that hardly change, smoothed as factors are.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Smoothed {
    seconds: f64,
    recent: [f64; 3],
    known: u32,
}

impl Smoothed {
    /// Begins with what was measured before; 0 if nothing was.
    pub(crate) fn new(seconds: f64) -> Smoothed {
        Smoothed { seconds, recent: [seconds; 3], known: 0 }
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.seconds
    }

    pub(crate) fn observe(&mut self, micros: u64) {
        let measured = micros as f64 * 1e-6;
        self.recent.rotate_left(1);
        self.recent[2] = measured;
        self.known = self.known.saturating_add(1);
        if self.known >= 3 {
            self.seconds += (median(self.recent) - self.seconds) * weight(self.known);
        }
    }
}

/// Of the median that the last of so many measurements gave, three at least.
fn weight(known: u32) -> f64 {
    (1.0 / f64::from(known - 2)).max(LEAST_WEIGHT)
}

fn median([a, b, c]: [f64; 3]) -> f64 {
    a.max(b).min(a.min(b).max(c))
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
                see(&mut drift, 9.0);
            }
            drift.observe(0.0, 0);
        }
        assert_eq!(looks, [100, 300, 700, 1500]);
        assert!((drift.factor() - 9.0).abs() < 1e-9, "what was seen in a look counts fully");
    }

    #[test]
    fn strange_numbers_do_no_harm() {
        let mut drift = probed();
        for base_s in [f64::NAN, -1.0, 0.0, f64::INFINITY, f64::MIN_POSITIVE, 1e300] {
            for micros in [0, 1, u64::MAX] {
                drift.observe(base_s, micros);
                assert!(drift.factor() > 0.0 && drift.factor().is_finite());
            }
        }
    }

    #[test]
    fn seconds_follow_the_median() {
        let mut smoothed = Smoothed::new(0.0);
        for micros in [2_000_000, 9_000_000, 2_000_000] {
            smoothed.observe(micros);
        }
        assert_eq!(smoothed.seconds(), 2.0);
    }
}
