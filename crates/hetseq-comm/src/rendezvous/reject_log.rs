//! Log lines about rejected connections: each kind of reason from each address once, the rest as
//! counts.
//!
//! A thousand connections must not write a thousand lines, nor hide the one rank with a wrong
//! secret. Time is an argument; the lines are returned, not written. Used by `membership.rs`,
//! `pairing.rs` and `door.rs`.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use super::handshake::HandshakeError;

/// The interval between summaries; it doubles up to the limit while rejections continue.
const FIRST_INTERVAL: Duration = Duration::from_secs(10);
const INTERVAL_LIMIT: Duration = Duration::from_secs(600);
/// After this long without a rejection, lines that were logged before may be logged again.
const QUIET: Duration = Duration::from_secs(600);
/// How many pairs of address and kind are counted separately; an attacker may have many addresses.
const KEYS_LIMIT: usize = 24;
/// How many counts a summary line shows.
const COUNTS_LIMIT: usize = 4;

pub(super) struct RejectLog {
    /// Counts since the last summary, by address and kind of reason.
    counts: BTreeMap<(IpAddr, &'static str), u64>,
    others: u64,
    next_summary: Option<Instant>,
    interval: Duration,
    last: Option<Instant>,
}

impl Default for RejectLog {
    fn default() -> RejectLog {
        RejectLog { counts: BTreeMap::new(), others: 0, next_summary: None, interval: FIRST_INTERVAL, last: None }
    }
}

impl RejectLog {
    /// Records a rejected connection. Returns the line to log if its address and kind are new.
    pub(super) fn note(&mut self, now: Instant, address: SocketAddr, reason: &HandshakeError) -> Option<String> {
        if self.last.replace(now).is_some_and(|last| now.duration_since(last) >= QUIET) && !self.has_counts() {
            *self = RejectLog { last: Some(now), ..RejectLog::default() };
        }
        let key = (address.ip(), reason.kind());
        if let Some(count) = self.counts.get_mut(&key) {
            *count += 1;
        } else if self.counts.len() < KEYS_LIMIT {
            self.counts.insert(key, 0);
            return Some(format!("rejected {address}: {reason}"));
        } else {
            self.others += 1;
        }
        self.next_summary.get_or_insert(now + self.interval);
        None
    }

    /// Returns the line with the counts, if it is time for one.
    pub(super) fn summary(&mut self, now: Instant) -> Option<String> {
        if self.next_summary.is_none_or(|next| now < next) {
            return None;
        }
        self.interval = (2 * self.interval).min(INTERVAL_LIMIT);
        self.final_summary()
    }

    /// Returns the line with the counts, regardless of the time.
    pub(super) fn final_summary(&mut self) -> Option<String> {
        self.next_summary = None;
        let total = self.others + self.counts.values().sum::<u64>();
        if total == 0 {
            return None;
        }
        let mut counts: Vec<_> = self.counts.iter().filter(|(_, count)| **count > 0).collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let shown: Vec<String> =
            counts.iter().take(COUNTS_LIMIT).map(|((ip, kind), count)| format!("{count} from {ip} ({kind})")).collect();
        let rest = total - counts.iter().take(COUNTS_LIMIT).map(|(_, count)| **count).sum::<u64>();
        let rest =
            if rest > 0 { format!("{}{rest} others", if shown.is_empty() { "" } else { ", " }) } else { String::new() };
        self.counts.values_mut().for_each(|count| *count = 0);
        self.others = 0;
        Some(format!("rejected {total} more connections: {}{rest}", shown.join(", ")))
    }

    /// When to ask for a summary; `None` if there are no counts.
    pub(super) fn next_summary(&self) -> Option<Instant> {
        self.next_summary
    }

    fn has_counts(&self) -> bool {
        self.next_summary.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::super::refusal::Refusal;
    use super::*;

    fn from(last: u8, port: u16) -> SocketAddr {
        SocketAddr::new(IpAddr::from([10, 0, 0, last]), port)
    }

    #[test]
    fn a_flood_is_one_line_and_a_count_and_hides_no_other_address() {
        let start = Instant::now();
        let mut reject_log = RejectLog::default();
        let mut lines = Vec::new();
        for i in 0..1000 {
            lines.extend(reject_log.note(start, from(1, 1000 + i), &HandshakeError::TimedOut));
        }
        lines.extend(reject_log.note(start, from(2, 7), &HandshakeError::WeRefused(Refusal::SecretWrong)));
        lines.extend(reject_log.summary(start + Duration::from_secs(9)));
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].starts_with("rejected 10.0.0.1:1000: it did not answer in time"), "{}", lines[0]);
        assert!(lines[1].starts_with("rejected 10.0.0.2:7: the shared secrets differ"), "{}", lines[1]);
        let summary = reject_log.summary(start + FIRST_INTERVAL).unwrap();
        assert_eq!(summary, "rejected 999 more connections: 999 from 10.0.0.1 (silent)");
        assert_eq!(reject_log.summary(start + INTERVAL_LIMIT), None);
        assert_eq!(reject_log.final_summary(), None);
    }

    #[test]
    fn a_continuing_attack_is_logged_less_and_less_often() {
        let start = Instant::now();
        let mut reject_log = RejectLog::default();
        let mut logged = Vec::new();
        for second in 0..7200 {
            let now = start + Duration::from_secs(second);
            reject_log.note(now, from(1, 1), &HandshakeError::Closed);
            logged.extend(reject_log.summary(now).map(|_| second));
        }
        assert!((10..25).contains(&logged.len()), "{logged:?}");
        assert_eq!(logged[0], 11);
    }

    #[test]
    fn many_addresses_are_counted_together() {
        let start = Instant::now();
        let mut reject_log = RejectLog::default();
        let lines = (0..200).filter_map(|i| reject_log.note(start, from(i, 1), &HandshakeError::Closed)).count();
        assert_eq!(lines, KEYS_LIMIT);
        assert_eq!(reject_log.final_summary().unwrap(), "rejected 176 more connections: 176 others");
    }

    #[test]
    fn after_a_long_quiet_time_the_same_address_is_logged_again() {
        let start = Instant::now();
        let mut reject_log = RejectLog::default();
        assert!(reject_log.note(start, from(1, 1), &HandshakeError::Closed).is_some());
        assert!(reject_log.note(start, from(1, 2), &HandshakeError::Closed).is_none());
        assert!(reject_log.summary(start + INTERVAL_LIMIT).is_some());
        assert!(reject_log.note(start + 2 * QUIET, from(1, 3), &HandshakeError::Closed).is_some());
    }
}
