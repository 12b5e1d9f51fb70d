//! Links are measured by all ranks together, and all of them get the same result.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use hetseq_comm::{CommError, LinkSpeed};

use crate::ranks::{
    HERE, PLAIN_TRANSPORTS, TRANSPORTS, Transport, free_port, groups, join, on_each, options, rank_env, wait_all,
};

#[test]
fn all_ranks_get_the_same_result() {
    for transport in TRANSPORTS {
        for world in [1, 2, 3, 5] {
            let results = on_each(groups(transport, world, options), |mut group| {
                // Ranks start at different times, and stay in step with what comes before and
                // after.
                group.all_gather_bytes(&[1]).unwrap();
                sleep(Duration::from_millis(7 * group.rank() as u64));
                let links = group.measure_links(Duration::from_millis(300)).unwrap();
                assert_eq!(group.all_gather_bytes(&[2]).unwrap(), vec![[2]; world]);
                group.close();
                links
            });
            assert!(results.iter().all(|links| *links == results[0]), "{transport:?}: {results:?}");
            assert_eq!(results[0].len(), world);
            for LinkSpeed { bytes_per_s, latency_us } in &results[0] {
                // Memory moves more than 1 MB/s and answers within a second.
                assert!(*bytes_per_s > 1_000_000 && *latency_us < 1_000_000, "{transport:?}: {results:?}");
            }
        }
    }
}

#[test]
fn a_zero_budget_still_swaps_one_block_per_pair() {
    for transport in PLAIN_TRANSPORTS {
        on_each(groups(transport, 4, options), |mut group| {
            let links = group.measure_links(Duration::ZERO).unwrap();
            assert!(links.iter().all(|link| link.bytes_per_s > 0 && link.bytes_per_s < u64::MAX), "{links:?}");
            group.close();
        });
    }
}

#[test]
fn a_rank_that_leaves_is_named() {
    on_each(groups(Transport::Tcp, 3, options), |mut group| {
        if group.rank() == 2 {
            return;
        }
        let error = group.measure_links(Duration::from_secs(1)).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, CommError::Left { .. } | CommError::Stopped { .. }), "{text}");
        assert!(text.contains("rank 2 (host2)") && text.contains("during measure_links"), "{text}");
    });
}

/// Starts a proxy that forwards at most this many bytes per second in each direction.
fn slow_proxy(to: u16, bytes_per_s: f64) -> u16 {
    let listener = TcpListener::bind((HERE, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let forward = move |mut from: TcpStream, mut to: TcpStream| {
        let (start, mut forwarded, mut piece) = (Instant::now(), 0.0, [0; 16 << 10]);
        while let Ok(count @ 1..) = from.read(&mut piece) {
            // Idle time does not accumulate, except for what a busy machine oversleeps.
            let idle = (start.elapsed().as_secs_f64() - 0.02) * bytes_per_s;
            forwarded = f64::max(forwarded, idle) + count as f64;
            sleep(Duration::from_secs_f64((forwarded / bytes_per_s - start.elapsed().as_secs_f64()).max(0.0)));
            if to.write_all(&piece[..count]).is_err() {
                break;
            }
        }
    };
    spawn(move || {
        for dialer in listener.incoming().map_while(Result::ok) {
            let Ok(answerer) = TcpStream::connect((HERE, to)) else { continue };
            for (from, to) in [(&dialer, &answerer), (&answerer, &dialer)] {
                let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                spawn(move || forward(from, to));
            }
        }
    });
    port
}

#[test]
fn a_slow_link_is_measured_correctly() {
    let (port, bytes_per_s) = (free_port(), 10e6);
    let zero = join(rank_env(0, 2, HERE, port), options(0));
    sleep(Duration::from_millis(100));
    let one = join(rank_env(1, 2, HERE, slow_proxy(port, bytes_per_s)), options(1));
    on_each(wait_all([zero, one]), |mut group| {
        for link in group.measure_links(Duration::from_secs(2)).unwrap() {
            let share = link.bytes_per_s as f64 / bytes_per_s;
            assert!((0.4..2.0).contains(&share), "{link:?}");
        }
        group.close();
    });
}
