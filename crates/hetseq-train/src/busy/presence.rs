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
    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn it_has_held_all_the_time(limit_s in 0_u64..6, holds in prop::collection::vec(any::<bool>(), 0..40)) {
            let run = limit_s as usize + 1;
            let expected = (0..holds.len()).find(|&at| at + 1 >= run && holds[at + 1 - run..=at].iter().all(|&holds| holds));
            prop_assert_eq!(first(limit_s, &holds), expected);
        }
    }
}
