//! The `tcp` engine: frames over sockets that never block.
//!
//! The rank's own thread reads and writes while it is in a collective: what has just been computed is sent while it is
//! in the cache, and nobody has to be woken. A [`Wire`] is one connection with what is on its way through it;
//! [`await_traffic`] is the only place where the rank sleeps. Between collectives the `heart.rs` thread keeps the
//! connections alive. Who is at the other end was settled by `rendezvous/`.

use std::collections::VecDeque;
use std::io::{ErrorKind, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::buffers::{Payload, Pool};
use crate::connection::Connection;
use crate::error::{CommError, shown};
use crate::frame::{Accept, CHUNK_BYTES, FRAME_LIMIT_BYTES, Frame, FrameError, Kind, Partial, ReadError};
use crate::link::{End, Next, locked};
use crate::options::Options;
use crate::pace::Pace;
use crate::seal::{Opened, Seal};
use crate::signal::Signal;
use crate::socket;

/// A reason longer than this says no more.
pub(crate) const REASON_LIMIT_BYTES: usize = 4096;
/// Up to here copying a payload behind its header is cheaper than a second packet.
const SMALL_BYTES: usize = 16 << 10;
/// So many frames leave at once before other lines have their turn, where a sum has left many.
const TURN_PARCELS: usize = 8;
/// Frames from a peer that nobody asks for yet are read ahead up to this much, so that an abort behind them is seen.
const AHEAD_BYTES: usize = 2 * CHUNK_BYTES;
/// So many heartbeats are taken at once: one that does nothing but beat must not keep this rank from its clock. More than
/// pile up behind a frame in hours of computing, so that last words behind them are found.
const BEATS: usize = 10_000;

/// One connection whose handshake is done.
pub(crate) struct Wire {
    /// Shared, so that the lock is not held while sleeping on it.
    stream: Arc<TcpStream>,
    seal: Option<Seal>,
    accept: Accept,
    pool: Arc<Pool>,
    /// After so much silence the peer is given up.
    silence: Duration,
    partial: Partial,
    /// Read and not taken yet.
    ahead: VecDeque<Frame>,
    ahead_bytes: usize,
    heard: Instant,
    end: Option<End>,
    /// Queued and not written yet.
    queue: VecDeque<Parcel>,
    spoke: Instant,
    /// The last words are said or cannot be: nothing more is queued.
    mute: bool,
    /// The rank's own thread looks after it now.
    attended: bool,
}

/// A frame on its way out.
struct Parcel {
    head: Vec<u8>,
    body: Option<Arc<Payload>>,
    /// How much of both is written.
    written: usize,
    is_sealed: bool,
}

impl Parcel {
    fn rest(&self) -> &[u8] {
        match (&self.body, self.written.checked_sub(self.head.len())) {
            (_, None) => &self.head[self.written..],
            (Some(body), Some(at)) => &body[at..],
            (None, Some(_)) => &[],
        }
    }

    fn unwritten_bytes(&self) -> usize {
        self.head.len() + self.body.as_ref().map_or(0, |body| body.len()) - self.written
    }

    /// Encrypts it, if that is due and not done. Only now that its turn has come: records count up, so that one that was
    /// sealed and then dropped would look to the peer like one that somebody took out on the way.
    fn seal(&mut self, seal: Option<&mut Seal>) -> std::io::Result<()> {
        let Some(seal) = seal.filter(|_| !self.is_sealed) else { return Ok(()) };
        let mut records = Vec::new();
        seal.sealer.write(&mut records, &self.head)?;
        seal.sealer.write(&mut records, self.body.as_deref().map_or(&[], |body| &body[..]))?;
        *self = Parcel { head: records, body: None, written: 0, is_sealed: true };
        Ok(())
    }

    /// From here on it must leave whole.
    fn has_begun(&self) -> bool {
        self.is_sealed || self.written > 0
    }
}

impl Wire {
    pub(crate) fn new(
        connection: Connection,
        generation: u64,
        pool: &Arc<Pool>,
        pace: Pace,
        options: &Options,
    ) -> Result<Arc<Mutex<Wire>>, CommError> {
        let Connection { stream, seal } = connection;
        let prepare = || {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)
        };
        prepare().map_err(|reason| CommError::System { what: "prepare a connection", reason })?;
        let silence = pace.patience(options.silence);
        socket::outlast(&stream, options.progress.max(silence));
        let now = Instant::now();
        Ok(Arc::new(Mutex::new(Wire {
            stream: Arc::new(stream),
            seal,
            accept: Accept { generation, limit_bytes: FRAME_LIMIT_BYTES },
            pool: pool.clone(),
            silence,
            partial: Partial::default(),
            ahead: VecDeque::new(),
            ahead_bytes: 0,
            heard: now,
            end: None,
            queue: VecDeque::new(),
            spoke: now,
            mute: false,
            attended: false,
        })))
    }

    /// One frame at a time: the next is made when this one has left, from what is then in the cache. None for a peer that
    /// takes nothing more; how it ended says why.
    pub(crate) fn has_room(&self) -> bool {
        !self.mute && self.queued_bytes() < SMALL_BYTES
    }

    /// Counted when asked for: there are a few parcels, unless a sum has left many for a slow line.
    fn queued_bytes(&self) -> usize {
        self.queue.iter().map(Parcel::unwritten_bytes).sum()
    }

    pub(crate) fn is_flushed(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn ended(&self) -> Option<End> {
        self.end.clone()
    }

    /// Queues a frame and writes what the line takes.
    pub(crate) fn push(&mut self, frame: &Frame) {
        if self.mute {
            return;
        }
        let mut head = frame.header(self.accept.generation).to_vec();
        // A small frame leaves as one packet. Not `write_vectored`, which, unlike `write`, would raise SIGPIPE at a closed
        // connection in a program that has restored that signal's default.
        let small = frame.payload.len() <= SMALL_BYTES;
        if small {
            head.extend_from_slice(&frame.payload);
        }
        let body = (!small).then(|| frame.payload.clone());
        self.queue.push_back(Parcel { head, body, written: 0, is_sealed: false });
        self.write();
    }

    /// Writes what the line takes, but not more than its turn; tells whether it took anything.
    pub(crate) fn write(&mut self) -> bool {
        let (mut moved, mut parcels) = (false, 0);
        while let Some(parcel) = self.queue.front_mut().filter(|_| parcels < TURN_PARCELS) {
            if let Err(error) = parcel.seal(self.seal.as_mut()) {
                self.lose(&error);
                return true;
            }
            match (&*self.stream).write(parcel.rest()) {
                Ok(count) => {
                    parcel.written += count;
                    moved = true;
                    if parcel.rest().is_empty() {
                        parcels += 1;
                        self.queue.pop_front();
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => {
                    self.lose(&error);
                    return true;
                }
            }
        }
        if moved {
            self.spoke = Instant::now();
        }
        moved
    }

    /// Nothing can be written any more.
    fn lose(&mut self, error: &std::io::Error) {
        self.mute = true;
        self.queue.clear();
        // The peer's last words may be there to read; if not, this is how it left. A connection that is gone brings no more
        // than lies in the system's buffers.
        self.read(FRAME_LIMIT_BYTES);
        self.end.get_or_insert_with(|| End::Closed(format!("connection lost: {error}")));
    }

    pub(crate) fn next(&mut self) -> Next {
        if self.ahead.is_empty() {
            self.read(0);
        }
        match (self.ahead.pop_front(), &self.end) {
            (Some(frame), _) => {
                self.ahead_bytes -= frame.bytes();
                Next::Frame(frame)
            }
            (None, Some(end)) => Next::Ended(end.clone()),
            (None, None) => Next::Nothing,
        }
    }

    /// Reads frames until there are none or more than `room` bytes of them wait to be taken; tells whether a frame or
    /// the end came.
    fn read(&mut self, room: usize) -> bool {
        let (mut moved, mut beats) = (false, 0);
        while self.end.is_none() && beats < BEATS && (self.ahead.is_empty() || self.ahead_bytes < room) {
            let had = self.progress();
            let mut from = Opened { from: &*self.stream, opener: self.seal.as_mut().map(|seal| &mut seal.opener) };
            let read = self.partial.read(&mut from, self.accept, &self.pool);
            if !matches!(read, Err(ReadError::NotYet)) || self.progress() != had {
                self.heard = Instant::now();
            }
            match read {
                Ok(frame) if frame.kind == Kind::Heartbeat => beats += 1,
                Ok(frame) => {
                    moved = true;
                    match end_in(&frame) {
                        Some(end) => self.end = Some(end),
                        None => {
                            self.ahead_bytes += frame.bytes();
                            self.ahead.push_back(frame);
                        }
                    }
                }
                Err(ReadError::NotYet) => break,
                Err(error) => {
                    moved = true;
                    self.end = Some(broken(error));
                }
            }
        }
        moved
    }

    /// How far the next frame has come. Under encryption bytes count that cannot be opened yet: over a slow line a record
    /// may take longer than the peer may be silent.
    fn progress(&self) -> (usize, Option<(u64, usize)>) {
        (self.partial.bytes(), self.seal.as_ref().map(|seal| seal.opener.progress()))
    }

    /// How much longer the peer may be silent, while this rank listens, which it does since `since`; at the limit that
    /// is its end. One that has ended may be silent for ever.
    fn patience(&mut self, since: Instant) -> Option<Duration> {
        if self.end.is_some() {
            return None;
        }
        if self.ahead_bytes >= AHEAD_BYTES {
            // Not reading is not silence.
            self.heard = Instant::now();
        }
        let left = self.silence.saturating_sub(self.heard.max(since).elapsed());
        if left.is_zero() {
            self.end = Some(End::Silent(self.silence));
        }
        Some(left)
    }

    /// The beat of the heart: says that this rank lives, and while it computes listens whether the peer has left.
    pub(crate) fn beat(&mut self, every: Duration) {
        if self.queue.is_empty() && self.spoke.elapsed() >= every {
            self.push(&Frame::control(Kind::Heartbeat, Vec::new()));
        } else {
            self.write();
        }
        if !self.attended {
            self.read(0);
            self.answer_goodbye();
        }
    }

    /// A peer that said goodbye takes nothing more; closing this half tells it that it was heard.
    fn answer_goodbye(&mut self) {
        if self.end == Some(End::Goodbye) && self.queue.is_empty() && !self.mute {
            self.mute = true;
            let _ = self.stream.shutdown(Shutdown::Write);
        }
    }

    /// Queues the last words. Frames that nobody needs any more are dropped before an abort.
    pub(crate) fn farewell(&mut self, end: &End) {
        let words = match end {
            End::Aborted(reason) => {
                self.queue.retain(Parcel::has_begun);
                Frame::control(Kind::Abort, shown(reason, REASON_LIMIT_BYTES).into_bytes())
            }
            _ => Frame::control(Kind::Goodbye, Vec::new()),
        };
        self.attended = true;
        self.push(&words);
    }

    /// Whether the last words have arrived: they are written, this half is closed, and so is the other. Only the sending
    /// half is shut down: if data from the peer arrived at a fully closed socket, the answering reset could destroy the
    /// words on their way.
    pub(crate) fn is_parted(&mut self) -> bool {
        self.write();
        if self.queue.is_empty() && !self.mute {
            self.mute = true;
            let _ = self.stream.shutdown(Shutdown::Write);
        }
        self.discard();
        self.end.is_some()
    }

    /// Reads towards the peer's last words and forgets what comes before them. A little at a time: a peer that has not
    /// noticed yet may go on sending for long, and the caller watches the clock.
    fn discard(&mut self) {
        self.read(AHEAD_BYTES);
        self.ahead.clear();
        self.ahead_bytes = 0;
    }

    fn interest(&self) -> PollFlags {
        let mut flags = PollFlags::empty();
        if self.end.is_none() && self.ahead_bytes < AHEAD_BYTES {
            flags |= PollFlags::IN;
        }
        if !self.queue.is_empty() {
            flags |= PollFlags::OUT;
        }
        flags
    }
}

/// What a frame that ends the traffic says.
fn end_in(frame: &Frame) -> Option<End> {
    match frame.kind {
        Kind::Goodbye => Some(End::Goodbye),
        Kind::Abort => Some(End::Aborted(shown(&String::from_utf8_lossy(&frame.payload), REASON_LIMIT_BYTES))),
        Kind::Handshake => Some(End::Garbled(FrameError::OutOfPlace { kind: frame.kind.name() })),
        _ => None,
    }
}

fn broken(error: ReadError) -> End {
    match error {
        ReadError::Closed => End::Closed("its connection closed without a goodbye".to_owned()),
        ReadError::Cut => End::Closed("its connection closed in the middle of a frame".to_owned()),
        ReadError::Io(error) => End::Closed(format!("connection lost: {error}")),
        ReadError::Frame(fault) => End::Garbled(fault),
        ReadError::NotYet => End::Closed("it sent nothing".to_owned()),
    }
}

/// Takes the wires into the care of the rank's own thread, or gives them back to the heart.
pub(crate) fn attend(wires: &[Arc<Mutex<Wire>>], attended: bool) {
    wires.iter().for_each(|wire| locked(wire).attended = attended);
}

/// Writes what can be written; tells whether anything could.
pub(crate) fn write_all(wires: &[Arc<Mutex<Wire>>]) -> bool {
    // All of them, also after one has moved.
    wires.iter().filter(|wire| locked(wire).write()).count() > 0
}

/// Sleeps until a socket can be read or written, the signal is raised, a peer has been silent for too long since `since`,
/// or `limit` has passed; tells how long it slept. Reads ahead what is there already.
pub(crate) fn await_traffic(
    wires: &[Arc<Mutex<Wire>>],
    signal: Option<&Signal>,
    since: Instant,
    limit: Duration,
) -> Duration {
    let mut come = false;
    let mut limit = limit.min(Duration::from_secs(1));
    let mut sockets = Vec::with_capacity(wires.len());
    for wire in wires {
        let mut wire = locked(wire);
        come |= wire.read(AHEAD_BYTES);
        let patience = wire.patience(since);
        come |= patience.is_some_and(|left| left.is_zero());
        // At least what `poll` can tell from nothing.
        limit = limit.min(patience.unwrap_or(Duration::MAX).max(Duration::from_millis(1)));
        let interest = wire.interest();
        if !interest.is_empty() {
            sockets.push((wire.stream.clone(), interest));
        }
    }
    if come { Duration::ZERO } else { sleep(&sockets, signal, limit) }
}

/// Sleeps until a socket that nobody attends to takes what is queued for it, the signal is raised, or `limit` has passed.
pub(crate) fn await_room(wires: &[Arc<Mutex<Wire>>], signal: &Signal, limit: Duration) {
    let waiting = |wire: &Arc<Mutex<Wire>>| {
        let wire = locked(wire);
        (!wire.attended && !wire.is_flushed()).then(|| (wire.stream.clone(), PollFlags::OUT))
    };
    let sockets: Vec<_> = wires.iter().filter_map(waiting).collect();
    sleep(&sockets, Some(signal), limit);
}

fn sleep(sockets: &[(Arc<TcpStream>, PollFlags)], signal: Option<&Signal>, limit: Duration) -> Duration {
    let mut watched: Vec<PollFd<'_>> = sockets.iter().map(|(stream, flags)| PollFd::new(stream, *flags)).collect();
    watched.extend(signal.map(|signal| PollFd::new(signal.pipe(), PollFlags::IN)));
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    let start = Instant::now();
    // A signal of the system may end it early, which does no harm.
    let _ = poll(&mut watched, Some(&limit));
    let slept = start.elapsed();
    if let Some(signal) = signal.filter(|_| watched.last().is_some_and(|pipe| pipe.revents().contains(PollFlags::IN))) {
        signal.lower();
    }
    slept
}

#[cfg(test)]
mod late_tests;
#[cfg(test)]
mod tests;
