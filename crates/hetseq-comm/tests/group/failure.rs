//! A rank that dies, stops, hangs or is out of step is named by the others, soon and with the place.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hetseq_comm::{CommError, Group, Options, Shards};

use crate::ranks::{ENGINES, Engine, groups, on_each, options};

fn hold_until(flag: &AtomicBool) {
    let start = Instant::now();
    while !flag.load(Ordering::Acquire) && start.elapsed() < Duration::from_secs(30) {
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_rank_that_dies_in_a_collective_is_named() {
    for engine in ENGINES {
        let failures = on_each(groups(engine, 3, options), |mut group| {
            group.at("update 8,412");
            if group.rank() == 2 {
                sleep(Duration::from_millis(100));
                return String::new();
            }
            let mut data = vec![1.0; 3_000_000];
            let shards = Shards::even(data.len(), 3);
            group.reduce_scatter(&mut data, &shards).unwrap_err().to_string()
        });
        let host = if engine == Engine::Local { "host0" } else { "host2" };
        for text in &failures[..2] {
            // Either its own observation or the report of the other survivor, who was faster.
            let expected = format!("rank 2 ({host}) left during reduce_scatter at update 8,412");
            assert!(text.contains(&expected), "{engine:?}: {text}");
        }
    }
}

#[test]
fn a_dead_rank_is_reported_while_another_is_awaited() {
    for engine in ENGINES {
        let reported = AtomicBool::new(false);
        on_each(groups(engine, 3, options), |mut group| match group.rank() {
            0 => {
                let text = group.broadcast(1, &mut [0.0]).unwrap_err().to_string();
                reported.store(true, Ordering::Release);
                assert!(text.starts_with("rank 2 "), "{engine:?}: {text}");
            }
            // It lives and does nothing until that is reported.
            1 => hold_until(&reported),
            _ => drop(group),
        });
    }
}

#[test]
fn an_abort_says_why_to_all() {
    for engine in ENGINES {
        let told = on_each(groups(engine, 3, options), |mut group| {
            if group.rank() == 1 {
                group.abort("out of memory on cuda:0");
                return None;
            }
            group.at("update 5");
            Some(group.agree(b"header").unwrap_err())
        });
        for error in told.into_iter().flatten() {
            let text = error.to_string();
            assert!(matches!(error, CommError::Stopped { .. }), "{text}");
            assert!(text.contains("stopped: out of memory on cuda:0"), "{text}");
            assert!(text.contains("during agree at update 5"), "{text}");
        }
    }
}

#[test]
fn a_panic_is_told_too() {
    for engine in ENGINES {
        let mut groups = groups(engine, 2, options);
        let one = groups.pop().unwrap();
        let zero = groups.pop().unwrap();
        let panicked = std::thread::spawn(move || {
            let _group = one;
            std::panic::resume_unwind(Box::new("as if a device had failed"));
        });
        let mut zero = zero;
        let text = zero.barrier().unwrap_err().to_string();
        assert!(text.contains("stopped: it panicked"), "{text}");
        assert!(panicked.join().is_err());
    }
}

#[test]
fn closing_is_not_a_failure_unless_something_was_awaited() {
    for engine in ENGINES {
        on_each(groups(engine, 3, options), |mut group| {
            group.barrier().unwrap();
            match group.rank() {
                0 => group.close(),
                1 => {
                    sleep(Duration::from_millis(50));
                    let text = group.barrier().unwrap_err().to_string();
                    assert!(text.contains("rank 0 (host0) left"), "{text}");
                    assert!(text.contains("said goodbye"), "{text}");
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
fn sending_to_one_that_said_goodbye_fails() {
    for engine in ENGINES {
        on_each(groups(engine, 2, options), |mut group| {
            if group.rank() == 0 {
                return group.close();
            }
            // Nothing is awaited from it, so the goodbye must have arrived to be noticed.
            let start = Instant::now();
            let error = loop {
                match group.broadcast_bytes(1, b"news".to_vec()) {
                    Ok(_) => sleep(Duration::from_millis(10)),
                    Err(error) => break error.to_string(),
                }
                assert!(start.elapsed() < Duration::from_secs(30), "{engine:?}: it takes whatever is sent");
            };
            assert!(error.contains("rank 0 (host0) left") && error.contains("said goodbye"), "{error}");
        });
    }
}

#[test]
fn ranks_out_of_step_are_told_apart() {
    for engine in ENGINES {
        let texts = on_each(groups(engine, 2, options), |mut group| {
            group.barrier().unwrap();
            let failed = match group.rank() {
                0 => group.agree(b"x").map(|_| ()),
                _ => group.barrier(),
            };
            let text = failed.unwrap_err().to_string();
            let after = group.barrier().unwrap_err();
            assert!(matches!(after, CommError::AlreadyFailed { .. }), "{after}");
            sleep(Duration::from_millis(50));
            text
        });
        // The slower one may hear of the other's failure before it sees its frame.
        let here = "is in barrier (operation 2) while this rank is in agree (operation 2)";
        let there = "is in agree (operation 2) while this rank is in barrier (operation 2)";
        assert!(texts.iter().all(|text| text.contains(here) || text.contains(there)), "{texts:?}");
    }
}

#[test]
fn vectors_of_different_length_are_noticed() {
    for engine in ENGINES {
        for (ours, theirs) in [(10, 12), (262_144, 262_145), (600_000, 500_000)] {
            on_each(groups(engine, 2, options), |mut group| {
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
    for engine in ENGINES {
        let impatient = |rank| Options { progress: Duration::from_millis(300), ..options(rank) };
        let reported = AtomicBool::new(false);
        on_each(groups(engine, 2, impatient), |mut group: Group| {
            group.at("update 3");
            if group.rank() == 1 {
                return hold_until(&reported);
            }
            let error = group.all_gather(&mut [0.0; 4], &Shards::even(4, 2)).unwrap_err();
            reported.store(true, Ordering::Release);
            let text = error.to_string();
            assert!(matches!(error, CommError::NoProgress { rank: 1, .. }), "{text}");
            assert!(text.contains("0.3 s during all_gather at update 3"), "{text}");
        });
    }
}

#[test]
fn a_patient_rank_beats_often_enough_for_an_impatient_one() {
    // Beats for its own limit alone would come every two seconds.
    let silence = [60_000, 1_500, 60_000].map(Duration::from_millis);
    let differing = |rank| Options { silence: silence[rank], ..options(rank) };
    on_each(groups(Engine::Tcp, 3, differing), |mut group| {
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
    on_each(groups(Engine::Tcp, 3, strict), |mut group| {
        for _ in 0..2 {
            if group.rank() == 1 {
                sleep(Duration::from_millis(700));
            }
            group.barrier().unwrap();
        }
        group.close();
    });
}
