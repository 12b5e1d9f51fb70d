//! Fuzzing of everything that reads untrusted bytes before a rank is a member: frames, plain and
//! encrypted, handshake messages, and both sides of the authentication. `hetseq-fuzz` sets seed and
//! time.
//!
//! Inputs are valid streams with some damage. Each test states its own property; all of them check
//! that nothing panics, hangs or allocates much more than the bytes that have arrived.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use hetseq_fuzz::{Rng, bounded, damage, fuzz};

use crate::buffers::Payload;
use crate::encryption::DecryptedReader;
use crate::encryption::tests::EncryptedEnds;
use crate::frame::{Accept, CHUNK_BYTES, FRAME_LIMIT_BYTES, Frame, FrameKind, HEADER_BYTES, ReadError, read_frame};
use crate::rendezvous::fuzz_handshake as handshake;

/// What reading a stream of `bytes` may allocate: the frames, and a buffer that grows by chunks and
/// is copied then.
pub(crate) fn read_limit(bytes: usize) -> usize {
    CHUNK_BYTES + 8 * bytes + (16 << 10)
}

/// Frames as a peer may send them.
pub(crate) fn frames(kinds: &[FrameKind], rng: &mut Rng) -> Vec<Frame> {
    (0..1 + rng.below(3))
        .map(|sequence| {
            let kind = kinds[rng.below(kinds.len())];
            let length = [0, 1, 31, 32, 200][rng.below(5)];
            let payload = Payload::new(rng.bytes(length));
            Frame { kind, last: length == 0 || rng.below(2) == 0, sequence: sequence as u64, payload }
        })
        .collect()
}

/// Writes a valid checksum behind a header, so that the checks after it are reached.
pub(crate) fn sign(header: &mut [u8]) {
    let checksum = crc32c::crc32c(&header[..32]);
    header[32..36].copy_from_slice(&checksum.to_le_bytes());
}

/// Damages the first header of a stream, but not its checksum.
pub(crate) fn damage_header(stream: &mut [u8], rng: &mut Rng) {
    let mut header = stream[..HEADER_BYTES].to_vec();
    // Behind magic and version.
    let mut fields = header.split_off(5);
    damage(&mut fields, rng);
    header.extend(fields);
    header.resize(HEADER_BYTES, 0);
    sign(&mut header);
    stream[..HEADER_BYTES].copy_from_slice(&header);
}

pub(crate) fn bytes_of(frames: &[Frame], generation: u64) -> Vec<u8> {
    frames.iter().flat_map(|frame| [&frame.header(generation)[..], &frame.payload].concat()).collect()
}

#[test]
fn damaged_frames_are_rejected_and_frames_before_them_kept() {
    fuzz("frames", |rng| {
        let kinds = [FrameKind::AllGatherBytes, FrameKind::Handshake, FrameKind::Broadcast, FrameKind::Abort];
        let frames = frames(&kinds, rng);
        let whole = bytes_of(&frames, 9);
        let mut stream = whole.clone();
        let is_signed = rng.below(2) == 0;
        if is_signed {
            damage_header(&mut stream, rng)
        } else {
            damage(&mut stream, rng)
        }
        let intact = whole.iter().zip(&stream).take_while(|(a, b)| a == b).count();
        let limit_bytes = if rng.below(2) == 0 { 256 } else { FRAME_LIMIT_BYTES };
        let (mut from, mut read, mut ends) = (&stream[..], Vec::new(), 0);
        bounded(read_limit(stream.len()), || {
            while let Ok(frame) = read_frame(&mut from, Accept::only(9, limit_bytes)) {
                assert!(frame.payload.len() <= limit_bytes && frame.payload.len() <= stream.len());
                read.push(frame);
            }
        });
        if is_signed {
            return;
        }
        // Frames before the first damage are read unchanged; a damaged frame is never read as
        // another one.
        for (index, frame) in frames.iter().enumerate() {
            ends += HEADER_BYTES + frame.payload.len();
            if ends <= intact {
                assert_eq!(read.get(index), Some(frame));
            }
        }
        assert!(read.iter().all(|frame| frames.contains(frame)), "a damaged frame was accepted");
    });
}

#[test]
fn a_claimed_length_allocates_nothing() {
    let mut header = Frame::control(FrameKind::AllGatherBytes, Vec::new()).header(9);
    // An allowed size without any payload.
    header[24..28].copy_from_slice(&(FRAME_LIMIT_BYTES as u32).to_le_bytes());
    sign(&mut header);
    let read = bounded(read_limit(header.len()), || read_frame(&mut &header[..], Accept::only(9, FRAME_LIMIT_BYTES)));
    assert!(matches!(read, Err(ReadError::Cut)));
    const { assert!(CHUNK_BYTES <= 1 << 20, "allocated before the first byte arrives") };
}

#[test]
fn damaged_handshake_messages_are_rejected_or_valid() {
    let samples = handshake::sample_messages();
    fuzz("handshake messages", |rng| {
        let mut payload = samples[rng.below(samples.len())].clone();
        damage(&mut payload, rng);
        // Decoded, and worded as an error.
        bounded(64 * payload.len() + (16 << 10), || handshake::decode(&payload));
    });
}

/// Sends `stream` to `party` and returns whether it accepts the connection.
fn accepts(stream: &[u8], party: impl FnOnce(TcpStream) -> bool) -> bool {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (socket, _) = listener.accept().unwrap();
    let sent = client.write_all(stream);
    let _ = sent.and_then(|()| client.shutdown(Shutdown::Write));
    client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let reading = std::thread::spawn(move || {
        let mut buffer = [0; 1024];
        while matches!(client.read(&mut buffer), Ok(1..)) {}
    });
    let is_accepted = party(socket);
    reading.join().unwrap();
    is_accepted
}

#[test]
fn no_damaged_or_replayed_auth_is_accepted() {
    let cases: Vec<(bool, bool, Vec<u8>)> = [(false, false), (false, true), (true, false), (true, true)]
        .map(|(by_dialer, encrypt)| (by_dialer, encrypt, handshake::recorded_auth(by_dialer, encrypt)))
        .into();
    let is_accepted = |stream: &[u8], by_dialer, encrypt| {
        accepts(stream, |socket| bounded(64 << 10, || handshake::authenticates(socket, by_dialer, encrypt)))
    };
    for (by_dialer, encrypt, recorded) in &cases {
        assert!(!is_accepted(recorded, *by_dialer, *encrypt), "a replay: dialer {by_dialer}, encrypted {encrypt}");
    }
    fuzz("authentication", |rng| {
        let (by_dialer, encrypt, recorded) = &cases[rng.below(cases.len())];
        let mut stream = recorded.clone();
        damage(&mut stream, rng);
        assert!(!is_accepted(&stream, *by_dialer, *encrypt), "dialer {by_dialer}, encrypted {encrypt}");
    });
}

#[test]
fn damaged_encrypted_streams_give_the_first_frames_and_nothing_else() {
    let ends = EncryptedEnds::new();
    fuzz("encrypted frames", |rng| {
        let [mut sender, mut receiver] = ends.connect();
        let frames = frames(&[FrameKind::AllGatherBytes, FrameKind::AllReduce], rng);
        let mut stream = Vec::new();
        // A record ends anywhere.
        for piece in bytes_of(&frames, 9).chunks(1 + rng.below(300)) {
            sender.encryptor.write(&mut stream, piece).unwrap();
        }
        damage(&mut stream, rng);
        let mut from = DecryptedReader { from: &stream[..], decryptor: Some(&mut receiver.decryptor) };
        let mut read = Vec::new();
        // A record is at most 64 KiB; its length is trusted before it is decrypted.
        bounded(read_limit(stream.len()) + (256 << 10), || {
            while let Ok(frame) = read_frame(&mut from, Accept::only(9, FRAME_LIMIT_BYTES)) {
                read.push(frame);
            }
        });
        assert!(frames.starts_with(&read), "read {read:?} instead of {frames:?}");
    });
}
