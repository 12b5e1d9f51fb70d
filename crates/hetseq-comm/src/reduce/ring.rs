//! The ring algorithm: each rank receives only from its left neighbour and sends only to its right
//! one.
//!
//! A part starts at one rank, collects the contributions of the others on its way around, and goes
//! around once more as the sum. Sums are added in the order of the ring, starting at a different
//! rank for each part, and are copied afterwards, so all ranks agree bit for bit.
//!
//! Parts travel in pieces, and a rank passes a piece on soon after it has arrived, in the buffer in
//! which it arrived: it is still in the cache, and a sum on its second way around keeps its
//! checksum. So the pieces of all parts are on their way at the same time, the first ones a few hops
//! ahead. Called by `all_reduce.rs`.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::buffers::Payload;
use crate::codec::{Codec, WireFormat};
use crate::error::CommError;
use crate::mesh::{Exchange, Mesh};
use crate::outgoing::CollectiveStep;
use crate::shards::Shards;

use super::chunks::Chunks;
use super::pieces;

/// The number of turns by which a piece is passed on after it was sent. With one turn, a rank would
/// often wait for its neighbour; with many, pieces leave the cache.
const TURNS_PER_HOP: usize = 2;

/// A piece on its way. A rank sends pieces in the order of these fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Piece {
    /// Its index in its part, plus the turns of the hops behind it.
    turn: usize,
    /// The number of hops behind it.
    hop: usize,
}

/// The pieces that one rank sends, in order.
struct Order {
    /// Per hop: the pieces of the part that makes it.
    parts: Vec<Chunks>,
    turns: usize,
    next: Piece,
}

impl Order {
    fn new(rank: usize, shards: &Shards, smallest_bytes: usize) -> Order {
        let world = shards.world();
        let owner = |hop: usize| (rank + 2 * world - hop) % world;
        let part = |hop: usize| Chunks::of(shards.of(owner(hop)), shards.len(), world, smallest_bytes);
        let parts: Vec<Chunks> = (0..2 * (world - 1)).map(part).collect();
        let longest = parts.iter().map(Chunks::count).max().unwrap_or_default();
        let mut order = Order { turns: longest + parts.len() * TURNS_PER_HOP, parts, next: Piece::default() };
        order.skip_missing();
        order
    }

    /// Returns the index of the next piece in its part, if there is such a piece.
    fn index(&self) -> Option<usize> {
        let index = self.next.turn.checked_sub(self.next.hop * TURNS_PER_HOP)?;
        self.parts.get(self.next.hop).filter(|chunks| index < chunks.count()).map(|_| index)
    }

    /// Returns the next piece, its values, and whether it is the last of its part.
    fn next(&self) -> Option<(Piece, Range<usize>, bool)> {
        let (chunks, index) = (self.parts.get(self.next.hop)?, self.index()?);
        Some((self.next, chunks.get(index), chunks.is_last(index)))
    }

    fn advance(&mut self) {
        self.next.hop += 1;
        self.skip_missing();
    }

    fn skip_missing(&mut self) {
        while self.next.turn < self.turns && self.index().is_none() {
            self.next.hop += 1;
            if self.next.hop >= self.parts.len() {
                self.next = Piece { turn: self.next.turn + 1, hop: 0 };
            }
        }
    }
}

/// One exchange by the ring algorithm.
pub(super) struct Ring<'a> {
    own: Arc<Vec<f32>>,
    sum: &'a mut [f32],
    codec: Codec,
    world: usize,
    left: usize,
    right: usize,
    /// What this rank sends, and what its left neighbour sends to it.
    outgoing: Order,
    incoming: Order,
    /// Received, and to be passed on: in the order in which they arrived.
    passing: VecDeque<Arc<Payload>>,
    /// The most of them. The neighbours cannot all be ahead of each other, so that one rank always
    /// takes more.
    most_passing: usize,
}

impl<'a> Ring<'a> {
    pub(super) fn new(mesh: &Mesh, own: Arc<Vec<f32>>, sum: &'a mut [f32], shards: &Shards) -> Ring<'a> {
        let (rank, world) = (mesh.rank, mesh.world());
        let (left, right) = ((rank + world - 1) % world, (rank + 1) % world);
        let smallest_bytes = mesh.transport.smallest_piece_bytes();
        Ring {
            own,
            sum,
            codec: Codec::new(WireFormat::F32, shards.len()),
            world,
            left,
            right,
            outgoing: Order::new(rank, shards, smallest_bytes),
            incoming: Order::new(left, shards, smallest_bytes),
            passing: VecDeque::new(),
            most_passing: 2 * (world - 1) * (TURNS_PER_HOP + 1),
        }
    }

    fn send(&mut self, mesh: &Mesh, step: CollectiveStep) -> Result<bool, CommError> {
        let mut moved = false;
        while let Some((piece, range, last)) = self.outgoing.next() {
            let is_here = piece.hop == 0 || !self.passing.is_empty();
            if !is_here || !mesh.has_room(step, self.right)? {
                break;
            }
            let passing = if piece.hop > 0 { self.passing.pop_front() } else { None };
            let payload = passing.unwrap_or_else(|| pieces::contribution(mesh, self.codec, &self.own, &range));
            mesh.send(step, self.right, last, payload);
            self.outgoing.advance();
            moved = true;
        }
        Ok(moved)
    }

    /// Returns whether a piece from the left is a sum to which this rank has not contributed yet.
    fn is_early(&self, piece: Piece) -> bool {
        let around = self.world - 1;
        let sent = || Piece { turn: piece.turn.saturating_sub(around * TURNS_PER_HOP), hop: piece.hop - around };
        piece.hop >= around && self.outgoing.next <= sent()
    }

    fn receive(&mut self, mesh: &Mesh, step: CollectiveStep) -> Result<bool, CommError> {
        let mut moved = false;
        while self.passing.len() < self.most_passing {
            let Some((piece, range, last)) = self.incoming.next() else { break };
            let Some(frame) = mesh.take(step, self.left)? else { break };
            mesh.check_size(step, self.left, &frame, (self.codec.bytes(&range), last))?;
            if self.is_early(piece) {
                // This cannot be the sum yet.
                let sent = format!("the sum of values {range:?}");
                return Err(mesh.wrong_size(step, self.left, sent, "no sum before our contribution".to_owned()));
            }
            let (hop, mut payload) = (piece.hop + 1, frame.payload);
            if hop < self.world {
                let mut bytes = payload.into_bytes();
                Codec::add_to_exact(&mut bytes, &self.own[range.clone()]);
                payload = Payload::pooled(bytes, &mesh.pool);
            }
            if hop + 1 >= self.world {
                self.codec.decode(&range, &payload, &mut self.sum[range.clone()], |to, value| *to = value);
            }
            if hop < 2 * (self.world - 1) {
                self.passing.push_back(payload);
            }
            self.incoming.advance();
            moved = true;
        }
        Ok(moved)
    }
}

impl Exchange for Ring<'_> {
    type Error = CommError;

    fn advance(&mut self, mesh: &Mesh, step: CollectiveStep) -> Result<bool, CommError> {
        let sent = self.send(mesh, step)?;
        Ok(self.receive(mesh, step)? || sent)
    }

    fn awaited(&self) -> Option<usize> {
        let is_full = self.passing.len() >= self.most_passing;
        let from_left = self.incoming.next().filter(|_| !is_full).map(|_| self.left);
        from_left.or_else(|| self.outgoing.next().map(|_| self.right))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn order(rank: usize, shards: &Shards) -> Vec<(usize, Range<usize>)> {
        let mut order = Order::new(rank, shards, 16 << 10);
        std::iter::from_fn(|| order.next().inspect(|_| order.advance()))
            .map(|(piece, range, _)| (piece.hop, range))
            .collect()
    }

    proptest! {
        #[test]
        fn pieces_are_passed_on_in_the_order_of_their_arrival(len in 0usize..600_000, world in 2usize..7) {
            let shards = Shards::even(len, world);
            for rank in 0..world {
                let arriving = order((rank + world - 1) % world, &shards);
                let leaving = order(rank, &shards);
                let arriving: Vec<_> = arriving.into_iter().map(|(hop, range)| (hop + 1, range)).collect();
                let passing: Vec<_> = arriving.iter().filter(|(hop, _)| *hop < 2 * (world - 1)).cloned().collect();
                prop_assert_eq!(&passing, &leaving.into_iter().filter(|(hop, _)| *hop > 0).collect::<Vec<_>>());
                // The sum of every value is received or completed here once.
                let sums = arriving.iter().filter(|(hop, _)| *hop + 1 >= world);
                prop_assert_eq!(sums.map(|(_, range)| range.len()).sum::<usize>(), len);
            }
        }
    }
}
