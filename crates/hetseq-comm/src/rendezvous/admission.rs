//! Whom to let in when many knock at once: a pure decision, so that a crowd of strangers cannot keep a rank out.
//!
//! Everybody who is let in has a moment ([`Limits::moment`]) in which nobody can push them out, and an honest rank needs
//! less. After that, whoever has been there longest makes room, first among those who share the newcomer's address, else
//! at the address that takes up most of those where somebody had that moment. So a crowd from one address stands in its own
//! way only, crowds from many cannot stay, and even one at the same address as an honest rank only makes that rank try
//! again. Whoever has one IPv6 address has a whole network of 2^64, which therefore counts as one. Called by `reception.rs`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
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

/// Those at one address.
#[derive(Clone, Copy, Default)]
struct Crowd {
    count: usize,
    /// The age of the oldest, and who it is.
    oldest: (Duration, usize),
}

/// Whether to let `newcomer` in beside `inside`.
pub(super) fn decide(inside: &[Visitor], newcomer: IpAddr, limits: &Limits) -> Admission {
    let mut crowds: BTreeMap<IpAddr, Crowd> = BTreeMap::new();
    for (index, visitor) in inside.iter().enumerate() {
        let crowd = crowds.entry(counted_as(visitor.ip)).or_default();
        crowd.count += 1;
        crowd.oldest = crowd.oldest.max((visitor.age, index));
    }
    let own = crowds.get(&counted_as(newcomer)).copied().unwrap_or_default();
    let pressed = if own.count >= limits.per_address {
        Some(own)
    } else if inside.len() >= limits.total {
        let movable = crowds.into_values().filter(|crowd| crowd.oldest.0 >= limits.moment);
        movable.max_by_key(|crowd| (crowd.count, crowd.oldest))
    } else {
        return Admission::LetIn;
    };
    match pressed.map(|crowd| crowd.oldest) {
        Some((age, index)) if age >= limits.moment => Admission::InPlaceOf(index),
        _ => Admission::TurnAway,
    }
}

/// The address itself, or the /64 network of an IPv6 one.
fn counted_as(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => ip,
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
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
            // One in which nobody had their moment gives way to nobody, and the next is looked at.
            (&[(1, 50), (1, 60), (1, 20), (2, 900), (2, 910), (3, 950)], 9, Admission::InPlaceOf(4)),
            (&[(1, 50), (1, 60), (1, 20), (2, 90), (2, 90), (3, 90)], 9, Admission::TurnAway),
            // Among equals the one who has been there longest.
            (&[(1, 150), (2, 150), (3, 170), (4, 150), (5, 10), (6, 20)], 9, Admission::InPlaceOf(2)),
        ] {
            assert_eq!(decide(&visitors(inside), ip(newcomer), &LIMITS), expected, "{inside:?}");
        }
    }

    #[test]
    fn a_network_of_ipv6_addresses_counts_as_one() {
        let at = |host: u16, age| Visitor {
            ip: Ipv6Addr::new(0x2001, 0xdb8, 0, 7, 0, 0, 0, host).into(),
            age: Duration::from_millis(age),
        };
        let inside = [at(1, 50), at(2, 170), at(3, 160)];
        assert_eq!(decide(&inside, at(4, 0).ip, &LIMITS), Admission::InPlaceOf(1));
        let elsewhere = Ipv6Addr::new(0x2001, 0xdb8, 0, 8, 0, 0, 0, 1).into();
        assert_eq!(decide(&inside, elsewhere, &LIMITS), Admission::LetIn);
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

        // Wherever they are from and whoever of them comes and goes: as long as one has had their moment, there is room.
        #[test]
        fn strangers_from_many_addresses_cannot_stay(visitors in prop::collection::vec((0u8..20, 0u64..200), 0..7)) {
            let inside = visitors.iter().map(|(from, age)| (100 + from, *age)).collect::<Vec<_>>();
            let decision = decide(&self::visitors(&inside), ip(9), &LIMITS);
            let has_stayer = visitors.iter().any(|(_, age)| *age >= 100);
            prop_assert_eq!(decision == Admission::TurnAway, visitors.len() >= LIMITS.total && !has_stayer);
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
