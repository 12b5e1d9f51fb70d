//! Sums and copies are exact and equal on all ranks, for every transport, world size and length.

use hetseq_comm::{Algorithm, CommError, Group, Shards, WireFormat};

use crate::ranks::{PLAIN_TRANSPORTS, Transport, groups, on_each, options};

/// Values whose sum depends on the order of addition.
pub(crate) fn values(rank: usize, len: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_u32.wrapping_mul(rank as u32 + 1);
    let mut next = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let magnitude = 10f32.powi((state >> 28) as i32 - 8);
        ((state >> 8) as f32 / 8_388_608.0 - 1.0) * magnitude
    };
    (0..len).map(|_| next()).collect()
}

fn sum_in_rank_order(world: usize, len: usize) -> Vec<f32> {
    let mut sum = values(0, len);
    for rank in 1..world {
        sum.iter_mut().zip(values(rank, len)).for_each(|(total, value)| *total += value);
    }
    sum
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn all_reduced(groups: Vec<Group>, shards: &Shards, len: usize) -> Vec<Vec<f32>> {
    on_each(groups, |mut group| {
        let mut data = values(group.rank(), len);
        group.reduce_scatter(&mut data, shards).unwrap();
        let own = shards.of(group.rank());
        // The other parts are unspecified; make sure that no test relies on them.
        data.iter_mut().enumerate().filter(|(i, _)| !own.contains(i)).for_each(|(_, v)| *v = f32::NAN);
        group.all_gather(&mut data, shards).unwrap();
        group.close();
        data
    })
}

#[test]
fn reduced_sums_are_exact_and_equal_on_all_ranks() {
    for transport in PLAIN_TRANSPORTS {
        for world in 1..=5 {
            // Shorter than the world, odd, and longer than a frame.
            for len in [0, 1, 2, 3, 7, 1_001, 800_003] {
                let groups = groups(transport, world, options);
                let expected = bits(&sum_in_rank_order(world, len));
                for data in all_reduced(groups, &Shards::even(len, world), len) {
                    assert!(bits(&data) == expected, "{transport:?}, world {world}, length {len}");
                }
            }
        }
    }
}

#[test]
fn one_call_gives_the_same_sum_as_two() {
    for transport in PLAIN_TRANSPORTS {
        for world in 1..=5 {
            for len in [0, 1, 3, 1_001, 800_003] {
                let expected = bits(&sum_in_rank_order(world, len));
                let shards = Shards::even(len, world);
                for data in on_each(groups(transport, world, options), |mut group| {
                    let mut data = values(group.rank(), len);
                    group.all_reduce(&mut data, &shards, WireFormat::F32, Algorithm::Direct).unwrap();
                    group.close();
                    data
                }) {
                    assert!(bits(&data) == expected, "{transport:?}, world {world}, length {len}");
                }
            }
        }
    }
}

/// The sum of shard s starts at rank s and continues around the ring.
#[test]
fn the_ring_adds_in_its_own_order_and_all_ranks_agree() {
    for transport in PLAIN_TRANSPORTS {
        for world in 1..=5 {
            for len in [0, 1, 3, 1_001, 800_003] {
                let shards = Shards::even(len, world);
                let mut expected = vec![0.0; len];
                for owner in 0..world {
                    for at in shards.of(owner) {
                        let value = |step: usize| values((owner + step) % world, len)[at];
                        if len < 2_000 || at % 40_009 == 0 {
                            expected[at] = (1..world).fold(value(0), |sum, step| value(step) + sum);
                        }
                    }
                }
                let got = on_each(groups(transport, world, options), |mut group| {
                    let mut data = values(group.rank(), len);
                    group.all_reduce(&mut data, &shards, WireFormat::F32, Algorithm::Ring).unwrap();
                    group.close();
                    data
                });
                for data in &got {
                    assert!(bits(data) == bits(&got[0]), "{transport:?}, world {world}, length {len}");
                    for (at, value) in data.iter().enumerate() {
                        if len < 2_000 || at % 40_009 == 0 {
                            assert_eq!(
                                value.to_bits(),
                                expected[at].to_bits(),
                                "{transport:?}, world {world}, at {at}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_rounding_wire_format_gives_equal_bits_and_keeps_the_tail_exact() {
    let (len, tail) = (700_001, 3);
    for transport in PLAIN_TRANSPORTS {
        let shards = Shards::weighted(len, &[1.0, 2.0, 0.0]);
        let exact = sum_in_rank_order(3, len);
        let got = on_each(groups(transport, 3, options), |mut group| {
            let mut data = values(group.rank(), len);
            group.all_reduce(&mut data, &shards, WireFormat::Bf16 { exact_tail: tail }, Algorithm::Auto).unwrap();
            group.close();
            data
        });
        let largest = |at: usize| (0..3).map(|rank| values(rank, len)[at].abs()).fold(0.0, f32::max);
        for data in &got {
            assert!(bits(data) == bits(&got[0]), "{transport:?}");
            assert!(bits(&data[len - tail..]) == bits(&exact[len - tail..]), "{transport:?}");
            assert!(data[..len - tail].iter().all(|value| value.to_bits() & 0xffff == 0), "{transport:?}");
        }
        // Three rounding errors of half a unit in the last of 8 bits, of at most three such values.
        for at in (0..len).step_by(70_003) {
            assert!((got[0][at] - exact[at]).abs() <= largest(at) * 6.0 / 256.0, "{transport:?} at {at}");
        }
    }
}

#[test]
fn weighted_shards_change_the_owner_but_not_the_sum() {
    let len = 900_001;
    for transport in PLAIN_TRANSPORTS {
        let shards = Shards::weighted(len, &[0.0, 3.0, 0.0, 1.0]);
        let expected = bits(&sum_in_rank_order(4, len));
        for data in all_reduced(groups(transport, 4, options), &shards, len) {
            assert!(bits(&data) == expected, "{transport:?}");
        }
    }
}

#[test]
fn negative_zero_survives() {
    let sums = on_each(groups(Transport::Local, 2, options), |mut group| {
        let mut data = [-0.0];
        group.reduce_scatter(&mut data, &Shards::even(1, 2)).unwrap();
        (group.rank() == 1).then(|| data[0].to_bits())
    });
    assert_eq!(sums, [None, Some((-0.0f32).to_bits())]);
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
            let mut data = vec![1.0; len];
            let shards = Shards::even(len, 2);
            group.all_reduce(&mut data, &shards, WireFormat::F32, Algorithm::Direct).unwrap();
            group.all_reduce(&mut data, &shards, WireFormat::F32, Algorithm::Ring).unwrap();
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
                let mut data = [1.0; 10];
                group.reduce_scatter(&mut data, &Shards::even(10, 4)).unwrap();
                group.broadcast(update % 4, &mut data).unwrap();
            }
            group.close();
        });
    }
}

#[test]
fn a_single_rank_needs_no_peers() {
    let mut group = Group::alone();
    assert_eq!((group.rank(), group.world(), group.generation()), (0, 1, 0));
    assert!(!group.host(0).is_empty());
    let mut data = vec![1.0, 2.0];
    let shards = Shards::even(2, 1);
    group.reduce_scatter(&mut data, &shards).unwrap();
    group.all_gather(&mut data, &shards).unwrap();
    group.broadcast(0, &mut data).unwrap();
    assert_eq!(data, [1.0, 2.0]);
    // Nothing is rounded either.
    let exact = values(0, 1000);
    let mut data = exact.clone();
    let bf16 = WireFormat::Bf16 { exact_tail: 0 };
    group.all_reduce(&mut data, &Shards::even(1000, 1), bf16, Algorithm::Auto).unwrap();
    assert_eq!(bits(&data), bits(&exact));
    assert_eq!(group.all_gather_bytes(b"me").unwrap(), [b"me".to_vec()]);
    assert_eq!(group.broadcast_bytes(0, vec![7]).unwrap(), [7]);
    group.barrier().unwrap();
    group.close();
}

#[test]
fn invalid_arguments_are_rejected_before_anything_is_sent() {
    let mut group = Group::alone();
    let misused = |result: Result<(), CommError>| matches!(result, Err(CommError::Misuse { .. }));
    assert!(misused(group.reduce_scatter(&mut [0.0; 3], &Shards::even(4, 1))));
    assert!(misused(group.all_gather(&mut [0.0; 4], &Shards::even(4, 2))));
    assert!(misused(group.broadcast(1, &mut [0.0])));
    assert!(misused(group.broadcast_bytes(9, Vec::new()).map(|_| ())));
    group.barrier().unwrap();
}
