//! The unit on the wire: a fixed header of 36 bytes, then the payload.
//!
//! Pure encoding and decoding plus reading one frame from any `Read`. It knows neither sockets nor
//! deadlines: `tcp.rs` uses it for links, `rendezvous/talk.rs` for the handshake.
//!
//! ```text
//! 0..4 magic  4 version  5 kind  6 flags (bit 0: last of its message)  7 zero
//! 8..16 generation  16..24 sequence  24..28 payload bytes  28..32 crc32c of the payload  32..36 crc32c of bytes 0..32
//! ```
//! All numbers are little-endian. Header and payload have a checksum each: the length is trusted only once the header is
//! known to be whole, and a payload that goes to several peers is summed once.

use std::io::{ErrorKind, Read};
use std::sync::Arc;

use thiserror::Error;

use crate::buffers::{Payload, Pool};

/// Changes whenever two binaries could misread each other, so also with [`CHUNK_BYTES`].
pub(crate) const PROTOCOL: u8 = 5;
const MAGIC: [u8; 4] = *b"HSQF";
pub(crate) const HEADER_BYTES: usize = 36;
/// No frame is larger; a length above it is refused before anything is allocated.
pub(crate) const FRAME_LIMIT_BYTES: usize = 64 << 20;
/// Messages are cut into frames of this size at most: large enough that headers and wake-ups cost nothing, small enough
/// that sending, receiving and adding overlap and that a frame stays in the cache from one to the next.
pub(crate) const CHUNK_BYTES: usize = 512 << 10;

/// What a frame is for. Control frames carry sequence 0; the others the number of their collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Handshake = 0,
    Heartbeat = 1,
    Goodbye = 2,
    Abort = 3,
    Agree = 16,
    ReduceScatter = 17,
    AllGather = 18,
    Broadcast = 19,
    BroadcastBytes = 20,
    Barrier = 21,
    AllReduce = 22,
    AllReduceLate = 23,
    MeasureLines = 24,
}

impl Kind {
    const ALL: [Kind; 13] = [
        Kind::Handshake,
        Kind::Heartbeat,
        Kind::Goodbye,
        Kind::Abort,
        Kind::Agree,
        Kind::ReduceScatter,
        Kind::AllGather,
        Kind::Broadcast,
        Kind::BroadcastBytes,
        Kind::Barrier,
        Kind::AllReduce,
        Kind::AllReduceLate,
        Kind::MeasureLines,
    ];

    /// The name that error messages use; for collectives that of the method on `Group`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Handshake => "handshake",
            Kind::Heartbeat => "heartbeat",
            Kind::Goodbye => "goodbye",
            Kind::Abort => "abort",
            Kind::Agree => "agree",
            Kind::ReduceScatter => "reduce_scatter",
            Kind::AllGather => "all_gather",
            Kind::Broadcast => "broadcast",
            Kind::BroadcastBytes => "broadcast_bytes",
            Kind::Barrier => "barrier",
            Kind::AllReduce => "all_reduce",
            Kind::AllReduceLate => "all_reduce_late",
            Kind::MeasureLines => "measure_lines",
        }
    }
}

/// Why bytes from a peer are not a frame for us.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    #[error("not the hetseq protocol (starts with {start:02x?}); another program uses this connection")]
    Magic { start: [u8; 4] },
    #[error("it speaks protocol version {theirs}, this binary {ours}: use the same hetseq binary everywhere")]
    Version { theirs: u8, ours: u8 },
    #[error("unknown frame kind {kind} or flags {flags:#04x}")]
    Kind { kind: u8, flags: u16 },
    #[error(
        "a frame of group generation {theirs:016x}, this group is {ours:016x}: it belongs to another or earlier run"
    )]
    Generation { theirs: u64, ours: u64 },
    #[error("a frame or message of {bytes} bytes, the limit is {limit_bytes}")]
    TooLarge { bytes: u64, limit_bytes: u64 },
    #[error("checksum {found:08x} instead of {expected:08x}: the data was damaged on the way")]
    Checksum { expected: u32, found: u32 },
    #[error("an empty frame that does not end its message")]
    Empty,
    #[error("a {kind} frame where none is allowed")]
    OutOfPlace { kind: &'static str },
}

/// One frame, as the rest of the crate handles it. A clone shares the payload.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    /// Whether this frame ends its message.
    pub(crate) last: bool,
    pub(crate) sequence: u64,
    pub(crate) payload: Arc<Payload>,
}

impl Frame {
    /// A control frame, which is a message of its own outside of the order of collectives.
    pub(crate) fn control(kind: Kind, payload: Vec<u8>) -> Frame {
        Frame { kind, last: true, sequence: 0, payload: Payload::new(payload) }
    }

    /// What it takes up on the way.
    pub(crate) fn bytes(&self) -> usize {
        HEADER_BYTES + self.payload.len()
    }

    /// The header to write before the payload.
    pub(crate) fn header(&self, generation: u64) -> [u8; HEADER_BYTES] {
        debug_assert!(self.payload.len() <= FRAME_LIMIT_BYTES);
        let header = Header {
            kind: self.kind,
            last: self.last,
            generation,
            sequence: self.sequence,
            length: self.payload.len() as u32,
            checksum: self.payload.checksum(),
        };
        header.to_bytes()
    }
}

/// What a reader is ready to take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accept {
    pub(crate) generation: u64,
    pub(crate) limit_bytes: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    kind: Kind,
    last: bool,
    generation: u64,
    sequence: u64,
    length: u32,
    /// Of the payload.
    checksum: u32,
}

impl Header {
    /// Decodes a header and decides whether its payload may be read at all.
    pub(crate) fn parse(bytes: &[u8; HEADER_BYTES], accept: Accept) -> Result<Header, FrameError> {
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let start = [bytes[0], bytes[1], bytes[2], bytes[3]];
        if start != MAGIC {
            return Err(FrameError::Magic { start });
        }
        if bytes[4] != PROTOCOL {
            return Err(FrameError::Version { theirs: bytes[4], ours: PROTOCOL });
        }
        let (expected, found) = (crc32c::crc32c(&bytes[..32]), u32_at(32));
        if expected != found {
            return Err(FrameError::Checksum { expected, found });
        }
        let flags = u16::from_le_bytes([bytes[6], bytes[7]]);
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u8 == bytes[5] && flags <= 1);
        let kind = kind.ok_or(FrameError::Kind { kind: bytes[5], flags })?;
        let generation = u64_at(8);
        if generation != accept.generation {
            return Err(FrameError::Generation { theirs: generation, ours: accept.generation });
        }
        let length = u32_at(24);
        let limit_bytes = accept.limit_bytes.min(FRAME_LIMIT_BYTES) as u64;
        if u64::from(length) > limit_bytes {
            return Err(FrameError::TooLarge { bytes: length.into(), limit_bytes });
        }
        let last = flags == 1;
        // It moves nothing, so a stream of them would keep a collective busy for ever.
        if length == 0 && !last {
            return Err(FrameError::Empty);
        }
        Ok(Header { kind, last, generation, sequence: u64_at(16), length, checksum: u32_at(28) })
    }

    /// Joins the header with its payload if that is the one it was made for.
    pub(crate) fn complete(self, payload: Arc<Payload>) -> Result<Frame, FrameError> {
        let expected = payload.checksum();
        if expected != self.checksum {
            return Err(FrameError::Checksum { expected, found: self.checksum });
        }
        Ok(Frame { kind: self.kind, last: self.last, sequence: self.sequence, payload })
    }

    fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4] = PROTOCOL;
        bytes[5] = self.kind as u8;
        bytes[6] = self.last.into();
        bytes[8..16].copy_from_slice(&self.generation.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.length.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.checksum.to_le_bytes());
        let whole = crc32c::crc32c(&bytes[..32]);
        bytes[32..36].copy_from_slice(&whole.to_le_bytes());
        bytes
    }
}

/// Why no frame could be read.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// The stream ended between two frames.
    Closed,
    /// The stream ended inside a frame.
    Cut,
    /// The rest has not come within the stream's time limit, which is none for a stream that does not block.
    NotYet,
    Io(std::io::Error),
    Frame(FrameError),
}

/// Reads exactly one frame, never a byte more: handshake and link share a stream.
pub(crate) fn read_frame(from: &mut impl Read, accept: Accept) -> Result<Frame, ReadError> {
    Partial::default().read(from, accept, &Pool::new(0))
}

/// A frame as far as it has come.
#[derive(Default)]
pub(crate) struct Partial {
    head: Vec<u8>,
    header: Option<Header>,
    payload: Vec<u8>,
    /// Bytes of the payload that have come; it may be longer, with arbitrary contents.
    filled: usize,
}

impl Partial {
    /// How many bytes have come.
    pub(crate) fn bytes(&self) -> usize {
        self.head.len() + self.filled
    }

    /// Reads on, into memory of `pool`, until the frame is whole. After [`ReadError::NotYet`] it can go on later.
    pub(crate) fn read(&mut self, from: &mut impl Read, accept: Accept, pool: &Arc<Pool>) -> Result<Frame, ReadError> {
        let header = match self.header.take() {
            Some(header) => header,
            None => {
                let header = Header::parse(&self.read_head(from)?, accept).map_err(ReadError::Frame)?;
                (self.payload, self.filled) = (pool.take(header.length as usize), 0);
                header
            }
        };
        let length = header.length as usize;
        while self.filled < length {
            // Grown as the bytes come: a header alone must not make us allocate what it promises.
            let next = length.min(self.filled + CHUNK_BYTES);
            if self.payload.len() < next {
                self.payload.resize(next, 0);
            }
            match read_some(from, &mut self.payload[self.filled..next]) {
                Ok(0) => return Err(ReadError::Cut),
                Ok(count) => self.filled += count,
                Err(error) => {
                    self.header = Some(header);
                    return Err(error);
                }
            }
        }
        let mut payload = std::mem::take(self).payload;
        payload.truncate(length);
        header.complete(Payload::pooled(payload, pool)).map_err(ReadError::Frame)
    }

    fn read_head(&mut self, from: &mut impl Read) -> Result<[u8; HEADER_BYTES], ReadError> {
        let mut head = [0; HEADER_BYTES];
        while self.head.len() < HEADER_BYTES {
            let have = self.head.len();
            match read_some(from, &mut head[have..])? {
                0 if have == 0 => return Err(ReadError::Closed),
                0 => return Err(ReadError::Cut),
                count => self.head.extend_from_slice(&head[have..have + count]),
            }
            // Another program's words may be shorter than a header: it is known by its first bytes, not by its silence.
            if let Some(start) = self.head.first_chunk::<4>().filter(|start| **start != MAGIC) {
                return Err(ReadError::Frame(FrameError::Magic { start: *start }));
            }
        }
        head.copy_from_slice(&self.head);
        Ok(head)
    }
}

fn read_some(from: &mut impl Read, into: &mut [u8]) -> Result<usize, ReadError> {
    loop {
        match from.read(into) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result.map_err(read_error),
        }
    }
}

fn read_error(error: std::io::Error) -> ReadError {
    match error.kind() {
        // From under an encrypted stream.
        ErrorKind::UnexpectedEof => ReadError::Cut,
        // Which of the two a socket's time limit gives depends on the platform.
        ErrorKind::WouldBlock | ErrorKind::TimedOut => ReadError::NotYet,
        _ => ReadError::Io(error),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ACCEPT: Accept = Accept { generation: 9, limit_bytes: FRAME_LIMIT_BYTES };

    fn bytes_of(frame: &Frame, generation: u64) -> Vec<u8> {
        let mut bytes = frame.header(generation).to_vec();
        bytes.extend_from_slice(&frame.payload);
        bytes
    }

    fn sample() -> Frame {
        Frame { kind: Kind::Agree, last: true, sequence: 3, payload: Payload::new(b"hello".to_vec()) }
    }

    fn seal(bytes: &mut [u8]) {
        let whole = crc32c::crc32c(&bytes[..32]);
        bytes[32..36].copy_from_slice(&whole.to_le_bytes());
    }

    fn refused(bytes: &[u8]) -> FrameError {
        match read_frame(&mut &bytes[..], ACCEPT) {
            Err(ReadError::Frame(error)) => error,
            other => panic!("expected a refused frame, got {other:?}"),
        }
    }

    #[test]
    fn each_kind_of_wrong_frame_is_named() {
        let good = bytes_of(&sample(), 9);
        // A header that is whole but says something else.
        let with = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            seal(&mut bytes);
            refused(&bytes)
        };
        assert!(matches!(with(0, b'G'), FrameError::Magic { .. }));
        assert_eq!(with(4, 99), FrameError::Version { theirs: 99, ours: PROTOCOL });
        assert!(matches!(with(5, 99), FrameError::Kind { kind: 99, .. }));
        assert!(matches!(with(7, 1), FrameError::Kind { .. }));
        assert_eq!(with(8, 8), FrameError::Generation { theirs: 8, ours: 9 });
        assert!(matches!(with(28, 4), FrameError::Checksum { .. }));
        let mut empty = bytes_of(&Frame { payload: Payload::new(Vec::new()), ..sample() }, 9);
        empty[6] = 0;
        seal(&mut empty);
        assert_eq!(refused(&empty), FrameError::Empty);
        let mut damaged = good.clone();
        damaged[16] ^= 1;
        assert!(matches!(refused(&damaged), FrameError::Checksum { .. }));
        let mut damaged = good.clone();
        damaged[HEADER_BYTES] = b'0';
        assert!(matches!(refused(&damaged), FrameError::Checksum { .. }));
    }

    /// Ranks compare the builds of their programs only after a handshake that both can read.
    #[test]
    fn another_handshake_has_another_protocol_number() {
        let messages = crate::rendezvous::fuzz::sample_messages().concat();
        let handshake = bytes_of(&Frame::control(Kind::Handshake, messages), 9);
        let found = (PROTOCOL, crc32c::crc32c(&handshake));
        assert_eq!(
            found,
            (5, 2_826_850_809),
            "the handshake has changed: raise PROTOCOL, and write down both numbers here"
        );
    }

    #[test]
    fn a_length_above_the_limit_is_refused_before_the_payload() {
        let mut bytes = bytes_of(&sample(), 9);
        bytes[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
        seal(&mut bytes);
        // Only the header is there: waiting for the payload would end in `Cut`.
        assert!(matches!(refused(&bytes[..HEADER_BYTES]), FrameError::TooLarge { .. }));
        let small = Accept { generation: 9, limit_bytes: 4 };
        let good = bytes_of(&sample(), 9);
        let read = read_frame(&mut &good[..], small);
        assert!(matches!(read, Err(ReadError::Frame(FrameError::TooLarge { bytes: 5, .. }))));
    }

    #[test]
    fn an_ended_stream_is_told_apart_from_a_cut_one() {
        assert!(matches!(read_frame(&mut &[][..], ACCEPT), Err(ReadError::Closed)));
        let good = bytes_of(&sample(), 9);
        for length in 1..good.len() {
            assert!(matches!(read_frame(&mut &good[..length], ACCEPT), Err(ReadError::Cut)));
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            kind in 0..Kind::ALL.len(), last: bool, sequence: u64, generation: u64,
            payload in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let last = last || payload.is_empty();
            let frame = Frame { kind: Kind::ALL[kind], last, sequence, payload: Payload::new(payload) };
            let mut bytes = bytes_of(&frame, generation);
            bytes.extend(b"the next frame");
            let mut rest = &bytes[..];
            let accept = Accept { generation, limit_bytes: FRAME_LIMIT_BYTES };
            prop_assert_eq!(read_frame(&mut rest, accept).unwrap(), frame);
            prop_assert_eq!(rest, b"the next frame");
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(read_frame(&mut &bytes[..], ACCEPT).is_err());
        }

        // Random bytes hardly ever pass the magic; damaged real frames reach the later checks.
        #[test]
        fn a_damaged_frame_is_refused(at in 0usize..41, flip in 1u8..=255) {
            let mut bytes = bytes_of(&sample(), 9);
            bytes[at] ^= flip;
            prop_assert!(read_frame(&mut &bytes[..], ACCEPT).is_err());
        }
    }
}
