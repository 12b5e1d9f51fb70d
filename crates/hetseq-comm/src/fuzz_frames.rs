//! Bounded fuzzing of everything that reads untrusted input: frames, handshake messages, both sides
//! of the authentication, encrypted records. Deterministic, a few seconds in total, and part of
//! every test run.
//!
//! Inputs are valid streams with some damage, because random bytes rarely pass the first check.
//! Each test states its own property; all of them check that nothing panics, hangs or allocates the
//! length that a header claims.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use crate::buffers::Payload;
use crate::encryption;
use crate::frame::{Accept, CHUNK_BYTES, FRAME_LIMIT_BYTES, Frame, FrameKind, HEADER_BYTES, ReadError, read_frame};
use crate::rendezvous::fuzz_handshake as handshake;
use crate::secret::{Claim, SecretKey};

/// A small deterministic generator; `hetseq-random` is not a dependency of this crate.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 11) as usize % bound
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}

/// Damages a stream in ways that break parsers: flipped bits, extreme numbers, cuts, repetitions,
/// insertions.
pub(crate) fn damage(stream: &mut Vec<u8>, rng: &mut Rng) {
    const EXTREMES: [u64; 8] = [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX];
    for _ in 0..1 + rng.below(4) {
        if stream.is_empty() {
            return;
        }
        let at = rng.below(stream.len());
        let until = at + rng.below((stream.len() - at).min(40) + 1);
        match rng.below(7) {
            0 | 1 => stream[at] ^= 1 << rng.below(8),
            2 => {
                let number = EXTREMES[rng.below(EXTREMES.len())].to_le_bytes();
                stream[at..until].iter_mut().zip(number).for_each(|(byte, new)| *byte = new);
            }
            3 => stream.truncate(at),
            4 => drop(stream.drain(at..until)),
            5 => {
                let again = stream[at..until].to_vec();
                stream.splice(at..at, again);
            }
            _ => {
                let count = rng.below(24);
                let new = rng.bytes(count);
                stream.splice(at..at, new);
            }
        }
    }
}

fn bytes_of(frames: &[Frame], generation: u64) -> Vec<u8> {
    frames.iter().flat_map(|frame| [&frame.header(generation)[..], &frame.payload].concat()).collect()
}

#[test]
fn damaged_frames_are_rejected_and_frames_before_them_kept() {
    let mut rng = Rng::new(1);
    for _ in 0..60_000 {
        let frames: Vec<Frame> = (0..1 + rng.below(3))
            .map(|sequence| {
                let kind = [FrameKind::AllGatherBytes, FrameKind::Handshake, FrameKind::Broadcast, FrameKind::Abort]
                    [rng.below(4)];
                let length = [0, 1, 31, 32, 200][rng.below(5)];
                let payload = Payload::new(rng.bytes(length));
                Frame { kind, last: length == 0 || rng.below(2) == 0, sequence: sequence as u64, payload }
            })
            .collect();
        let whole = bytes_of(&frames, 9);
        let mut stream = whole.clone();
        damage(&mut stream, &mut rng);
        let intact = whole.iter().zip(&stream).take_while(|(a, b)| a == b).count();
        let limit_bytes = if rng.below(2) == 0 { 256 } else { FRAME_LIMIT_BYTES };
        let (mut from, mut read, mut ends) = (&stream[..], Vec::new(), 0);
        while let Ok(frame) = read_frame(&mut from, Accept::only(9, limit_bytes)) {
            assert!(frame.payload.len() <= limit_bytes && frame.payload.len() <= stream.len());
            read.push(frame);
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
    }
}

#[test]
fn a_claimed_length_allocates_nothing() {
    let mut header = Frame::control(FrameKind::AllGatherBytes, Vec::new()).header(9);
    // An allowed size without any payload: 2,000 of them would be 128 GB.
    header[24..28].copy_from_slice(&(FRAME_LIMIT_BYTES as u32).to_le_bytes());
    let whole = crc32c::crc32c(&header[..32]);
    header[32..36].copy_from_slice(&whole.to_le_bytes());
    for _ in 0..2_000 {
        let read = read_frame(&mut &header[..], Accept::only(9, FRAME_LIMIT_BYTES));
        assert!(matches!(read, Err(ReadError::Cut)));
    }
    const { assert!(CHUNK_BYTES <= 1 << 20, "allocated before the first byte arrives") };
}

#[test]
fn damaged_handshake_messages_are_rejected_or_valid() {
    let mut rng = Rng::new(2);
    let samples = handshake::sample_messages();
    for round in 0..200_000 {
        let mut payload = samples[round % samples.len()].clone();
        damage(&mut payload, &mut rng);
        handshake::decode(&payload);
    }
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
    let mut rng = Rng::new(3);
    for encrypt in [false, true] {
        for by_dialer in [true, false] {
            let recorded = handshake::recorded_auth(by_dialer, encrypt);
            for round in 0..400 {
                let mut stream = recorded.clone();
                // The first is an exact replay.
                if round > 0 {
                    damage(&mut stream, &mut rng);
                }
                let is_accepted = accepts(&stream, |socket| handshake::authenticates(socket, by_dialer, encrypt));
                assert!(!is_accepted, "round {round}, dialer {by_dialer}, encrypted {encrypt}");
            }
        }
    }
}

#[test]
fn damaged_encrypted_streams_give_a_prefix_and_nothing_else() {
    let claim =
        Claim { generation: 1, dialer_rank: 2, answerer_rank: 0, dialer_nonce: [3; 32], answerer_nonce: [4; 32] };
    let key = SecretKey::new("squirrel");
    let mut rng = Rng::new(4);
    let plain: Vec<u8> = rng.bytes(3000);
    for _ in 0..3_000 {
        let (offer, message) = encryption::offer(&key, &claim).unwrap();
        let (mut sender, message) = encryption::answer(&key, &claim, &message).unwrap();
        let mut receiver = offer.accept(&message).unwrap();
        let mut stream = Vec::new();
        for piece in plain.chunks(1 + rng.below(1500)) {
            sender.encryptor.write(&mut stream, piece).unwrap();
        }
        damage(&mut stream, &mut rng);
        let mut reader = encryption::DecryptedReader { from: &stream[..], decryptor: Some(&mut receiver.decryptor) };
        let mut decrypted = Vec::new();
        let _ = reader.read_to_end(&mut decrypted);
        assert!(plain.starts_with(&decrypted), "decrypted other data");
    }
}
