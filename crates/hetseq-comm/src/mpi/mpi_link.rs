//! The messages to and from one peer. Used by `mod.rs`, which has one per peer. Never waits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use crate::buffers::{Payload, Pool};
use crate::error::shown;
use crate::frame::{CHUNK_BYTES, Frame, FrameKind, REASON_LIMIT_BYTES};
use crate::transport::{LinkEnd, Received};

use super::library::{MpiError, MpiLibrary, ProbedMessage, Receiving, Sending};
use super::messages::{CONTROL, FrameReader, FrameWriter, whole};

/// A peer has room for the next frame while fewer bytes than this are on their way to it: MPI moves
/// one message while this rank prepares the next.
const ROOM_BYTES: usize = 2 * CHUNK_BYTES;
/// The number of messages to receive from a peer before they are needed.
const READ_AHEAD: usize = 4;

pub(super) struct MpiLink {
    peer: usize,
    writer: FrameWriter,
    reader: FrameReader,
    sending: VecDeque<Sending>,
    sending_bytes: usize,
    receiving: VecDeque<Receiving>,
    /// Received but not taken yet.
    received: VecDeque<Frame>,
    /// When something arrived.
    pub(super) last_heard: Instant,
    /// The peer asks whether this rank is alive.
    pub(super) is_asking: bool,
    pub(super) end: Option<LinkEnd>,
}

impl MpiLink {
    pub(super) fn new(peer: usize) -> MpiLink {
        MpiLink {
            peer,
            writer: FrameWriter::default(),
            reader: FrameReader::default(),
            sending: VecDeque::new(),
            sending_bytes: 0,
            receiving: VecDeque::new(),
            received: VecDeque::new(),
            last_heard: Instant::now(),
            is_asking: false,
            end: None,
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.end.is_none() && self.sending_bytes < ROOM_BYTES
    }

    pub(super) fn is_flushed(&self) -> bool {
        self.sending.is_empty()
    }

    /// Returns whether nothing is on its way in either direction, as far as this rank knows.
    pub(super) fn is_idle(&self) -> bool {
        self.sending.is_empty() && self.receiving.is_empty()
    }

    /// Starts to send a frame, unless the peer has failed.
    pub(super) fn push(&mut self, library: &MpiLibrary, frame: &Frame) {
        let messages: Vec<_> = self.writer.messages(frame).collect();
        messages.into_iter().for_each(|(tag, payload)| self.send(library, tag, payload));
    }

    /// Starts to send a frame that overtakes all others.
    pub(super) fn push_control(&mut self, library: &MpiLibrary, frame: &Frame) {
        self.send(library, CONTROL, whole(frame));
    }

    fn send(&mut self, library: &MpiLibrary, tag: i32, payload: Arc<Payload>) {
        if matches!(self.end, None | Some(LinkEnd::Goodbye)) {
            match library.send(self.peer, tag, payload) {
                Ok(sending) => {
                    self.sending_bytes += sending.bytes();
                    self.sending.push_back(sending);
                }
                Err(error) => self.fail(error),
            }
        }
    }

    /// Forgets what has left; returns whether there was any.
    pub(super) fn flush(&mut self) -> bool {
        let mut moved = false;
        while let Some(first) = self.sending.front_mut() {
            match first.is_done() {
                Ok(false) => break,
                Ok(true) => {
                    self.sending_bytes -= first.bytes();
                    self.sending.pop_front();
                    moved = true;
                }
                Err(error) => {
                    self.fail(error);
                    return true;
                }
            }
        }
        moved
    }

    /// Receives what has arrived, up to a limit; returns whether there was anything.
    pub(super) fn receive(&mut self, library: &MpiLibrary, pool: &Arc<Pool>) -> bool {
        let mut moved = false;
        while self.end.is_none() && self.receiving.len() + self.received.len() < READ_AHEAD {
            match library.probe(Some(self.peer), None) {
                Ok(None) => break,
                Ok(Some(arrival)) => self.accept(arrival, pool),
                Err(error) => self.fail(error),
            }
        }
        while let Some(mut first) = self.receiving.pop_front() {
            match first.is_done() {
                Ok(false) => {
                    self.receiving.push_front(first);
                    break;
                }
                Ok(true) => {
                    moved = true;
                    self.take(first.tag, Payload::pooled(first.into_bytes(), pool));
                }
                Err(error) => self.fail(error),
            }
        }
        moved
    }

    /// Starts to receive a message, behind those that are being received.
    fn accept(&mut self, arrival: ProbedMessage, pool: &Arc<Pool>) {
        let buffer = pool.take(arrival.bytes);
        match arrival.receive(buffer) {
            Ok(receiving) => self.receiving.push_back(receiving),
            Err(error) => self.fail(error),
        }
    }

    /// Takes a complete message. A message of `CONTROL` may come before others that were sent
    /// earlier.
    pub(super) fn take(&mut self, tag: i32, payload: Arc<Payload>) {
        self.last_heard = Instant::now();
        match self.reader.take(tag, payload) {
            Err(fault) => self.end_with(LinkEnd::Garbled(fault)),
            Ok(None) => {}
            Ok(Some(frame)) => match frame.kind {
                FrameKind::Heartbeat => self.is_asking |= !frame.payload.is_empty(),
                FrameKind::Goodbye => self.end_with(LinkEnd::Goodbye),
                FrameKind::Abort => self.end_with(LinkEnd::Aborted(reason_of(&frame))),
                FrameKind::Failed => self.end_with(LinkEnd::Failed(reason_of(&frame))),
                _ => self.received.push_back(frame),
            },
        }
    }

    /// Returns the next frame, and the end after all frames are taken.
    pub(super) fn next(&mut self, library: &MpiLibrary, pool: &Arc<Pool>) -> Received {
        if self.received.is_empty() {
            self.receive(library, pool);
        }
        match (self.received.pop_front(), &self.end) {
            (Some(frame), _) => Received::Frame(frame),
            (None, Some(end)) => Received::Ended(end.clone()),
            (None, None) => Received::Nothing,
        }
    }

    /// Drops what was received, for a rank that takes nothing more.
    pub(super) fn discard(&mut self) {
        self.received.clear();
    }

    pub(super) fn end_with(&mut self, end: LinkEnd) {
        self.end.get_or_insert(end);
    }

    fn fail(&mut self, error: MpiError) {
        self.end_with(LinkEnd::Closed(error));
    }
}

fn reason_of(frame: &Frame) -> String {
    shown(&String::from_utf8_lossy(&frame.payload), REASON_LIMIT_BYTES)
}
