//! A rank that dies, stops, hangs or is out of step is named by the others, soon and with the
//! phase.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hetseq_comm::{Algorithm, CommError, Group, Options, Shards, WireFormat};

use crate::ranks::{TRANSPORTS, Transport, all_reduce, groups, on_each, options};

const DIRECT: (WireFormat, Algorithm) = (WireFormat::F32, Algorithm::Direct);

fn hold_until(flag: &AtomicBool) {
    let start = Instant::now();
    while !flag.load(Ordering::Acquire) && start.elapsed() < Duration::from_secs(30) {
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_rank_that_dies_in_a_collective_is_named() {
    for transport in TRANSPORTS {
        let failures = on_each(groups(transport, 3, options), |mut group| {
            group.at("update 8,412");
            if group.rank() == 2 {
                sleep(Duration::from_millis(100));
                return String::new();
            }
            let len = 3_000_000;
            all_reduce(&mut group, vec![1.0; len], &Shards::even(len, 3), DIRECT).unwrap_err().to_string()
        });
        let host = if transport == Transport::Local { "host0" } else { "host2" };
        for text in &failures[..2] {
            // Either the rank noticed it itself or received the report of the other survivor, which
            // was faster.
            let expected = format!("rank 2 ({host}) left during all_reduce at update 8,412");
            assert!(text.contains(&expected), "{transport:?}: {text}");
        }
    }
}

#[test]
fn a_dead_rank_is_reported_while_another_is_awaited() {
    for transport in TRANSPORTS {
        let reported = AtomicBool::new(false);
        on_each(groups(transport, 3, options), |mut group| match group.rank() {
            0 => {
                let text = group.broadcast(1, &mut [0.0]).unwrap_err().to_string();
                reported.store(true, Ordering::Release);
                assert!(text.starts_with("rank 2 "), "{transport:?}: {text}");
            }
            // It is alive and does nothing until that is reported.
            1 => hold_until(&reported),
            _ => drop(group),
        });
    }
}

#[test]
fn an_abort_sends_the_reason_to_all() {
    for transport in TRANSPORTS {
        let errors = on_each(groups(transport, 3, options), |mut group| {
            if group.rank() == 1 {
                group.abort("out of memory on cuda:0");
                return None;
            }
            group.at("update 5");
            Some(group.all_gather_bytes(b"header").unwrap_err())
        });
        for error in errors.into_iter().flatten() {
            let text = error.to_string();
            assert!(matches!(error, CommError::Stopped { .. }), "{text}");
            assert!(text.contains("stopped: out of memory on cuda:0"), "{text}");
            assert!(text.contains("during all_gather_bytes at update 5"), "{text}");
        }
    }
}

#[test]
fn a_panic_is_reported_too() {
    for transport in TRANSPORTS {
        let mut groups = groups(transport, 2, options);
        let one = groups.pop().unwrap();
        let zero = groups.pop().unwrap();
        let panicked = std::thread::spawn(move || {
            let _group = one;
            std::panic::resume_unwind(Box::new("as if a device had failed"));
        });
        let mut zero = zero;
        let text = zero.barrier().unwrap_err().to_string();
        assert!(text.contains("failed: it panicked"), "{text}");
        assert!(panicked.join().is_err());
    }
}

#[test]
fn closing_is_not_a_failure_unless_something_was_awaited() {
    for transport in TRANSPORTS {
        on_each(groups(transport, 3, options), |mut group| {
            group.barrier().unwrap();
            match group.rank() {
                0 => group.close(),
                1 => {
                    sleep(Duration::from_millis(50));
                    let text = group.barrier().unwrap_err().to_string();
                    assert!(text.contains("rank 0 (host0) left"), "{text}");
                    assert!(text.contains("closed the group"), "{text}");
                }
                _ => {
                    sleep(Duration::from_millis(200));
                    group.close();
                }
            }
        });
    }
}

#[test]
fn sending_to_a_rank_that_left_fails() {
    for transport in TRANSPORTS {
        on_each(groups(transport, 2, options), |mut group| {
            if group.rank() == 0 {
                return group.close();
            }
            // Nothing is awaited from it, so the goodbye must have arrived to be noticed.
            let start = Instant::now();
            let error = loop {
                match group.broadcast_bytes(1, b"data".to_vec()) {
                    Ok(_) => sleep(Duration::from_millis(10)),
                    Err(error) => break error.to_string(),
                }
                assert!(start.elapsed() < Duration::from_secs(30), "{transport:?}: it accepts everything that is sent");
            };
            assert!(error.contains("rank 0 (host0) left") && error.contains("closed the group"), "{error}");
        });
    }
}

/// After `earlier` barriers, rank 0 calls `operation` (its name is `name`) and rank 1 a barrier.
fn assert_out_of_step_is_reported(
    earlier: usize,
    name: &str,
    operation: impl Fn(&mut Group) -> Result<(), CommError> + Sync,
) {
    let number = earlier + 1;
    for transport in TRANSPORTS {
        let texts = on_each(groups(transport, 2, options), |mut group| {
            (0..earlier).for_each(|_| group.barrier().unwrap());
            let failed = if group.rank() == 0 { operation(&mut group) } else { group.barrier() };
            let text = failed.unwrap_err().to_string();
            let after = group.barrier().unwrap_err();
            assert!(matches!(after, CommError::AlreadyFailed { .. }), "{after}");
            sleep(Duration::from_millis(50));
            text
        });
        // The slower one may receive the report of the other's failure before its frame.
        let here = format!("is in barrier (operation {number}) while this rank is in {name} (operation {number})");
        let there = format!("is in {name} (operation {number}) while this rank is in barrier (operation {number})");
        assert!(texts.iter().all(|text| text.contains(&here) || text.contains(&there)), "{texts:?}");
    }
}

#[test]
fn ranks_out_of_step_are_reported() {
    assert_out_of_step_is_reported(1, "all_gather_bytes", |group| group.all_gather_bytes(b"x").map(|_| ()));
}

#[test]
fn a_sum_out_of_step_is_reported() {
    let sum = |group: &mut Group| all_reduce(group, vec![1.0; 10], &Shards::even(10, 2), DIRECT).map(|_| ());
    assert_out_of_step_is_reported(0, "all_reduce", sum);
}

#[test]
fn sums_of_different_length_are_rejected() {
    for transport in TRANSPORTS {
        for (ours, theirs) in [(10, 12), (600_000, 500_000)] {
            let texts = on_each(groups(transport, 2, options), |mut group| {
                let len = if group.rank() == 0 { ours } else { theirs };
                all_reduce(&mut group, vec![1.0; len], &Shards::even(len, 2), DIRECT).unwrap_err().to_string()
            });
            assert!(texts.iter().all(|text| text.contains("differ in length")), "{transport:?}: {texts:?}");
        }
    }
}

#[test]
fn vectors_of_different_length_are_rejected() {
    for transport in TRANSPORTS {
        for (ours, theirs) in [(10, 12), (262_144, 262_145), (600_000, 500_000)] {
            on_each(groups(transport, 2, options), |mut group| {
                let len = if group.rank() == 0 { ours } else { theirs };
                let result = group.broadcast(1, &mut vec![0.0; len]);
                if group.rank() == 0 {
                    let text = result.unwrap_err().to_string();
                    assert!(text.contains("differ in length"), "{text}");
                } else {
                    sleep(Duration::from_millis(100));
                }
            });
        }
    }
}

#[test]
fn a_rank_that_hangs_is_named_with_its_phase() {
    for transport in TRANSPORTS {
        let strict = |rank| Options { progress: Duration::from_millis(300), ..options(rank) };
        let reported = AtomicBool::new(false);
        on_each(groups(transport, 2, strict), |mut group: Group| {
            group.at("update 3");
            if group.rank() == 1 {
                return hold_until(&reported);
            }
            let error = all_reduce(&mut group, vec![0.0; 4], &Shards::even(4, 2), DIRECT).unwrap_err();
            reported.store(true, Ordering::Release);
            let text = error.to_string();
            assert!(matches!(error, CommError::NoProgress { rank: 1, .. }), "{text}");
            assert!(text.contains("0.3 s during all_reduce at update 3"), "{text}");
        });
    }
}

#[test]
fn heartbeats_are_frequent_enough_for_the_strictest_rank() {
    // With its own limit alone, heartbeats would come every two seconds.
    let silence = [60_000, 1_500, 60_000].map(Duration::from_millis);
    let differing = |rank| Options { silence: silence[rank], ..options(rank) };
    on_each(groups(Transport::Tcp, 3, differing), |mut group| {
        if group.rank() != 1 {
            sleep(Duration::from_secs(4));
        }
        group.barrier().unwrap();
        group.close();
    });
}

#[test]
fn heartbeats_keep_a_computing_rank_alive() {
    let strict = |rank| Options { silence: Duration::from_millis(300), ..options(rank) };
    on_each(groups(Transport::Tcp, 3, strict), |mut group| {
        for _ in 0..2 {
            if group.rank() == 1 {
                sleep(Duration::from_millis(700));
            }
            group.barrier().unwrap();
        }
        group.close();
    });
}
