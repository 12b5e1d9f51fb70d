//! The unit on the wire: a fixed header of 36 bytes, then the payload.
//!
//! Pure encoding and decoding, plus reading one frame from any `Read`. It knows neither sockets nor
//! deadlines: `stream/` uses it for links, `rendezvous/handshake.rs` for the handshake.
//!
//! ```text
//! 0..4 magic   4 version   5 kind   6 flags (bit 0: last frame of its message)   7 zero
//! 8..16 generation   16..24 sequence   24..28 payload bytes
//! 28..32 crc32c of the payload   32..36 crc32c of bytes 0..32
//! ```
//!
//! All numbers are little-endian. Header and payload have a checksum each: the length is trusted
//! only after the header is verified, and a payload that goes to several peers is summed only once.
//! The checksums find damage, not attacks: with keyed BLAKE3 instead, sums of 1 to 100 MB between 2
//! or 4 ranks of one machine took 1.1 to 1.5 times as long. Encryption authenticates every byte.

use std::io::{ErrorKind, Read};
use std::sync::Arc;

use thiserror::Error;

use crate::buffers::{Payload, Pool};

/// Version of the protocol. It changes whenever two binaries could misread each other, so also with
/// [`CHUNK_BYTES`].
pub(crate) const PROTOCOL: u8 = 9;
const MAGIC: [u8; 4] = *b"HSQF";
pub(crate) const HEADER_BYTES: usize = 36;
/// The largest payload; a length above it is rejected before anything is allocated.
pub(crate) const FRAME_LIMIT_BYTES: usize = 64 << 20;
/// Longer reasons in an abort are cut.
pub(crate) const REASON_LIMIT_BYTES: usize = 4096;
/// The largest message about the next generation: enough for the sets of 30,000 ranks.
pub(crate) const REGROUP_LIMIT_BYTES: usize = 256 << 10;
/// Messages are split into frames of at most this size. It is large enough that headers and
/// wake-ups cost nothing, and small enough that sending, receiving and adding overlap and a frame
/// stays in the cache in between.
pub(crate) const CHUNK_BYTES: usize = 512 << 10;

/// The kind of a frame. Control frames carry sequence 0; the others carry the number of their
/// collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FrameKind {
    Handshake = 0,
    Heartbeat = 1,
    Goodbye = 2,
    Abort = 3,
    /// This rank failed, and the others may continue without it.
    Failed = 4,
    /// A message about the membership of the next generation (`regroup/`).
    Regroup = 5,
    AllGatherBytes = 16,
    Broadcast = 19,
    BroadcastBytes = 20,
    Barrier = 21,
    AllReduce = 22,
    MeasureLinks = 24,
}

impl FrameKind {
    const ALL: [FrameKind; 12] = [
        FrameKind::Handshake,
        FrameKind::Heartbeat,
        FrameKind::Goodbye,
        FrameKind::Abort,
        FrameKind::Failed,
        FrameKind::Regroup,
        FrameKind::AllGatherBytes,
        FrameKind::Broadcast,
        FrameKind::BroadcastBytes,
        FrameKind::Barrier,
        FrameKind::AllReduce,
        FrameKind::MeasureLinks,
    ];

    /// Returns the name for error messages; for collectives that of the method on `Group`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            FrameKind::Handshake => "handshake",
            FrameKind::Heartbeat => "heartbeat",
            FrameKind::Goodbye => "goodbye",
            FrameKind::Abort => "abort",
            FrameKind::Failed => "failed",
            FrameKind::Regroup => "regroup",
            FrameKind::AllGatherBytes => "all_gather_bytes",
            FrameKind::Broadcast => "broadcast",
            FrameKind::BroadcastBytes => "broadcast_bytes",
            FrameKind::Barrier => "barrier",
            FrameKind::AllReduce => "all_reduce",
            FrameKind::MeasureLinks => "measure_links",
        }
    }
}

/// The reason why bytes from a peer are not a valid frame of this group.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    #[error("not the hetseq protocol (starts with {start:02x?}): another program uses this connection")]
    Magic { start: [u8; 4] },
    #[error("the peer uses protocol version {theirs}, this binary {ours}: use the same hetseq binary everywhere")]
    Version { theirs: u8, ours: u8 },
    #[error("unknown frame kind {kind} or flags {flags:#04x}")]
    UnknownKind { kind: u8, flags: u16 },
    #[error(
        "a frame of group generation {theirs:016x}, but this group is {ours:016x}: it belongs to another or earlier run"
    )]
    Generation { theirs: u64, ours: u64 },
    #[error("a frame or message of {bytes} bytes, the limit is {limit_bytes}")]
    TooLarge { bytes: u64, limit_bytes: u64 },
    #[error("a message of {bytes} bytes, which is not the length in its header")]
    WrongLength { bytes: u64 },
    #[error("checksum {found:08x} instead of {expected:08x}: the data was damaged in transit")]
    Checksum { expected: u32, found: u32 },
    #[error("an empty frame that does not end its message")]
    Empty,
    #[error("a {kind} frame where none is allowed")]
    OutOfPlace { kind: &'static str },
}

/// One frame. A clone shares the payload.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Frame {
    pub(crate) kind: FrameKind,
    /// Whether this is the last frame of its message.
    pub(crate) last: bool,
    pub(crate) sequence: u64,
    pub(crate) payload: Arc<Payload>,
}

impl Frame {
    /// A control frame: a message of one frame, outside of the sequence of collectives.
    pub(crate) fn control(kind: FrameKind, payload: Vec<u8>) -> Frame {
        Frame { kind, last: true, sequence: 0, payload: Payload::new(payload) }
    }

    /// Returns its size on the wire.
    pub(crate) fn bytes(&self) -> usize {
        HEADER_BYTES + self.payload.len()
    }

    /// Returns the header to write before the payload.
    pub(crate) fn header(&self, generation: u64) -> [u8; HEADER_BYTES] {
        debug_assert!(self.payload.len() <= FRAME_LIMIT_BYTES);
        let header = FrameHeader {
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

/// What a reader accepts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accept {
    /// Frames of this generation are accepted. Those of earlier generations of the same group, from
    /// `first_generation` on, are valid but stale.
    pub(crate) generation: u64,
    pub(crate) first_generation: u64,
    pub(crate) limit_bytes: usize,
}

impl Accept {
    /// Accepts one generation only.
    pub(crate) const fn only(generation: u64, limit_bytes: usize) -> Accept {
        Accept { generation, first_generation: generation, limit_bytes }
    }
}

/// A decoded header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    kind: FrameKind,
    last: bool,
    generation: u64,
    sequence: u64,
    length: u32,
    /// Of the payload.
    checksum: u32,
}

impl FrameHeader {
    /// Decodes a header and checks whether its payload may be read.
    pub(crate) fn parse(bytes: &[u8; HEADER_BYTES], accept: Accept) -> Result<FrameHeader, FrameError> {
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
        let kind = FrameKind::ALL.into_iter().find(|kind| *kind as u8 == bytes[5] && flags <= 1);
        let kind = kind.ok_or(FrameError::UnknownKind { kind: bytes[5], flags })?;
        let generation = u64_at(8);
        if !(accept.first_generation..=accept.generation).contains(&generation) {
            return Err(FrameError::Generation { theirs: generation, ours: accept.generation });
        }
        let length = u32_at(24);
        let limit_bytes = accept.limit_bytes.min(FRAME_LIMIT_BYTES) as u64;
        if u64::from(length) > limit_bytes {
            return Err(FrameError::TooLarge { bytes: length.into(), limit_bytes });
        }
        let last = flags == 1;
        // It carries nothing, so a stream of them would keep a collective busy without end.
        if length == 0 && !last {
            return Err(FrameError::Empty);
        }
        Ok(FrameHeader { kind, last, generation, sequence: u64_at(16), length, checksum: u32_at(28) })
    }

    /// Combines the header with its payload, after verifying the payload checksum.
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
        let checksum = crc32c::crc32c(&bytes[..32]);
        bytes[32..36].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }
}

/// The reason why no frame could be read.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// The stream ended between two frames.
    Closed,
    /// The stream ended inside a frame.
    Cut,
    /// The rest did not arrive within the stream's timeout, which is zero for a non-blocking
    /// stream.
    NotYet,
    /// A frame of an earlier generation of this group.
    Stale(Frame),
    Io(std::io::Error),
    Frame(FrameError),
}

/// Reads exactly one frame and not a byte more, because handshake and link share a stream.
pub(crate) fn read_frame(from: &mut impl Read, accept: Accept) -> Result<Frame, ReadError> {
    Partial::default().read(from, accept, &Pool::new(0))
}

/// A frame that is partly received.
#[derive(Default)]
pub(crate) struct Partial {
    head: Vec<u8>,
    header: Option<FrameHeader>,
    payload: Vec<u8>,
    /// Payload bytes received; `payload` may be longer, with arbitrary contents after them.
    filled: usize,
}

impl Partial {
    /// Returns the number of bytes received.
    pub(crate) fn bytes(&self) -> usize {
        self.head.len() + self.filled
    }

    /// Continues reading, into memory of `pool`, until the frame is complete. After
    /// [`ReadError::NotYet`] it can be called again.
    pub(crate) fn read(&mut self, from: &mut impl Read, accept: Accept, pool: &Arc<Pool>) -> Result<Frame, ReadError> {
        let header = match self.header.take() {
            Some(header) => header,
            None => {
                let header = FrameHeader::parse(&self.read_head(from)?, accept).map_err(ReadError::Frame)?;
                (self.payload, self.filled) = (pool.take(header.length as usize), 0);
                header
            }
        };
        let length = header.length as usize;
        while self.filled < length {
            // Grows as bytes arrive: a header alone must not make us allocate the length it claims.
            if self.filled == self.payload.len() {
                self.payload.resize(length.min(self.filled + CHUNK_BYTES), 0);
            }
            let until = length.min(self.payload.len());
            match read_some(from, &mut self.payload[self.filled..until]) {
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
        // Compared again: the generation may have changed since the header arrived.
        let is_stale = header.generation != accept.generation;
        let frame = header.complete(Payload::pooled(payload, pool)).map_err(ReadError::Frame)?;
        if is_stale { Err(ReadError::Stale(frame)) } else { Ok(frame) }
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
            // Another program may send less than a header and then wait, so check the first bytes
            // early instead of waiting for a timeout.
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
        // From an encrypted stream.
        ErrorKind::UnexpectedEof => ReadError::Cut,
        // The platform decides which of the two a socket timeout returns.
        ErrorKind::WouldBlock | ErrorKind::TimedOut => ReadError::NotYet,
        _ => ReadError::Io(error),
    }
}

#[cfg(test)]
mod tests;
