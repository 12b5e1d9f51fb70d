//! A sum with a peer simulated byte by byte, or over a link with small buffers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};

use socket2::SockRef;

use super::tests::{GENERATION, bytes_of, rank_and_socket, short};
use super::*;
use crate::buffers::Payload;
use crate::codec::WireFormat;
use crate::frame::{CHUNK_BYTES, FrameKind};
use crate::reduce::{self, Algorithm, Contribution, SumBuffers};
use crate::shards::Shards;

const LEN: usize = 4_000_000;

fn late(sequence: u64, last: bool, payload: Vec<u8>) -> Vec<u8> {
    bytes_of(&Frame { kind: FrameKind::AllReduce, last, sequence, payload: Payload::new(payload) }, GENERATION)
}

/// Returns what rank 1 sends to rank 0, which owns everything: its contribution of ones and its
/// note.
fn contribution() -> Vec<u8> {
    let mut bytes = Vec::new();
    let values: Vec<u8> = (0..LEN).flat_map(|_| 1f32.to_le_bytes()).collect();
    let mut pieces = values.chunks(CHUNK_BYTES).peekable();
    while let Some(piece) = pieces.next() {
        bytes.extend(late(1, pieces.peek().is_none(), piece.to_vec()));
    }
    bytes.extend(late(1, true, b"note".to_vec()));
    bytes
}

fn ready_contribution() -> Option<Contribution> {
    Some(Contribution::Both { note: b"own".to_vec(), data: vec![1.0; LEN] })
}

fn sum(mesh: &mut Mesh, mut contribution: impl FnMut() -> Option<Contribution>) -> Result<reduce::Summed, CommError> {
    let shards = Shards::weighted(LEN, &[1.0, 0.0]);
    reduce::all_reduce(mesh, &shards, WireFormat::F32, Algorithm::Direct, &mut SumBuffers::default(), || {
        Ok::<_, CommError>(contribution())
    })
}

#[test]
fn contributions_are_received_before_the_own_is_ready() {
    let (mut mesh, mut socket) = rank_and_socket(&short(60_000, 60_000));
    let received = Arc::new(AtomicBool::new(false));
    let is_received = received.clone();
    let peer = std::thread::spawn(move || {
        // More than the system's buffers hold: it must be read, or this never ends.
        socket.write_all(&contribution()).unwrap();
        is_received.store(true, Ordering::Release);
        socket
    });
    let summed = sum(&mut mesh, || received.load(Ordering::Acquire).then(|| ready_contribution().unwrap())).unwrap();
    assert_eq!(summed.notes, [b"own".to_vec(), b"note".to_vec()]);
    assert!(summed.data.iter().all(|value| *value == 2.0));
    drop(peer.join().unwrap());
}

#[test]
fn values_do_not_wait_for_the_note() {
    let (mut mesh, mut socket) = rank_and_socket(&short(60_000, 60_000));
    let (shards, has_values) = (Shards::weighted(2, &[0.0, 1.0]), AtomicBool::new(false));
    let values = late(1, true, [1f32, 1f32].map(f32::to_le_bytes).concat());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The note is returned only after the values have arrived here.
            let mut read = vec![0; values.len()];
            socket.read_exact(&mut read).unwrap();
            has_values.store(read == values, Ordering::Release);
            let result = late(1, true, [2f32, 2f32].map(f32::to_le_bytes).concat());
            socket.write_all(&[result, late(1, true, b"note".to_vec())].concat()).unwrap();
        });
        let (mut data, start) = (Some(vec![1.0; 2]), Instant::now());
        let contribution = || {
            assert!(start.elapsed() < Duration::from_secs(30), "the values were not sent");
            let note = || has_values.load(Ordering::Acquire).then(|| Contribution::Note(b"own".to_vec()));
            Ok::<_, CommError>(data.take().map(Contribution::Data).or_else(note))
        };
        let summed = reduce::all_reduce(
            &mut mesh,
            &shards,
            WireFormat::F32,
            Algorithm::Direct,
            &mut SumBuffers::default(),
            contribution,
        )
        .unwrap();
        assert_eq!((summed.data, summed.notes), (vec![2.0; 2], vec![b"own".to_vec(), b"note".to_vec()]));
    });
}

#[test]
fn a_rank_that_sends_too_much_is_not_read_without_limit() {
    let (mut mesh, mut socket) = rank_and_socket(&short(60_000, 60_000));
    let peer = std::thread::spawn(move || {
        socket.write_all(&contribution()).unwrap();
        socket.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
        let more = late(1, false, vec![0; CHUNK_BYTES]);
        let mut sent = 0;
        while sent < 200 && socket.write_all(&more).is_ok() {
            sent += 1;
        }
        (sent, socket)
    });
    // It owns no part, so the excess belongs to nothing; this sum is not affected.
    let summed = sum(&mut mesh, || peer.is_finished().then(|| ready_contribution().unwrap())).unwrap();
    assert!(summed.data.iter().all(|value| *value == 2.0));
    // What fits into the system's buffers and the read-ahead.
    let (sent, _socket) = peer.join().unwrap();
    assert!(sent < 60, "{sent} excess frames were accepted");
}

#[test]
fn a_result_before_the_own_contribution_is_rejected() {
    let (mut mesh, mut socket) = rank_and_socket(&short(60_000, 60_000));
    socket.write_all(&late(1, true, vec![0; 8])).unwrap();
    let (shards, start) = (Shards::weighted(2, &[0.0, 1.0]), Instant::now());
    let contribution = || {
        let ready = start.elapsed() > Duration::from_millis(1_500);
        Ok::<_, CommError>(ready.then(|| Contribution::Both { note: Vec::new(), data: vec![1.0; 2] }))
    };
    let error = reduce::all_reduce(
        &mut mesh,
        &shards,
        WireFormat::F32,
        Algorithm::Direct,
        &mut SumBuffers::default(),
        contribution,
    )
    .unwrap_err();
    assert!(error.to_string().contains("no result before our contribution"), "{error}");
}

#[test]
fn a_peer_that_is_lost_is_reported_while_this_rank_computes() {
    // The peer sends nothing, a part, or everything, and closes.
    for sent in [0, 100_000, usize::MAX] {
        let (mut mesh, mut socket) = rank_and_socket(&short(60_000, 60_000));
        let peer = std::thread::spawn(move || {
            let bytes = contribution();
            socket.write_all(&bytes[..sent.min(bytes.len())]).unwrap();
        });
        let text = sum(&mut mesh, || None).unwrap_err().to_string();
        assert!(text.starts_with("rank 1 (beta) left during all_reduce at update 7"), "{text}");
        peer.join().unwrap();
    }
    let (mut mesh, _socket) = rank_and_socket(&short(200, 60_000));
    let text = sum(&mut mesh, || None).unwrap_err().to_string();
    assert!(text.starts_with("rank 1 (beta) sent nothing for 0.44 s during all_reduce"), "{text}");
    let (mut mesh, mut socket) = rank_and_socket(&short(60_000, 60_000));
    socket.write_all(&late(1, false, vec![0; CHUNK_BYTES])).unwrap();
    socket.write_all(&bytes_of(&Frame::control(FrameKind::Abort, b"enough".to_vec()), GENERATION)).unwrap();
    let text = sum(&mut mesh, || None).unwrap_err().to_string();
    assert!(text.contains("stopped: enough"), "{text}");
}

/// Two ranks whose link from rank 0 to rank 1 has small buffers, so that most data waits in rank
/// 0's queue.
fn narrow_pair() -> [Mesh; 2] {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    SockRef::from(&listener).set_recv_buffer_size(16 << 10).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    SockRef::from(&near).set_send_buffer_size(16 << 10).unwrap();
    let mut ends = [Some(near), Some(far)];
    [0, 1].map(|rank| {
        let stream = ends[rank].take().unwrap();
        let mut connections = vec![None, None];
        connections[1 - rank] = Some(Connection { socket: stream.into(), encryption: None });
        let hosts = vec!["alpha".to_owned(), "beta".to_owned()];
        let options = short(60_000, 60_000);
        mesh(rank, GENERATION, hosts, connections, HeartbeatTiming::new(options.silence), &options).unwrap()
    })
}

/// Rank 0 owns everything and so has its sum long before rank 1, which receives it over a narrow
/// link. `then` is what rank 0 does next; it must not end before rank 1 has the sum.
fn after_an_early_return(then: impl FnOnce(Mesh, &AtomicBool) + Send) {
    let [mut zero, mut one] = narrow_pair();
    let has_sum = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let has_sum = &has_sum;
        scope.spawn(move || {
            let summed = sum(&mut zero, ready_contribution).unwrap();
            assert_eq!(zero.unsent(), Some(1), "nothing was left to send");
            assert!(summed.data.iter().all(|value| *value == 2.0));
            then(zero, has_sum);
        });
        let summed = sum(&mut one, ready_contribution).unwrap();
        assert!(summed.data.iter().all(|value| *value == 2.0));
        has_sum.store(true, Ordering::Release);
        // It stays while rank 0 continues.
        let _ = sum(&mut one, ready_contribution);
    });
}

#[test]
fn the_rest_is_sent_between_collectives() {
    after_an_early_return(|_mesh, has_sum| {
        std::thread::sleep(Duration::from_secs(3));
        assert!(has_sum.load(Ordering::Acquire), "rank 1 has nothing after 3 s");
    });
}

#[test]
fn the_rest_is_sent_while_the_next_sum_is_computed() {
    after_an_early_return(|mut mesh, has_sum| {
        let start = Instant::now();
        let ready = || has_sum.load(Ordering::Acquire) || start.elapsed() > Duration::from_secs(20);
        let summed = sum(&mut mesh, || ready().then(|| ready_contribution().unwrap())).unwrap();
        assert!(has_sum.load(Ordering::Acquire), "rank 1 has nothing after 20 s");
        assert!(summed.data.iter().all(|value| *value == 2.0));
    });
}

#[test]
fn the_rest_is_sent_before_a_goodbye() {
    after_an_early_return(|mut mesh, has_sum| {
        mesh.leave(LinkEnd::Goodbye);
        // The goodbye follows it and is answered when it was read.
        let start = Instant::now();
        while !has_sum.load(Ordering::Acquire) {
            assert!(start.elapsed() < Duration::from_secs(60), "it was cut off");
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}
