//! Sums whose contributions come late: the same bits as of those that do not, whoever is first.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use hetseq_comm::{CommError, Contribution, Group, Options, Route, Shards, Summed, Waker, Wire};

use crate::collectives::{bits, values};
use crate::ranks::{CLEAR_ENGINES, ENGINES, Engine, groups, on_each, options};

const BF16: Wire = Wire::Bf16 { exact_tail: 3 };

/// Sums with a contribution that another thread has ready after `delay`, as a device would.
fn sum_late(
    group: &mut Group,
    shards: &Shards,
    (wire, route): (Wire, Route),
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
        group.all_reduce_late(shards, wire, route, || Ok(ready.lock().unwrap().take()))
    })
}

/// Up to 24 ms, and none for a third; a function of the arguments alone.
fn delay(round: usize, rank: usize) -> Duration {
    let key = (round * 31 + rank + 1) as u64;
    let drawn = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) % 36;
    Duration::from_millis(drawn.saturating_sub(12))
}

/// With zeros of both signs, which adding to zero would spoil.
fn with_zeros(rank: usize, len: usize) -> Vec<f32> {
    let mut values = values(rank, len);
    values.iter_mut().step_by(7).for_each(|value| *value = -0.0);
    values.iter_mut().skip(rank).step_by(21).for_each(|value| *value = 0.0);
    values
}

/// Empty, short, and several frames long.
fn note(round: usize, rank: usize) -> Vec<u8> {
    vec![rank as u8; [0, 5, 600_000, 40][(round + rank) % 4]]
}

fn compare(engine: Engine, world: usize, len: usize, delays: &(dyn Fn(usize, usize) -> Duration + Sync)) {
    let unequal: Vec<f64> = (0..world).map(|rank| ((rank + 2) % 3) as f64).collect();
    let one_owner: Vec<f64> = (0..world).map(|rank| f64::from(u8::from(rank == world / 2))).collect();
    let ways = [
        (Shards::even(len, world), Wire::F32, Route::Direct),
        (Shards::weighted(len, &unequal), BF16, Route::Auto),
        (Shards::weighted(len, &one_owner), Wire::F32, Route::Auto),
        (Shards::even(len, world), Wire::F32, Route::Ring),
        (Shards::weighted(len, &unequal), Wire::F32, Route::Direct),
    ];
    on_each(groups(engine, world, options), |mut group| {
        let rank = group.rank();
        let mut sums = Vec::new();
        // One right after the other, so that what the first leaves in the queues meets the next.
        for (round, (shards, wire, route)) in ways.iter().enumerate() {
            let contribution = Contribution::Both { note: note(round, rank), data: with_zeros(rank, len) };
            let summed = sum_late(&mut group, shards, (*wire, *route), contribution, delays(round, rank)).unwrap();
            let notes: Vec<_> = (0..world).map(|rank| note(round, rank)).collect();
            assert!(summed.notes == notes, "{engine:?}, world {world}, length {len}, way {round}");
            sums.push(summed.data);
        }
        for (round, (shards, wire, route)) in ways.iter().enumerate() {
            let mut data = with_zeros(rank, len);
            group.all_reduce(&mut data, shards, *wire, *route).unwrap();
            assert!(bits(&data) == bits(&sums[round]), "{engine:?}, world {world}, length {len}, way {round}");
        }
        group.close();
    });
}

#[test]
fn the_bits_are_those_of_a_sum_in_time() {
    for engine in CLEAR_ENGINES {
        for world in 1..=5 {
            for len in [0, 3, 1_001, 800_003] {
                compare(engine, world, len, &|round, rank| delay(round + len + world, rank));
            }
        }
    }
    compare(Engine::Sealed, 3, 300_001, &delay);
}

#[test]
fn whoever_is_last_is_waited_for() {
    for engine in CLEAR_ENGINES {
        for last in 0..3 {
            compare(engine, 3, 600_001, &|_, rank| Duration::from_millis(if rank == last { 60 } else { 0 }));
            compare(engine, 3, 600_001, &|_, rank| Duration::from_millis(if rank == last { 0 } else { 40 }));
        }
    }
}

#[test]
fn time_counts_from_the_own_contribution() {
    for engine in CLEAR_ENGINES {
        let summed = on_each(groups(engine, 2, options), |mut group| {
            let delay = Duration::from_millis(400 * group.rank() as u64);
            let contribution = Contribution::Both { note: Vec::new(), data: vec![1.0; 1000] };
            let way = (Wire::F32, Route::Direct);
            let summed = sum_late(&mut group, &Shards::even(1000, 2), way, contribution, delay).unwrap();
            group.close();
            summed
        });
        assert!(summed[0].waited >= Duration::from_millis(300), "{:?}", summed[0].waited);
        for (rank, Summed { waited, busy, .. }) in summed.iter().enumerate() {
            assert!(*busy < Duration::from_millis(200), "{engine:?} rank {rank} was busy for {busy:?}");
            assert!(rank == 0 || *waited < Duration::from_millis(200), "{engine:?} waited for {waited:?}");
        }
    }
}

#[test]
fn a_wake_is_heard_at_once_by_any_engine_and_alone() {
    let alone = || vec![Group::alone()];
    for groups in [alone(), groups(Engine::Local, 2, options), groups(Engine::Tcp, 2, options)] {
        on_each(groups, |mut group| {
            let shards = Shards::even(2, group.world());
            // Long before anybody asks, and often: it must neither be lost nor block.
            let waker = group.waker();
            (0..100_000).for_each(|_| waker.wake());
            for _ in 0..20 {
                let contribution = Contribution::Both { note: vec![1], data: vec![1.0, -0.0] };
                let (start, delay) = (Instant::now(), Duration::from_millis(10));
                let summed = sum_late(&mut group, &shards, (Wire::F32, Route::Auto), contribution, delay).unwrap();
                assert!(start.elapsed() < Duration::from_millis(500), "woken after {:?}", start.elapsed());
                assert_eq!(bits(&summed.data), bits(&[group.world() as f32, -0.0]));
            }
            group.close();
        });
    }
    fn shared<T: Clone + Send + Sync>() {}
    shared::<Waker>();
}

#[derive(Debug)]
enum Refused {
    Comm(CommError),
    Own,
}

impl From<CommError> for Refused {
    fn from(error: CommError) -> Refused {
        Refused::Comm(error)
    }
}

#[test]
fn an_own_error_comes_back_and_the_others_learn_of_it() {
    for engine in ENGINES {
        for route in [Route::Direct, Route::Ring] {
            on_each(groups(engine, 3, options), |mut group| {
                let shards = Shards::even(500_000, 3);
                if group.rank() == 1 {
                    let error = group.all_reduce_late(&shards, Wire::F32, route, || Err(Refused::Own)).unwrap_err();
                    assert!(matches!(error, Refused::Own));
                    let again = group.barrier().unwrap_err();
                    assert!(matches!(again, CommError::AlreadyFailed { .. }), "{again}");
                    return group.abort("out of memory on cuda:0");
                }
                // One has given, the other still computes.
                let is_early = group.rank() == 0;
                let give = || is_early.then(|| Contribution::Both { note: vec![7], data: vec![1.0; 500_000] });
                let error = group.all_reduce_late(&shards, Wire::F32, route, || Ok::<_, Refused>(give())).unwrap_err();
                let Refused::Comm(error) = error else { panic!("{error:?}") };
                assert!(error.to_string().contains("out of memory on cuda:0"), "{engine:?}: {error}");
            });
        }
    }
}

#[test]
fn one_that_gives_up_is_reported_to_those_that_compute_and_those_that_wait() {
    for engine in ENGINES {
        for has_given in [false, true] {
            // The local engine has one set of options.
            let limit = |rank| if rank == 2 { Duration::from_millis(300) } else { Duration::from_secs(10) };
            let with = |rank| Options { progress: limit(rank), ..options(rank) };
            if has_given && engine == Engine::Local {
                continue;
            }
            on_each(groups(engine, 3, with), |mut group| {
                group.at("update 12");
                let (shards, rank, start) = (Shards::even(900_000, 3), group.rank(), Instant::now());
                let given = || Ok(Some(Contribution::Both { note: vec![1], data: vec![0.0; 900_000] }));
                let result = group.all_reduce_late(&shards, Wire::F32, Route::Direct, || match rank {
                    0 => given(),
                    // Rank 2 waits in vain for rank 1, which always computes, or has an error of its own.
                    1 => Ok(None),
                    _ if has_given => given(),
                    _ => Err(Refused::Own),
                });
                assert!(start.elapsed() < Duration::from_secs(5), "noticed after {:?}", start.elapsed());
                match result {
                    Err(Refused::Own) => assert_eq!((rank, has_given), (2, false)),
                    Err(Refused::Comm(error)) => {
                        let text = error.to_string();
                        let why = if has_given { "did not do its part" } else { "could not compute its part" };
                        assert!(text.contains(why), "{engine:?} rank {rank}: {text}");
                        assert!(text.contains("during all_reduce_late at update 12"), "{engine:?} rank {rank}: {text}");
                    }
                    Ok(_) => panic!("{engine:?} rank {rank} has a sum of nothing"),
                }
            });
        }
    }
}

#[test]
fn waiting_for_oneself_is_nobodys_fault_but_for_others_it_is() {
    for engine in CLEAR_ENGINES {
        let reported = AtomicBool::new(false);
        let impatient = |rank| Options { progress: Duration::from_millis(300), ..options(rank) };
        on_each(groups(engine, 2, impatient), |mut group| {
            let (shards, start) = (Shards::even(4, 2), Instant::now());
            let slow = |after: Duration| {
                move || {
                    Ok((start.elapsed() > after).then(|| Contribution::Both { note: Vec::new(), data: vec![1.0; 4] }))
                }
            };
            // Both compute longer than the limit, and nobody is to blame.
            let after = Duration::from_millis(1_100);
            group.all_reduce_late::<CommError>(&shards, Wire::F32, Route::Direct, slow(after)).unwrap();
            if group.rank() == 1 {
                while !reported.load(Ordering::Acquire) && start.elapsed() < Duration::from_secs(30) {
                    sleep(Duration::from_millis(5));
                }
                return;
            }
            let error = group.all_reduce_late(&shards, Wire::F32, Route::Direct, slow(Duration::ZERO)).unwrap_err();
            reported.store(true, Ordering::Release);
            assert!(matches!(error, CommError::NoProgress { rank: 1, .. }), "{error}");
        });
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let shards = Shards::even(4, 1);
    let give = |note: usize, len: usize| {
        let mut group = Group::alone();
        let contribution = Contribution::Both { note: vec![0; note], data: vec![0.0; len] };
        let mut given = Some(contribution);
        group.all_reduce_late::<CommError>(&shards, Wire::F32, Route::Auto, || Ok(given.take()))
    };
    assert_eq!(give(0, 4).unwrap().data, [0.0; 4]);
    for refused in [give(0, 3), give((64 << 20) + 1, 4)] {
        assert!(matches!(refused, Err(CommError::Misuse { .. })));
    }
    let mut group = Group::alone();
    let refused = group.all_reduce_late::<CommError>(&Shards::even(4, 2), Wire::F32, Route::Auto, || Ok(None));
    assert!(matches!(refused, Err(CommError::Misuse { .. })));
    group.barrier().unwrap();
}
