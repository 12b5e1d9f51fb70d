//! Sums and copies are exact and equal on all ranks, for every transport, world size and length.

use hetseq_comm::{Algorithm, CommError, Group, Shards, WireFormat};

use crate::ranks::{PLAIN_TRANSPORTS, Transport, all_reduce, groups, on_each, options};
use crate::reference::{self, bits, values};

const DIRECT: (WireFormat, Algorithm) = (WireFormat::F32, Algorithm::Direct);
const RING: (WireFormat, Algorithm) = (WireFormat::F32, Algorithm::Ring);

/// Checks that all ranks get the bits of the reference; returns their sum.
fn check_sum(transport: Transport, shards: &Shards, (wire_format, algorithm): (WireFormat, Algorithm)) -> Vec<f32> {
    let (world, len) = (shards.world(), shards.len());
    let ranks: Vec<Vec<f32>> = (0..world).map(|rank| values(rank, len)).collect();
    let expected = reference::sum(&ranks, shards, wire_format, algorithm);
    for data in on_each(groups(transport, world, options), |mut group| {
        let data = ranks[group.rank()].clone();
        let data = all_reduce(&mut group, data, shards, (wire_format, algorithm)).unwrap();
        group.close();
        data
    }) {
        assert!(bits(&data) == bits(&expected), "{transport:?}, world {world}, length {len}");
    }
    expected
}

#[test]
fn sums_are_exact_and_equal_on_all_ranks() {
    for transport in PLAIN_TRANSPORTS {
        for world in 1..=5 {
            // Shorter than the world, odd, and longer than a frame.
            for len in [0, 1, 2, 3, 7, 1_001, 800_003] {
                check_sum(transport, &Shards::even(len, world), DIRECT);
            }
        }
    }
}

#[test]
fn the_ring_adds_in_its_own_order_and_all_ranks_agree() {
    for transport in PLAIN_TRANSPORTS {
        for world in 1..=5 {
            for len in [0, 1, 3, 1_001, 800_003] {
                check_sum(transport, &Shards::even(len, world), RING);
            }
        }
    }
}

#[test]
fn a_rounding_wire_format_gives_equal_bits_and_keeps_the_tail_exact() {
    let (len, tail) = (700_001, 3);
    let shards = Shards::weighted(len, &[1.0, 2.0, 0.0]);
    let ranks: Vec<Vec<f32>> = (0..3).map(|rank| values(rank, len)).collect();
    let exact = reference::sum(&ranks, &shards, WireFormat::F32, Algorithm::Direct);
    for transport in PLAIN_TRANSPORTS {
        let rounded = check_sum(transport, &shards, (WireFormat::Bf16 { exact_tail: tail }, Algorithm::Auto));
        assert!(bits(&rounded[len - tail..]) == bits(&exact[len - tail..]), "{transport:?}");
        assert!(rounded[..len - tail].iter().all(|value| value.to_bits() & 0xffff == 0), "{transport:?}");
        // Three rounding errors of half a unit in the last of 8 bits, of at most three such values.
        for at in 0..len {
            let largest = ranks.iter().map(|values| values[at].abs()).fold(0.0, f32::max);
            assert!((rounded[at] - exact[at]).abs() <= largest * 6.0 / 256.0, "{transport:?} at {at}");
        }
    }
}

#[test]
fn weighted_shards_change_the_owner_but_not_the_sum() {
    let len = 900_001;
    let ranks: Vec<Vec<f32>> = (0..4).map(|rank| values(rank, len)).collect();
    let even = reference::sum(&ranks, &Shards::even(len, 4), WireFormat::F32, Algorithm::Direct);
    for transport in PLAIN_TRANSPORTS {
        let weighted = check_sum(transport, &Shards::weighted(len, &[0.0, 3.0, 0.0, 1.0]), DIRECT);
        assert!(bits(&weighted) == bits(&even), "{transport:?}");
    }
}

#[test]
fn negative_zero_survives() {
    let sums = on_each(groups(Transport::Local, 2, options), |mut group| {
        bits(&all_reduce(&mut group, vec![-0.0], &Shards::even(1, 2), DIRECT).unwrap())
    });
    assert_eq!(sums, [bits(&[-0.0]), bits(&[-0.0])]);
}

#[test]
fn all_gather_bytes_returns_every_rank_in_order() {
    for transport in PLAIN_TRANSPORTS {
        for world in 1..=4 {
            // Empty, short, and several frames long.
            let bytes = |rank: usize| vec![rank as u8; [0, 5, 3_000_000, 1 << 20][rank]];
            let expected: Vec<_> = (0..world).map(bytes).collect();
            for got in on_each(groups(transport, world, options), |mut group| {
                let got = group.all_gather_bytes(&bytes(group.rank())).unwrap();
                group.close();
                got
            }) {
                assert!(got == expected, "{transport:?}, world {world}");
            }
        }
    }
}

#[test]
fn broadcasts_reach_all_ranks_from_any_root() {
    for transport in PLAIN_TRANSPORTS {
        on_each(groups(transport, 3, options), |mut group| {
            for root in 0..3 {
                for len in [0, 1, 262_144, 600_000] {
                    let mut data = values(group.rank(), len);
                    group.broadcast(root, &mut data).unwrap();
                    assert!(bits(&data) == bits(&values(root, len)), "{transport:?}, root {root}");
                    let bytes = vec![group.rank() as u8; len * 4];
                    assert!(group.broadcast_bytes(root, bytes).unwrap() == vec![root as u8; len * 4]);
                }
                group.barrier().unwrap();
            }
            group.close();
        });
    }
}

#[test]
fn large_vectors_in_both_directions_do_not_deadlock() {
    let len = 12_000_000;
    for transport in PLAIN_TRANSPORTS {
        on_each(groups(transport, 2, options), |mut group| {
            let shards = Shards::even(len, 2);
            let data = all_reduce(&mut group, vec![1.0; len], &shards, DIRECT).unwrap();
            let data = all_reduce(&mut group, data, &shards, RING).unwrap();
            assert!(data.iter().all(|value| *value == 4.0));
            group.close();
        });
    }
}

#[test]
fn ranks_may_differ_in_speed() {
    for transport in PLAIN_TRANSPORTS {
        on_each(groups(transport, 4, options), |mut group| {
            for update in 0..200 {
                if (update + group.rank()) % 50 == 0 {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
                group.all_gather_bytes(&[group.rank() as u8]).unwrap();
                let mut data = all_reduce(&mut group, vec![1.0; 10], &Shards::even(10, 4), DIRECT).unwrap();
                assert_eq!(data, [4.0; 10]);
                group.broadcast(update % 4, &mut data).unwrap();
            }
            group.close();
        });
    }
}

#[test]
fn a_single_rank_needs_no_peers() {
    let mut group = Group::alone().unwrap();
    assert_eq!((group.rank(), group.world(), group.generation()), (0, 1, 0));
    assert!(!group.host(0).is_empty());
    let mut data = vec![1.0, 2.0];
    group.broadcast(0, &mut data).unwrap();
    assert_eq!(data, [1.0, 2.0]);
    // Nothing is rounded either.
    let (exact, bf16) = (values(0, 1000), WireFormat::Bf16 { exact_tail: 0 });
    for how in [DIRECT, RING, (bf16, Algorithm::Auto)] {
        let data = all_reduce(&mut group, exact.clone(), &Shards::even(1000, 1), how).unwrap();
        assert_eq!(bits(&data), bits(&exact));
    }
    assert_eq!(group.all_gather_bytes(b"me").unwrap(), [b"me".to_vec()]);
    assert_eq!(group.broadcast_bytes(0, vec![7]).unwrap(), [7]);
    group.barrier().unwrap();
    group.close();
}

#[test]
fn invalid_arguments_are_rejected_before_anything_is_sent() {
    let mut group = Group::alone().unwrap();
    let misused = |result: Result<(), CommError>| matches!(result, Err(CommError::Misuse { .. }));
    assert!(misused(all_reduce(&mut group, vec![0.0; 4], &Shards::even(4, 2), DIRECT).map(|_| ())));
    assert!(misused(group.broadcast(1, &mut [0.0])));
    assert!(misused(group.broadcast_bytes(9, Vec::new()).map(|_| ())));
    group.barrier().unwrap();
}
