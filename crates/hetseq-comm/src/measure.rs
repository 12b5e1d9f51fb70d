//! Measures the lines between ranks: in each round disjoint pairs swap blocks both ways at once.
//!
//! Whom one meets and what follows is decided in `lines.rs`. Of a pair the lower rank leads: it says how much is swapped
//! next, and takes the time until the other says that it has everything. Blocks go as real traffic does: encoded,
//! summed up, encrypted if the group is, taken apart and added at the other end. Called by `group.rs`.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::buffers::Payload;
use crate::codec::{Codec, Wire};
use crate::error::CommError;
use crate::frame::{CHUNK_BYTES, FrameError, Kind};
use crate::lines::{self, LARGEST_BYTES, Line, Pair, SMALLEST_BYTES};
use crate::mesh::{Exchange, Mesh};
use crate::outgoing::Step;
use crate::reduce;

/// Tiny swaps, for the latency. The first also waits until the other is there.
const GREETINGS: usize = 7;
/// What the leader says when it has seen enough.
const ENOUGH: u64 = u64::MAX;

/// See [`crate::Group::measure_lines`].
pub(crate) fn measure_lines(mesh: &mut Mesh, budget: Duration) -> Result<Vec<Line>, CommError> {
    let (rank, world) = (mesh.rank, mesh.world());
    let rounds = lines::rounds(world);
    let mut found = Vec::new();
    for round in 0..rounds {
        let peer = lines::partner(world, round, rank);
        mesh.run(Kind::MeasureLines, |mesh, step| match peer {
            Some(peer) if rank < peer => {
                let line = lead(mesh, step, peer, budget / rounds as u32)?;
                found.extend(line.bytes_per_s.to_le_bytes());
                found.extend(line.latency_us.to_le_bytes());
                Ok(())
            }
            Some(peer) => follow(mesh, step, peer),
            None => Ok::<_, CommError>(()),
        })?;
    }
    let found = reduce::agree(mesh, &found)?;
    let mut pairs = Vec::new();
    for (rank, found) in found.iter().enumerate() {
        let partners = (0..rounds).filter_map(|round| lines::partner(world, round, rank));
        let led: Vec<usize> = partners.filter(|peer| *peer > rank).collect();
        let numbers = found.as_chunks::<16>().0;
        if (numbers.len(), found.len()) != (led.len(), 16 * led.len()) {
            return Err(mesh.unlike(Kind::MeasureLines, rank, found.len(), 16 * led.len()));
        }
        pairs.extend(led.iter().zip(numbers).map(|(&peer, numbers)| {
            let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| numbers[at + i]));
            Pair { ranks: [rank, peer], line: Line { bytes_per_s: number(0), latency_us: number(8) } }
        }));
    }
    Ok(lines::lines(world, &pairs))
}

/// Finds out about the line to `peer`, in about `budget`.
fn lead(mesh: &mut Mesh, step: Step, peer: usize, budget: Duration) -> Result<Line, CommError> {
    let mut swap = |bytes: u64| {
        let start = Instant::now();
        mesh.drive(step, &mut Swap::new(peer, Some(bytes)))?;
        Ok::<_, CommError>(start.elapsed())
    };
    swap(0)?;
    let start = Instant::now();
    let there_and_back = (1..GREETINGS).map(|_| swap(0)).collect::<Result<Vec<_>, _>>()?;
    let there_and_back = lines::median(there_and_back);
    let mut bytes = SMALLEST_BYTES;
    // One way passes before the other begins, and one before its last word is back.
    let mut timed = |bytes: usize| Ok::<_, CommError>(swap(bytes as u64)?.saturating_sub(there_and_back));
    let mut took = timed(bytes)?;
    let left = || budget.saturating_sub(start.elapsed());
    while lines::is_worth_doubling(bytes, took, left()) {
        bytes *= 2;
        took = timed(bytes)?;
    }
    // Once more, since the last one may have met a hiccup.
    if took <= left() {
        took = took.min(timed(bytes)?);
    }
    swap(ENOUGH)?;
    let latency_us = there_and_back.as_micros() as u64 / 2;
    Ok(Line { bytes_per_s: lines::bytes_per_s(bytes, took), latency_us })
}

/// Does what `peer` says.
fn follow(mesh: &mut Mesh, step: Step, peer: usize) -> Result<(), CommError> {
    loop {
        let mut swap = Swap::new(peer, None);
        mesh.drive(step, &mut swap)?;
        if swap.bytes == Some(ENOUGH) {
            return Ok(());
        }
    }
}

/// The leader's word, so many bytes both ways, and the follower's word that it has them.
struct Swap {
    peer: usize,
    leads: bool,
    /// The follower does not know it at first.
    bytes: Option<u64>,
    /// The first word and the last are said, or heard.
    has_begun: bool,
    has_ended: bool,
    sent: usize,
    come: usize,
    codec: Codec,
    /// What is sent, and added to.
    values: Vec<f32>,
}

impl Swap {
    fn new(peer: usize, bytes: Option<u64>) -> Swap {
        Swap {
            peer,
            leads: bytes.is_some(),
            bytes,
            has_begun: false,
            has_ended: false,
            sent: 0,
            come: 0,
            codec: Codec::new(Wire::F32, CHUNK_BYTES / 4),
            values: Vec::new(),
        }
    }

    /// To be swapped; the last word of all has nothing to swap.
    fn total(&self) -> usize {
        self.bytes.filter(|bytes| *bytes != ENOUGH).map_or(0, |bytes| bytes as usize)
    }

    fn begin(&mut self, mesh: &Mesh, step: Step) -> Result<bool, CommError> {
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
                if bytes > LARGEST_BYTES as u64 && bytes != ENOUGH {
                    let fault = FrameError::TooLarge { bytes, limit_bytes: LARGEST_BYTES as u64 };
                    return Err(mesh.garbled(step, self.peer, fault));
                }
                self.bytes = Some(bytes);
            }
        }
        self.values.resize(self.total().min(CHUNK_BYTES) / 4, 0.0);
        self.has_begun = true;
        Ok(true)
    }

    /// What goes in the frame that begins after `done` bytes, and whether it is the last.
    fn piece(&self, done: usize) -> (Range<usize>, bool) {
        let bytes = (self.total() - done).min(CHUNK_BYTES);
        (0..bytes / 4, done + bytes == self.total())
    }

    fn send(&mut self, mesh: &Mesh, step: Step) -> Result<bool, CommError> {
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

    fn receive(&mut self, mesh: &Mesh, step: Step) -> Result<bool, CommError> {
        if self.come == self.total() {
            return Ok(false);
        }
        let Some(frame) = mesh.take(step, self.peer)? else { return Ok(false) };
        let (range, last) = self.piece(self.come);
        mesh.check_size(step, self.peer, &frame, (self.codec.bytes(&range), last))?;
        self.codec.decode(&range, &frame.payload, &mut self.values[range.clone()], |to, value| *to += value);
        self.come += frame.payload.len();
        Ok(true)
    }

    fn end(&mut self, mesh: &Mesh, step: Step) -> Result<bool, CommError> {
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

    fn advance(&mut self, mesh: &Mesh, step: Step) -> Result<bool, CommError> {
        if !self.has_begun {
            return self.begin(mesh, step);
        }
        let moved = self.send(mesh, step)? | self.receive(mesh, step)?;
        let is_swapped = (self.sent, self.come) == (self.total(), self.total());
        Ok(if is_swapped && !self.has_ended { self.end(mesh, step)? } else { moved } || moved)
    }

    fn awaited(&self) -> Option<usize> {
        (!self.has_ended).then_some(self.peer)
    }
}
