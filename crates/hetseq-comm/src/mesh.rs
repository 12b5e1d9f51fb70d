//! All links of one rank, and the one place where it waits for them.
//!
//! `reduce/` implements the collectives over this, each as an [`Exchange`] that [`Mesh::drive`]
//! runs to its end. How frames move is the [`Transport`]'s business. The rank's own thread does
//! everything: while it waits it checks the health of *every* link, so a dead peer is reported even
//! if another one is awaited.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::buffers::{Payload, Pool};
use crate::connection::Connection;
use crate::error::{CommError, Phase};
use crate::frame::{Frame, FrameError, FrameKind};
use crate::heartbeat_timing::HeartbeatTiming;
use crate::outgoing::CollectiveStep;
use crate::regroup::RankSet;
use crate::signal::Waker;
use crate::transport::{LinkEnd, Received, Transport};

/// How long a failed rank waits for peers to receive its reason.
const ABORT_TIMEOUT: Duration = Duration::from_secs(2);

/// The longest sleep before a rank checks again.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// A running collective: a state machine that advances whenever a frame has arrived or a link has
/// room.
pub(crate) trait Exchange {
    type Error: Failure;

    /// Does what is possible without waiting; returns whether anything moved.
    fn advance(&mut self, mesh: &Mesh, step: CollectiveStep) -> Result<bool, Self::Error>;

    /// Returns a peer that this exchange waits for; `None` when it is done.
    fn awaited(&self) -> Option<usize>;

    /// Returns whether this rank still computes its contribution. Until it has contributed, no
    /// other rank counts as too slow.
    fn is_computing(&self) -> bool {
        false
    }

    /// Returns whether it may end before all queued frames have left, if the transport sends the
    /// rest between collectives.
    fn leaves_unsent(&self) -> bool {
        false
    }
}

/// The error of a collective.
pub(crate) trait Failure: From<CommError> {
    /// Returns the reason that the other ranks receive and that later calls on this rank report.
    fn reason(&self) -> String;

    /// Returns whether other ranks were lost, so that the rest can continue without this one, too.
    fn is_lost_rank(&self) -> bool;
}

impl Failure for CommError {
    fn reason(&self) -> String {
        self.to_string()
    }

    fn is_lost_rank(&self) -> bool {
        CommError::is_lost_rank(self)
    }
}

/// One rank with its links.
pub(crate) struct Mesh {
    pub(crate) rank: usize,
    pub(crate) generation: u64,
    /// The generation before any regrouping.
    pub(crate) first_generation: u64,
    /// One name per rank, this one included.
    pub(crate) hosts: Vec<String>,
    pub(crate) context: String,
    pub(crate) transport: Box<dyn Transport>,
    /// Memory for the frames of all links.
    pub(crate) pool: Arc<Pool>,
    pub(crate) progress: Duration,
    /// When the last collective started to wait for the peers. Silence counts from then on.
    pub(crate) waiting_since: Instant,
    /// Total time asleep in collectives.
    pub(crate) time_asleep: Duration,
    /// Number of collectives started; equal on all ranks as long as they are in step.
    sequence: u64,
    /// The first failure, as the other ranks receive it if this rank leaves because of it.
    failure: Option<LinkEnd>,
}

impl Mesh {
    /// A mesh over `transport`, which takes the memory for its frames from `pool`.
    pub(crate) fn new(
        rank: usize,
        generation: u64,
        hosts: Vec<String>,
        transport: Box<dyn Transport>,
        pool: Arc<Pool>,
        progress: Duration,
    ) -> Mesh {
        Mesh {
            rank,
            generation,
            first_generation: generation,
            hosts,
            context: String::new(),
            transport,
            pool,
            progress,
            waiting_since: Instant::now(),
            time_asleep: Duration::ZERO,
            sequence: 0,
            failure: None,
        }
    }

    /// Continues as the next generation, with `members` only, in this order. This rank is one of
    /// them. A newcomer is added by [`Mesh::add`].
    pub(crate) fn install(&mut self, members: &RankSet) {
        let survivors: Vec<usize> = members.below(self.world()).iter().collect();
        self.generation += 1;
        self.transport.install(&survivors, self.generation);
        self.rank = members.position(self.rank).unwrap_or_default();
        self.hosts = survivors.iter().map(|&rank| self.hosts[rank].clone()).collect();
        self.sequence = 0;
        self.failure = None;
    }

    /// Adds a newcomer as the last rank of the generation just installed.
    pub(crate) fn add(
        &mut self,
        host: String,
        connection: Connection,
        timing: HeartbeatTiming,
    ) -> Result<(), CommError> {
        self.hosts.push(host);
        self.transport.add(connection, timing, self.generation)
    }

    pub(crate) fn world(&self) -> usize {
        self.hosts.len()
    }

    /// Returns all ranks but this one, in rank order.
    pub(crate) fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.world()).filter(move |peer| *peer != rank)
    }

    /// Runs one collective. Its first failure makes the mesh unusable, because frames of the
    /// unfinished collective are still in flight.
    pub(crate) fn run<T, E: Failure>(
        &mut self,
        kind: FrameKind,
        body: impl FnOnce(&mut Mesh, CollectiveStep) -> Result<T, E>,
    ) -> Result<T, E> {
        if let Some(LinkEnd::Aborted(first) | LinkEnd::Failed(first)) = &self.failure {
            return Err(CommError::AlreadyFailed { first: first.clone() }.into());
        }
        self.sequence += 1;
        let step = CollectiveStep { kind, sequence: self.sequence };
        self.transport.attend(true);
        let result = body(self, step);
        self.transport.attend(false);
        if let Err(error) = &result {
            let end = if error.is_lost_rank() { LinkEnd::Failed } else { LinkEnd::Aborted };
            self.failure = Some(end(error.reason()));
        }
        result
    }

    /// Runs an exchange to its end, or to the first failure of any peer.
    pub(crate) fn drive<X: Exchange>(&mut self, step: CollectiveStep, exchange: &mut X) -> Result<(), X::Error> {
        let start = Instant::now();
        self.waiting_since = start;
        let mut progress = start;
        loop {
            let moved = exchange.advance(self, step)?;
            let moved = self.transport.flush() || moved;
            let may_leave = exchange.leaves_unsent() && self.transport.sends_between_collectives();
            let unsent = || if may_leave { None } else { self.unsent() };
            let Some(awaited) = exchange.awaited().or_else(unsent) else { return Ok(()) };
            if moved || exchange.is_computing() {
                progress = Instant::now();
            }
            if moved {
                continue;
            }
            self.check_health(step)?;
            let left = self.progress.saturating_sub(progress.elapsed());
            if left.is_zero() {
                return Err(self.no_progress(step, awaited).into());
            }
            self.time_asleep += self.transport.wait(start, left.min(LONGEST_SLEEP));
        }
    }

    /// Returns a peer for which queued frames have not left yet.
    pub(crate) fn unsent(&self) -> Option<usize> {
        self.peers().find(|&peer| !self.transport.is_flushed(peer))
    }

    /// Returns a handle that wakes this rank's thread.
    pub(crate) fn waker(&self) -> Waker {
        self.transport.waker()
    }

    /// Returns whether a frame can be queued for the peer now. A peer that said goodbye has failed,
    /// too, if it leaves before it has taken its part.
    pub(crate) fn has_room(&self, step: CollectiveStep, peer: usize) -> Result<bool, CommError> {
        if self.transport.has_room(peer) {
            return Ok(true);
        }
        match self.transport.ended(peer) {
            Some(end) => Err(self.ended(step, peer, end)),
            None => Ok(false),
        }
    }

    /// Queues a frame of this step. Check [`Mesh::has_room`] first, except for the last frames that
    /// this rank sends.
    pub(crate) fn send(&self, step: CollectiveStep, peer: usize, last: bool, payload: Arc<Payload>) {
        let CollectiveStep { kind, sequence } = step;
        self.transport.push(peer, &Frame { kind, last, sequence, payload });
    }

    /// Returns the next frame of this step from the peer, if it has arrived.
    pub(crate) fn take(&self, step: CollectiveStep, peer: usize) -> Result<Option<Frame>, CommError> {
        match self.transport.next(peer) {
            Received::Frame(frame) => self.in_step(step, peer, frame).map(Some),
            Received::Ended(end) => Err(self.ended(step, peer, end)),
            Received::Nothing => Ok(None),
        }
    }

    /// Sends the end to all peers and waits until they have received it.
    pub(crate) fn leave(&mut self, end: LinkEnd) {
        // Before a goodbye, data that peers need may still be in flight, which takes a while over a
        // slow link. A dead peer ends the wait by its silence.
        let limit = if end == LinkEnd::Goodbye { self.progress } else { ABORT_TIMEOUT };
        self.transport.part(&end, limit);
    }

    /// A peer that failed is reported even if nothing is awaited from it. A peer that said goodbye
    /// has done its part and may be gone while others finish.
    fn check_health(&self, step: CollectiveStep) -> Result<(), CommError> {
        for peer in self.peers() {
            if self.transport.has_regroup(peer) {
                let (host, phase) = (self.hosts[peer].clone(), self.phase(step));
                return Err(CommError::Regrouping { rank: peer, host, phase });
            }
            match self.transport.ended(peer) {
                None | Some(LinkEnd::Goodbye) => {}
                Some(end) => return Err(self.ended(step, peer, end)),
            }
        }
        Ok(())
    }

    fn in_step(&self, step: CollectiveStep, peer: usize, frame: Frame) -> Result<Frame, CommError> {
        if (frame.kind, frame.sequence) == (step.kind, step.sequence) {
            return Ok(frame);
        }
        let named = |kind: FrameKind, sequence: u64| format!("{} (operation {sequence})", kind.name());
        Err(CommError::OutOfStep {
            rank: peer,
            host: self.hosts[peer].clone(),
            theirs: named(frame.kind, frame.sequence),
            ours: named(step.kind, step.sequence),
            phase: self.phase(step),
        })
    }

    fn ended(&self, step: CollectiveStep, rank: usize, end: LinkEnd) -> CommError {
        let (host, phase) = (self.hosts[rank].clone(), self.phase(step));
        match end {
            LinkEnd::Goodbye => {
                let detail = "it had finished and closed the group".to_owned();
                CommError::Left { rank, host, detail, phase }
            }
            LinkEnd::Aborted(reason) => CommError::Stopped { rank, host, reason, phase },
            LinkEnd::Failed(reason) => CommError::Failed { rank, host, reason, phase },
            LinkEnd::Closed(detail) => CommError::Left { rank, host, detail, phase },
            LinkEnd::Silent(silence) => CommError::Silent { rank, host, silence, phase },
            LinkEnd::Garbled(fault) => CommError::Garbled { rank, host, fault, phase },
        }
    }

    fn no_progress(&self, step: CollectiveStep, rank: usize) -> CommError {
        let (host, phase) = (self.hosts[rank].clone(), self.phase(step));
        CommError::NoProgress { rank, host, limit: self.progress, phase }
    }

    /// Rejects a frame of the wrong size, which shows that the vectors or shards of the peer differ
    /// from ours. `expected` is its number of bytes, and whether it ends its message.
    pub(crate) fn check_size(
        &self,
        step: CollectiveStep,
        peer: usize,
        frame: &Frame,
        expected: (usize, bool),
    ) -> Result<(), CommError> {
        let sent = (frame.payload.len(), frame.last);
        if sent == expected {
            return Ok(());
        }
        let named = |(bytes, last)| format!("{bytes} bytes{}", if last { "" } else { ", with more to follow" });
        Err(self.wrong_size(step, peer, named(sent), named(expected)))
    }

    /// The error for a message of the wrong length.
    pub(crate) fn wrong_length(&self, kind: FrameKind, peer: usize, sent: usize, expected: usize) -> CommError {
        let named = |bytes| format!("{bytes} bytes");
        self.wrong_size(CollectiveStep { kind, sequence: self.sequence }, peer, named(sent), named(expected))
    }

    /// The error for a frame which shows that the vectors or shards of the peer differ from ours.
    pub(crate) fn wrong_size(&self, step: CollectiveStep, rank: usize, sent: String, expected: String) -> CommError {
        let (host, phase) = (self.hosts[rank].clone(), self.phase(step));
        CommError::WrongSize { rank, host, sent, expected, phase }
    }

    /// The error for a frame that is well-formed but not acceptable in this step. The peer is given
    /// up: it would send the same again in the next generation.
    pub(crate) fn garbled(&self, step: CollectiveStep, rank: usize, fault: FrameError) -> CommError {
        self.transport.give_up(rank, LinkEnd::Garbled(fault.clone()));
        self.ended(step, rank, LinkEnd::Garbled(fault))
    }

    fn phase(&self, step: CollectiveStep) -> Box<Phase> {
        Box::new(Phase { operation: step.kind.name(), context: self.context.clone() })
    }
}

/// A rank that ends because of an error or a panic sends the reason, so that the logs of the others
/// name the first cause and not what followed from it.
impl Drop for Mesh {
    fn drop(&mut self) {
        if let Some(end) = self.failure.take() {
            self.leave(end);
        } else if std::thread::panicking() {
            self.leave(LinkEnd::Failed("it panicked; see its log".to_owned()));
        }
    }
}
