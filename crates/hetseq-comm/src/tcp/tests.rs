//! A real link with a peer simulated byte by byte.

use std::io::Read;
use std::net::TcpListener;

use super::*;
use crate::buffers::Payload;
use crate::frame::{HEADER_BYTES, read_frame};
use crate::mesh::Mesh;
use crate::secret::{Claim, SecretKey};
use crate::{encryption, reduce};

pub(super) const GENERATION: u64 = 77;
const CLAIM: Claim =
    Claim { generation: 1, dialer_rank: 1, answerer_rank: 0, dialer_nonce: [3; 32], answerer_nonce: [4; 32] };

/// Rank 0 of a world of two, and the raw socket of rank 1.
pub(super) fn rank_and_socket(options: &Options) -> (Mesh, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    let hosts = vec!["alpha".to_owned(), "beta".to_owned()];
    let connections = vec![None, Some(Connection { stream, encryption: None })];
    let mut mesh =
        Mesh::over_tcp(0, GENERATION, hosts, connections, HeartbeatTiming::new(options.silence), options).unwrap();
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

/// One end of a connection as a link, and the raw socket of the other.
fn link_and_socket(options: &Options) -> (Arc<Mutex<TcpLink>>, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    (
        TcpLink::new(
            Connection { stream, encryption: None },
            GENERATION,
            &Pool::new(2),
            HeartbeatTiming::new(options.silence),
            options,
        )
        .unwrap(),
        socket,
    )
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
    let accept = Accept { generation: GENERATION, limit_bytes: FRAME_LIMIT_BYTES };
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
    bytes[4] = 9;
    assert!(barrier_after(&bytes).contains("protocol version 9"));
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
    let accept = Accept { generation: GENERATION, limit_bytes: FRAME_LIMIT_BYTES };
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
fn a_fast_sender_is_slowed_down_and_not_buffered() {
    for payload in [vec![0; crate::frame::CHUNK_BYTES], Vec::new()] {
        let (link, mut socket) = link_and_socket(&Options::default());
        let bytes = bytes_of(&frame(FrameKind::AllGatherBytes, true, payload), GENERATION);
        // More than is read ahead, whatever the system buffers of it.
        let many = bytes.repeat(3 * READ_AHEAD_BYTES / bytes.len());
        let sending = std::thread::spawn(move || drop(socket.write_all(&many)));
        let start = Instant::now();
        let full = |link: &Arc<Mutex<TcpLink>>| locked(link).read_ahead_bytes >= READ_AHEAD_BYTES;
        while !full(&link) {
            assert!(start.elapsed() < Duration::from_secs(60));
            await_traffic(std::slice::from_ref(&link), None, start, Duration::from_millis(10));
        }
        for _ in 0..3 {
            await_traffic(std::slice::from_ref(&link), None, start, Duration::from_millis(10));
        }
        let ahead = locked(&link).read_ahead.len() * bytes.len();
        assert!(ahead < READ_AHEAD_BYTES + bytes.len(), "{ahead} bytes were read ahead");
        drop(link);
        sending.join().unwrap();
    }
}

#[test]
fn a_goodbye_is_sent_before_the_connection_closes() {
    let (mut mesh, mut socket) = rank_and_socket(&Options::default());
    let peer = std::thread::spawn(move || {
        let accept = Accept { generation: GENERATION, limit_bytes: FRAME_LIMIT_BYTES };
        while read_frame(&mut socket, accept).unwrap().kind != FrameKind::Goodbye {}
        assert_eq!(socket.read(&mut [0; 8]).unwrap(), 0);
    });
    mesh.leave(LinkEnd::Goodbye);
    peer.join().unwrap();
}

#[test]
fn an_ended_link_does_not_end_a_sleep() {
    for end in [LinkEnd::Goodbye, LinkEnd::Silent(Duration::from_millis(1))] {
        let (link, _socket) = link_and_socket(&short(1, 60_000));
        locked(&link).end = Some(end);
        std::thread::sleep(Duration::from_millis(5));
        let start = Instant::now();
        await_traffic(&[link], None, start, Duration::from_millis(60));
        assert!(start.elapsed() >= Duration::from_millis(60), "woke up after {:?}", start.elapsed());
    }
}

#[test]
fn an_abort_overtakes_frames_that_are_not_started() {
    let (link, _socket) = link_and_socket(&Options::default());
    let mut link = locked(&link);
    // More than the system's buffers take, so that one frame is partly written and one not started.
    let large = frame(FrameKind::AllGatherBytes, false, vec![0; FRAME_LIMIT_BYTES]);
    link.push(&large);
    link.push(&large);
    let started = link.queue[0].unwritten_bytes();
    assert!(started < link.queue[1].unwritten_bytes() && !link.has_room());
    link.queue_end(&LinkEnd::Aborted("enough".to_owned()));
    assert_eq!(link.queued_bytes(), started + HEADER_BYTES + "enough".len());
}

#[test]
fn a_leaving_rank_reads_a_little_at_a_time_and_keeps_nothing() {
    let (link, mut socket) = link_and_socket(&Options::default());
    // As much as the system buffers without a reader; on most systems a few megabytes.
    socket.set_nonblocking(true).unwrap();
    let bytes = bytes_of(&frame(FrameKind::AllGatherBytes, false, vec![0; 64 << 10]), GENERATION);
    let (mut sent, stream) = (0, bytes.iter().cycle().copied().take(1_000 * bytes.len()).collect::<Vec<u8>>());
    while let Ok(count @ 1..) = socket.write(&stream[sent..]) {
        sent += count;
    }
    let mut link = locked(&link);
    let mut reads = 0;
    link.queue_end(&LinkEnd::Aborted("enough".to_owned()));
    let received = |link: &TcpLink| link.stream.peek(&mut [0]).is_ok();
    while received(&link) {
        assert!(!link.is_closed());
        assert!(link.read_ahead.is_empty() && link.read_ahead_bytes == 0);
        reads += 1;
    }
    assert!(reads >= sent / (READ_AHEAD_BYTES + bytes.len()), "{sent} bytes in {reads} reads");
}

/// Both ends of an encrypted connection.
fn encrypted_ends() -> [Connection; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    let (key, claim) = (SecretKey::new("squirrel"), CLAIM);
    let (offer, message) = encryption::offer(&key, &claim).unwrap();
    let (far_encryption, message) = encryption::answer(&key, &claim, &message).unwrap();
    let near_encryption = offer.accept(&message).unwrap();
    [(near, near_encryption), (far, far_encryption)]
        .map(|(stream, encryption)| Connection { stream, encryption: Some(encryption) })
}

#[test]
fn a_slow_peer_is_not_silent_while_its_record_arrives() {
    let [far, near] = encrypted_ends();
    let Connection { stream: mut socket, encryption } = far;
    let mut record = Vec::new();
    encryption
        .unwrap()
        .encryptor
        .write(&mut record, &bytes_of(&frame(FrameKind::AllGatherBytes, true, vec![1; 1000]), GENERATION))
        .unwrap();
    let link = TcpLink::new(
        near,
        GENERATION,
        &Pool::new(2),
        HeartbeatTiming::new(Options::default().silence),
        &Options::default(),
    )
    .unwrap();
    let mut link = locked(&link);
    for byte in &record[..5] {
        let (before, start) = (link.last_received, Instant::now());
        socket.write_all(&[*byte]).unwrap();
        while link.last_received == before {
            assert!(start.elapsed() < Duration::from_secs(30), "the byte was not noticed");
            assert!(!link.read(0));
        }
    }
    socket.write_all(&record[5..]).unwrap();
    while !matches!(link.next(), Received::Frame(_)) {}
}

#[test]
fn an_abort_with_a_full_queue_is_not_reported_as_tampering() {
    let [near, far] = encrypted_ends().map(|end| {
        TcpLink::new(
            end,
            GENERATION,
            &Pool::new(2),
            HeartbeatTiming::new(Options::default().silence),
            &Options::default(),
        )
        .unwrap()
    });
    let (mut near, mut far) = (locked(&near), locked(&far));
    let large = frame(FrameKind::AllGatherBytes, false, vec![7; FRAME_LIMIT_BYTES]);
    near.push(&large);
    near.push(&large);
    near.push(&large);
    near.queue_end(&LinkEnd::Aborted("enough".to_owned()));
    assert_eq!(near.queue.len(), 2, "only frames that are started stay before the abort");
    let (start, mut frames) = (Instant::now(), 0);
    let end = loop {
        assert!(start.elapsed() < Duration::from_secs(60));
        near.write();
        match far.next() {
            Received::Frame(got) => {
                assert!(got.payload == large.payload);
                frames += 1;
            }
            Received::Ended(end) => break end,
            Received::Nothing => {}
        }
    };
    assert_eq!((frames, end), (1, LinkEnd::Aborted("enough".to_owned())));
}
