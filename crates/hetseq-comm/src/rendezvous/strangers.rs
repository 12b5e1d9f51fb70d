//! What the log says about connections that were turned away: each kind from each address once, the rest as counts.
//!
//! A thousand strangers must not write a thousand lines, nor hide the one rank that came with a wrong secret. Time is an
//! argument; the lines are returned, not written. Used by `table.rs`, `pairing.rs` and `doorkeeper.rs`.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use super::talk::TalkError;

/// The counts are told at most so often; while strangers keep coming, ever more rarely.
const FIRST_SUMMARY: Duration = Duration::from_secs(10);
const LAST_SUMMARY: Duration = Duration::from_secs(600);
/// This long without strangers, and what was said about earlier ones may be said again.
const QUIET: Duration = Duration::from_secs(600);
/// Kinds and addresses that are told apart; an attacker may have many addresses.
const KNOWN: usize = 24;
/// Counts in one line.
const COUNTS: usize = 4;

pub(super) struct Strangers {
    /// Since the last summary, by address and kind of reason.
    known: BTreeMap<(IpAddr, &'static str), u64>,
    others: u64,
    summary_due: Option<Instant>,
    interval: Duration,
    last: Option<Instant>,
}

impl Default for Strangers {
    fn default() -> Strangers {
        Strangers { known: BTreeMap::new(), others: 0, summary_due: None, interval: FIRST_SUMMARY, last: None }
    }
}

impl Strangers {
    /// The line to log about one that was turned away, if it is a new one.
    pub(super) fn note(&mut self, now: Instant, address: SocketAddr, why: &TalkError) -> Option<String> {
        if self.last.replace(now).is_some_and(|last| now.duration_since(last) >= QUIET) && !self.has_counts() {
            *self = Strangers { last: Some(now), ..Strangers::default() };
        }
        let key = (address.ip(), why.kind());
        if let Some(count) = self.known.get_mut(&key) {
            *count += 1;
        } else if self.known.len() < KNOWN {
            self.known.insert(key, 0);
            return Some(format!("turned away {address}: {why}"));
        } else {
            self.others += 1;
        }
        self.summary_due.get_or_insert(now + self.interval);
        None
    }

    /// The line to log about those that were only counted, if it is time for it.
    pub(super) fn summary(&mut self, now: Instant) -> Option<String> {
        if self.summary_due.is_none_or(|due| now < due) {
            return None;
        }
        self.interval = (2 * self.interval).min(LAST_SUMMARY);
        self.last_words()
    }

    /// The same at the end, when no time is left to wait for.
    pub(super) fn last_words(&mut self) -> Option<String> {
        self.summary_due = None;
        let total = self.others + self.known.values().sum::<u64>();
        if total == 0 {
            return None;
        }
        let mut counts: Vec<_> = self.known.iter().filter(|(_, count)| **count > 0).collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let told: Vec<String> =
            counts.iter().take(COUNTS).map(|((ip, kind), count)| format!("{count} from {ip} ({kind})")).collect();
        let rest = total - counts.iter().take(COUNTS).map(|(_, count)| **count).sum::<u64>();
        let rest =
            if rest > 0 { format!("{}{rest} others", if told.is_empty() { "" } else { ", " }) } else { String::new() };
        self.known.values_mut().for_each(|count| *count = 0);
        self.others = 0;
        Some(format!("turned away {total} more connections: {}{rest}", told.join(", ")))
    }

    /// When to ask for a summary; `None` while there is nothing to tell.
    pub(super) fn summary_due(&self) -> Option<Instant> {
        self.summary_due
    }

    fn has_counts(&self) -> bool {
        self.summary_due.is_some()
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
    fn a_crowd_is_a_line_and_a_count_and_hides_nobody() {
        let start = Instant::now();
        let mut strangers = Strangers::default();
        let mut lines = Vec::new();
        for i in 0..1000 {
            lines.extend(strangers.note(start, from(1, 1000 + i), &TalkError::TimedOut));
        }
        lines.extend(strangers.note(start, from(2, 7), &TalkError::WeRefused(Refusal::SecretWrong)));
        lines.extend(strangers.summary(start + Duration::from_secs(9)));
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].starts_with("turned away 10.0.0.1:1000: it did not answer in time"), "{}", lines[0]);
        assert!(lines[1].starts_with("turned away 10.0.0.2:7: the shared secrets differ"), "{}", lines[1]);
        let told = strangers.summary(start + FIRST_SUMMARY).unwrap();
        assert_eq!(told, "turned away 999 more connections: 999 from 10.0.0.1 (silent)");
        assert_eq!(strangers.summary(start + LAST_SUMMARY), None);
        assert_eq!(strangers.last_words(), None);
    }

    #[test]
    fn an_attack_that_goes_on_is_told_ever_more_rarely() {
        let start = Instant::now();
        let mut strangers = Strangers::default();
        let mut told = Vec::new();
        for second in 0..7200 {
            let now = start + Duration::from_secs(second);
            strangers.note(now, from(1, 1), &TalkError::Closed);
            told.extend(strangers.summary(now).map(|_| second));
        }
        assert!((10..25).contains(&told.len()), "{told:?}");
        assert_eq!(told[0], 11);
    }

    #[test]
    fn many_addresses_are_counted_together() {
        let start = Instant::now();
        let mut strangers = Strangers::default();
        let lines = (0..200).filter_map(|i| strangers.note(start, from(i, 1), &TalkError::Closed)).count();
        assert_eq!(lines, KNOWN);
        assert_eq!(strangers.last_words().unwrap(), "turned away 176 more connections: 176 others");
    }

    #[test]
    fn after_a_long_quiet_the_same_stranger_is_told_again() {
        let start = Instant::now();
        let mut strangers = Strangers::default();
        assert!(strangers.note(start, from(1, 1), &TalkError::Closed).is_some());
        assert!(strangers.note(start, from(1, 2), &TalkError::Closed).is_none());
        assert!(strangers.summary(start + LAST_SUMMARY).is_some());
        assert!(strangers.note(start + 2 * QUIET, from(1, 3), &TalkError::Closed).is_some());
    }
}
