//! Sums with late contributions have the bits of the reference, in whatever order ranks contribute.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use hetseq_comm::{Algorithm, CommError, Contribution, Group, Options, Shards, Summed, Waker, WireFormat};

use crate::ranks::{PLAIN_TRANSPORTS, TRANSPORTS, Transport, groups, on_each, options};
use crate::reference::{self, bits, values};

/// A rank that misses a wake sleeps this long (`mesh.rs`).
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
const BF16: WireFormat = WireFormat::Bf16 { exact_tail: 3 };

/// Sums with a contribution that another thread has ready after `delay`, like a device.
fn sum_late(
    group: &mut Group,
    shards: &Shards,
    (wire_format, algorithm): (WireFormat, Algorithm),
    contribution: Contribution,
    delay: Duration,
) -> Result<Summed, CommError> {
    let (waker, ready) = (group.waker(), Mutex::new(None));
    scope(|scope| {
        let computing = || {
            sleep(delay);
            *ready.lock().unwrap() = Some(contribution);
            waker.wake();
        };
        if delay.is_zero() {
            computing();
        } else {
            scope.spawn(computing);
        }
        group.all_reduce(shards, wire_format, algorithm, || Ok(ready.lock().unwrap().take()))
    })
}

/// Returns up to 24 ms, and none for a third; a function of the arguments alone.
fn delay(round: usize, rank: usize) -> Duration {
    let key = (round * 31 + rank + 1) as u64;
    let drawn = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) % 36;
    Duration::from_millis(drawn.saturating_sub(12))
}

/// Values with zeros of both signs, which adding to zero would change.
fn with_zeros(rank: usize, len: usize) -> Vec<f32> {
    let mut values = values(rank, len);
    values.iter_mut().step_by(7).for_each(|value| *value = -0.0);
    values.iter_mut().skip(rank).step_by(21).for_each(|value| *value = 0.0);
    values
}

/// A note: empty, short, or several frames long.
fn note(round: usize, rank: usize) -> Vec<u8> {
    vec![rank as u8; [0, 5, 600_000, 40][(round + rank) % 4]]
}

fn compare(transport: Transport, world: usize, len: usize, delays: &(dyn Fn(usize, usize) -> Duration + Sync)) {
    let unequal: Vec<f64> = (0..world).map(|rank| ((rank + 2) % 3) as f64).collect();
    let one_owner: Vec<f64> = (0..world).map(|rank| f64::from(u8::from(rank == world / 2))).collect();
    let cases = [
        (Shards::even(len, world), WireFormat::F32, Algorithm::Direct),
        (Shards::weighted(len, &unequal), BF16, Algorithm::Auto),
        (Shards::weighted(len, &one_owner), WireFormat::F32, Algorithm::Auto),
        (Shards::even(len, world), WireFormat::F32, Algorithm::Ring),
        (Shards::weighted(len, &unequal), WireFormat::F32, Algorithm::Direct),
    ];
    let ranks: Vec<Vec<f32>> = (0..world).map(|rank| with_zeros(rank, len)).collect();
    on_each(groups(transport, world, options), |mut group| {
        let rank = group.rank();
        let mut sums = Vec::new();
        // One right after the other, so that frames left in the queues by one sum overlap with the
        // next.
        for (round, (shards, wire_format, algorithm)) in cases.iter().enumerate() {
            let contribution = Contribution::Both { note: note(round, rank), data: ranks[rank].clone() };
            let summed =
                sum_late(&mut group, shards, (*wire_format, *algorithm), contribution, delays(round, rank)).unwrap();
            let notes: Vec<_> = (0..world).map(|rank| note(round, rank)).collect();
            assert!(summed.notes == notes, "{transport:?}, world {world}, length {len}, case {round}");
            sums.push(summed.data);
        }
        for (round, (shards, wire_format, algorithm)) in cases.iter().enumerate() {
            let expected = reference::sum(&ranks, shards, *wire_format, *algorithm);
            assert!(bits(&expected) == bits(&sums[round]), "{transport:?}, world {world}, length {len}, case {round}");
        }
        group.close();
    });
}

#[test]
fn late_sums_have_the_bits_of_the_reference() {
    for transport in PLAIN_TRANSPORTS {
        for world in 1..=5 {
            for len in [0, 3, 1_001, 800_003] {
                compare(transport, world, len, &|round, rank| delay(round + len + world, rank));
            }
        }
    }
    compare(Transport::Encrypted, 3, 300_001, &delay);
}

#[test]
fn any_rank_may_be_last() {
    for transport in PLAIN_TRANSPORTS {
        for last in 0..3 {
            compare(transport, 3, 600_001, &|_, rank| Duration::from_millis(if rank == last { 60 } else { 0 }));
            compare(transport, 3, 600_001, &|_, rank| Duration::from_millis(if rank == last { 0 } else { 40 }));
        }
    }
}

#[test]
fn times_count_from_the_own_contribution() {
    for transport in PLAIN_TRANSPORTS {
        let summed = on_each(groups(transport, 2, options), |mut group| {
            let delay = Duration::from_millis(400 * group.rank() as u64);
            let contribution = Contribution::Both { note: Vec::new(), data: vec![1.0; 1000] };
            let how = (WireFormat::F32, Algorithm::Direct);
            let summed = sum_late(&mut group, &Shards::even(1000, 2), how, contribution, delay).unwrap();
            group.close();
            summed
        });
        assert!(summed[0].waited >= Duration::from_millis(300), "{:?}", summed[0].waited);
        // Rank 1, the last one, has nothing to wait for, and its own delay does not count.
        assert!(summed[1].busy + summed[1].waited < summed[0].waited, "{transport:?}: {summed:?}");
    }
}

#[test]
fn a_wake_is_noticed_at_once_by_any_transport_and_a_single_rank() {
    let alone = || vec![Group::alone().unwrap()];
    for groups in [alone(), groups(Transport::Local, 2, options), groups(Transport::Tcp, 2, options)] {
        on_each(groups, |mut group| {
            let shards = Shards::even(2, group.world());
            // Long before the sleep, and often: it must neither be lost nor block.
            let waker = group.waker();
            (0..100_000).for_each(|_| waker.wake());
            let mut slow = 0;
            for _ in 0..20 {
                let contribution = Contribution::Both { note: vec![1], data: vec![1.0, -0.0] };
                let (start, delay) = (Instant::now(), Duration::from_millis(10));
                let summed =
                    sum_late(&mut group, &shards, (WireFormat::F32, Algorithm::Auto), contribution, delay).unwrap();
                slow += u32::from(start.elapsed() >= LONGEST_SLEEP);
                assert_eq!(bits(&summed.data), bits(&[group.world() as f32, -0.0]));
            }
            assert!(slow < 10, "{slow} of 20 wakes were lost");
            group.close();
        });
    }
    fn shared<T: Clone + Send + Sync>() {}
    shared::<Waker>();
}

#[derive(Debug)]
enum SumError {
    Comm(CommError),
    Own,
}

impl From<CommError> for SumError {
    fn from(error: CommError) -> SumError {
        SumError::Comm(error)
    }
}

#[test]
fn an_own_error_is_returned_and_reported_to_the_others() {
    for transport in TRANSPORTS {
        for algorithm in [Algorithm::Direct, Algorithm::Ring] {
            on_each(groups(transport, 3, options), |mut group| {
                let shards = Shards::even(500_000, 3);
                if group.rank() == 1 {
                    let error =
                        group.all_reduce(&shards, WireFormat::F32, algorithm, || Err(SumError::Own)).unwrap_err();
                    assert!(matches!(error, SumError::Own));
                    let again = group.barrier().unwrap_err();
                    assert!(matches!(again, CommError::AlreadyFailed { .. }), "{again}");
                    return group.abort("out of memory on cuda:0");
                }
                // One has contributed, the other still computes.
                let is_early = group.rank() == 0;
                let contribute = || is_early.then(|| Contribution::Both { note: vec![7], data: vec![1.0; 500_000] });
                let error = group
                    .all_reduce(&shards, WireFormat::F32, algorithm, || Ok::<_, SumError>(contribute()))
                    .unwrap_err();
                let SumError::Comm(error) = error else { panic!("{error:?}") };
                assert!(error.to_string().contains("out of memory on cuda:0"), "{transport:?}: {error}");
            });
        }
    }
}

#[test]
fn a_rank_that_gives_up_is_reported_to_computing_and_waiting_ranks() {
    for transport in TRANSPORTS {
        for has_contributed in [false, true] {
            // Ranks that are threads share their options.
            let limit = |rank| if rank == 2 { Duration::from_millis(300) } else { Duration::from_secs(10) };
            let with = |rank| Options { progress: limit(rank), ..options(rank) };
            if has_contributed && transport == Transport::Local {
                continue;
            }
            on_each(groups(transport, 3, with), |mut group| {
                group.at("update 12");
                let (shards, rank) = (Shards::even(900_000, 3), group.rank());
                let contribute = || Ok(Some(Contribution::Both { note: vec![1], data: vec![0.0; 900_000] }));
                let result = group.all_reduce(&shards, WireFormat::F32, Algorithm::Direct, || match rank {
                    0 => contribute(),
                    // Rank 2 waits in vain for rank 1, which never finishes computing, or fails
                    // itself.
                    1 => Ok(None),
                    _ if has_contributed => contribute(),
                    _ => Err(SumError::Own),
                });
                match result {
                    Err(SumError::Own) => assert_eq!((rank, has_contributed), (2, false)),
                    Err(SumError::Comm(error)) => {
                        let text = error.to_string();
                        let why = if has_contributed { "made no progress" } else { "failed to compute its part" };
                        assert!(text.contains(why), "{transport:?} rank {rank}: {text}");
                        assert!(text.contains("during all_reduce at update 12"), "{transport:?} rank {rank}: {text}");
                    }
                    Ok(_) => panic!("{transport:?} rank {rank} got a sum"),
                }
            });
        }
    }
}

#[test]
fn computing_has_no_limit_but_waiting_for_others_has() {
    for transport in PLAIN_TRANSPORTS {
        let reported = AtomicBool::new(false);
        let strict = |rank| Options { progress: Duration::from_millis(300), ..options(rank) };
        on_each(groups(transport, 2, strict), |mut group| {
            let (shards, start) = (Shards::even(4, 2), Instant::now());
            let slow = |after: Duration| {
                move || {
                    Ok((start.elapsed() > after).then(|| Contribution::Both { note: Vec::new(), data: vec![1.0; 4] }))
                }
            };
            // Both compute longer than the limit, which is not an error.
            let after = Duration::from_millis(1_100);
            group.all_reduce::<CommError>(&shards, WireFormat::F32, Algorithm::Direct, slow(after)).unwrap();
            if group.rank() == 1 {
                while !reported.load(Ordering::Acquire) && start.elapsed() < Duration::from_secs(30) {
                    sleep(Duration::from_millis(5));
                }
                return;
            }
            let error =
                group.all_reduce(&shards, WireFormat::F32, Algorithm::Direct, slow(Duration::ZERO)).unwrap_err();
            reported.store(true, Ordering::Release);
            assert!(matches!(error, CommError::NoProgress { rank: 1, .. }), "{error}");
        });
    }
}

#[test]
fn invalid_contributions_are_rejected() {
    let shards = Shards::even(4, 1);
    let sum_with = |note: usize, len: usize| {
        let mut group = Group::alone().unwrap();
        let mut contribution = Some(Contribution::Both { note: vec![0; note], data: vec![0.0; len] });
        group.all_reduce::<CommError>(&shards, WireFormat::F32, Algorithm::Auto, || Ok(contribution.take()))
    };
    assert_eq!(sum_with(0, 4).unwrap().data, [0.0; 4]);
    for rejected in [sum_with(0, 3), sum_with((64 << 20) + 1, 4)] {
        assert!(matches!(rejected, Err(CommError::Misuse { .. })));
    }
    let mut group = Group::alone().unwrap();
    let rejected = group.all_reduce::<CommError>(&Shards::even(4, 2), WireFormat::F32, Algorithm::Auto, || Ok(None));
    assert!(matches!(rejected, Err(CommError::Misuse { .. })));
    group.barrier().unwrap();
}
