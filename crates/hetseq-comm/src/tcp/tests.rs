//! A real link against a peer that is played by hand, byte by byte.

use std::io::Read;
use std::net::TcpListener;

use super::*;
use crate::buffers::Payload;
use crate::frame::{HEADER_BYTES, read_frame};
use crate::mesh::Mesh;
use crate::secret::{Claim, Key};
use crate::{reduce, seal};

pub(super) const GENERATION: u64 = 77;
const CLAIM: Claim =
    Claim { generation: 1, dialer_rank: 1, answerer_rank: 0, dialer_nonce: [3; 32], answerer_nonce: [4; 32] };

/// Rank 0 of a world of two, and the bare socket of rank 1.
pub(super) fn rank_and_socket(options: &Options) -> (Mesh, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    let hosts = vec!["alpha".to_owned(), "beta".to_owned()];
    let connections = vec![None, Some(Connection { stream, seal: None })];
    let mut mesh = Mesh::over_wires(0, GENERATION, hosts, connections, Pace::new(options.silence), options).unwrap();
    mesh.context = "update 7".to_owned();
    (mesh, socket)
}

pub(super) fn short(silence: u64, progress: u64) -> Options {
    Options { silence: Duration::from_millis(silence), progress: Duration::from_millis(progress), ..Options::default() }
}

fn frame(kind: Kind, last: bool, payload: Vec<u8>) -> Frame {
    Frame { kind, last, sequence: 1, payload: Payload::new(payload) }
}

pub(super) fn bytes_of(frame: &Frame, generation: u64) -> Vec<u8> {
    [&frame.header(generation)[..], &frame.payload].concat()
}

/// What rank 0's barrier says when the peer sends these bytes.
fn barrier_after(bytes: &[u8]) -> String {
    let (mut mesh, mut socket) = rank_and_socket(&short(5_000, 5_000));
    socket.write_all(bytes).unwrap();
    let text = reduce::barrier(&mut mesh).unwrap_err().to_string();
    assert!(text.starts_with("rank 1 (beta)"), "{text}");
    assert!(text.contains("during barrier at update 7"), "{text}");
    text
}

/// One end of a connection as a wire, and the bare socket of the other.
fn wire_and_socket(options: &Options) -> (Arc<Mutex<Wire>>, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    (
        Wire::new(Connection { stream, seal: None }, GENERATION, &Pool::new(2), Pace::new(options.silence), options)
            .unwrap(),
        socket,
    )
}

#[test]
fn a_silent_peer_is_named_with_its_silence() {
    let (mut mesh, _socket) = rank_and_socket(&short(150, 60_000));
    let start = Instant::now();
    let text = reduce::barrier(&mut mesh).unwrap_err().to_string();
    assert!(start.elapsed() < Duration::from_secs(2));
    assert!(text.starts_with("rank 1 (beta) sent nothing for 0.33 s during barrier at update 7"), "{text}");
}

#[test]
fn a_peer_that_only_beats_makes_no_progress() {
    let (mut mesh, mut socket) = rank_and_socket(&short(150, 400));
    let beating = std::thread::spawn(move || {
        let beat = bytes_of(&Frame::control(Kind::Heartbeat, Vec::new()), GENERATION);
        while socket.write_all(&beat).is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let error = reduce::barrier(&mut mesh).unwrap_err();
    assert!(matches!(error, CommError::NoProgress { rank: 1, .. }), "{error}");
    drop(mesh);
    beating.join().unwrap();
}

#[test]
fn a_flood_of_beats_makes_no_progress_either() {
    let (mut mesh, mut socket) = rank_and_socket(&short(60_000, 300));
    let beating = std::thread::spawn(move || {
        let beats = bytes_of(&Frame::control(Kind::Heartbeat, Vec::new()), GENERATION).repeat(10_000);
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(20) && socket.write_all(&beats).is_ok() {}
    });
    let start = Instant::now();
    let error = reduce::barrier(&mut mesh).unwrap_err();
    assert!(matches!(error, CommError::NoProgress { rank: 1, .. }), "{error}");
    drop(mesh);
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    beating.join().unwrap();
}

#[test]
fn an_idle_link_beats() {
    let (_mesh, mut socket) = rank_and_socket(&short(100, 1_000));
    let accept = Accept { generation: GENERATION, limit_bytes: FRAME_LIMIT_BYTES };
    for _ in 0..3 {
        assert_eq!(read_frame(&mut socket, accept).unwrap().kind, Kind::Heartbeat);
    }
}

#[test]
fn what_is_not_a_frame_for_this_group_is_named() {
    let frame = frame(Kind::Barrier, true, Vec::new());
    assert!(barrier_after(&bytes_of(&frame, 76)).contains("another or earlier run"));
    assert!(barrier_after(b"GET / HTTP/1.1\r\nHost: nobody\r\n\r\n").contains("not the hetseq protocol"));
    let mut bytes = bytes_of(&frame, GENERATION);
    bytes[24..28].copy_from_slice(&(FRAME_LIMIT_BYTES as u32 + 1).to_le_bytes());
    let whole = crc32c::crc32c(&bytes[..32]);
    bytes[32..36].copy_from_slice(&whole.to_le_bytes());
    assert!(barrier_after(&bytes).contains("the limit is 67108864"));
    let mut bytes = bytes_of(&frame, GENERATION);
    bytes[4] = 9;
    assert!(barrier_after(&bytes).contains("protocol version 9"));
    let handshake = Frame::control(Kind::Handshake, Vec::new());
    assert!(barrier_after(&bytes_of(&handshake, GENERATION)).contains("handshake frame"));
    // A barrier carries nothing; a peer that fills it cannot make us collect it.
    let stuffed = Frame { payload: Payload::new(vec![1; 100]), ..frame };
    assert!(barrier_after(&bytes_of(&stuffed, GENERATION)).contains("the limit is 0"));
}

#[test]
fn a_closed_or_cut_connection_is_a_peer_that_left() {
    let frame = frame(Kind::Agree, true, vec![1; 10]);
    let bytes = bytes_of(&frame, GENERATION);
    for (sent, expected) in [(0, "without a goodbye"), (HEADER_BYTES + 4, "in the middle of a frame")] {
        let (mut mesh, mut socket) = rank_and_socket(&short(5_000, 5_000));
        socket.write_all(&bytes[..sent]).unwrap();
        socket.shutdown(Shutdown::Write).unwrap();
        let text = reduce::agree(&mut mesh, b"x").unwrap_err().to_string();
        assert!(text.starts_with("rank 1 (beta) left during agree at update 7"), "{text}");
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn a_failed_rank_tells_why_it_leaves() {
    let (mut mesh, mut socket) = rank_and_socket(&short(5_000, 5_000));
    let wrong = frame(Kind::Agree, true, Vec::new());
    socket.write_all(&bytes_of(&wrong, GENERATION)).unwrap();
    reduce::barrier(&mut mesh).unwrap_err();
    let leaving = std::thread::spawn(move || drop(mesh));
    let accept = Accept { generation: GENERATION, limit_bytes: FRAME_LIMIT_BYTES };
    let last = loop {
        let frame = read_frame(&mut socket, accept).unwrap();
        if frame.kind == Kind::Abort {
            break String::from_utf8(frame.payload.to_vec()).unwrap();
        }
    };
    assert!(last.contains("is in agree (operation 1) while this rank is in barrier"), "{last}");
    drop(socket);
    leaving.join().unwrap();
}

#[test]
fn a_fast_sender_is_held_back_not_buffered() {
    for payload in [vec![0; crate::frame::CHUNK_BYTES], Vec::new()] {
        let (wire, mut socket) = wire_and_socket(&Options::default());
        let bytes = bytes_of(&frame(Kind::Agree, true, payload), GENERATION);
        // More than is read ahead, whatever the system keeps of it.
        let many = bytes.repeat(3 * AHEAD_BYTES / bytes.len());
        let sending = std::thread::spawn(move || drop(socket.write_all(&many)));
        let start = Instant::now();
        let full = |wire: &Arc<Mutex<Wire>>| locked(wire).ahead_bytes >= AHEAD_BYTES;
        while !full(&wire) {
            assert!(start.elapsed() < Duration::from_secs(60));
            await_traffic(std::slice::from_ref(&wire), None, start, Duration::from_millis(10));
        }
        for _ in 0..3 {
            await_traffic(std::slice::from_ref(&wire), None, start, Duration::from_millis(10));
        }
        let ahead = locked(&wire).ahead.len() * bytes.len();
        assert!(ahead < AHEAD_BYTES + bytes.len(), "{ahead} bytes of a rank that nobody asked");
        drop(wire);
        sending.join().unwrap();
    }
}

#[test]
fn a_goodbye_is_answered_at_once() {
    let (mut mesh, mut socket) = rank_and_socket(&Options::default());
    let peer = std::thread::spawn(move || {
        let accept = Accept { generation: GENERATION, limit_bytes: FRAME_LIMIT_BYTES };
        while read_frame(&mut socket, accept).unwrap().kind != Kind::Goodbye {}
        assert_eq!(socket.read(&mut [0; 8]).unwrap(), 0);
    });
    let start = Instant::now();
    mesh.part(End::Goodbye);
    assert!(start.elapsed() < Duration::from_secs(1));
    peer.join().unwrap();
}

#[test]
fn one_that_has_ended_keeps_nobody_awake() {
    for end in [End::Goodbye, End::Silent(Duration::from_millis(1))] {
        let (wire, _socket) = wire_and_socket(&short(1, 60_000));
        locked(&wire).end = Some(end);
        std::thread::sleep(Duration::from_millis(5));
        let start = Instant::now();
        await_traffic(&[wire], None, start, Duration::from_millis(60));
        assert!(start.elapsed() >= Duration::from_millis(60), "woke up after {:?}", start.elapsed());
    }
}

#[test]
fn an_abort_overtakes_what_has_not_begun_to_leave() {
    let (wire, _socket) = wire_and_socket(&Options::default());
    let mut wire = locked(&wire);
    // More than the system's buffers take, so that one is cut in the middle and one has not begun.
    let large = frame(Kind::Agree, false, vec![0; FRAME_LIMIT_BYTES]);
    wire.push(&large);
    wire.push(&large);
    let begun = wire.queue[0].unwritten_bytes();
    assert!(begun < wire.queue[1].unwritten_bytes() && !wire.has_room());
    wire.farewell(&End::Aborted("enough".to_owned()));
    assert_eq!(wire.queued_bytes(), begun + HEADER_BYTES + "enough".len());
}

#[test]
fn one_that_leaves_reads_a_little_at_a_time_and_keeps_nothing() {
    let (wire, mut socket) = wire_and_socket(&Options::default());
    // As much as the system takes without anybody reading; on most a few megabytes.
    socket.set_nonblocking(true).unwrap();
    let bytes = bytes_of(&frame(Kind::Agree, false, vec![0; 64 << 10]), GENERATION);
    let (mut sent, stream) = (0, bytes.iter().cycle().copied().take(1_000 * bytes.len()).collect::<Vec<u8>>());
    while let Ok(count @ 1..) = socket.write(&stream[sent..]) {
        sent += count;
    }
    let mut wire = locked(&wire);
    let mut looks = 0;
    wire.farewell(&End::Aborted("enough".to_owned()));
    let received = |wire: &Wire| wire.stream.peek(&mut [0]).is_ok();
    while received(&wire) {
        assert!(!wire.is_parted());
        assert!(wire.ahead.is_empty() && wire.ahead_bytes == 0);
        looks += 1;
    }
    assert!(looks >= sent / (AHEAD_BYTES + bytes.len()), "{sent} bytes in {looks} looks");
}

/// Both ends of an encrypted connection.
fn sealed_ends() -> [Connection; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    let (key, claim) = (Key::new("squirrel"), CLAIM);
    let (offer, message) = seal::offer(&key, &claim).unwrap();
    let (far_seal, message) = seal::answer(&key, &claim, &message).unwrap();
    let near_seal = offer.accept(&message).unwrap();
    [(near, near_seal), (far, far_seal)].map(|(stream, seal)| Connection { stream, seal: Some(seal) })
}

#[test]
fn a_slow_peer_is_heard_before_its_record_is_whole() {
    let [far, near] = sealed_ends();
    let Connection { stream: mut socket, seal } = far;
    let mut record = Vec::new();
    seal.unwrap().sealer.write(&mut record, &bytes_of(&frame(Kind::Agree, true, vec![1; 1000]), GENERATION)).unwrap();
    let wire =
        Wire::new(near, GENERATION, &Pool::new(2), Pace::new(Options::default().silence), &Options::default()).unwrap();
    let mut wire = locked(&wire);
    for byte in &record[..5] {
        let (before, start) = (wire.heard, Instant::now());
        socket.write_all(&[*byte]).unwrap();
        while wire.heard == before {
            assert!(start.elapsed() < Duration::from_secs(30), "it was not heard");
            assert!(!wire.read(0));
        }
    }
    socket.write_all(&record[5..]).unwrap();
    while !matches!(wire.next(), Next::Frame(_)) {}
}

#[test]
fn an_abort_under_pressure_is_not_taken_for_tampering() {
    let [near, far] = sealed_ends().map(|end| {
        Wire::new(end, GENERATION, &Pool::new(2), Pace::new(Options::default().silence), &Options::default()).unwrap()
    });
    let (mut near, mut far) = (locked(&near), locked(&far));
    let large = frame(Kind::Agree, false, vec![7; FRAME_LIMIT_BYTES]);
    near.push(&large);
    near.push(&large);
    near.push(&large);
    near.farewell(&End::Aborted("enough".to_owned()));
    assert_eq!(near.queue.len(), 2, "only what has begun stays before the last words");
    let (start, mut frames) = (Instant::now(), 0);
    let end = loop {
        assert!(start.elapsed() < Duration::from_secs(60));
        near.write();
        match far.next() {
            Next::Frame(got) => {
                assert!(got.payload == large.payload);
                frames += 1;
            }
            Next::Ended(end) => break end,
            Next::Nothing => {}
        }
    };
    assert_eq!((frames, end), (1, End::Aborted("enough".to_owned())));
}
