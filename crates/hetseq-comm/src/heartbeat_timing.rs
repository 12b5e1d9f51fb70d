//! How often ranks send heartbeats, and how long a rank waits before it gives up a silent peer.
//!
//! The user's limit on silence (`comm.silence_s`) is the longest network outage that a run
//! survives. Data may arrive later than the network is back: TCP repeats a lost packet after pauses
//! that double, so the next retry comes up to as long after the outage as the outage lasted. Linux
//! 6.15 and later can bound the pauses (`socket::set_user_timeout`). Ranks exchange both numbers in
//! the handshake, so that each waits long enough for the slowest.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::socket;

/// The timing of one rank, or of all ranks combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeartbeatTiming {
    /// The limit on silence; the shortest in the group sets the heartbeat interval.
    silence: Duration,
    /// The longest pause before TCP repeats a lost packet; the longest in the group extends the
    /// wait.
    retry: Duration,
}

impl HeartbeatTiming {
    /// The timing of this machine, with the user's limit on silence.
    pub(crate) fn new(silence: Duration) -> HeartbeatTiming {
        HeartbeatTiming { silence, retry: socket::longest_retry() }
    }

    pub(crate) const fn of(silence: Duration, retry: Duration) -> HeartbeatTiming {
        HeartbeatTiming { silence, retry }
    }

    /// Combines the timings of two ranks.
    #[must_use]
    pub(crate) fn combine(self, other: HeartbeatTiming) -> HeartbeatTiming {
        HeartbeatTiming { silence: self.silence.min(other.silence), retry: self.retry.max(other.retry) }
    }

    /// Returns the interval at which each rank of the group sends heartbeats. Ten fit into the
    /// limit on silence, so a few lost or late ones do not matter. Two seconds is often enough for
    /// any limit and keeps an idle link cheap.
    pub(crate) fn interval(self) -> Duration {
        (self.silence / 10).clamp(Duration::from_millis(1), Duration::from_secs(2))
    }

    /// Returns how long a rank whose own limit is `silence` waits before it gives up a peer: the
    /// longest outage, the pause after it, and two intervals, because the last heartbeat may have
    /// arrived well before the outage.
    pub(crate) fn give_up_after(self, silence: Duration) -> Duration {
        silence + silence.min(self.retry) + 2 * self.interval()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn timing(silence: u64, retry: u64) -> HeartbeatTiming {
        HeartbeatTiming::of(Duration::from_millis(silence), Duration::from_millis(retry))
    }

    #[test]
    fn interval_follows_the_shortest_silence() {
        assert_eq!(timing(200, 0).interval(), Duration::from_millis(20));
        assert_eq!(timing(60_000, 0).combine(timing(1_000, 0)).interval(), Duration::from_millis(100));
        assert_eq!(timing(60_000, 0).interval(), Duration::from_secs(2));
        assert_eq!(timing(0, 0).interval(), Duration::from_millis(1));
    }

    #[test]
    fn waits_allow_for_the_slowest_retry() {
        let five = Duration::from_secs(5);
        // All pauses bounded; those of one rank unbounded; a pause is never longer than the outage
        // before it.
        assert_eq!(timing(5_000, 1_000).give_up_after(five), Duration::from_secs(7));
        assert_eq!(timing(5_000, 1_000).combine(timing(9_000, 120_000)).give_up_after(five), Duration::from_secs(11));
        assert_eq!(timing(600, 1_000).give_up_after(Duration::from_millis(600)), Duration::from_millis(1_320));
    }
}
