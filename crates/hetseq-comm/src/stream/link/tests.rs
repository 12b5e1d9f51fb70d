//! A link with its other end in the hands of the test.

use std::io::Write;
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};

use socket2::{Domain, Type};

use super::*;
use crate::buffers::Payload;
use crate::encryption;
use crate::frame::HEADER_BYTES;
use crate::lock::locked;
use crate::secret::{Claim, SecretKey};
use crate::stream::await_traffic;
use crate::stream::tests::{GENERATION, bytes_of};

const CLAIM: Claim =
    Claim { generation: 1, dialer_rank: 1, answerer_rank: 0, dialer_nonce: [3; 32], answerer_nonce: [4; 32] };

fn frame(kind: FrameKind, last: bool, payload: Vec<u8>) -> Frame {
    Frame { kind, last, sequence: 1, payload: Payload::new(payload) }
}

fn link(connection: Connection, silence: Duration) -> SharedLink {
    StreamLink::new(connection, GENERATION, &Pool::new(2), silence).unwrap()
}

/// Two ends of a TCP connection.
fn tcp_pair() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    [socket, listener.accept().unwrap().0]
}

/// One end of a TCP connection as a link, and the raw socket of the other.
fn link_and_socket() -> (SharedLink, TcpStream) {
    let [socket, stream] = tcp_pair();
    (link(Connection { socket: stream.into(), encryption: None }, Duration::from_secs(60)), socket)
}

/// Both ends of a socketpair as links.
fn two_links() -> [SharedLink; 2] {
    let (near, far) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
    [near, far].map(|socket| link(Connection { socket, encryption: None }, Duration::from_secs(60)))
}

#[test]
fn a_full_link_takes_no_more_until_it_is_read() {
    let [near, far] = two_links();
    let (mut near, mut far) = (locked(&near), locked(&far));
    let large = frame(FrameKind::AllGatherBytes, false, vec![0; CHUNK_BYTES]);
    let mut pushed = 0;
    while near.has_room() {
        near.push(&large);
        pushed += 1;
        assert!(pushed < 1_000, "it takes everything");
    }
    let start = Instant::now();
    while !near.has_room() {
        assert!(start.elapsed() < Duration::from_secs(60));
        assert!(!matches!(far.next(), Received::Ended(_)));
        near.write();
    }
}

#[test]
fn the_end_comes_after_the_frames() {
    for end in [LinkEnd::Goodbye, LinkEnd::Aborted("why".to_owned())] {
        let [near, far] = two_links();
        let (mut near, mut far) = (locked(&near), locked(&far));
        let small = frame(FrameKind::AllGatherBytes, true, vec![0]);
        near.push(&small);
        near.queue_end(&end);
        // The first end is kept.
        assert!(!near.is_closed());
        near.queue_end(&LinkEnd::Aborted("later".to_owned()));
        assert!(far.read_ahead());
        assert_eq!(far.ended(), Some(end.clone()), "it is seen before the frames are taken");
        assert!(matches!(far.next(), Received::Frame(frame) if frame == small));
        assert!(matches!(far.next(), Received::Ended(found) if found == end));
    }
}

#[test]
fn a_closed_link_takes_nothing_more() {
    let [near, far] = two_links();
    let mut near = locked(&near);
    assert!(near.has_room());
    drop(far);
    let small = frame(FrameKind::AllGatherBytes, true, vec![0]);
    near.push(&small);
    assert!(!near.has_room());
    near.push(&small);
    assert!(near.is_flushed());
    assert!(matches!(near.next(), Received::Ended(LinkEnd::Closed(_))));
}

#[test]
fn a_fast_sender_is_slowed_down_and_not_buffered() {
    for payload in [vec![0; CHUNK_BYTES], Vec::new()] {
        let (link, mut socket) = link_and_socket();
        let bytes = bytes_of(&frame(FrameKind::AllGatherBytes, true, payload), GENERATION);
        // More than is read ahead, whatever the system buffers of it.
        let many = bytes.repeat(3 * READ_AHEAD_BYTES / bytes.len());
        let sending = std::thread::spawn(move || drop(socket.write_all(&many)));
        let start = Instant::now();
        let full = |link: &SharedLink| locked(link).received_bytes >= READ_AHEAD_BYTES;
        while !full(&link) {
            assert!(start.elapsed() < Duration::from_secs(60));
            await_traffic([&link], None, start, Duration::from_millis(10));
        }
        for _ in 0..3 {
            await_traffic([&link], None, start, Duration::from_millis(10));
        }
        let ahead = locked(&link).received.len() * bytes.len();
        assert!(ahead < READ_AHEAD_BYTES + bytes.len(), "{ahead} bytes were read ahead");
        drop(link);
        sending.join().unwrap();
    }
}

#[test]
fn an_ended_link_does_not_end_a_sleep() {
    for end in [LinkEnd::Goodbye, LinkEnd::Silent(Duration::from_millis(1))] {
        let [_socket, stream] = tcp_pair();
        let link = link(Connection { socket: stream.into(), encryption: None }, Duration::from_millis(1));
        locked(&link).end = Some(end);
        std::thread::sleep(Duration::from_millis(5));
        let start = Instant::now();
        await_traffic(&[link], None, start, Duration::from_millis(60));
        assert!(start.elapsed() >= Duration::from_millis(60), "woke up after {:?}", start.elapsed());
    }
}

#[test]
fn an_abort_overtakes_frames_that_are_not_started() {
    let (link, _socket) = link_and_socket();
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
    let (link, mut socket) = link_and_socket();
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
    let received = |link: &StreamLink| link.socket.peek(&mut [MaybeUninit::uninit()]).is_ok();
    while received(&link) {
        assert!(!link.is_closed());
        assert!(link.received.is_empty() && link.received_bytes == 0);
        reads += 1;
    }
    assert!(reads >= sent / (READ_AHEAD_BYTES + bytes.len()), "{sent} bytes in {reads} reads");
}

/// Both ends of an encrypted connection.
fn encrypted_ends() -> [Connection; 2] {
    let [near, far] = tcp_pair();
    let (key, claim) = (SecretKey::new("squirrel"), CLAIM);
    let (offer, message) = encryption::offer(&key, &claim).unwrap();
    let (far_encryption, message) = encryption::answer(&key, &claim, &message).unwrap();
    let near_encryption = offer.accept(&message).unwrap();
    [(near, near_encryption), (far, far_encryption)]
        .map(|(stream, encryption)| Connection { socket: stream.into(), encryption: Some(encryption) })
}

#[test]
fn a_slow_peer_is_not_silent_while_its_record_arrives() {
    let [far, near] = encrypted_ends();
    let Connection { mut socket, encryption } = far;
    let mut record = Vec::new();
    encryption
        .unwrap()
        .encryptor
        .write(&mut record, &bytes_of(&frame(FrameKind::AllGatherBytes, true, vec![1; 1000]), GENERATION))
        .unwrap();
    let link = link(near, Duration::from_secs(60));
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
    let [near, far] = encrypted_ends().map(|end| link(end, Duration::from_secs(60)));
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

#[test]
fn a_message_overtakes_frames_of_a_failed_collective() {
    let [near, far] = encrypted_ends().map(|end| link(end, Duration::from_secs(60)));
    let (mut near, mut far) = (locked(&near), locked(&far));
    let large = frame(FrameKind::AllGatherBytes, false, vec![7; FRAME_LIMIT_BYTES]);
    (0..3).for_each(|_| near.push(&large));
    near.cancel_queued();
    near.push(&Frame::control(FrameKind::Regroup, b"first".to_vec()));
    // A message that has not left stays, also if the generation changes.
    near.install(GENERATION + 1);
    near.push(&frame(FrameKind::AllGatherBytes, true, b"next".to_vec()));
    assert_eq!(near.queue.len(), 3);
    let (start, mut frames) = (Instant::now(), 0);
    while far.take_regroup().is_none() {
        assert!(start.elapsed() < Duration::from_secs(60));
        near.write();
        frames += usize::from(matches!(far.next(), Received::Frame(_)));
    }
    assert_eq!(frames, 1, "what has begun to leave must leave whole");
    far.install(GENERATION + 1);
    let next = loop {
        assert!(start.elapsed() < Duration::from_secs(60));
        near.write();
        if let Received::Frame(frame) = far.next() {
            break frame;
        }
    };
    assert_eq!(&next.payload[..], b"next");
}
