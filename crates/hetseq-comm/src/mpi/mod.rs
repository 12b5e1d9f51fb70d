//! The transport over MPI, for sites with a fast network and an MPI library that knows it. Feature
//! `mpi`.
//!
//! Frames become messages (`messages.rs`) that this rank's thread sends and receives without
//! blocking, so collectives are the same code as over TCP and add in the same order. No other thread
//! may call MPI, which has three consequences:
//!
//! - Nothing moves between collectives, so a collective ends only when all its frames have left.
//! - There are no heartbeats. A peer that is silent computes, or is dead: only a rank without
//!   progress counts as failed. The launcher notices a dead rank, and ends all others by SIGTERM
//!   and, soon, SIGKILL. So after SIGTERM this rank asks its peers whether they are alive.
//! - MPI has nothing to sleep on. A rank that waits polls, at first without a pause, then in naps
//!   that grow with the wait, so that the devices of its process have the cores.
//!
//! MPI cannot continue without a lost rank: there is no regrouping. Joining is in `launched.rs`.

mod launched;
mod library;
mod messages;
mod mpi_link;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::buffers::{Payload, Pool};
use crate::connection::Connection;
use crate::error::{CommError, named_ranks, shown};
use crate::frame::{CHUNK_BYTES, Frame, FrameKind};
use crate::heartbeat_timing::HeartbeatTiming;
use crate::lock::locked;
use crate::signal::{Signal, Waker, sleep};
use crate::transport::{LinkEnd, Received, Transport};

use library::{MpiLibrary, Receiving};
use messages::CONTROL;
use mpi_link::MpiLink;

pub(crate) use launched::join;

/// How long a rank polls without a pause after something has moved. The next message of a running
/// exchange is there by then.
const POLLING: Duration = Duration::from_micros(100);
/// Naps take this part of the time that nothing has moved, so they delay a wait by as much at most.
const NAP_PART: u32 = 8;
const LONGEST_NAP: Duration = Duration::from_millis(1);
/// How often a rank that was asked to end asks its peers whether they are alive.
const ASK_INTERVAL: Duration = Duration::from_millis(100);
/// How long peers may take to answer before this rank warns. Open MPI kills after a second.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// Longer reasons of a failure are cut: a message must leave at once, without the receiver's help.
const REASON_BYTES: usize = 1024;

/// The links of one rank.
struct MpiTransport {
    state: Mutex<MpiState>,
    /// Raised by a [`Waker`].
    signal: Arc<Signal>,
}

struct MpiState {
    library: MpiLibrary,
    /// One per rank; `None` at the index of this rank.
    links: Vec<Option<MpiLink>>,
    pool: Arc<Pool>,
    /// Messages that overtake others, with their senders.
    control: Vec<(usize, Receiving)>,
    last_moved: Instant,
    termination: Termination,
}

/// What follows from SIGTERM.
struct Termination {
    /// Set when this process has received it.
    is_asked: Arc<AtomicBool>,
    /// When that was noticed.
    since: Option<Instant>,
    last_question: Option<Instant>,
    has_warned: bool,
    /// A peer that does not answer for this long is lost.
    silence: Duration,
}

impl MpiTransport {
    fn new(
        library: MpiLibrary,
        pool: &Arc<Pool>,
        terminated: &Arc<AtomicBool>,
        silence: Duration,
    ) -> Result<MpiTransport, CommError> {
        let termination =
            Termination { is_asked: terminated.clone(), since: None, last_question: None, has_warned: false, silence };
        let links = (0..library.world).map(|peer| (peer != library.rank).then(|| MpiLink::new(peer))).collect();
        let (pool, control, last_moved) = (pool.clone(), Vec::new(), Instant::now());
        let state = MpiState { library, links, pool, control, last_moved, termination };
        Ok(MpiTransport { state: Mutex::new(state), signal: Signal::new()? })
    }

    fn state(&self) -> MutexGuard<'_, MpiState> {
        let state = locked(&self.state);
        state.library.check_thread();
        state
    }
}

impl MpiState {
    fn link(&self, peer: usize) -> Option<&MpiLink> {
        self.links.get(peer)?.as_ref()
    }

    /// The link to a peer, with what its methods need.
    fn link_mut(&mut self, peer: usize) -> Option<(&mut MpiLink, &MpiLibrary, &Arc<Pool>)> {
        Some((self.links.get_mut(peer)?.as_mut()?, &self.library, &self.pool))
    }

    /// Lets MPI work on all messages; returns whether any has arrived or left.
    fn poll(&mut self) -> bool {
        let mut moved = self.receive_control();
        for link in self.links.iter_mut().flatten() {
            moved |= link.flush();
            moved |= link.receive(&self.library, &self.pool);
        }
        self.note_progress(moved)
    }

    fn note_progress(&mut self, moved: bool) -> bool {
        if moved {
            self.last_moved = Instant::now();
        }
        moved
    }

    /// Receives messages that overtake others. If MPI fails here, no peer is reachable.
    fn receive_control(&mut self) -> bool {
        let mut moved = false;
        if let Err(error) = self.try_receive_control(&mut moved) {
            moved = true;
            self.links.iter_mut().flatten().for_each(|link| link.end_with(LinkEnd::Closed(error.clone())));
        }
        moved
    }

    fn try_receive_control(&mut self, moved: &mut bool) -> Result<(), library::MpiError> {
        while let Some(arrival) = self.library.probe(None, Some(CONTROL))? {
            self.control.push((arrival.peer, arrival.receive(Vec::new())?));
        }
        for (peer, mut receiving) in std::mem::take(&mut self.control) {
            if !receiving.is_done()? {
                self.control.push((peer, receiving));
            } else if let Some((link, ..)) = self.link_mut(peer) {
                link.take(CONTROL, Payload::new(receiving.into_bytes()));
                *moved |= link.end.is_some();
            }
        }
        Ok(())
    }

    /// Answers peers that ask whether this rank is alive, and asks them once this process was asked
    /// to end. Ends links to peers that do not answer, not counting the time before `waiting_since`;
    /// returns whether it has.
    fn check_alive(&mut self, waiting_since: Instant) -> bool {
        let now = Instant::now();
        for link in self.links.iter_mut().flatten().filter(|link| link.is_asking) {
            link.is_asking = false;
            link.push_control(&self.library, &Frame::control(FrameKind::Heartbeat, Vec::new()));
        }
        let termination = &mut self.termination;
        if !termination.is_asked.load(Ordering::Relaxed) {
            return false;
        }
        let since = (*termination.since.get_or_insert(now)).max(waiting_since);
        if termination.last_question.is_none_or(|last| now - last >= ASK_INTERVAL) {
            termination.last_question = Some(now);
            let question = Frame::control(FrameKind::Heartbeat, vec![1]);
            self.links.iter_mut().flatten().for_each(|link| link.push_control(&self.library, &question));
        }
        let silent = |link: &MpiLink| now.saturating_duration_since(link.last_heard.max(since));
        let links = self.links.iter().enumerate().filter_map(|(peer, link)| Some((peer, link.as_ref()?)));
        let unheard: Vec<usize> = links
            .filter(|(_, link)| link.end.is_none() && silent(link) >= ANSWER_TIMEOUT)
            .map(|(peer, _)| peer)
            .collect();
        if !unheard.is_empty() && !std::mem::replace(&mut termination.has_warned, true) {
            tracing::warn!(
                "since SIGTERM, {} did not answer. If the launcher ends this job because a rank has died, nothing more is \
                 saved: the same command resumes from the last checkpoint",
                named_ranks(&unheard)
            );
        }
        let limit = termination.silence;
        let mut has_ended = false;
        for link in self.links.iter_mut().flatten().filter(|link| link.end.is_none() && silent(link) >= limit) {
            link.end_with(LinkEnd::Silent(limit));
            has_ended = true;
        }
        has_ended
    }

    /// Returns whether all peers have ended and all messages to them have left.
    fn has_parted(&self) -> bool {
        self.links.iter().flatten().all(|link| link.end.is_some() && link.is_flushed())
    }

    /// Ends MPI if no peer can be dead: all have said goodbye, and no message is on its way.
    fn finalize(&mut self) {
        let is_clean = |link: &MpiLink| link.end == Some(LinkEnd::Goodbye) && link.is_idle();
        if self.links.iter().flatten().all(is_clean) && self.control.is_empty() {
            self.library.finalize();
        }
    }
}

impl Transport for MpiTransport {
    fn has_room(&self, peer: usize) -> bool {
        self.state().link(peer).is_some_and(MpiLink::has_room)
    }

    fn push(&self, peer: usize, frame: &Frame) {
        if let Some((link, library, _)) = self.state().link_mut(peer) {
            link.push(library, frame);
        }
    }

    fn next(&self, peer: usize) -> Received {
        self.state().link_mut(peer).map_or(Received::Nothing, |(link, library, pool)| link.next(library, pool))
    }

    fn ended(&self, peer: usize) -> Option<LinkEnd> {
        self.state().link(peer).and_then(|link| link.end.clone())
    }

    fn is_flushed(&self, peer: usize) -> bool {
        self.state().link(peer).is_none_or(MpiLink::is_flushed)
    }

    fn flush(&self) -> bool {
        let mut state = self.state();
        // `any` would stop at the first link that moved.
        let moved = state.links.iter_mut().flatten().filter_map(|link| link.flush().then_some(())).count() > 0;
        state.note_progress(moved)
    }

    fn sends_between_collectives(&self) -> bool {
        false
    }

    /// MPI asks the receiver before each large message: between two processes of one machine, a sum
    /// of 1 MB took 0.22 ms in four messages per part and 0.15 ms in one.
    fn smallest_piece_bytes(&self) -> usize {
        CHUNK_BYTES
    }

    fn can_regroup(&self) -> bool {
        false
    }

    fn wait(&self, since: Instant, limit: Duration) -> Duration {
        let start = Instant::now();
        loop {
            let mut state = self.state();
            if state.poll() || state.check_alive(since) {
                break;
            }
            let idle = state.last_moved.elapsed();
            drop(state);
            let left = limit.saturating_sub(start.elapsed());
            if left.is_zero() {
                break;
            }
            if idle < POLLING && !self.signal.is_raised() {
                std::thread::yield_now();
                continue;
            }
            let nap = nap_after(idle).min(left);
            // It ends early if a waker was used.
            if sleep(&[], Some(&self.signal), nap) < nap {
                break;
            }
        }
        start.elapsed()
    }

    fn attend(&self, _in_collective: bool) {}

    fn part(&mut self, end: &LinkEnd, limit: Duration) {
        let start = Instant::now();
        let mut state = self.state();
        let MpiState { library, links, .. } = &mut *state;
        for link in links.iter_mut().flatten() {
            match end {
                LinkEnd::Aborted(reason) | LinkEnd::Failed(reason) => {
                    let kind = if matches!(end, LinkEnd::Failed(_)) { FrameKind::Failed } else { FrameKind::Abort };
                    link.push_control(library, &Frame::control(kind, shown(reason, REASON_BYTES).into_bytes()));
                }
                _ => link.push(library, &Frame::control(FrameKind::Goodbye, Vec::new())),
            }
        }
        while !state.has_parted() {
            let is_asked_to_end = state.termination.is_asked.load(Ordering::Relaxed);
            let limit = if is_asked_to_end { limit.min(state.termination.silence) } else { limit };
            if start.elapsed() >= limit {
                break;
            }
            if !state.poll() {
                std::thread::sleep(nap_after(state.last_moved.elapsed()));
            }
            state.links.iter_mut().flatten().for_each(MpiLink::discard);
        }
        if *end == LinkEnd::Goodbye {
            state.finalize();
        }
        state.links.clear();
    }

    fn take_regroup(&self, _peer: usize) -> Option<Arc<Payload>> {
        None
    }

    fn has_regroup(&self, _peer: usize) -> bool {
        false
    }

    fn cut(&self, peer: usize, end: LinkEnd) {
        self.give_up(peer, end);
    }

    fn cancel_queued(&self) {}

    fn give_up(&self, peer: usize, end: LinkEnd) {
        if let Some((link, ..)) = self.state().link_mut(peer) {
            link.end_with(end);
        }
    }

    fn install(&mut self, _ranks: &[usize], _generation: u64) {}

    fn add(&mut self, _: Connection, _: HeartbeatTiming, _generation: u64) -> Result<(), CommError> {
        Err(CommError::Misuse { operation: "admit", what: "processes cannot join ranks over MPI".to_owned() })
    }

    fn timing(&self) -> HeartbeatTiming {
        HeartbeatTiming::of(self.state().termination.silence, Duration::ZERO)
    }

    fn waker(&self) -> Waker {
        Waker::new(&self.signal)
    }
}

/// How long to sleep when nothing has moved for `idle`.
fn nap_after(idle: Duration) -> Duration {
    (idle / NAP_PART).min(LONGEST_NAP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naps_delay_a_wait_by_an_eighth_and_a_millisecond_at_most() {
        assert_eq!(nap_after(Duration::from_micros(800)), Duration::from_micros(100));
        assert_eq!(nap_after(Duration::from_secs(60)), LONGEST_NAP);
    }
}
