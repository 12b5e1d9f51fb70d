//! The unit on the wire: a fixed header of 32 bytes, then the payload.
//!
//! Pure encoding and decoding plus reading one frame from any `Read`. It knows neither sockets nor
//! deadlines: `tcp.rs` uses it for links, `rendezvous/talk.rs` for the handshake.
//!
//! ```text
//! 0..4 magic  4 version  5 kind  6 flags (bit 0: last of its message)  7 zero
//! 8..16 generation  16..24 sequence  24..28 payload bytes  28..32 crc32c of bytes 0..28 and payload
//! ```
//! All numbers are little-endian.

use std::io::{ErrorKind, Read};

use thiserror::Error;

/// Changes whenever two binaries could misread each other, so also with [`CHUNK_BYTES`].
pub(crate) const PROTOCOL: u8 = 2;
const MAGIC: [u8; 4] = *b"HSQF";
pub(crate) const HEADER_BYTES: usize = 32;
/// No frame is larger; a length above it is refused before anything is allocated.
pub(crate) const FRAME_LIMIT_BYTES: usize = 64 << 20;
/// Messages are cut into frames of this size: large enough that headers and wake-ups cost nothing,
/// small enough that sending, receiving and adding overlap.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;

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
}

impl Kind {
    const ALL: [Kind; 10] = [
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
    #[error("a {kind} frame where none is allowed")]
    OutOfPlace { kind: &'static str },
}

/// One frame, as the rest of the crate handles it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    /// Whether this frame ends its message.
    pub(crate) last: bool,
    pub(crate) sequence: u64,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    /// A control frame, which is a message of its own outside of the order of collectives.
    pub(crate) fn control(kind: Kind, payload: Vec<u8>) -> Frame {
        Frame { kind, last: true, sequence: 0, payload }
    }

    /// The header to write before the payload.
    pub(crate) fn header(&self, generation: u64) -> [u8; HEADER_BYTES] {
        let mut header = Header {
            kind: self.kind,
            last: self.last,
            generation,
            sequence: self.sequence,
            length: self.payload.len() as u32,
            checksum: 0,
        };
        debug_assert!(self.payload.len() <= FRAME_LIMIT_BYTES);
        header.checksum = header.checksum_with(&self.payload);
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
        Ok(Header { kind, last, generation, sequence: u64_at(16), length, checksum: u32_at(28) })
    }

    /// Joins the header with its payload if the checksum over both is right.
    pub(crate) fn complete(self, payload: Vec<u8>) -> Result<Frame, FrameError> {
        let expected = self.checksum_with(&payload);
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
        bytes
    }

    /// Covers the header too, because a flipped bit in a sequence number is as bad as one in a value.
    fn checksum_with(&self, payload: &[u8]) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(&self.to_bytes()[..28]), payload)
    }
}

/// Why no frame could be read.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// The stream ended between two frames.
    Closed,
    /// The stream ended inside a frame.
    Cut,
    /// The reader's time limit passed.
    TimedOut,
    Io(std::io::Error),
    Frame(FrameError),
}

/// Reads exactly one frame, never a byte more: handshake and link share a stream.
pub(crate) fn read_frame(from: &mut impl Read, accept: Accept) -> Result<Frame, ReadError> {
    read_frame_into(from, accept, |_| Vec::new())
}

/// As [`read_frame`], into the buffer that `buffer` finds for a payload of the given size; what is in
/// it does not matter.
pub(crate) fn read_frame_into(
    from: &mut impl Read,
    accept: Accept,
    buffer: impl FnOnce(usize) -> Vec<u8>,
) -> Result<Frame, ReadError> {
    let mut head = [0; HEADER_BYTES];
    let first = loop {
        match from.read(&mut head) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(read_error(error)),
            Ok(0) => return Err(ReadError::Closed),
            Ok(count) => break count,
        }
    };
    from.read_exact(&mut head[first..]).map_err(read_error)?;
    let header = Header::parse(&head, accept).map_err(ReadError::Frame)?;
    let length = header.length as usize;
    let mut payload = buffer(length);
    payload.truncate(length);
    let mut have = 0;
    while have < length {
        // Grown as the bytes come: a header alone must not make us allocate what it promises.
        let next = length.min(have + CHUNK_BYTES);
        if payload.len() < next {
            payload.resize(next, 0);
        }
        from.read_exact(&mut payload[have..next]).map_err(read_error)?;
        have = next;
    }
    header.complete(payload).map_err(ReadError::Frame)
}

fn read_error(error: std::io::Error) -> ReadError {
    match error.kind() {
        ErrorKind::UnexpectedEof => ReadError::Cut,
        // Which of the two a socket's time limit gives depends on the platform.
        ErrorKind::WouldBlock | ErrorKind::TimedOut => ReadError::TimedOut,
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
        bytes.extend(&frame.payload);
        bytes
    }

    fn sample() -> Frame {
        Frame { kind: Kind::Agree, last: true, sequence: 3, payload: b"hello".to_vec() }
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
        let with = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            refused(&bytes)
        };
        assert!(matches!(with(0, b'G'), FrameError::Magic { .. }));
        assert_eq!(with(4, 99), FrameError::Version { theirs: 99, ours: PROTOCOL });
        assert!(matches!(with(5, 99), FrameError::Kind { kind: 99, .. }));
        assert!(matches!(with(7, 1), FrameError::Kind { .. }));
        assert_eq!(with(8, 8), FrameError::Generation { theirs: 8, ours: 9 });
        assert!(matches!(with(16, 4), FrameError::Checksum { .. }));
        assert!(matches!(with(36, b'0'), FrameError::Checksum { .. }));
    }

    #[test]
    fn a_length_above_the_limit_is_refused_before_the_payload() {
        let mut bytes = bytes_of(&sample(), 9);
        bytes[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
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
            let frame = Frame { kind: Kind::ALL[kind], last, sequence, payload };
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
        fn a_damaged_frame_is_refused(at in 0usize..37, flip in 1u8..=255) {
            let mut bytes = bytes_of(&sample(), 9);
            bytes[at] ^= flip;
            prop_assert!(read_frame(&mut &bytes[..], ACCEPT).is_err());
        }
    }
}
