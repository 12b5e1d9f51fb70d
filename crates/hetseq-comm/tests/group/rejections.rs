//! Rejected connections neither join nor disturb the run: floods, late ranks, and other programs.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::sleep;
use std::time::Duration;

use hetseq_comm::{CommError, Group, Options};

use crate::ranks::{HERE, connect, free_port, join, on_each, options, rank_env, wait_all};

fn pair(port: u16) -> [Group; 2] {
    let ranks = [0, 1].map(|rank| join(rank_env(rank, 2, HERE, port), options(rank)));
    wait_all(ranks).try_into().unwrap()
}

#[test]
fn a_flood_of_silent_connections_does_not_prevent_the_start() {
    let port = free_port();
    let zero = join(rank_env(0, 3, HERE, port), options(0));
    // More than the limit, and from the ranks' own address.
    let silent: Vec<TcpStream> = (0..200).map(|_| connect(port)).collect();
    let others = [1, 2].map(|rank| join(rank_env(rank, 3, HERE, port), options(rank)));
    wait_all([zero].into_iter().chain(others));
    drop(silent);
}

#[test]
fn a_late_rank_is_refused_because_the_run_has_started() {
    let port = free_port();
    let groups = pair(port);
    let late = Options { join: Duration::from_millis(1200), ..options(9) };
    let error = join(rank_env(1, 2, HERE, port), late).join().unwrap().unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, CommError::Refused { .. }), "{text}");
    assert!(text.contains("this run has already started: it began") && text.contains("with 2 ranks"), "{text}");
    on_each(groups.into(), |mut group| {
        group.barrier().unwrap();
        group.close();
    });
}

#[test]
fn a_late_rank_joins_when_all_start_again() {
    let port = free_port();
    let [zero, one] = pair(port);
    // Rank 1 restarts before rank 0 has noticed that it was lost.
    let restarted = join(rank_env(1, 2, HERE, port), options(1));
    sleep(Duration::from_millis(300));
    drop((one, zero));
    let zero = join(rank_env(0, 2, HERE, port), options(0));
    wait_all([zero, restarted]);
}

#[test]
fn connections_during_the_run_change_nothing() {
    let port = free_port();
    let groups = pair(port);
    let silent: Vec<TcpStream> = (0..100).map(|_| connect(port)).collect();
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 3000], b"HSQF"] {
        let mut stream = connect(port);
        stream.write_all(garbage).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(12))).unwrap();
        // Closed without an answer, with or without a reset.
        assert!(matches!(stream.read(&mut [0; 8]), Ok(0) | Err(_)));
    }
    on_each(groups.into(), |mut group| {
        for _ in 0..100 {
            let mut sum = [1.0; 1000];
            group.broadcast(0, &mut sum).unwrap();
        }
        group.close();
    });
    // The listener closes with the group.
    TcpListener::bind((HERE, port)).unwrap();
    drop(silent);
}
