//! Whether something has held without a break for some time: neither a short burst of load makes a
//! machine leave, nor a short pause makes it return. Pure: time is an argument.

use std::time::Duration;

/// Something that holds or not, observed again and again.
#[derive(Debug)]
pub(super) struct Presence {
    /// How long it must hold.
    limit: Duration,
    /// Since when it holds.
    since: Option<Duration>,
}

impl Presence {
    pub(super) fn new(limit: Duration) -> Self {
        Presence { limit, since: None }
    }

    /// Takes an observation at `now`. Returns what holds now, if something has held long enough.
    pub(super) fn observe<T>(&mut self, holds: Option<T>, now: Duration) -> Option<T> {
        let Some(what) = holds else {
            self.since = None;
            return None;
        };
        let since = *self.since.get_or_insert(now);
        (now.saturating_sub(since) >= self.limit).then_some(what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first second at which it has held long enough.
    fn first(limit_s: u64, holds: &[bool]) -> Option<usize> {
        let mut presence = Presence::new(Duration::from_secs(limit_s));
        let observed = |(at, holds): (usize, &bool)| {
            presence.observe(holds.then_some(()), Duration::from_secs(at as u64)).map(|()| at)
        };
        holds.iter().enumerate().find_map(observed)
    }

    #[test]
    fn a_break_starts_the_time_again() {
        let (yes, no) = (true, false);
        assert_eq!(first(2, &[yes, yes, yes]), Some(2));
        assert_eq!(first(2, &[yes, yes, no, yes, yes, no]), None);
        assert_eq!(first(2, &[no, yes, no, yes, yes, yes]), Some(5));
        assert_eq!(first(0, &[no, yes]), Some(1));
    }

    #[test]
    fn it_has_held_all_the_time() {
        for (limit_s, bits) in (0..5).flat_map(|limit_s| (0..1_u32 << 10).map(move |bits| (limit_s, bits))) {
            let holds: Vec<bool> = (0..10).map(|at| bits >> at & 1 == 1).collect();
            let run = limit_s as usize + 1;
            let expected =
                holds.windows(run).position(|window| window.iter().all(|&holds| holds)).map(|at| at + run - 1);
            assert_eq!(first(limit_s, &holds), expected, "{holds:?}");
        }
    }
}
