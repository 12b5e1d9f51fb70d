//! Measures the links between ranks: in each round disjoint pairs swap blocks in both directions at
//! once.
//!
//! Which pairs measure and what follows is decided in `link_speeds.rs`. The lower rank of a pair
//! leads: it says how much is swapped next, and takes the time until the other confirms that it has
//! everything. Blocks are treated like real traffic: encoded, checksummed, encrypted if the group
//! is, decoded and added at the other end. Called by `group.rs`.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::buffers::Payload;
use crate::codec::{Codec, WireFormat};
use crate::error::CommError;
use crate::frame::{CHUNK_BYTES, FrameError, FrameKind};
use crate::link_speeds::{self, LARGEST_BYTES, LinkPair, LinkSpeed, SMALLEST_BYTES};
use crate::mesh::{Exchange, Mesh};
use crate::outgoing::CollectiveStep;
use crate::reduce;

/// Number of empty swaps to measure the latency. The first also waits until the peer is ready.
const LATENCY_SWAPS: usize = 7;
/// The size that the leader sends to end the measurement.
const STOP: u64 = u64::MAX;

/// See [`crate::Group::measure_links`].
pub(crate) fn measure_links(mesh: &mut Mesh, budget: Duration) -> Result<Vec<LinkSpeed>, CommError> {
    let (rank, world) = (mesh.rank, mesh.world());
    let rounds = link_speeds::rounds(world);
    let mut found = Vec::new();
    for round in 0..rounds {
        let peer = link_speeds::partner(world, round, rank);
        mesh.run(FrameKind::MeasureLinks, |mesh, step| match peer {
            Some(peer) if rank < peer => {
                let speed = lead(mesh, step, peer, budget / rounds as u32)?;
                found.extend(speed.bytes_per_s.to_le_bytes());
                found.extend(speed.latency_us.to_le_bytes());
                Ok(())
            }
            Some(peer) => follow(mesh, step, peer),
            None => Ok::<_, CommError>(()),
        })?;
    }
    let found = reduce::all_gather_bytes(mesh, &found)?;
    let mut pairs = Vec::new();
    for (rank, found) in found.iter().enumerate() {
        let partners = (0..rounds).filter_map(|round| link_speeds::partner(world, round, rank));
        let led: Vec<usize> = partners.filter(|peer| *peer > rank).collect();
        let numbers = found.as_chunks::<16>().0;
        if (numbers.len(), found.len()) != (led.len(), 16 * led.len()) {
            return Err(mesh.wrong_length(FrameKind::MeasureLinks, rank, found.len(), 16 * led.len()));
        }
        pairs.extend(led.iter().zip(numbers).map(|(&peer, numbers)| {
            let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| numbers[at + i]));
            LinkPair { ranks: [rank, peer], speed: LinkSpeed { bytes_per_s: number(0), latency_us: number(8) } }
        }));
    }
    Ok(link_speeds::per_rank(world, &pairs))
}

/// Measures the link to `peer`, in about `budget`.
fn lead(mesh: &mut Mesh, step: CollectiveStep, peer: usize, budget: Duration) -> Result<LinkSpeed, CommError> {
    let mut swap = |bytes: u64| {
        let start = Instant::now();
        mesh.drive(step, &mut Swap::new(peer, Some(bytes)))?;
        Ok::<_, CommError>(start.elapsed())
    };
    swap(0)?;
    let start = Instant::now();
    let round_trip = (1..LATENCY_SWAPS).map(|_| swap(0)).collect::<Result<Vec<_>, _>>()?;
    let round_trip = link_speeds::median(round_trip);
    let mut bytes = SMALLEST_BYTES;
    // A swap also includes a round trip: the size travels before the peer starts, and its
    // confirmation travels back.
    let mut timed = |bytes: usize| Ok::<_, CommError>(swap(bytes as u64)?.saturating_sub(round_trip));
    let mut took = timed(bytes)?;
    let left = || budget.saturating_sub(start.elapsed());
    while link_speeds::is_worth_doubling(bytes, took, left()) {
        bytes *= 2;
        took = timed(bytes)?;
    }
    // Repeat it, since the last one may have been disturbed.
    if took <= left() {
        took = took.min(timed(bytes)?);
    }
    swap(STOP)?;
    let latency_us = round_trip.as_micros() as u64 / 2;
    Ok(LinkSpeed { bytes_per_s: link_speeds::bytes_per_s(bytes, took), latency_us })
}

/// Follows the leader `peer` until it ends the measurement.
fn follow(mesh: &mut Mesh, step: CollectiveStep, peer: usize) -> Result<(), CommError> {
    loop {
        let mut swap = Swap::new(peer, None);
        mesh.drive(step, &mut swap)?;
        if swap.bytes == Some(STOP) {
            return Ok(());
        }
    }
}

/// One swap: the leader sends the size, both send that many bytes, the follower confirms.
struct Swap {
    peer: usize,
    leads: bool,
    /// `None` on the follower until the leader has sent it.
    bytes: Option<u64>,
    /// Whether the size was exchanged, and whether the follower has confirmed.
    has_started: bool,
    has_ended: bool,
    sent: usize,
    received: usize,
    codec: Codec,
    /// The values to send, to which received values are added.
    values: Vec<f32>,
}

impl Swap {
    fn new(peer: usize, bytes: Option<u64>) -> Swap {
        Swap {
            peer,
            leads: bytes.is_some(),
            bytes,
            has_started: false,
            has_ended: false,
            sent: 0,
            received: 0,
            codec: Codec::new(WireFormat::F32, CHUNK_BYTES / 4),
            values: Vec::new(),
        }
    }

    /// Returns the bytes to swap; the message that ends the measurement has none.
    fn total(&self) -> usize {
        self.bytes.filter(|bytes| *bytes != STOP).map_or(0, |bytes| bytes as usize)
    }

    fn start(&mut self, mesh: &Mesh, step: CollectiveStep) -> Result<bool, CommError> {
        match self.bytes {
            Some(bytes) if self.leads => {
                if !mesh.has_room(step, self.peer)? {
                    return Ok(false);
                }
                mesh.send(step, self.peer, true, Payload::new(bytes.to_le_bytes().to_vec()));
            }
            _ => {
                let Some(frame) = mesh.take(step, self.peer)? else { return Ok(false) };
                mesh.check_size(step, self.peer, &frame, (8, true))?;
                let bytes = u64::from_le_bytes(std::array::from_fn(|at| frame.payload[at]));
                if bytes > LARGEST_BYTES as u64 && bytes != STOP {
                    let fault = FrameError::TooLarge { bytes, limit_bytes: LARGEST_BYTES as u64 };
                    return Err(mesh.garbled(step, self.peer, fault));
                }
                self.bytes = Some(bytes);
            }
        }
        self.values.resize(self.total().min(CHUNK_BYTES) / 4, 0.0);
        self.has_started = true;
        Ok(true)
    }

    /// Returns the values of the frame that starts after `done` bytes, and whether it is the last.
    fn piece(&self, done: usize) -> (Range<usize>, bool) {
        let bytes = (self.total() - done).min(CHUNK_BYTES);
        (0..bytes / 4, done + bytes == self.total())
    }

    fn send(&mut self, mesh: &Mesh, step: CollectiveStep) -> Result<bool, CommError> {
        if self.sent == self.total() || !mesh.has_room(step, self.peer)? {
            return Ok(false);
        }
        let (range, last) = self.piece(self.sent);
        let mut bytes = mesh.pool.take(self.codec.bytes(&range));
        self.codec.encode(&range, &self.values[range.clone()], &mut bytes);
        self.sent += bytes.len();
        mesh.send(step, self.peer, last, Payload::pooled(bytes, &mesh.pool));
        Ok(true)
    }

    fn receive(&mut self, mesh: &Mesh, step: CollectiveStep) -> Result<bool, CommError> {
        if self.received == self.total() {
            return Ok(false);
        }
        let Some(frame) = mesh.take(step, self.peer)? else { return Ok(false) };
        let (range, last) = self.piece(self.received);
        mesh.check_size(step, self.peer, &frame, (self.codec.bytes(&range), last))?;
        self.codec.decode(&range, &frame.payload, &mut self.values[range.clone()], |to, value| *to += value);
        self.received += frame.payload.len();
        Ok(true)
    }

    fn end(&mut self, mesh: &Mesh, step: CollectiveStep) -> Result<bool, CommError> {
        if self.leads {
            let Some(frame) = mesh.take(step, self.peer)? else { return Ok(false) };
            mesh.check_size(step, self.peer, &frame, (0, true))?;
        } else if mesh.has_room(step, self.peer)? {
            mesh.send(step, self.peer, true, Payload::new(Vec::new()));
        } else {
            return Ok(false);
        }
        self.has_ended = true;
        Ok(true)
    }
}

impl Exchange for Swap {
    type Error = CommError;

    fn advance(&mut self, mesh: &Mesh, step: CollectiveStep) -> Result<bool, CommError> {
        if !self.has_started {
            return self.start(mesh, step);
        }
        let moved = self.send(mesh, step)? | self.receive(mesh, step)?;
        let is_swapped = (self.sent, self.received) == (self.total(), self.total());
        Ok(if is_swapped && !self.has_ended { self.end(mesh, step)? } else { moved } || moved)
    }

    fn awaited(&self) -> Option<usize> {
        (!self.has_ended).then_some(self.peer)
    }
}
