//! A rank with a peer simulated byte by byte.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use super::*;
use crate::buffers::Payload;
use crate::frame::{Accept, FRAME_LIMIT_BYTES, FrameKind, HEADER_BYTES, read_frame};
use crate::reduce;

pub(super) const GENERATION: u64 = 77;

/// Rank 0 of a world of two, and the raw socket of rank 1.
pub(super) fn rank_and_socket(options: &Options) -> (Mesh, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    let hosts = vec!["alpha".to_owned(), "beta".to_owned()];
    let connections = vec![None, Some(Connection { socket: stream.into(), encryption: None })];
    let mut mesh = mesh(0, GENERATION, hosts, connections, HeartbeatTiming::new(options.silence), options).unwrap();
    mesh.context = "update 7".to_owned();
    (mesh, socket)
}

pub(super) fn short(silence: u64, progress: u64) -> Options {
    Options { silence: Duration::from_millis(silence), progress: Duration::from_millis(progress), ..Options::default() }
}

fn frame(kind: FrameKind, last: bool, payload: Vec<u8>) -> Frame {
    Frame { kind, last, sequence: 1, payload: Payload::new(payload) }
}

pub(super) fn bytes_of(frame: &Frame, generation: u64) -> Vec<u8> {
    [&frame.header(generation)[..], &frame.payload].concat()
}

/// Returns the error of rank 0's barrier when the peer sends these bytes.
fn barrier_after(bytes: &[u8]) -> String {
    let (mut mesh, mut socket) = rank_and_socket(&short(5_000, 5_000));
    socket.write_all(bytes).unwrap();
    let text = reduce::barrier(&mut mesh).unwrap_err().to_string();
    assert!(text.starts_with("rank 1 (beta)"), "{text}");
    assert!(text.contains("during barrier at update 7"), "{text}");
    text
}

#[test]
fn a_silent_peer_is_named_with_its_silence() {
    let (mut mesh, _socket) = rank_and_socket(&short(150, 60_000));
    let text = reduce::barrier(&mut mesh).unwrap_err().to_string();
    assert!(text.starts_with("rank 1 (beta) sent nothing for 0.33 s during barrier at update 7"), "{text}");
}

#[test]
fn a_peer_that_only_sends_heartbeats_makes_no_progress() {
    let (mut mesh, mut socket) = rank_and_socket(&short(150, 400));
    let sending = std::thread::spawn(move || {
        let heartbeat = bytes_of(&Frame::control(FrameKind::Heartbeat, Vec::new()), GENERATION);
        while socket.write_all(&heartbeat).is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let error = reduce::barrier(&mut mesh).unwrap_err();
    assert!(matches!(error, CommError::NoProgress { rank: 1, .. }), "{error}");
    drop(mesh);
    sending.join().unwrap();
}

#[test]
fn a_flood_of_heartbeats_makes_no_progress_either() {
    let (mut mesh, mut socket) = rank_and_socket(&short(60_000, 300));
    let sending = std::thread::spawn(move || {
        let heartbeats = bytes_of(&Frame::control(FrameKind::Heartbeat, Vec::new()), GENERATION).repeat(10_000);
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(20) && socket.write_all(&heartbeats).is_ok() {}
    });
    let error = reduce::barrier(&mut mesh).unwrap_err();
    assert!(matches!(error, CommError::NoProgress { rank: 1, .. }), "{error}");
    drop(mesh);
    sending.join().unwrap();
}

#[test]
fn an_idle_link_sends_heartbeats() {
    let (_mesh, mut socket) = rank_and_socket(&short(100, 1_000));
    let accept = Accept::only(GENERATION, FRAME_LIMIT_BYTES);
    for _ in 0..3 {
        assert_eq!(read_frame(&mut socket, accept).unwrap().kind, FrameKind::Heartbeat);
    }
}

#[test]
fn an_invalid_frame_is_named() {
    let frame = frame(FrameKind::Barrier, true, Vec::new());
    assert!(barrier_after(&bytes_of(&frame, 76)).contains("another or earlier run"));
    assert!(barrier_after(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n").contains("not the hetseq protocol"));
    let mut bytes = bytes_of(&frame, GENERATION);
    bytes[24..28].copy_from_slice(&(FRAME_LIMIT_BYTES as u32 + 1).to_le_bytes());
    let whole = crc32c::crc32c(&bytes[..32]);
    bytes[32..36].copy_from_slice(&whole.to_le_bytes());
    assert!(barrier_after(&bytes).contains("the limit is 67108864"));
    let mut bytes = bytes_of(&frame, GENERATION);
    bytes[4] = 99;
    assert!(barrier_after(&bytes).contains("protocol version 99"));
    let handshake = Frame::control(FrameKind::Handshake, Vec::new());
    assert!(barrier_after(&bytes_of(&handshake, GENERATION)).contains("handshake frame"));
    // A barrier carries no data; a peer that fills it must not make us collect it.
    let stuffed = Frame { payload: Payload::new(vec![1; 100]), ..frame };
    assert!(barrier_after(&bytes_of(&stuffed, GENERATION)).contains("the limit is 0"));
}

#[test]
fn a_closed_or_cut_connection_is_a_peer_that_left() {
    let frame = frame(FrameKind::AllGatherBytes, true, vec![1; 10]);
    let bytes = bytes_of(&frame, GENERATION);
    for (sent, expected) in [(0, "without a goodbye"), (HEADER_BYTES + 4, "in the middle of a frame")] {
        let (mut mesh, mut socket) = rank_and_socket(&short(5_000, 5_000));
        socket.write_all(&bytes[..sent]).unwrap();
        socket.shutdown(Shutdown::Write).unwrap();
        let text = reduce::all_gather_bytes(&mut mesh, b"x").unwrap_err().to_string();
        assert!(text.starts_with("rank 1 (beta) left during all_gather_bytes at update 7"), "{text}");
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn a_failed_rank_sends_the_reason() {
    let (mut mesh, mut socket) = rank_and_socket(&short(5_000, 5_000));
    let wrong = frame(FrameKind::AllGatherBytes, true, Vec::new());
    socket.write_all(&bytes_of(&wrong, GENERATION)).unwrap();
    reduce::barrier(&mut mesh).unwrap_err();
    let leaving = std::thread::spawn(move || drop(mesh));
    let accept = Accept::only(GENERATION, FRAME_LIMIT_BYTES);
    let last = loop {
        let frame = read_frame(&mut socket, accept).unwrap();
        if frame.kind == FrameKind::Abort {
            break String::from_utf8(frame.payload.to_vec()).unwrap();
        }
    };
    assert!(last.contains("is in all_gather_bytes (operation 1) while this rank is in barrier"), "{last}");
    drop(socket);
    leaving.join().unwrap();
}

#[test]
fn a_goodbye_is_sent_before_the_connection_closes() {
    let (mut mesh, mut socket) = rank_and_socket(&Options::default());
    let peer = std::thread::spawn(move || {
        let accept = Accept::only(GENERATION, FRAME_LIMIT_BYTES);
        while read_frame(&mut socket, accept).unwrap().kind != FrameKind::Goodbye {}
        assert_eq!(socket.read(&mut [0; 8]).unwrap(), 0);
    });
    mesh.leave(LinkEnd::Goodbye);
    peer.join().unwrap();
}
