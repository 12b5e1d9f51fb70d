//! An encrypted group does what any other does, and shows nothing of it on the wire.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::Duration;

use hetseq_comm::{Group, Options, Secret, Shards};

use crate::ranks::{Engine, free_port, groups, join, on_each, options, place};

const HERE: &str = "127.0.0.1";
/// What the ranks tell each other, to be looked for on the wire.
const TELLTALE: &[u8] = b"the quick brown fox jumps over the lazy dog";

#[test]
fn sums_are_the_same_and_a_lost_rank_is_named() {
    let sums = on_each(groups(Engine::Sealed, 3, options), |mut group| {
        let mut data: Vec<f32> = (0..700_001).map(|i| (i % 1000) as f32 + group.rank() as f32).collect();
        let shards = Shards::even(data.len(), 3);
        group.reduce_scatter(&mut data, &shards).unwrap();
        group.all_gather(&mut data, &shards).unwrap();
        group.barrier().unwrap();
        if group.rank() == 2 {
            // Leaving at once could overtake its part in the barrier.
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

/// Passes on what two parties say to each other, and keeps it; `change` may meddle with each piece.
fn eavesdrop(to: u16, change: impl Fn(&mut [u8]) + Send + Sync + 'static) -> (u16, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind((HERE, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (heard, change) = (Arc::new(Mutex::new(Vec::new())), Arc::new(change));
    let kept = heard.clone();
    spawn(move || {
        for dialer in listener.incoming().map_while(Result::ok) {
            let Ok(answerer) = TcpStream::connect((HERE, to)) else { continue };
            let ways = [(&dialer, &answerer), (&answerer, &dialer)];
            for (from, to) in ways.map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap())) {
                let (heard, change) = (kept.clone(), change.clone());
                spawn(move || pass_on(from, to, &heard, &*change));
            }
        }
    });
    (port, heard)
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, heard: &Mutex<Vec<u8>>, change: &dyn Fn(&mut [u8])) {
    let mut piece = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut piece) {
        heard.lock().unwrap().extend(&piece[..count]);
        change(&mut piece[..count]);
        if to.write_all(&piece[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// Two ranks, with somebody on the path between them.
fn pair_past(encrypt: bool, change: impl Fn(&mut [u8]) + Send + Sync + 'static) -> (Vec<Group>, Arc<Mutex<Vec<u8>>>) {
    let port = free_port();
    let with = |rank| Options { encrypt, secret: Secret::Given("squirrel-of-the-park".to_owned()), ..options(rank) };
    let zero = join(place(0, 2, HERE, port), with(0));
    sleep(Duration::from_millis(100));
    let (path, heard) = eavesdrop(port, change);
    let one = join(place(1, 2, HERE, path), with(1));
    (vec![zero.join().unwrap().unwrap(), one.join().unwrap().unwrap()], heard)
}

#[test]
fn nothing_can_be_read_on_the_wire() {
    for encrypt in [false, true] {
        let (groups, heard) = pair_past(encrypt, |_| {});
        on_each(groups, |mut group| {
            group.agree(TELLTALE).unwrap();
            group.close();
        });
        let heard = heard.lock().unwrap();
        let shows = |what: &[u8]| heard.windows(what.len()).any(|window| window == what);
        // In clear it must be found, or the test would prove nothing.
        assert_eq!(shows(TELLTALE), !encrypt);
        assert_eq!(shows(b"host1"), !encrypt);
        assert!(!shows(b"squirrel-of-the-park"));
    }
}

#[test]
fn a_change_on_the_way_ends_the_run_and_is_named() {
    let meddle = |piece: &mut [u8]| {
        // Only what is as large as the collective below; smaller things pass.
        if piece.len() == 4096 {
            piece[2048] ^= 1;
        }
    };
    let (groups, _) = pair_past(true, meddle);
    let errors = on_each(groups, |mut group| {
        let mut data = vec![1.0; 100_000];
        group.broadcast(0, &mut data).and_then(|()| group.barrier()).unwrap_err().to_string()
    });
    assert!(errors.iter().any(|text| text.contains("an encrypted record does not open")), "{errors:?}");
}
