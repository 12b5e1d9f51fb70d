//! All links of one rank, and the one place where it waits for them.
//!
//! `reduce.rs` writes the collectives over this, each as an [`Exchange`] that [`Mesh::drive`] carries to its end; which
//! engine carries the frames is not visible here. The rank's own thread does everything: while it waits it looks at the
//! health of *every* link, so a dead peer is reported although another one is awaited.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::buffers::{Payload, Pool};
use crate::connection::Connection;
use crate::error::{CommError, Moment};
use crate::frame::{Frame, FrameError, Kind};
use crate::heart::Heart;
use crate::lane::Bell;
use crate::link::{End, Link, Next, locked};
use crate::options::Options;
use crate::outgoing::Step;
use crate::pace::Pace;
use crate::signal::{Signal, Waker};
use crate::tcp::{self, Wire};

/// How long the last words of a rank that failed may take when peers do not answer.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// So long a rank sleeps at most before it looks again.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// A collective under way: a state machine that moves whenever a frame has come or a lane has room.
pub(crate) trait Exchange {
    type Error: Failure;

    /// Does what can be done without waiting; tells whether anything moved.
    fn advance(&mut self, mesh: &Mesh, step: Step) -> Result<bool, Self::Error>;

    /// A peer that this exchange waits for; `None` when it is done.
    fn awaited(&self) -> Option<usize>;

    /// Whether this rank still computes what it will contribute: until it has, no other is too slow.
    fn is_computing(&self) -> bool {
        false
    }

    /// Whether it is over although not all that is queued has left: the next collective writes the rest, or the heart.
    fn leaves_unsent(&self) -> bool {
        false
    }
}

/// How a collective fails.
pub(crate) trait Failure: From<CommError> {
    /// What this rank tells the others, and itself if it is asked again.
    fn reason(&self) -> String;
}

impl Failure for CommError {
    fn reason(&self) -> String {
        self.to_string()
    }
}

pub(crate) struct Mesh {
    pub(crate) rank: usize,
    pub(crate) generation: u64,
    /// One name per rank, this one included.
    pub(crate) hosts: Vec<String>,
    pub(crate) context: String,
    /// One per rank; `None` at this rank's own place.
    links: Vec<Option<Link>>,
    /// Those of the links that are sockets: all or none.
    wires: Vec<Arc<Mutex<Wire>>>,
    heart: Option<Heart>,
    /// Rings when a lane has something to take or room to give, or a [`Waker`] is used.
    bell: Arc<Bell>,
    /// What a [`Waker`] raises where there are sockets.
    signal: Option<Arc<Signal>>,
    /// Memory for the frames of all links.
    pub(crate) pool: Arc<Pool>,
    progress: Duration,
    /// Time spent asleep in collectives so far.
    pub(crate) asleep: Duration,
    /// Collectives begun so far; equal on all ranks as long as they are in step.
    sequence: u64,
    failure: Option<String>,
}

impl Mesh {
    /// Over lanes; `bell` is the one that they ring.
    pub(crate) fn new(
        rank: usize,
        generation: u64,
        hosts: Vec<String>,
        links: Vec<Option<Link>>,
        bell: Arc<Bell>,
        options: &Options,
    ) -> Mesh {
        Mesh {
            rank,
            generation,
            hosts,
            context: String::new(),
            pool: Pool::new(links.len()),
            links,
            wires: Vec::new(),
            heart: None,
            bell,
            signal: None,
            progress: options.progress,
            asleep: Duration::ZERO,
            sequence: 0,
            failure: None,
        }
    }

    /// Over sockets, one per other rank. `pace` is that of all ranks together.
    pub(crate) fn over_wires(
        rank: usize,
        generation: u64,
        hosts: Vec<String>,
        connections: Vec<Option<Connection>>,
        pace: Pace,
        options: &Options,
    ) -> Result<Mesh, CommError> {
        let mut mesh = Mesh::new(rank, generation, hosts, Vec::new(), Arc::default(), options);
        mesh.pool = Pool::new(connections.len());
        mesh.signal = Some(Signal::new()?);
        for connection in connections {
            let wire = connection
                .map(|connection| Wire::new(connection, generation, &mesh.pool, pace, options))
                .transpose()?;
            mesh.wires.extend(wire.clone());
            mesh.links.push(wire.map(Link::Wire));
        }
        mesh.heart = Some(Heart::start(mesh.wires.clone(), pace.beat())?);
        Ok(mesh)
    }

    pub(crate) fn world(&self) -> usize {
        self.hosts.len()
    }

    /// All ranks but this one, in rank order.
    pub(crate) fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.world()).filter(move |peer| *peer != rank)
    }

    /// Runs one collective. Its first failure makes the mesh unusable: frames of a half-done
    /// collective are still under way.
    pub(crate) fn run<T, E: Failure>(
        &mut self,
        kind: Kind,
        body: impl FnOnce(&mut Mesh, Step) -> Result<T, E>,
    ) -> Result<T, E> {
        if let Some(first) = &self.failure {
            return Err(CommError::AlreadyFailed { first: first.clone() }.into());
        }
        self.sequence += 1;
        let step = Step { kind, sequence: self.sequence };
        tcp::attend(&self.wires, true);
        let result = body(self, step);
        tcp::attend(&self.wires, false);
        if let Some(heart) = self.heart.as_ref().filter(|_| self.unsent().is_some()) {
            heart.look();
        }
        if let Err(error) = &result {
            self.failure = Some(error.reason());
        }
        result
    }

    /// Carries an exchange to its end, or to the first failure of any peer.
    pub(crate) fn drive<X: Exchange>(&mut self, step: Step, exchange: &mut X) -> Result<(), X::Error> {
        let start = Instant::now();
        let mut progress = start;
        loop {
            let seen = self.bell.rings();
            let moved = exchange.advance(self, step)?;
            let moved = tcp::write_all(&self.wires) || moved;
            let unsent = || if exchange.leaves_unsent() { None } else { self.unsent() };
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
            self.asleep += self.wait(seen, start, left.min(LONGEST_SLEEP));
        }
    }

    /// Sleeps until something may have changed; tells for how long.
    fn wait(&self, seen: u64, listening_since: Instant, limit: Duration) -> Duration {
        match &self.signal {
            Some(signal) => tcp::await_traffic(&self.wires, Some(signal), listening_since, limit),
            None => self.bell.wait(seen, limit),
        }
    }

    /// A peer for which something is queued that has not left.
    pub(crate) fn unsent(&self) -> Option<usize> {
        self.links().find(|(_, link)| !link.is_flushed()).map(|(peer, _)| peer)
    }

    /// What ends the sleep of this rank's thread.
    pub(crate) fn waker(&self) -> Waker {
        self.signal.as_ref().map_or_else(|| Waker::of_lanes(&self.bell), Waker::of_sockets)
    }

    /// Whether a frame can be queued for the peer now. Even one that said goodbye has failed if it leaves before it has
    /// taken its part.
    pub(crate) fn has_room(&self, step: Step, peer: usize) -> Result<bool, CommError> {
        let Some(Some(link)) = self.links.get(peer) else { return Ok(false) };
        if link.has_room() {
            return Ok(true);
        }
        match link.ended() {
            Some(end) => Err(self.ended(step, peer, end)),
            None => Ok(false),
        }
    }

    /// Queues a frame of this step; ask for room first, unless it is of the last that this rank has to send.
    pub(crate) fn send(&self, step: Step, peer: usize, last: bool, payload: Arc<Payload>) {
        let Step { kind, sequence } = step;
        if let Some(Some(link)) = self.links.get(peer) {
            link.push(Frame { kind, last, sequence, payload });
        }
    }

    /// The next frame of this step from the peer, if it has come.
    pub(crate) fn take(&self, step: Step, peer: usize) -> Result<Option<Frame>, CommError> {
        let Some(Some(link)) = self.links.get(peer) else { return Ok(None) };
        match link.next() {
            Next::Frame(frame) => self.in_step(step, peer, frame).map(Some),
            Next::Ended(end) => Err(self.ended(step, peer, end)),
            Next::Nothing => Ok(None),
        }
    }

    /// Says farewell to all peers and waits until they have heard it.
    pub(crate) fn part(&mut self, end: End) {
        self.heart = None;
        // Before a goodbye, data may still be on its way that peers need; over a slow line that takes a while. A dead peer
        // ends the wait by its silence.
        let patience = if end == End::Goodbye { self.progress } else { LAST_WORDS };
        for (_, link) in self.links() {
            match link {
                Link::Lanes { outgoing, incoming } => {
                    outgoing.end(end.clone());
                    incoming.stop_listening();
                }
                Link::Wire(wire) => locked(wire).farewell(&end),
            }
        }
        let start = Instant::now();
        loop {
            let parted = self.wires.iter().filter(|wire| locked(wire).is_parted()).count() == self.wires.len();
            let left = patience.saturating_sub(start.elapsed());
            if parted || left.is_zero() {
                break;
            }
            tcp::await_traffic(&self.wires, None, start, left);
        }
        self.wires.clear();
        self.links.clear();
    }

    fn links(&self) -> impl Iterator<Item = (usize, &Link)> {
        self.links.iter().enumerate().filter_map(|(peer, link)| Some((peer, link.as_ref()?)))
    }

    /// A peer that failed is reported even when nothing is awaited from it. One that said goodbye has
    /// done its part, and may already be gone while others finish.
    fn check_health(&self, step: Step) -> Result<(), CommError> {
        for (peer, link) in self.links() {
            match link.ended() {
                None | Some(End::Goodbye) => {}
                Some(end) => return Err(self.ended(step, peer, end)),
            }
        }
        Ok(())
    }

    fn in_step(&self, step: Step, peer: usize, frame: Frame) -> Result<Frame, CommError> {
        if (frame.kind, frame.sequence) == (step.kind, step.sequence) {
            return Ok(frame);
        }
        let named = |kind: Kind, sequence: u64| format!("{} (operation {sequence})", kind.name());
        Err(CommError::OutOfStep {
            rank: peer,
            host: self.hosts[peer].clone(),
            theirs: named(frame.kind, frame.sequence),
            ours: named(step.kind, step.sequence),
            moment: self.moment(step),
        })
    }

    fn ended(&self, step: Step, rank: usize, end: End) -> CommError {
        let (host, moment) = (self.hosts[rank].clone(), self.moment(step));
        match end {
            End::Goodbye => {
                let detail = "it had finished and said goodbye".to_owned();
                CommError::Left { rank, host, detail, moment }
            }
            End::Aborted(reason) => CommError::Stopped { rank, host, reason, moment },
            End::Closed(detail) => CommError::Left { rank, host, detail, moment },
            End::Silent(silence) => CommError::Silent { rank, host, silence, moment },
            End::Garbled(fault) => CommError::Garbled { rank, host, fault, moment },
        }
    }

    fn no_progress(&self, step: Step, rank: usize) -> CommError {
        let (host, moment) = (self.hosts[rank].clone(), self.moment(step));
        CommError::NoProgress { rank, host, limit: self.progress, moment }
    }

    /// Refuses a frame of another size, which shows that the peer's vector or shards are not ours. `due`: its bytes, and
    /// whether it ends its message.
    pub(crate) fn check_size(
        &self,
        step: Step,
        peer: usize,
        frame: &Frame,
        due: (usize, bool),
    ) -> Result<(), CommError> {
        let sent = (frame.payload.len(), frame.last);
        if sent == due {
            return Ok(());
        }
        let named = |(bytes, last)| format!("{bytes} bytes{}", if last { "" } else { " and more to come" });
        Err(self.part_size(step, peer, named(sent), named(due)))
    }

    /// A message of another length than all ranks' agree on.
    pub(crate) fn unlike(&self, kind: Kind, peer: usize, sent: usize, due: usize) -> CommError {
        let named = |bytes| format!("{bytes} bytes");
        self.part_size(Step { kind, sequence: self.sequence }, peer, named(sent), named(due))
    }

    /// A frame which shows that the peer's vector or shards are not ours.
    pub(crate) fn part_size(&self, step: Step, rank: usize, sent: String, due: String) -> CommError {
        let (host, moment) = (self.hosts[rank].clone(), self.moment(step));
        CommError::PartSize { rank, host, sent, due, moment }
    }

    /// A frame that is well-formed but not acceptable in this step.
    pub(crate) fn garbled(&self, step: Step, rank: usize, fault: FrameError) -> CommError {
        self.ended(step, rank, End::Garbled(fault))
    }

    fn moment(&self, step: Step) -> Box<Moment> {
        Box::new(Moment { phase: step.kind.name(), context: self.context.clone() })
    }
}

/// A rank that ends because of a failure or a panic tells the others, so that their logs name the
/// first cause and not the chain that followed.
impl Drop for Mesh {
    fn drop(&mut self) {
        if let Some(reason) = self.failure.take() {
            self.part(End::Aborted(reason));
        } else if std::thread::panicking() {
            self.part(End::Aborted("it panicked; see its log".to_owned()));
        }
    }
}
