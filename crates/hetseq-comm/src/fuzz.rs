//! Bounded fuzzing of everything that reads what a stranger sends: frames, handshake messages, both sides of a greeting,
//! sealed records. Deterministic, a few seconds in all, and part of every test run.
//!
//! Cases are valid streams with a few damages, because random bytes rarely pass the first check. What must hold is said
//! by each test; that nothing panics, hangs or allocates what a header merely promises, by all of them.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use crate::buffers::Payload;
use crate::frame::{Accept, CHUNK_BYTES, FRAME_LIMIT_BYTES, Frame, HEADER_BYTES, Kind, ReadError, read_frame};
use crate::rendezvous::fuzz as handshake;
use crate::seal;
use crate::secret::{Claim, Key};

/// Small, fast and always the same: not `hetseq-random`, which this crate does not know.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 11) as usize % bound
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}

/// A few damages of the kinds that break parsers: flipped bits, extreme numbers, cuts, repetitions, insertions.
pub(crate) fn damage(stream: &mut Vec<u8>, dice: &mut Dice) {
    const EXTREMES: [u64; 8] = [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX];
    for _ in 0..1 + dice.below(4) {
        if stream.is_empty() {
            return;
        }
        let at = dice.below(stream.len());
        let until = at + dice.below((stream.len() - at).min(40) + 1);
        match dice.below(7) {
            0 | 1 => stream[at] ^= 1 << dice.below(8),
            2 => {
                let number = EXTREMES[dice.below(EXTREMES.len())].to_le_bytes();
                stream[at..until].iter_mut().zip(number).for_each(|(byte, new)| *byte = new);
            }
            3 => stream.truncate(at),
            4 => drop(stream.drain(at..until)),
            5 => {
                let again = stream[at..until].to_vec();
                stream.splice(at..at, again);
            }
            _ => {
                let count = dice.below(24);
                let new = dice.bytes(count);
                stream.splice(at..at, new);
            }
        }
    }
}

fn bytes_of(frames: &[Frame], generation: u64) -> Vec<u8> {
    frames.iter().flat_map(|frame| [&frame.header(generation)[..], &frame.payload].concat()).collect()
}

#[test]
fn damaged_frames_are_refused_and_whole_ones_before_them_kept() {
    let mut dice = Dice::new(1);
    for _ in 0..60_000 {
        let frames: Vec<Frame> = (0..1 + dice.below(3))
            .map(|sequence| {
                let kind = [Kind::Agree, Kind::Handshake, Kind::ReduceScatter, Kind::Abort][dice.below(4)];
                let length = [0, 1, 31, 32, 200][dice.below(5)];
                let payload = Payload::new(dice.bytes(length));
                Frame { kind, last: length == 0 || dice.below(2) == 0, sequence: sequence as u64, payload }
            })
            .collect();
        let whole = bytes_of(&frames, 9);
        let mut stream = whole.clone();
        damage(&mut stream, &mut dice);
        let intact = whole.iter().zip(&stream).take_while(|(a, b)| a == b).count();
        let limit_bytes = if dice.below(2) == 0 { 256 } else { FRAME_LIMIT_BYTES };
        let (mut from, mut read, mut ends) = (&stream[..], Vec::new(), 0);
        while let Ok(frame) = read_frame(&mut from, Accept { generation: 9, limit_bytes }) {
            assert!(frame.payload.len() <= limit_bytes && frame.payload.len() <= stream.len());
            read.push(frame);
        }
        // What lies before the first damage is read as it was; what is damaged is not taken for something else.
        for (index, frame) in frames.iter().enumerate() {
            ends += HEADER_BYTES + frame.payload.len();
            if ends <= intact {
                assert_eq!(read.get(index), Some(frame));
            }
        }
        assert!(read.iter().all(|frame| frames.contains(frame)), "a damaged frame was taken");
    }
}

#[test]
fn a_promise_of_gigabytes_costs_nothing() {
    let mut header = Frame::control(Kind::Agree, Vec::new()).header(9);
    // Of the allowed size, but with nothing behind it: 2,000 of them would be 128 GB.
    header[24..28].copy_from_slice(&(FRAME_LIMIT_BYTES as u32).to_le_bytes());
    let whole = crc32c::crc32c(&header[..32]);
    header[32..36].copy_from_slice(&whole.to_le_bytes());
    for _ in 0..2_000 {
        let read = read_frame(&mut &header[..], Accept { generation: 9, limit_bytes: FRAME_LIMIT_BYTES });
        assert!(matches!(read, Err(ReadError::Cut)));
    }
    const { assert!(CHUNK_BYTES <= 1 << 20, "allocated before the first byte is there") };
}

#[test]
fn damaged_handshake_messages_are_refused_or_mean_something() {
    let mut dice = Dice::new(2);
    let samples = handshake::sample_messages();
    for round in 0..200_000 {
        let mut payload = samples[round % samples.len()].clone();
        damage(&mut payload, &mut dice);
        handshake::decode(&payload);
    }
}

/// What an answering party makes of a dialer's bytes, or the other way round.
fn played(stream: &[u8], party: impl FnOnce(TcpStream) -> bool) -> bool {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stranger = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (socket, _) = listener.accept().unwrap();
    let sent = stranger.write_all(stream);
    let _ = sent.and_then(|()| stranger.shutdown(Shutdown::Write));
    stranger.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let reading = std::thread::spawn(move || {
        let mut scrap = [0; 1024];
        while matches!(stranger.read(&mut scrap), Ok(1..)) {}
    });
    let is_in = party(socket);
    reading.join().unwrap();
    is_in
}

#[test]
fn no_damaged_or_repeated_greeting_is_let_in() {
    let mut dice = Dice::new(3);
    for encrypt in [false, true] {
        for by_dialer in [true, false] {
            let recorded = handshake::recorded_greeting(by_dialer, encrypt);
            for round in 0..400 {
                let mut stream = recorded.clone();
                // The first is an exact replay.
                if round > 0 {
                    damage(&mut stream, &mut dice);
                }
                let is_in = played(&stream, |socket| handshake::lets_in(socket, by_dialer, encrypt));
                assert!(!is_in, "round {round}, dialer {by_dialer}, encrypted {encrypt}");
            }
        }
    }
}

#[test]
fn damaged_sealed_streams_give_a_part_of_the_truth_and_nothing_else() {
    let claim =
        Claim { generation: 1, dialer_rank: 2, answerer_rank: 0, dialer_nonce: [3; 32], answerer_nonce: [4; 32] };
    let key = Key::new("squirrel");
    let mut dice = Dice::new(4);
    let plain: Vec<u8> = dice.bytes(3000);
    for _ in 0..3_000 {
        let (offer, message) = seal::offer(&key, &claim).unwrap();
        let (mut sender, message) = seal::answer(&key, &claim, &message).unwrap();
        let mut receiver = offer.accept(&message).unwrap();
        let mut stream = Vec::new();
        for piece in plain.chunks(1 + dice.below(1500)) {
            sender.sealer.write(&mut stream, piece).unwrap();
        }
        damage(&mut stream, &mut dice);
        let mut reader = seal::Opened { from: &stream[..], opener: Some(&mut receiver.opener) };
        let mut opened = Vec::new();
        let _ = reader.read_to_end(&mut opened);
        assert!(plain.starts_with(&opened), "something else came out");
    }
}
