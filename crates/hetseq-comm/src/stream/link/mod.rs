//! One connection with its queued and received frames. Used by `stream/mod.rs`, which holds one per
//! peer, and by the heartbeat thread. It never sleeps.

mod outgoing_frame;

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::Shutdown;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use socket2::Socket;

use crate::buffers::{Payload, Pool};
use crate::connection::Connection;
use crate::encryption::{DecryptedReader, Encryption};
use crate::error::{CommError, shown};
use crate::frame::{
    Accept, CHUNK_BYTES, FRAME_LIMIT_BYTES, Frame, FrameError, FrameKind, Partial, REASON_LIMIT_BYTES,
    REGROUP_LIMIT_BYTES, ReadError,
};
use crate::socket;
use crate::transport::{LinkEnd, Received};

use super::SharedLink;
use outgoing_frame::OutgoingFrame;

/// A link has room for the next frame while fewer bytes than this are queued.
const ROOM_BYTES: usize = 16 << 10;
/// The number of frames to write to one link before the next link has its turn, when a sum has
/// queued many.
const MAX_FRAMES_PER_WRITE: usize = 8;
/// The number of bytes to read ahead from a peer before they are needed, so that an abort behind
/// them is seen.
const READ_AHEAD_BYTES: usize = 2 * CHUNK_BYTES;
/// The number of bytes of heartbeats and stale frames to read at once: a peer that sends nothing
/// else must not keep this rank from checking its deadlines. It is more than the heartbeats that
/// pile up behind a frame in hours of computing, so that an abort or goodbye behind them is found.
const MAX_SKIPPED_BYTES: usize = 512 << 10;

/// One connection after its handshake.
pub(super) struct StreamLink {
    /// Shared, so that the lock is not held while sleeping on it.
    socket: Arc<Socket>,
    encryption: Option<Encryption>,
    accept: Accept,
    pool: Arc<Pool>,
    /// The peer is given up after this much silence.
    silence: Duration,
    partial: Partial,
    /// Received but not taken yet.
    received: VecDeque<Frame>,
    received_bytes: usize,
    /// A message about the next generation. Nothing behind it is read before it is taken: frames of
    /// that generation may follow.
    regroup: Option<Arc<Payload>>,
    last_received: Instant,
    end: Option<LinkEnd>,
    /// Queued but not fully written yet.
    queue: VecDeque<OutgoingFrame>,
    last_sent: Instant,
    /// The end was sent or cannot be sent: nothing more is queued.
    send_closed: bool,
    /// The rank is in a collective, so its own thread reads this link and not the heartbeat thread.
    in_collective: bool,
}

impl StreamLink {
    pub(super) fn new(
        connection: Connection,
        generation: u64,
        pool: &Arc<Pool>,
        silence: Duration,
    ) -> Result<SharedLink, CommError> {
        let Connection { socket, encryption } = connection;
        let failed = |reason| CommError::System { what: "prepare a connection", reason };
        socket.set_nonblocking(true).map_err(failed)?;
        let now = Instant::now();
        Ok(Arc::new(Mutex::new(StreamLink {
            socket: Arc::new(socket),
            encryption,
            accept: Accept::only(generation, FRAME_LIMIT_BYTES),
            pool: pool.clone(),
            silence,
            partial: Partial::default(),
            received: VecDeque::new(),
            received_bytes: 0,
            regroup: None,
            last_received: now,
            end: None,
            queue: VecDeque::new(),
            last_sent: now,
            send_closed: false,
            in_collective: false,
        })))
    }

    /// Returns whether a frame can be queued. One frame at a time: the next is created when this
    /// one has left, from data that is then in the cache. There is no room for a peer that takes
    /// nothing more; its end says why.
    pub(super) fn has_room(&self) -> bool {
        !self.send_closed && self.queued_bytes() < ROOM_BYTES
    }

    /// Computed on demand: there are few frames, unless a sum has queued many for a slow link.
    fn queued_bytes(&self) -> usize {
        self.queue.iter().map(OutgoingFrame::unwritten_bytes).sum()
    }

    pub(super) fn is_flushed(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn ended(&self) -> Option<LinkEnd> {
        self.end.clone()
    }

    /// Queues a frame and writes as much as the socket accepts.
    pub(super) fn push(&mut self, frame: &Frame) {
        if self.send_closed {
            return;
        }
        let head = frame.header(self.accept.generation).to_vec();
        let is_kept = frame.kind == FrameKind::Regroup;
        self.queue.push_back(OutgoingFrame::new(head, Some(frame.payload.clone()), is_kept));
        self.write();
    }

    /// Writes as much as the socket accepts, up to the limit per turn; returns whether anything was
    /// written.
    pub(super) fn write(&mut self) -> bool {
        let (mut moved, mut written) = (false, 0);
        while let Some(frame) = self.queue.front_mut().filter(|_| written < MAX_FRAMES_PER_WRITE) {
            if let Err(error) = frame.encrypt(self.encryption.as_mut()) {
                self.fail_send(&error);
                return true;
            }
            match socket::write(&self.socket, &frame.rest()) {
                Ok(count) => {
                    frame.advance(count);
                    moved = true;
                    if frame.unwritten_bytes() == 0 {
                        written += 1;
                        self.queue.pop_front();
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => {
                    self.fail_send(&error);
                    return true;
                }
            }
        }
        if moved {
            self.last_sent = Instant::now();
        }
        moved
    }

    /// Handles a failed write: nothing can be written any more.
    fn fail_send(&mut self, error: &std::io::Error) {
        self.send_closed = true;
        self.queue.clear();
        // The peer's abort or goodbye may be there to read; if not, the error is how it left. A
        // lost connection delivers no more than is in the system's buffers.
        self.read(FRAME_LIMIT_BYTES);
        self.end.get_or_insert_with(|| LinkEnd::Closed(format!("connection lost: {error}")));
    }

    /// Returns the next frame, and the end after all frames are taken.
    pub(super) fn next(&mut self) -> Received {
        if self.received.is_empty() {
            self.read(0);
        }
        match (self.received.pop_front(), &self.end) {
            (Some(frame), _) => {
                self.received_bytes -= frame.bytes();
                Received::Frame(frame)
            }
            (None, Some(end)) => Received::Ended(end.clone()),
            (None, None) => Received::Nothing,
        }
    }

    /// Takes the message about the next generation, if one has arrived.
    pub(super) fn take_regroup(&mut self) -> Option<Arc<Payload>> {
        if self.regroup.is_none() {
            self.read(0);
        }
        self.regroup.take()
    }

    pub(super) fn has_regroup(&self) -> bool {
        self.regroup.is_some()
    }

    /// Reads nothing more; `end` says why, unless it has ended before.
    pub(super) fn give_up(&mut self, end: LinkEnd) {
        self.end.get_or_insert(end);
    }

    /// Ends the link for both sides; `end` says why, unless it has ended before.
    pub(super) fn cut(&mut self, end: LinkEnd) {
        self.give_up(end);
        self.send_closed = true;
        self.queue.clear();
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Continues in the next generation, without the unsent and untaken frames of this one.
    pub(super) fn install(&mut self, generation: u64) {
        self.accept.generation = generation;
        self.regroup = None;
        self.received.clear();
        self.received_bytes = 0;
        self.cancel_queued();
    }

    /// Drops the queued frames of collectives. What has begun to leave must leave whole; so must
    /// the messages about the next generation.
    pub(super) fn cancel_queued(&mut self) {
        self.queue.retain(|frame| frame.has_started() || frame.is_kept);
    }

    /// Assigns the link to the rank's own thread (`true`) or to the heartbeat thread.
    pub(super) fn attend(&mut self, in_collective: bool) {
        self.in_collective = in_collective;
    }

    /// Reads some of what has arrived before it is needed; returns whether there was anything.
    pub(super) fn read_ahead(&mut self) -> bool {
        self.read(READ_AHEAD_BYTES)
    }

    /// Reads frames until there are none or more than `room` bytes of them wait to be taken;
    /// returns whether a frame or the end arrived.
    fn read(&mut self, room: usize) -> bool {
        let (mut moved, mut skipped_bytes) = (false, 0);
        while self.end.is_none()
            && self.regroup.is_none()
            && skipped_bytes < MAX_SKIPPED_BYTES
            && (self.received.is_empty() || self.received_bytes < room)
        {
            let before = self.progress();
            let mut from = DecryptedReader {
                from: &*self.socket,
                decryptor: self.encryption.as_mut().map(|encryption| &mut encryption.decryptor),
            };
            let read = self.partial.read(&mut from, self.accept, &self.pool);
            if !matches!(read, Err(ReadError::NotYet)) || self.progress() != before {
                self.last_received = Instant::now();
            }
            match read {
                Ok(frame) if frame.kind == FrameKind::Heartbeat => skipped_bytes += frame.bytes(),
                Ok(frame) if frame.kind == FrameKind::Regroup => {
                    moved = true;
                    match frame.payload.len() {
                        0..=REGROUP_LIMIT_BYTES => self.regroup = Some(frame.payload),
                        bytes => self.end = Some(LinkEnd::Garbled(too_large(bytes, REGROUP_LIMIT_BYTES))),
                    }
                }
                // Sent before its sender knew of this generation. Only its end matters.
                Err(ReadError::Stale(frame)) => {
                    self.end = end_of(&frame);
                    moved |= self.end.is_some();
                    skipped_bytes += frame.bytes();
                }
                Ok(frame) => {
                    moved = true;
                    match end_of(&frame) {
                        Some(end) => self.end = Some(end),
                        None => {
                            self.received_bytes += frame.bytes();
                            self.received.push_back(frame);
                        }
                    }
                }
                Err(ReadError::NotYet) => break,
                Err(error) => {
                    moved = true;
                    self.end = Some(end_after(error));
                }
            }
        }
        moved
    }

    /// Returns how much of the next frame has arrived. With encryption, bytes that cannot be
    /// decrypted yet count: over a slow link a record may take longer than the limit on silence.
    fn progress(&self) -> (usize, Option<(u64, usize)>) {
        (self.partial.bytes(), self.encryption.as_ref().map(|encryption| encryption.decryptor.progress()))
    }

    /// Returns how much longer the peer may be silent; if no time is left, that is its end. Silence
    /// counts only since `since`, when this rank started to read. `None` for a peer that has ended.
    pub(super) fn silence_left(&mut self, since: Instant) -> Option<Duration> {
        if self.end.is_some() {
            return None;
        }
        if self.received_bytes >= READ_AHEAD_BYTES || self.regroup.is_some() {
            // If this rank does not read, that is not the peer's silence.
            self.last_received = Instant::now();
        }
        let left = self.silence.saturating_sub(self.last_received.max(since).elapsed());
        if left.is_zero() {
            self.end = Some(LinkEnd::Silent(self.silence));
        }
        Some(left)
    }

    /// Sends a heartbeat if nothing else was sent for `every`; outside of collectives it also
    /// reads, to detect whether the peer has left.
    pub(super) fn heartbeat(&mut self, every: Duration) {
        if self.queue.is_empty() && self.last_sent.elapsed() >= every {
            self.push(&Frame::control(FrameKind::Heartbeat, Vec::new()));
        } else {
            self.write();
        }
        if !self.in_collective {
            self.read(0);
            self.answer_goodbye();
        }
    }

    /// Closes the sending half after a goodbye of the peer, which takes nothing more; that confirms
    /// that the goodbye has arrived.
    fn answer_goodbye(&mut self) {
        if self.end == Some(LinkEnd::Goodbye) && self.queue.is_empty() && !self.send_closed {
            self.send_closed = true;
            let _ = self.socket.shutdown(Shutdown::Write);
        }
    }

    /// Queues the end. Before an abort, frames that are not needed any more are dropped.
    pub(super) fn queue_end(&mut self, end: &LinkEnd) {
        let frame = match end {
            LinkEnd::Aborted(reason) | LinkEnd::Failed(reason) => {
                self.queue.retain(OutgoingFrame::has_started);
                let kind = if matches!(end, LinkEnd::Failed(_)) { FrameKind::Failed } else { FrameKind::Abort };
                Frame::control(kind, shown(reason, REASON_LIMIT_BYTES).into_bytes())
            }
            _ => Frame::control(FrameKind::Goodbye, Vec::new()),
        };
        self.in_collective = true;
        self.push(&frame);
    }

    /// Returns whether the peer has received the end: it is written, this half is closed, and so is
    /// the other. Only the sending half is shut down: if data from the peer arrived at a fully
    /// closed socket, the resulting reset could destroy the end in transit.
    pub(super) fn is_closed(&mut self) -> bool {
        self.write();
        if self.queue.is_empty() && !self.send_closed {
            self.send_closed = true;
            let _ = self.socket.shutdown(Shutdown::Write);
        }
        self.discard();
        self.end.is_some()
    }

    /// Reads up to the peer's end and drops the frames before it. Only a little at a time: a peer
    /// that has not noticed yet may continue to send for long, and the caller checks its deadline.
    fn discard(&mut self) {
        self.read_ahead();
        // Nothing behind a message is read before it is taken, and this rank takes it no more.
        self.regroup = None;
        self.received.clear();
        self.received_bytes = 0;
    }

    /// Returns its socket and what to poll it for, unless nothing can change.
    pub(super) fn interest(&self) -> Option<(Arc<Socket>, PollFlags)> {
        let mut flags = PollFlags::empty();
        if self.end.is_none() && self.regroup.is_none() && self.received_bytes < READ_AHEAD_BYTES {
            flags |= PollFlags::IN;
        }
        if !self.queue.is_empty() {
            flags |= PollFlags::OUT;
        }
        (!flags.is_empty()).then(|| (self.socket.clone(), flags))
    }

    /// Returns what the heartbeat thread waits for: a link that it has to write to.
    pub(super) fn unattended_interest(&self) -> Option<(Arc<Socket>, PollFlags)> {
        (!self.in_collective && !self.queue.is_empty()).then(|| (self.socket.clone(), PollFlags::OUT))
    }
}

/// Returns the end that a control frame announces.
fn end_of(frame: &Frame) -> Option<LinkEnd> {
    let reason = || shown(&String::from_utf8_lossy(&frame.payload), REASON_LIMIT_BYTES);
    match frame.kind {
        FrameKind::Goodbye => Some(LinkEnd::Goodbye),
        FrameKind::Abort => Some(LinkEnd::Aborted(reason())),
        FrameKind::Failed => Some(LinkEnd::Failed(reason())),
        FrameKind::Handshake => Some(LinkEnd::Garbled(FrameError::OutOfPlace { kind: frame.kind.name() })),
        _ => None,
    }
}

fn too_large(bytes: usize, limit_bytes: usize) -> FrameError {
    FrameError::TooLarge { bytes: bytes as u64, limit_bytes: limit_bytes as u64 }
}

/// Returns the end that follows from a read error.
fn end_after(error: ReadError) -> LinkEnd {
    match error {
        ReadError::Closed => LinkEnd::Closed("its connection closed without a goodbye".to_owned()),
        ReadError::Cut => LinkEnd::Closed("its connection closed in the middle of a frame".to_owned()),
        ReadError::Io(error) => LinkEnd::Closed(format!("connection lost: {error}")),
        ReadError::Frame(fault) => LinkEnd::Garbled(fault),
        ReadError::NotYet | ReadError::Stale(_) => LinkEnd::Closed("it sent nothing".to_owned()),
    }
}

#[cfg(test)]
mod tests;
