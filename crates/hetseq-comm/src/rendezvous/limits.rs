//! Decides which connections to accept when there are too many. A pure function, so that a flood of
//! unauthenticated connections cannot keep a rank out.
//!
//! An accepted connection is protected from eviction for a short time
//! ([`AcceptLimits::protected_for`]), and an honest rank needs less than that for its handshake. If
//! the address of the new connection is full, the oldest connection of that address is evicted. If
//! the total is full, the address with the most connections loses its oldest one; addresses with
//! protected connections only are left out. So a flood from one address blocks only that address,
//! floods from many addresses cannot stay, and a flood from an honest rank's own address only makes
//! that rank retry. The owner of one IPv6 address has a network of 2^64 of them, so such a network
//! counts as one address. Called by `acceptor.rs`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

/// Limits on handshakes in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AcceptLimits {
    pub(super) total: usize,
    pub(super) per_address: usize,
    /// A connection younger than this is not evicted.
    pub(super) protected_for: Duration,
    /// A pause after each rejection: a flood must cost the sender more than it costs this rank.
    pub(super) reject_pause: Duration,
}

impl AcceptLimits {
    /// Limits while `world` ranks join, perhaps all from one address.
    pub(super) fn while_joining(world: usize) -> AcceptLimits {
        AcceptLimits {
            total: 128.max(2 * world),
            per_address: 64.max(world),
            protected_for: Duration::from_millis(500),
            reject_pause: Duration::from_millis(1),
        }
    }

    /// Limits once the run has started and no rank is expected.
    pub(super) const AFTER_START: AcceptLimits = AcceptLimits {
        total: 8,
        per_address: 4,
        protected_for: Duration::from_millis(500),
        reject_pause: Duration::from_millis(10),
    };
}

/// An accepted connection whose handshake is in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpenConnection {
    pub(super) ip: IpAddr,
    pub(super) age: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AcceptDecision {
    Accept,
    /// Accept, and close the open connection with this index.
    Evict(usize),
    Reject,
}

/// The open connections of one address.
#[derive(Clone, Copy, Default)]
struct AddressUse {
    count: usize,
    /// Age and index of the oldest.
    oldest: (Duration, usize),
}

/// Decides whether to accept a connection from `new_ip` beside those in `open`.
pub(super) fn decide(open: &[OpenConnection], new_ip: IpAddr, limits: &AcceptLimits) -> AcceptDecision {
    let mut by_address: BTreeMap<IpAddr, AddressUse> = BTreeMap::new();
    for (index, connection) in open.iter().enumerate() {
        let address = by_address.entry(counted_as(connection.ip)).or_default();
        address.count += 1;
        address.oldest = address.oldest.max((connection.age, index));
    }
    let same_address = by_address.get(&counted_as(new_ip)).copied().unwrap_or_default();
    let evict_from = if same_address.count >= limits.per_address {
        Some(same_address)
    } else if open.len() >= limits.total {
        let evictable = by_address.into_values().filter(|address| address.oldest.0 >= limits.protected_for);
        evictable.max_by_key(|address| (address.count, address.oldest))
    } else {
        return AcceptDecision::Accept;
    };
    match evict_from.map(|address| address.oldest) {
        Some((age, index)) if age >= limits.protected_for => AcceptDecision::Evict(index),
        _ => AcceptDecision::Reject,
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

    const LIMITS: AcceptLimits = AcceptLimits {
        total: 6,
        per_address: 3,
        protected_for: Duration::from_millis(100),
        reject_pause: Duration::ZERO,
    };

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn connections(of: &[(u8, u64)]) -> Vec<OpenConnection> {
        of.iter().map(|(last, age)| OpenConnection { ip: ip(*last), age: Duration::from_millis(*age) }).collect()
    }

    #[test]
    fn the_oldest_unprotected_connection_is_evicted() {
        for (open, new, expected) in [
            (&[(1, 5), (1, 4)][..], 1, AcceptDecision::Accept),
            // The new connection's address is full: its oldest is evicted once it is unprotected.
            (&[(1, 50), (2, 900), (1, 40), (1, 30)], 1, AcceptDecision::Reject),
            (&[(1, 150), (2, 900), (1, 200), (1, 30)], 1, AcceptDecision::Evict(2)),
            // All is full: the address with the most connections loses one to another address.
            (&[(1, 150), (1, 160), (1, 120), (2, 900), (2, 900), (3, 900)], 9, AcceptDecision::Evict(1)),
            // An address with protected connections only loses none, so the next one is considered.
            (&[(1, 50), (1, 60), (1, 20), (2, 900), (2, 910), (3, 950)], 9, AcceptDecision::Evict(4)),
            (&[(1, 50), (1, 60), (1, 20), (2, 90), (2, 90), (3, 90)], 9, AcceptDecision::Reject),
            // With equal counts, the oldest connection is evicted.
            (&[(1, 150), (2, 150), (3, 170), (4, 150), (5, 10), (6, 20)], 9, AcceptDecision::Evict(2)),
        ] {
            assert_eq!(decide(&connections(open), ip(new), &LIMITS), expected, "{open:?}");
        }
    }

    #[test]
    fn a_network_of_ipv6_addresses_counts_as_one() {
        let at = |host: u16, age| OpenConnection {
            ip: Ipv6Addr::new(0x2001, 0xdb8, 0, 7, 0, 0, 0, host).into(),
            age: Duration::from_millis(age),
        };
        let open = [at(1, 50), at(2, 170), at(3, 160)];
        assert_eq!(decide(&open, at(4, 0).ip, &LIMITS), AcceptDecision::Evict(1));
        let elsewhere = Ipv6Addr::new(0x2001, 0xdb8, 0, 8, 0, 0, 0, 1).into();
        assert_eq!(decide(&open, elsewhere, &LIMITS), AcceptDecision::Accept);
    }

    proptest! {
        #[test]
        fn limits_hold_and_protected_connections_are_not_evicted(
            arrivals in prop::collection::vec((0u8..5, 0u64..60), 0..300),
        ) {
            let mut open: Vec<OpenConnection> = Vec::new();
            for (from, wait) in arrivals {
                open.iter_mut().for_each(|connection| connection.age += Duration::from_millis(wait));
                match decide(&open, ip(from), &LIMITS) {
                    AcceptDecision::Accept => {}
                    AcceptDecision::Evict(index) => {
                        let evicted = open.remove(index);
                        prop_assert!(evicted.age >= LIMITS.protected_for);
                    }
                    AcceptDecision::Reject => continue,
                }
                open.push(OpenConnection { ip: ip(from), age: Duration::ZERO });
                prop_assert!(open.len() <= LIMITS.total);
                for last in 0..5 {
                    prop_assert!(open.iter().filter(|c| c.ip == ip(last)).count() <= LIMITS.per_address);
                }
            }
        }

        // Whatever addresses they come from: while one connection is unprotected, a new one is
        // accepted.
        #[test]
        fn connections_from_many_addresses_cannot_stay(ages in prop::collection::vec((0u8..20, 0u64..200), 0..7)) {
            let open = ages.iter().map(|(from, age)| (100 + from, *age)).collect::<Vec<_>>();
            let decision = decide(&connections(&open), ip(9), &LIMITS);
            let has_unprotected = ages.iter().any(|(_, age)| *age >= 100);
            prop_assert_eq!(decision == AcceptDecision::Reject, ages.len() >= LIMITS.total && !has_unprotected);
        }

        // However many silent connections one address has, one from another address is accepted
        // once they are unprotected.
        #[test]
        fn a_flood_blocks_only_its_own_address(flood in 0usize..50, others in 0u8..3) {
            let other = |i| OpenConnection { ip: ip(100 + i), age: Duration::ZERO };
            let mut open: Vec<OpenConnection> = (0..others).map(other).collect();
            for _ in 0..flood {
                let age = LIMITS.protected_for;
                match decide(&open, ip(1), &LIMITS) {
                    AcceptDecision::Accept => open.push(OpenConnection { ip: ip(1), age }),
                    AcceptDecision::Evict(index) => open[index] = OpenConnection { ip: ip(1), age },
                    AcceptDecision::Reject => {}
                }
            }
            prop_assert!(decide(&open, ip(9), &LIMITS) != AcceptDecision::Reject);
        }
    }
}
