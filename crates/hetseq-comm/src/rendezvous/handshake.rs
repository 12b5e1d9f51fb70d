//! The messages of the rendezvous, and a connection that carries them with a deadline for each
//! exchange.
//!
//! The order of the messages is in `auth.rs`, `rank0.rs`, `peer.rs` and `pairing.rs`. After the
//! handshake the socket becomes a link.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::card::MemberCard;
use super::refusal::Refusal;
use crate::connection::Connection;
use crate::encryption::{DecryptedReader, Encryption};
use crate::error::{CommError, shown, shown_line};
use crate::frame::{Accept, Frame, FrameError, FrameKind, REASON_LIMIT_BYTES, ReadError, read_frame};
use crate::heartbeat_timing::HeartbeatTiming;
use crate::identity::Identity;
use crate::secret::{Nonce, Proof, SecretKind};
use crate::socket;

/// The largest message from a peer that is not authenticated: auth requests and refusals are
/// shorter.
const UNAUTHENTICATED_LIMIT_BYTES: usize = 2048;
/// The largest message: an identity with many keys, or a list of many members.
const MESSAGE_LIMIT_BYTES: usize = 1 << 20;
/// The longest name in messages; a longer one is cut.
pub(super) const NAME_LIMIT_BYTES: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Message {
    AuthRequest(AuthRequest),
    Proof(Proof),
    /// Sent instead of a proof: a step of the key exchange after which everything is encrypted.
    Encryption(Vec<u8>),
    Hello(Hello),
    /// All ranks have joined: connect to each other.
    MemberList(MemberList),
    /// This connection between two ranks is accepted.
    Accepted,
    /// This rank is connected to all others.
    Ready,
    /// This rank cannot connect to all others, and why.
    Failed(String),
    /// All ranks are ready.
    Start,
    Refused(Refusal),
    /// Why rank 0 still waits for a rank: a process with that rank was refused.
    Waiting(String),
    /// A newcomer asks whether it fits the group that trains.
    Knock(Hello),
    /// A newcomer that is ready to compute wants to be connected to a member.
    Enter(Box<Enter>),
    /// Answers `Hello`, `Knock` and `Enter`: the group that trains.
    Running(Running),
    /// The newcomer is connected to all members.
    Prepared {
        sees_directory: bool,
    },
    /// The newcomer is a member. Each of the others sends it.
    Welcome(Welcome),
}

/// The first message of a process to rank 0, or to a member of a group that trains.
#[derive(Debug)]
pub(super) enum Request {
    Hello(Hello),
    Knock(Hello),
    Enter(Box<Enter>),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Enter {
    pub(super) hello: Hello,
    /// Of the newcomer, with its door.
    pub(super) card: MemberCard,
}

/// The members of a group, as one of them knows them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Running {
    /// The generation in which the group started.
    pub(super) group: u64,
    /// The rank of the sender.
    pub(super) rank: u64,
    /// In rank order.
    pub(super) members: Vec<MemberCard>,
    /// The name and the content of a file in the run directory, if that decides who continues.
    pub(super) seen_file: Option<(String, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Welcome {
    pub(crate) generation: u64,
    pub(crate) first_generation: u64,
    /// In rank order; the receiver is the last.
    pub(crate) members: Vec<MemberCard>,
    pub(crate) timing: HeartbeatTiming,
    /// The run directory decides who continues.
    pub(crate) has_directory: bool,
}

/// The first message in both directions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AuthRequest {
    /// `None` if rank 0 assigns the rank.
    pub(super) rank: Option<u64>,
    /// Of the group. Before there is one: the id in the leader's notice, or 0 at a fixed address.
    pub(super) generation: u64,
    pub(super) nonce: Nonce,
    pub(super) secret: SecretKind,
    pub(super) encrypt: bool,
}

/// A rank's description of itself and of what it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) rank: Option<u64>,
    pub(super) world: u64,
    pub(super) name: String,
    /// Where higher ranks reach this one; the highest rank needs none.
    pub(super) listener: Option<SocketAddr>,
    pub(super) timing: HeartbeatTiming,
    pub(super) identity: Identity,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MemberList {
    pub(super) generation: u64,
    /// The rank of the receiver of this message.
    pub(super) your_rank: u64,
    pub(super) members: Vec<Member>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) listener: Option<SocketAddr>,
    pub(super) timing: HeartbeatTiming,
}

impl MemberList {
    /// The timing combined over all ranks and `local`.
    pub(super) fn timing(&self, local: HeartbeatTiming) -> HeartbeatTiming {
        self.members.iter().fold(local, |timing, member| timing.combine(member.timing))
    }
}

impl Message {
    fn name(&self) -> &'static str {
        match self {
            Message::AuthRequest(_) => "auth request",
            Message::Proof(_) => "proof",
            Message::Encryption(_) => "encryption",
            Message::Hello(_) => "hello",
            Message::MemberList(_) => "member list",
            Message::Accepted => "accepted",
            Message::Ready => "ready",
            Message::Failed(_) => "failed",
            Message::Start => "start",
            Message::Refused(_) => "refused",
            Message::Waiting(_) => "waiting",
            Message::Knock(_) => "knock",
            Message::Enter(_) => "enter",
            Message::Running(_) => "running",
            Message::Prepared { .. } => "prepared",
            Message::Welcome(_) => "welcome",
        }
    }
}

/// Why a handshake failed. In the texts, "it" is the peer.
#[derive(Debug, Error)]
pub(super) enum HandshakeError {
    #[error("it closed the connection")]
    Closed,
    #[error("it did not answer in time")]
    TimedOut,
    #[error("{0}")]
    Io(std::io::Error),
    #[error("{0}")]
    Frame(FrameError),
    #[error("it sent `{got}` instead of `{expected}`; use the same hetseq binary on all ranks")]
    Unexpected { expected: &'static str, got: &'static str },
    #[error("there were too many connections at once")]
    TooManyConnections,
    #[error("its handshake was not complete when this rank stopped accepting connections")]
    Closing,
    #[error("{}", .0.reason())]
    RefusedUs(Refusal),
    #[error("{}", .0.reason())]
    WeRefused(Refusal),
}

impl HandshakeError {
    /// A short name for the reject log, without anything that an unauthenticated peer can vary.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            HandshakeError::Closed => "connection closed",
            HandshakeError::TimedOut => "silent",
            HandshakeError::Io(_) => "connection error",
            HandshakeError::Frame(FrameError::Magic { .. }) => "not the hetseq protocol",
            HandshakeError::Frame(FrameError::TooLarge { .. }) => "message too large",
            HandshakeError::Frame(_) => "damaged message",
            HandshakeError::Unexpected { .. } => "unexpected message",
            HandshakeError::TooManyConnections => "too many connections",
            HandshakeError::Closing => "incomplete handshake",
            HandshakeError::RefusedUs(refusal) | HandshakeError::WeRefused(refusal) => refusal.kind(),
        }
    }

    /// Converts into this rank's error; `with` names the peer.
    pub(super) fn into_error(self, with: &str) -> CommError {
        match self {
            HandshakeError::RefusedUs(refusal) | HandshakeError::WeRefused(refusal) => refusal.into_error(with),
            other => CommError::Rendezvous { with: with.to_owned(), detail: other.to_string() },
        }
    }
}

/// A connection during the rendezvous.
pub(super) struct Handshake {
    stream: TcpStream,
    encryption: Option<Encryption>,
    peer: SocketAddr,
    deadline: Instant,
    limit_bytes: usize,
}

impl Handshake {
    pub(super) fn new(stream: TcpStream, timeout: Duration) -> Result<Handshake, HandshakeError> {
        // On some systems an accepted socket inherits the listener's non-blocking mode.
        stream.set_nonblocking(false).map_err(HandshakeError::Io)?;
        stream.set_nodelay(true).map_err(HandshakeError::Io)?;
        // A rank waits here for minutes. If its machine loses power, its rank must be free when it
        // comes back.
        socket::set_keepalive(&stream, true).map_err(HandshakeError::Io)?;
        let peer = canonical(stream.peer_addr().map_err(HandshakeError::Io)?);
        Ok(Handshake {
            stream,
            encryption: None,
            peer,
            deadline: Instant::now() + timeout,
            limit_bytes: UNAUTHENTICATED_LIMIT_BYTES,
        })
    }

    /// Allows large messages from now on. Called when the authentication has succeeded.
    pub(super) fn mark_authenticated(&mut self) {
        self.limit_bytes = MESSAGE_LIMIT_BYTES;
    }

    /// Sets the deadline for everything that follows to `timeout` from now.
    pub(super) fn set_timeout(&mut self, timeout: Duration) {
        self.deadline = Instant::now() + timeout;
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The address of this side, as the peer can reach it.
    pub(super) fn local(&self) -> Result<SocketAddr, HandshakeError> {
        self.stream.local_addr().map(canonical).map_err(HandshakeError::Io)
    }

    /// Encrypts everything that follows, in both directions.
    pub(super) fn enable_encryption(&mut self, encryption: Encryption) {
        self.encryption = Some(encryption);
    }

    pub(super) fn into_connection(self) -> Connection {
        // If keepalive stays on, a peer may be declared dead sooner than `silence` says. That is no
        // reason to fail.
        _ = socket::set_keepalive(&self.stream, false);
        Connection { socket: self.stream.into(), encryption: self.encryption }
    }

    pub(super) fn send(&mut self, message: &Message) -> Result<(), HandshakeError> {
        let invalid = |error| HandshakeError::Io(std::io::Error::other(format!("{error}")));
        let payload = postcard::to_stdvec(message).map_err(invalid)?;
        if payload.len() > MESSAGE_LIMIT_BYTES {
            let (bytes, limit_bytes) = (payload.len() as u64, MESSAGE_LIMIT_BYTES as u64);
            return Err(HandshakeError::Frame(FrameError::TooLarge { bytes, limit_bytes }));
        }
        self.write(&Frame::control(FrameKind::Handshake, payload), 0)
    }

    /// Stops a rank that has received the start already: it only understands frames of its group.
    pub(super) fn abort(mut self, generation: u64, reason: &str) {
        let reason = shown(reason, REASON_LIMIT_BYTES).into_bytes();
        if self.write(&Frame::control(FrameKind::Abort, reason), generation).is_ok() {
            self.drain();
        }
    }

    fn write(&mut self, frame: &Frame, generation: u64) -> Result<(), HandshakeError> {
        let bytes = [&frame.header(generation)[..], &frame.payload].concat();
        let time_left = self.time_left()?;
        self.stream.set_write_timeout(Some(time_left)).map_err(HandshakeError::Io)?;
        let sent = match &mut self.encryption {
            Some(encryption) => encryption.encryptor.write(&mut self.stream, &bytes),
            None => self.stream.write_all(&bytes),
        };
        sent.map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => HandshakeError::TimedOut,
            _ => HandshakeError::Io(error),
        })
    }

    /// Receives the next message; a refusal from the peer is an error.
    pub(super) fn receive(&mut self) -> Result<Message, HandshakeError> {
        self.time_left()?;
        let accept = Accept::only(0, self.limit_bytes);
        let frame = read_frame(&mut PeerReader(self), accept).map_err(|error| match error {
            ReadError::Closed | ReadError::Cut => HandshakeError::Closed,
            ReadError::NotYet => HandshakeError::TimedOut,
            ReadError::Io(error) if error.kind() == std::io::ErrorKind::ConnectionReset => HandshakeError::Closed,
            ReadError::Io(error) => HandshakeError::Io(error),
            ReadError::Stale(frame) => HandshakeError::Frame(FrameError::OutOfPlace { kind: frame.kind.name() }),
            ReadError::Frame(fault) => HandshakeError::Frame(fault),
        })?;
        if frame.kind != FrameKind::Handshake {
            let kind = frame.kind.name();
            return Err(HandshakeError::Frame(FrameError::OutOfPlace { kind }));
        }
        decode(&frame.payload)
    }

    /// Sends a refusal, and gives the peer a moment to read it.
    pub(super) fn refuse(mut self, refusal: Refusal) -> HandshakeError {
        if self.send(&Message::Refused(refusal.clone())).is_ok() {
            self.drain();
        }
        HandshakeError::WeRefused(refusal)
    }

    /// Reads and discards bytes until the peer closes. Closing with unread bytes sends a reset,
    /// which can overtake the last message.
    fn drain(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
        self.set_timeout(Duration::from_millis(200));
        let mut discarded = [0; 4096];
        let mut reader = DeadlineReader { stream: &self.stream, deadline: self.deadline };
        while matches!(reader.read(&mut discarded), Ok(1..)) {}
    }

    /// Whether `receive` returns without waiting; also true if the peer has closed the connection.
    pub(super) fn is_readable(&self) -> bool {
        !matches!(self.peek(), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    }

    /// Whether the peer has closed the connection.
    pub(super) fn is_closed(&self) -> bool {
        match self.peek() {
            Ok(count) => count == 0,
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }

    /// Whether the deadline has passed.
    pub(super) fn is_timed_out(&self) -> bool {
        self.time_left().is_err()
    }

    fn peek(&self) -> std::io::Result<usize> {
        self.stream.set_nonblocking(true)?;
        let peeked = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false)?;
        peeked
    }

    fn time_left(&self) -> Result<Duration, HandshakeError> {
        time_until(self.deadline).ok_or(HandshakeError::TimedOut)
    }
}

/// Decodes a message; a refusal is an error.
pub(super) fn decode(payload: &[u8]) -> Result<Message, HandshakeError> {
    match postcard::from_bytes(payload) {
        Ok(Message::Refused(refusal)) => Err(HandshakeError::RefusedUs(refusal)),
        Ok(message) => Ok(message),
        Err(_) => Err(HandshakeError::Unexpected { expected: "a known message", got: "an unknown message" }),
    }
}

/// Reads from the peer until the deadline, and decrypts if the connection is encrypted.
struct PeerReader<'a>(&'a mut Handshake);

impl Read for PeerReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let Handshake { stream, encryption, deadline, .. } = &mut *self.0;
        let decryptor = encryption.as_mut().map(|encryption| &mut encryption.decryptor);
        DecryptedReader { from: DeadlineReader { stream, deadline: *deadline }, decryptor }.read(into)
    }
}

/// Reads from the socket until the deadline. A peer that sends single bytes does not extend it.
struct DeadlineReader<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl Read for DeadlineReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let time_left = time_until(self.deadline).ok_or(std::io::ErrorKind::TimedOut)?;
        self.stream.set_read_timeout(Some(time_left))?;
        self.stream.read(into)
    }
}

/// `None` if the deadline has passed. Never zero, which means "no timeout" to a socket.
fn time_until(deadline: Instant) -> Option<Duration> {
    let time_left = deadline.saturating_duration_since(Instant::now());
    (!time_left.is_zero()).then(|| time_left.max(Duration::from_millis(1)))
}

/// The error for an unexpected message.
pub(super) fn unexpected(expected: &'static str, got: &Message) -> HandshakeError {
    HandshakeError::Unexpected { expected, got: got.name() }
}

/// Converts an IPv4 address that came through an IPv6 socket to plain IPv4.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    let ip = address.ip().to_canonical();
    // Keeps the scope of a link-local IPv6 address.
    if ip == address.ip() { address } else { SocketAddr::new(ip, address.port()) }
}

/// A peer's name, made safe and short for messages.
pub(super) fn shown_name(name: &str) -> String {
    shown_line(name, NAME_LIMIT_BYTES)
}
