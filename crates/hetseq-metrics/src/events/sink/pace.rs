//! How fast a run progresses, and when it will end. From updates since this start (or since ranks
//! were lost) only: a resumed run has done none of the earlier ones in this time. Pure: time is an
//! argument. Used by `status_line`.

use std::time::Duration;

/// See the [module](self).
#[derive(Debug, Clone, Default)]
pub(super) struct Pace {
    /// When this start began, and after which update.
    start: (Duration, u64),
    /// The end of the first update since then. It takes longer than others, so it is not counted.
    first: Option<(Duration, u64)>,
    last: Option<(Duration, u64)>,
}

impl Pace {
    /// Counts from here on.
    pub(super) fn restart(&mut self, now: Duration, update: u64) {
        *self = Pace { start: (now, update), first: None, last: None };
    }

    /// Notes the end of `update`.
    pub(super) fn note(&mut self, now: Duration, update: u64) {
        self.first.get_or_insert((now, update));
        self.last = Some((now, update));
    }

    /// The time of an update, with its share of validations and checkpoints. None before the first.
    fn seconds_per_update(&self) -> Option<f64> {
        let last = self.last?;
        let from = self.first.filter(|first| last.1 > first.1).unwrap_or(self.start);
        let updates = last.1.checked_sub(from.1).filter(|&updates| updates > 0)?;
        Some(last.0.saturating_sub(from.0).as_secs_f64() / updates as f64)
    }

    /// Updates done.
    pub(super) fn updates(&self) -> u64 {
        self.last.unwrap_or(self.start).1
    }

    /// Updates done, with the estimated part of the one in progress: a slow run shows that it moves.
    pub(super) fn progress(&self, now: Duration) -> f64 {
        let (at, update) = self.last.unwrap_or(self.start);
        let part = match self.seconds_per_update() {
            Some(seconds) if seconds > 0.0 => (now.saturating_sub(at).as_secs_f64() / seconds).min(0.99),
            _ => 0.0,
        };
        update as f64 + part
    }

    /// Seconds until update `total` is done. None before the first update.
    pub(super) fn seconds_left(&self, now: Duration, total: u64) -> Option<f64> {
        let (at, update) = self.last?;
        let left = self.seconds_per_update()? * total.saturating_sub(update) as f64;
        Some((left - now.saturating_sub(at).as_secs_f64()).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_resumed_run_is_measured_by_its_own_updates() {
        let mut pace = Pace::default();
        pace.restart(at(5), 900);
        assert_eq!(pace.seconds_left(at(6), 1000), None);
        // The first update took 25 s, since kernels were compiled.
        pace.note(at(30), 901);
        assert_eq!(pace.seconds_left(at(30), 1000), Some(25.0 * 99.0));
        pace.note(at(32), 902);
        pace.note(at(34), 903);
        assert_eq!(pace.seconds_left(at(34), 1000), Some(2.0 * 97.0));
        // It counts down also within an update, and never below zero.
        assert_eq!(pace.seconds_left(at(35), 1000), Some(2.0 * 97.0 - 1.0));
        assert_eq!(pace.seconds_left(at(9999), 904), Some(0.0));
    }

    #[test]
    fn an_update_in_progress_counts_in_part() {
        let mut pace = Pace::default();
        pace.restart(at(0), 0);
        assert_eq!(pace.progress(at(3)), 0.0);
        for update in 1..=3 {
            pace.note(at(10 * update), update);
        }
        assert_eq!(pace.progress(at(34)), 3.4);
        assert_eq!(pace.progress(at(300)), 3.99);
    }
}
