//! The transport over stream sockets: TCP connections that `rendezvous/` has authenticated, or
//! socketpairs between ranks that are threads of one process.
//!
//! The rank's own thread reads and writes while it is in a collective: new results are sent while
//! they are in the cache, and no other thread has to be woken. Between collectives the heartbeat
//! thread (`heartbeat.rs`) keeps the connections alive. A [`StreamLink`] is one connection with its
//! queued and received frames.

mod heartbeat;
mod link;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::buffers::{Payload, Pool};
use crate::connection::Connection;
use crate::error::CommError;
use crate::frame::Frame;
use crate::heartbeat_timing::HeartbeatTiming;
use crate::lock::locked;
use crate::mesh::Mesh;
use crate::options::Options;
use crate::rendezvous;
use crate::signal::{Signal, Waker, sleep};
use crate::transport::{LinkEnd, Received, Transport};

use heartbeat::Heartbeat;
use link::StreamLink;

/// A link, shared by the rank's thread and the heartbeat thread.
type SharedLink = Arc<Mutex<StreamLink>>;

/// The links of one rank.
struct StreamTransport {
    /// One per rank; `None` at the index of this rank.
    links: Vec<Option<SharedLink>>,
    /// Raised by a [`Waker`].
    signal: Arc<Signal>,
    /// `None` without links, and after the end was sent.
    heartbeat: Option<Heartbeat>,
    /// Of all ranks combined.
    timing: HeartbeatTiming,
    options: Options,
    pool: Arc<Pool>,
}

/// Creates the mesh of a rank over its connections, indexed by peer. `timing` is that of all ranks
/// combined.
pub(crate) fn mesh(
    rank: usize,
    generation: u64,
    hosts: Vec<String>,
    connections: Vec<Option<Connection>>,
    timing: HeartbeatTiming,
    options: &Options,
) -> Result<Mesh, CommError> {
    let (pool, silence) = (Pool::new(connections.len()), timing.give_up_after(options.silence));
    let link = |connection: Option<Connection>| {
        connection.map(|connection| StreamLink::new(connection, generation, &pool, silence)).transpose()
    };
    let links = connections.into_iter().map(link).collect::<Result<Vec<Option<SharedLink>>, _>>()?;
    let (signal, heartbeat) = (Signal::new()?, None);
    let mut transport =
        StreamTransport { links, signal, heartbeat, timing, options: options.clone(), pool: pool.clone() };
    if transport.links().next().is_some() {
        transport.heartbeat = Some(Heartbeat::start(transport.links(), timing.interval())?);
    }
    Ok(Mesh::new(rank, generation, hosts, Box::new(transport), pool, options.progress))
}

impl StreamTransport {
    fn link(&self, peer: usize) -> Option<&SharedLink> {
        self.links.get(peer)?.as_ref()
    }

    fn links(&self) -> impl Iterator<Item = &SharedLink> {
        self.links.iter().flatten()
    }
}

impl Transport for StreamTransport {
    fn has_room(&self, peer: usize) -> bool {
        self.link(peer).is_some_and(|link| locked(link).has_room())
    }

    fn push(&self, peer: usize, frame: &Frame) {
        if let Some(link) = self.link(peer) {
            locked(link).push(frame);
        }
    }

    fn next(&self, peer: usize) -> Received {
        self.link(peer).map_or(Received::Nothing, |link| locked(link).next())
    }

    fn ended(&self, peer: usize) -> Option<LinkEnd> {
        self.link(peer).and_then(|link| locked(link).ended())
    }

    fn is_flushed(&self, peer: usize) -> bool {
        self.link(peer).is_none_or(|link| locked(link).is_flushed())
    }

    fn flush(&self) -> bool {
        // `any` would stop at the first link that moved.
        self.links().filter(|link| locked(link).write()).count() > 0
    }

    fn sends_between_collectives(&self) -> bool {
        true
    }

    /// A frame costs a wake-up of its receiver.
    fn smallest_piece_bytes(&self) -> usize {
        16 << 10
    }

    fn can_regroup(&self) -> bool {
        true
    }

    fn wait(&self, since: Instant, limit: Duration) -> Duration {
        await_traffic(self.links(), Some(&self.signal), since, limit)
    }

    fn attend(&self, in_collective: bool) {
        let mut has_unsent = false;
        for link in self.links() {
            let mut link = locked(link);
            link.attend(in_collective);
            has_unsent |= !link.is_flushed();
        }
        if let Some(heartbeat) = self.heartbeat.as_ref().filter(|_| has_unsent && !in_collective) {
            heartbeat.wake();
        }
    }

    fn part(&mut self, end: &LinkEnd, limit: Duration) {
        self.heartbeat = None;
        let start = Instant::now();
        self.links().for_each(|link| locked(link).queue_end(end));
        // `all` would stop at the first link that is open.
        while self.links().filter(|link| !locked(link).is_closed()).count() > 0 {
            let left = limit.saturating_sub(start.elapsed());
            if left.is_zero() {
                break;
            }
            await_traffic(self.links(), None, start, left);
        }
        self.links.clear();
    }

    fn take_regroup(&self, peer: usize) -> Option<Arc<Payload>> {
        self.link(peer).and_then(|link| locked(link).take_regroup())
    }

    fn has_regroup(&self, peer: usize) -> bool {
        self.link(peer).is_some_and(|link| locked(link).has_regroup())
    }

    fn cut(&self, peer: usize, end: LinkEnd) {
        if let Some(link) = self.link(peer) {
            locked(link).cut(end);
        }
    }

    fn cancel_queued(&self) {
        self.links().for_each(|link| locked(link).cancel_queued());
    }

    fn give_up(&self, peer: usize, end: LinkEnd) {
        if let Some(link) = self.link(peer) {
            locked(link).give_up(end);
        }
    }

    fn install(&mut self, ranks: &[usize], generation: u64) {
        let mut links = std::mem::take(&mut self.links);
        self.links = ranks.iter().map(|&rank| links.get_mut(rank).and_then(Option::take)).collect();
        let excluded = || LinkEnd::Closed("the others continue without it".to_owned());
        links.iter().flatten().for_each(|link| locked(link).cut(excluded()));
        self.links().for_each(|link| locked(link).install(generation));
    }

    fn add(&mut self, connection: Connection, timing: HeartbeatTiming, generation: u64) -> Result<(), CommError> {
        self.timing = self.timing.combine(timing);
        rendezvous::prepare(&connection, self.timing, &self.options);
        let silence = self.timing.give_up_after(self.options.silence);
        let link = StreamLink::new(connection, generation, &self.pool, silence)?;
        // As `regroup` has set it for the others.
        locked(&link).attend(true);
        self.links.push(Some(link));
        self.pool.raise_max_spare(8 * self.links.len());
        self.heartbeat = Some(Heartbeat::start(self.links(), self.timing.interval())?);
        Ok(())
    }

    fn timing(&self) -> HeartbeatTiming {
        self.timing
    }

    fn waker(&self) -> Waker {
        Waker::new(&self.signal)
    }
}

/// Sleeps until a socket is readable or writable, the signal is raised, a peer has been silent for
/// too long since `since`, or `limit` has passed; returns the time slept. Before that, it reads
/// ahead what is already there.
fn await_traffic<'a>(
    links: impl IntoIterator<Item = &'a SharedLink>,
    signal: Option<&Signal>,
    since: Instant,
    limit: Duration,
) -> Duration {
    let mut arrived = false;
    let mut limit = limit.min(Duration::from_secs(1));
    let mut sockets = Vec::new();
    for link in links {
        let mut link = locked(link);
        arrived |= link.read_ahead();
        let silence_left = link.silence_left(since);
        arrived |= silence_left.is_some_and(|left| left.is_zero());
        // `poll` must not get a timeout that it would round to zero.
        limit = limit.min(silence_left.unwrap_or(Duration::MAX).max(Duration::from_millis(1)));
        sockets.extend(link.interest());
    }
    if arrived { Duration::ZERO } else { sleep(&sockets, signal, limit) }
}

/// Sleeps until a link outside of a collective can write what is queued, the signal is raised, or
/// `limit` has passed.
fn await_writable(links: &[SharedLink], signal: &Signal, limit: Duration) {
    let sockets: Vec<_> = links.iter().filter_map(|link| locked(link).unattended_interest()).collect();
    sleep(&sockets, Some(signal), limit);
}

#[cfg(test)]
mod all_reduce_tests;
#[cfg(test)]
mod fuzz_links;
#[cfg(test)]
mod tests;
