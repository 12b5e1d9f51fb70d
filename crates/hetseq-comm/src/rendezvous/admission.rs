//! Whom to let in when many knock at once: a pure decision, so that a crowd of strangers cannot keep a rank out.
//!
//! Everybody who is let in has a moment ([`Limits::moment`]) in which nobody can push them out, and an honest rank needs
//! less. After that, whoever has been there longest makes room, first among those who share the newcomer's address, else
//! at the address that takes up most. So a crowd from one address stands in its own way only, and even one at the same
//! address as an honest rank only makes that rank try again. Called by `reception.rs`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// How much is let in at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) total: usize,
    pub(super) per_address: usize,
    /// How long one may stay before it has to make room.
    pub(super) moment: Duration,
    /// A pause after each that was not let in: a flood must cost its author more than us.
    pub(super) pause: Duration,
}

impl Limits {
    /// While `world` ranks are expected, perhaps all from one address.
    pub(super) fn gathering(world: usize) -> Limits {
        Limits {
            total: 128.max(2 * world),
            per_address: 64.max(world),
            moment: Duration::from_millis(500),
            pause: Duration::from_millis(1),
        }
    }

    /// While a run is under way and nobody is expected.
    pub(super) const UNDER_WAY: Limits =
        Limits { total: 8, per_address: 4, moment: Duration::from_millis(500), pause: Duration::from_millis(10) };
}

/// One that was let in and is being greeted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Visitor {
    pub(super) ip: IpAddr,
    pub(super) age: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    LetIn,
    /// In place of this one.
    InPlaceOf(usize),
    TurnAway,
}

/// Whether to let `newcomer` in beside `inside`.
pub(super) fn decide(inside: &[Visitor], newcomer: IpAddr, limits: &Limits) -> Admission {
    let mut crowds: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for visitor in inside {
        *crowds.entry(visitor.ip).or_default() += 1;
    }
    let crowd = crowds.get(&newcomer).copied().unwrap_or_default();
    let pressed = if crowd >= limits.per_address {
        newcomer
    } else if inside.len() >= limits.total {
        match crowds.into_iter().max_by_key(|(_, count)| *count) {
            Some((ip, _)) => ip,
            None => return Admission::TurnAway,
        }
    } else {
        return Admission::LetIn;
    };
    let candidates = inside.iter().enumerate().filter(|(_, visitor)| visitor.ip == pressed);
    match candidates.max_by_key(|(_, visitor)| visitor.age) {
        Some((index, oldest)) if oldest.age >= limits.moment => Admission::InPlaceOf(index),
        _ => Admission::TurnAway,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits =
        Limits { total: 6, per_address: 3, moment: Duration::from_millis(100), pause: Duration::ZERO };

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn visitors(of: &[(u8, u64)]) -> Vec<Visitor> {
        of.iter().map(|(last, age)| Visitor { ip: ip(*last), age: Duration::from_millis(*age) }).collect()
    }

    #[test]
    fn who_makes_room() {
        for (inside, newcomer, expected) in [
            (&[(1, 5), (1, 4)][..], 1, Admission::LetIn),
            // Its own address is full: the oldest of it goes, once it had its moment.
            (&[(1, 50), (2, 900), (1, 40), (1, 30)], 1, Admission::TurnAway),
            (&[(1, 150), (2, 900), (1, 200), (1, 30)], 1, Admission::InPlaceOf(2)),
            // All is full: the largest crowd gives way to one from elsewhere.
            (&[(1, 150), (1, 160), (1, 120), (2, 900), (2, 900), (3, 900)], 9, Admission::InPlaceOf(1)),
            (&[(1, 50), (1, 60), (1, 20), (2, 900), (2, 900), (3, 900)], 9, Admission::TurnAway),
        ] {
            assert_eq!(decide(&visitors(inside), ip(newcomer), &LIMITS), expected, "{inside:?}");
        }
    }

    proptest! {
        #[test]
        fn limits_hold_and_nobody_is_pushed_out_before_their_moment(
            arrivals in prop::collection::vec((0u8..5, 0u64..60), 0..300),
        ) {
            let mut inside: Vec<Visitor> = Vec::new();
            for (from, wait) in arrivals {
                inside.iter_mut().for_each(|visitor| visitor.age += Duration::from_millis(wait));
                match decide(&inside, ip(from), &LIMITS) {
                    Admission::LetIn => {}
                    Admission::InPlaceOf(index) => {
                        let pushed = inside.remove(index);
                        prop_assert!(pushed.age >= LIMITS.moment);
                    }
                    Admission::TurnAway => continue,
                }
                inside.push(Visitor { ip: ip(from), age: Duration::ZERO });
                prop_assert!(inside.len() <= LIMITS.total);
                for last in 0..5 {
                    prop_assert!(inside.iter().filter(|v| v.ip == ip(last)).count() <= LIMITS.per_address);
                }
            }
        }

        // However many silent strangers of one address are there, one from elsewhere is let in once they had their moment.
        #[test]
        fn a_crowd_stands_in_its_own_way_only(strangers in 0usize..50, others in 0u8..3) {
            let mut inside: Vec<Visitor> = (0..others).map(|i| Visitor { ip: ip(100 + i), age: Duration::ZERO }).collect();
            for _ in 0..strangers {
                let age = LIMITS.moment;
                match decide(&inside, ip(1), &LIMITS) {
                    Admission::LetIn => inside.push(Visitor { ip: ip(1), age }),
                    Admission::InPlaceOf(index) => inside[index] = Visitor { ip: ip(1), age },
                    Admission::TurnAway => {}
                }
            }
            prop_assert!(decide(&inside, ip(9), &LIMITS) != Admission::TurnAway);
        }
    }
}
