//! One conversation during the rendezvous: messages over a socket, with a deadline for each exchange.
//!
//! The messages themselves and how they travel, not who says what when (`greeting.rs`, `host.rs`,
//! `guest.rs`, `pairing.rs`). When the talk is over, its socket becomes a link.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::refusal::Refusal;
use crate::connection::Connection;
use crate::error::{CommError, shown, shown_line};
use crate::frame::{Accept, Frame, FrameError, Kind, ReadError, read_frame};
use crate::identity::Identity;
use crate::pace::Pace;
use crate::seal::{Opened, Seal};
use crate::secret::{Nonce, Proof, SecretKind};
use crate::socket;
use crate::tcp::REASON_LIMIT_BYTES;

/// Before they are known, strangers may send this much and no more: greetings and refusals are shorter.
const STRANGER_LIMIT_BYTES: usize = 2048;
/// The largest message: an identity with many keys, a roster of many ranks.
const MESSAGE_LIMIT_BYTES: usize = 1 << 20;
/// Names are for messages; a longer one is cut.
pub(super) const NAME_LIMIT_BYTES: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Message {
    Greeting(Greeting),
    Proof(Proof),
    /// Instead of proofs, a step of the handshake after which everything is encrypted.
    Seal(Vec<u8>),
    Hello(Hello),
    /// All have come: connect to each other.
    Roster(Roster),
    /// This connection between two ranks is accepted.
    Accepted,
    /// This rank is connected to all others, or why not.
    Ready,
    Failed(String),
    /// All are ready.
    Start,
    Refused(Refusal),
}

/// The first message in both directions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Greeting {
    /// `None` for one that takes whatever number is left.
    pub(super) rank: Option<u64>,
    /// Of the group; while there is none yet, that of the meeting, which is 0 at a fixed address.
    pub(super) generation: u64,
    pub(super) nonce: Nonce,
    pub(super) secret: SecretKind,
    pub(super) encrypt: bool,
}

/// Who a rank is and what it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) rank: Option<u64>,
    pub(super) world: u64,
    pub(super) name: String,
    /// Where higher ranks reach it; the highest has no need.
    pub(super) listener: Option<SocketAddr>,
    pub(super) pace: Pace,
    pub(super) identity: Identity,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Roster {
    pub(super) generation: u64,
    /// The rank of whoever gets this.
    pub(super) you: u64,
    pub(super) members: Vec<Member>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) listener: Option<SocketAddr>,
    pub(super) pace: Pace,
}

impl Roster {
    /// Of all ranks together, `mine` among them.
    pub(super) fn pace(&self, mine: Pace) -> Pace {
        self.members.iter().fold(mine, |pace, member| pace.and(member.pace))
    }
}

impl Message {
    fn name(&self) -> &'static str {
        match self {
            Message::Greeting(_) => "greeting",
            Message::Proof(_) => "proof",
            Message::Seal(_) => "seal",
            Message::Hello(_) => "hello",
            Message::Roster(_) => "roster",
            Message::Accepted => "accepted",
            Message::Ready => "ready",
            Message::Failed(_) => "failed",
            Message::Start => "start",
            Message::Refused(_) => "refused",
        }
    }
}

/// Why a talk ended early.
#[derive(Debug, Error)]
pub(super) enum TalkError {
    #[error("it closed the connection")]
    Closed,
    #[error("it did not answer in time")]
    TimedOut,
    #[error("{0}")]
    Io(std::io::Error),
    #[error("{0}")]
    Frame(FrameError),
    #[error("it sent a {got} where a {expected} is due; use the same hetseq binary on all ranks")]
    Unexpected { expected: &'static str, got: &'static str },
    #[error("there were too many connections at once")]
    Crowded,
    #[error("it had not said who it is when the door closed")]
    Closing,
    #[error("{}", .0.reason())]
    RefusedUs(Refusal),
    #[error("{}", .0.reason())]
    WeRefused(Refusal),
}

impl TalkError {
    /// In a word or two, without anything that a stranger can vary.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            TalkError::Closed => "closed without a word",
            TalkError::TimedOut => "silent",
            TalkError::Io(_) => "broken",
            TalkError::Frame(FrameError::Magic { .. }) => "not the hetseq protocol",
            TalkError::Frame(FrameError::TooLarge { .. }) => "too large a message",
            TalkError::Frame(_) => "a damaged message",
            TalkError::Unexpected { .. } => "an unexpected message",
            TalkError::Crowded => "too many at once",
            TalkError::Closing => "silent until the end",
            TalkError::RefusedUs(refusal) | TalkError::WeRefused(refusal) => refusal.kind(),
        }
    }

    /// As this rank's error about `with`.
    pub(super) fn into_error(self, with: &str) -> CommError {
        match self {
            TalkError::RefusedUs(refusal) | TalkError::WeRefused(refusal) => refusal.into_error(with),
            other => CommError::Rendezvous { with: with.to_owned(), detail: other.to_string() },
        }
    }
}

pub(super) struct Talk {
    stream: TcpStream,
    seal: Option<Seal>,
    peer: SocketAddr,
    deadline: Instant,
    limit_bytes: usize,
}

impl Talk {
    pub(super) fn new(stream: TcpStream, limit: Duration) -> Result<Talk, TalkError> {
        // A listener that is polled may hand on its mode, depending on the system.
        stream.set_nonblocking(false).map_err(TalkError::Io)?;
        stream.set_nodelay(true).map_err(TalkError::Io)?;
        // A rank waits here for minutes; if its machine loses power, its seat must be free when it comes back.
        socket::watch(&stream, true).map_err(TalkError::Io)?;
        let peer = canonical(stream.peer_addr().map_err(TalkError::Io)?);
        Ok(Talk { stream, seal: None, peer, deadline: Instant::now() + limit, limit_bytes: STRANGER_LIMIT_BYTES })
    }

    /// The peer has proven to be one of us, and may send messages of any size that makes sense.
    pub(super) fn trust(&mut self) {
        self.limit_bytes = MESSAGE_LIMIT_BYTES;
    }

    /// Everything from now on must be done within `limit`.
    pub(super) fn allow(&mut self, limit: Duration) {
        self.deadline = Instant::now() + limit;
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The address of this end, as the peer can reach it.
    pub(super) fn local(&self) -> Result<SocketAddr, TalkError> {
        self.stream.local_addr().map(canonical).map_err(TalkError::Io)
    }

    /// From now on everything is encrypted, in both directions.
    pub(super) fn seal(&mut self, seal: Seal) {
        self.seal = Some(seal);
    }

    pub(super) fn into_connection(self) -> Connection {
        // If it stays on, a peer may be given up sooner than `silence` says; no reason to fail.
        _ = socket::watch(&self.stream, false);
        Connection { stream: self.stream, seal: self.seal }
    }

    pub(super) fn send(&mut self, message: &Message) -> Result<(), TalkError> {
        let invalid = |error| TalkError::Io(std::io::Error::other(format!("{error}")));
        let payload = postcard::to_stdvec(message).map_err(invalid)?;
        if payload.len() > MESSAGE_LIMIT_BYTES {
            let (bytes, limit_bytes) = (payload.len() as u64, MESSAGE_LIMIT_BYTES as u64);
            return Err(TalkError::Frame(FrameError::TooLarge { bytes, limit_bytes }));
        }
        self.write(&Frame::control(Kind::Handshake, payload), 0)
    }

    /// Stops one that has the start already: from then on it understands only frames of its group.
    pub(super) fn abort(mut self, generation: u64, reason: &str) {
        let reason = shown(reason, REASON_LIMIT_BYTES).into_bytes();
        if self.write(&Frame::control(Kind::Abort, reason), generation).is_ok() {
            self.read_away();
        }
    }

    fn write(&mut self, frame: &Frame, generation: u64) -> Result<(), TalkError> {
        let bytes = [&frame.header(generation)[..], &frame.payload].concat();
        let left = self.left()?;
        self.stream.set_write_timeout(Some(left)).map_err(TalkError::Io)?;
        let sent = match &mut self.seal {
            Some(seal) => seal.sealer.write(&mut self.stream, &bytes),
            None => self.stream.write_all(&bytes),
        };
        sent.map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => TalkError::TimedOut,
            _ => TalkError::Io(error),
        })
    }

    /// The next message; a refusal from the peer is an error.
    pub(super) fn receive(&mut self) -> Result<Message, TalkError> {
        self.left()?;
        let accept = Accept { generation: 0, limit_bytes: self.limit_bytes };
        let frame = read_frame(&mut Incoming(self), accept).map_err(|error| match error {
            ReadError::Closed | ReadError::Cut => TalkError::Closed,
            ReadError::NotYet => TalkError::TimedOut,
            ReadError::Io(error) if error.kind() == std::io::ErrorKind::ConnectionReset => TalkError::Closed,
            ReadError::Io(error) => TalkError::Io(error),
            ReadError::Frame(fault) => TalkError::Frame(fault),
        })?;
        if frame.kind != Kind::Handshake {
            let kind = frame.kind.name();
            return Err(TalkError::Frame(FrameError::OutOfPlace { kind }));
        }
        decode(&frame.payload)
    }

    /// Says no and why, and gives the peer a moment to read it.
    pub(super) fn refuse(mut self, refusal: Refusal) -> TalkError {
        if self.send(&Message::Refused(refusal.clone())).is_ok() {
            self.read_away();
        }
        TalkError::WeRefused(refusal)
    }

    /// Before a close: with bytes unread it would send a reset that can overtake the last word, so they are read away
    /// until the peer closes.
    fn read_away(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
        self.allow(Duration::from_millis(200));
        let mut scrap = [0; 4096];
        let mut from = UntilDeadline { stream: &self.stream, deadline: self.deadline };
        while matches!(from.read(&mut scrap), Ok(1..)) {}
    }

    /// Whether something can be received without waiting, be it only that the peer is gone.
    pub(super) fn has_news(&self) -> bool {
        !matches!(self.peek(), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    }

    /// Whether the peer has closed the connection.
    pub(super) fn is_gone(&self) -> bool {
        match self.peek() {
            Ok(count) => count == 0,
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }

    /// Whether the time allowed for the talk is over.
    pub(super) fn is_late(&self) -> bool {
        self.left().is_err()
    }

    fn peek(&self) -> std::io::Result<usize> {
        self.stream.set_nonblocking(true)?;
        let seen = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false)?;
        seen
    }

    fn left(&self) -> Result<Duration, TalkError> {
        time_left(self.deadline).ok_or(TalkError::TimedOut)
    }
}

/// A message from its bytes; a refusal is an error.
pub(super) fn decode(payload: &[u8]) -> Result<Message, TalkError> {
    match postcard::from_bytes(payload) {
        Ok(Message::Refused(refusal)) => Err(TalkError::RefusedUs(refusal)),
        Ok(message) => Ok(message),
        Err(_) => Err(TalkError::Unexpected { expected: "message", got: "message of another kind" }),
    }
}

/// Reads what the peer sends, opened if it is sealed.
struct Incoming<'a>(&'a mut Talk);

impl Read for Incoming<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let Talk { stream, seal, deadline, .. } = &mut *self.0;
        let opener = seal.as_mut().map(|seal| &mut seal.opener);
        Opened { from: UntilDeadline { stream, deadline: *deadline }, opener }.read(into)
    }
}

/// Reads from the socket; a peer that sends one byte at a time does not win time by it.
struct UntilDeadline<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl Read for UntilDeadline<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let left = time_left(self.deadline).ok_or(std::io::ErrorKind::TimedOut)?;
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(into)
    }
}

/// `None` when it is over; never zero, which would mean "for ever" to a socket.
fn time_left(deadline: Instant) -> Option<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    (!left.is_zero()).then(|| left.max(Duration::from_millis(1)))
}

/// An unexpected message.
pub(super) fn unexpected(expected: &'static str, got: &Message) -> TalkError {
    TalkError::Unexpected { expected, got: got.name() }
}

/// An IPv4 address that came through an IPv6 socket, as plain IPv4.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    let ip = address.ip().to_canonical();
    // Keeps the scope of a link-local IPv6 address.
    if ip == address.ip() { address } else { SocketAddr::new(ip, address.port()) }
}

/// A name from a peer, fit for messages.
pub(super) fn shown_name(name: &str) -> String {
    shown_line(name, NAME_LIMIT_BYTES)
}
