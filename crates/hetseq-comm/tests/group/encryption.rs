//! An encrypted group works like any other, and shows no plain text on the wire.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::Duration;

use hetseq_comm::{Algorithm, Group, Options, Secret, Shards, WireFormat};

use crate::ranks::{HERE, Transport, all_reduce, free_port, groups, join, on_each, options, rank_env, wait_all};

/// A message to look for on the wire.
const PLAIN_TEXT: &[u8] = b"the quick brown fox jumps over the lazy dog";

#[test]
fn sums_are_the_same_and_a_lost_rank_is_named() {
    let sums = on_each(groups(Transport::Encrypted, 3, options), |mut group| {
        let data: Vec<f32> = (0..700_001).map(|i| (i % 1000) as f32 + group.rank() as f32).collect();
        let shards = Shards::even(data.len(), 3);
        let data = all_reduce(&mut group, data, &shards, (WireFormat::F32, Algorithm::Direct)).unwrap();
        group.barrier().unwrap();
        if group.rank() == 2 {
            // Leaving at once could overtake its part of the barrier.
            sleep(Duration::from_millis(300));
            return data;
        }
        let text = group.barrier().unwrap_err().to_string();
        assert!(text.contains("rank 2 (host2) left during barrier"), "{text}");
        data
    });
    let expected: Vec<f32> = (0..700_001).map(|i| 3.0 * (i % 1000) as f32 + 3.0).collect();
    assert!(sums.iter().all(|sum| *sum == expected));
}

/// Starts a proxy that forwards and records the traffic of two ranks; `change` may modify each
/// piece.
fn start_proxy(to: u16, change: impl Fn(&mut [u8]) + Send + Sync + 'static) -> (u16, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind((HERE, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (recorded, change) = (Arc::new(Mutex::new(Vec::new())), Arc::new(change));
    let record = recorded.clone();
    spawn(move || {
        for dialer in listener.incoming().map_while(Result::ok) {
            let Ok(answerer) = TcpStream::connect((HERE, to)) else { continue };
            let directions = [(&dialer, &answerer), (&answerer, &dialer)];
            for (from, to) in directions.map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap())) {
                let (recorded, change) = (record.clone(), change.clone());
                spawn(move || forward(from, to, &recorded, &*change));
            }
        }
    });
    (port, recorded)
}

fn forward(mut from: TcpStream, mut to: TcpStream, recorded: &Mutex<Vec<u8>>, change: &dyn Fn(&mut [u8])) {
    let mut piece = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut piece) {
        recorded.lock().unwrap().extend(&piece[..count]);
        change(&mut piece[..count]);
        if to.write_all(&piece[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// Two ranks, connected through a proxy.
fn pair_through_proxy(
    encrypt: bool,
    change: impl Fn(&mut [u8]) + Send + Sync + 'static,
) -> (Vec<Group>, Arc<Mutex<Vec<u8>>>) {
    let port = free_port();
    let with = |rank| Options { encrypt, secret: Secret::Given("squirrel-of-the-park".to_owned()), ..options(rank) };
    let zero = join(rank_env(0, 2, HERE, port), with(0));
    sleep(Duration::from_millis(100));
    let (path, recorded) = start_proxy(port, change);
    let one = join(rank_env(1, 2, HERE, path), with(1));
    (wait_all([zero, one]), recorded)
}

#[test]
fn no_plain_text_is_on_the_wire() {
    for encrypt in [false, true] {
        let (groups, recorded) = pair_through_proxy(encrypt, |_| {});
        on_each(groups, |mut group| {
            group.all_gather_bytes(PLAIN_TEXT).unwrap();
            group.close();
        });
        let recorded = recorded.lock().unwrap();
        let shows = |what: &[u8]| recorded.windows(what.len()).any(|window| window == what);
        // Without encryption it must be found, or the test would prove nothing.
        assert_eq!(shows(PLAIN_TEXT), !encrypt);
        assert_eq!(shows(b"host1"), !encrypt);
        assert!(!shows(b"squirrel-of-the-park"));
    }
}

#[test]
fn a_change_in_transit_ends_the_run_and_is_reported() {
    let tamper = |piece: &mut [u8]| {
        // Only pieces as large as the collective below; smaller ones pass unchanged.
        if piece.len() == 4096 {
            piece[2048] ^= 1;
        }
    };
    let (groups, _) = pair_through_proxy(true, tamper);
    let errors = on_each(groups, |mut group| {
        let mut data = vec![1.0; 100_000];
        group.broadcast(0, &mut data).and_then(|()| group.barrier()).unwrap_err().to_string()
    });
    assert!(errors.iter().any(|text| text.contains("an encrypted record cannot be decrypted")), "{errors:?}");
}
