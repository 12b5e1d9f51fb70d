//! Lines are measured by all ranks together, and all of them learn the same.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use hetseq_comm::{CommError, Group, Line};

use crate::ranks::{CLEAR_ENGINES, ENGINES, Engine, free_port, groups, join, on_each, options, place};

#[test]
fn all_ranks_learn_the_same() {
    for engine in ENGINES {
        for world in [1, 2, 3, 5] {
            let learned = on_each(groups(engine, world, options), |mut group| {
                // Unequally early, and in step with what comes before and after.
                group.agree(&[1]).unwrap();
                sleep(Duration::from_millis(7 * group.rank() as u64));
                let start = Instant::now();
                let lines = group.measure_lines(Duration::from_millis(300)).unwrap();
                assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
                assert_eq!(group.agree(&[2]).unwrap(), vec![[2]; world]);
                group.close();
                lines
            });
            assert!(learned.iter().all(|lines| *lines == learned[0]), "{engine:?}: {learned:?}");
            assert_eq!(learned[0].len(), world);
            for Line { bytes_per_s, latency_us } in &learned[0] {
                // Memory moves more than 1 MB/s, and answers within a second.
                assert!(*bytes_per_s > 1_000_000 && *latency_us < 1_000_000, "{engine:?}: {learned:?}");
            }
        }
    }
}

#[test]
fn no_time_is_enough_for_one_block_each() {
    for engine in CLEAR_ENGINES {
        on_each(groups(engine, 4, options), |mut group| {
            let lines = group.measure_lines(Duration::ZERO).unwrap();
            assert!(lines.iter().all(|line| line.bytes_per_s > 0 && line.bytes_per_s < u64::MAX), "{lines:?}");
            group.close();
        });
    }
}

#[test]
fn one_that_leaves_is_named() {
    on_each(groups(Engine::Tcp, 3, options), |mut group| {
        if group.rank() == 2 {
            return;
        }
        let error = group.measure_lines(Duration::from_secs(1)).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, CommError::Left { .. } | CommError::Stopped { .. }), "{text}");
        assert!(text.contains("rank 2 (host2)") && text.contains("during measure_lines"), "{text}");
    });
}

/// Passes on what comes, at so many bytes per second in each direction.
fn slow_line(to: u16, bytes_per_s: f64) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let pass_on = move |mut from: TcpStream, mut to: TcpStream| {
        let (start, mut passed, mut piece) = (Instant::now(), 0.0, [0; 16 << 10]);
        while let Ok(count @ 1..) = from.read(&mut piece) {
            // One that was idle has nothing saved up, but for what a busy machine oversleeps.
            let idle = (start.elapsed().as_secs_f64() - 0.02) * bytes_per_s;
            passed = f64::max(passed, idle) + count as f64;
            sleep(Duration::from_secs_f64((passed / bytes_per_s - start.elapsed().as_secs_f64()).max(0.0)));
            if to.write_all(&piece[..count]).is_err() {
                break;
            }
        }
    };
    spawn(move || {
        for dialer in listener.incoming().map_while(Result::ok) {
            let Ok(answerer) = TcpStream::connect(("127.0.0.1", to)) else { continue };
            for (from, to) in [(&dialer, &answerer), (&answerer, &dialer)] {
                let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                spawn(move || pass_on(from, to));
            }
        }
    });
    port
}

#[test]
fn a_slow_line_is_measured_as_what_it_is() {
    let (port, bytes_per_s) = (free_port(), 10e6);
    let zero = join(place(0, 2, "127.0.0.1", port), options(0));
    sleep(Duration::from_millis(100));
    let one = join(place(1, 2, "127.0.0.1", slow_line(port, bytes_per_s)), options(1));
    let groups: Vec<Group> = [zero, one].map(|rank| rank.join().unwrap().unwrap()).into();
    on_each(groups, |mut group| {
        for line in group.measure_lines(Duration::from_secs(2)).unwrap() {
            let share = line.bytes_per_s as f64 / bytes_per_s;
            assert!((0.4..2.0).contains(&share), "{line:?}");
        }
        group.close();
    });
}
