//! How often ranks send heartbeats, and how long a rank waits for one before it gives a peer up.
//!
//! The limit on silence that the user sets is the longest outage of the network that a run
//! survives. A peer may be heard later than the network is back: TCP repeats a lost packet after
//! pauses that double, so that the next repetition comes up to as long after an outage as the
//! outage was. Linux 6.15 and later can bound the pauses (`socket::outlast`). Ranks tell each other
//! both figures when they meet, so that each waits long enough for the slowest.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::socket;

/// What a rank says about itself, and what follows for the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pace {
    /// The limit on silence. Heartbeats are for the shortest in the group.
    silence: Duration,
    /// The longest pause before TCP repeats a lost packet. Waits are for the longest in the group.
    retry: Duration,
}

impl Pace {
    /// This machine's, with the user's limit on silence.
    pub(crate) fn new(silence: Duration) -> Pace {
        Pace { silence, retry: socket::longest_retry() }
    }

    #[cfg(test)]
    pub(crate) const fn of(silence: Duration, retry: Duration) -> Pace {
        Pace { silence, retry }
    }

    /// Of two ranks together.
    #[must_use]
    pub(crate) fn and(self, other: Pace) -> Pace {
        Pace { silence: self.silence.min(other.silence), retry: self.retry.max(other.retry) }
    }

    /// How often each rank of the group sends. Ten beats fit into the limit, so that a few lost or
    /// late ones do not matter; two seconds is often enough for any limit and keeps an idle link
    /// cheap.
    pub(crate) fn beat(self) -> Duration {
        (self.silence / 10).clamp(Duration::from_millis(1), Duration::from_secs(2))
    }

    /// After how much silence a rank whose own limit is `silence` gives a peer up: the longest
    /// outage, the pause after it, and two beats, because the last one may have come well before
    /// the outage.
    pub(crate) fn patience(self, silence: Duration) -> Duration {
        silence + silence.min(self.retry) + 2 * self.beat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn pace(silence: u64, retry: u64) -> Pace {
        Pace::of(Duration::from_millis(silence), Duration::from_millis(retry))
    }

    #[test]
    fn beat_follows_the_shortest_silence() {
        assert_eq!(pace(200, 0).beat(), Duration::from_millis(20));
        assert_eq!(pace(60_000, 0).and(pace(1_000, 0)).beat(), Duration::from_millis(100));
        assert_eq!(pace(60_000, 0).beat(), Duration::from_secs(2));
        assert_eq!(pace(0, 0).beat(), Duration::from_millis(1));
    }

    #[test]
    fn patience_allows_for_the_slowest_retry() {
        let five = Duration::from_secs(5);
        // All pauses are bounded; one rank's are not; a pause is never longer than the outage
        // before it.
        assert_eq!(pace(5_000, 1_000).patience(five), Duration::from_secs(7));
        assert_eq!(pace(5_000, 1_000).and(pace(9_000, 120_000)).patience(five), Duration::from_secs(11));
        assert_eq!(pace(600, 1_000).patience(Duration::from_millis(600)), Duration::from_millis(1_320));
    }
}
