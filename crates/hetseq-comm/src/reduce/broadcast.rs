//! The broadcast of a vector: the root sends each part to its owner, which passes it on to the
//! others, so that the root sends every value about once and not once per rank.
//!
//! A rank sends its pieces to each peer in a fixed order, and passes a piece on as soon as it has
//! arrived. The root sends a peer that peer's part, then its own. Called by `reduce/mod.rs`;
//! broadcasts of bytes are short and go directly from the root to each rank.

use std::sync::Arc;

use crate::buffers::Payload;
use crate::codec::{Codec, WireFormat};
use crate::error::CommError;
use crate::mesh::{Exchange, Mesh};
use crate::outgoing::CollectiveStep;
use crate::shards::Shards;

use super::chunks::Chunks;
use super::pieces::{self, Results};

/// One broadcast.
pub(super) struct Broadcast<'a> {
    rank: usize,
    root: usize,
    data: &'a mut [f32],
    codec: Codec,
    /// Per rank: the pieces of its part.
    chunks: Vec<Chunks>,
    /// Per rank: the number of pieces sent to it and received from it.
    sent: Vec<usize>,
    received: Vec<usize>,
    encoded: Results,
}

impl<'a> Broadcast<'a> {
    pub(super) fn new(mesh: &Mesh, root: usize, data: &'a mut [f32]) -> Broadcast<'a> {
        let (len, world) = (data.len(), mesh.world());
        let (shards, smallest) = (Shards::even(len, world), mesh.transport.smallest_piece_bytes());
        Broadcast {
            rank: mesh.rank,
            root,
            data,
            codec: Codec::new(WireFormat::F32, len),
            chunks: (0..world).map(|owner| Chunks::of(shards.of(owner), len, world, smallest)).collect(),
            sent: vec![0; world],
            received: vec![0; world],
            encoded: Results::for_receivers(world - 1),
        }
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        pieces::others(self.rank, self.chunks.len())
    }

    /// Returns the piece that `from` sends to `to` after `before` others: the owner of its part,
    /// and its index there.
    fn piece(&self, from: usize, to: usize, mut before: usize) -> Option<(usize, usize)> {
        let parts = match (from == self.root, to == self.root) {
            (_, true) => &[][..],
            (true, _) => &[to, from],
            (false, _) => &[from],
        };
        for &owner in parts {
            let count = self.chunks[owner].count();
            if before < count {
                return Some((owner, before));
            }
            before -= count;
        }
        None
    }

    /// Queues the next piece for `peer`, if it is here and there is room.
    fn send(&mut self, mesh: &Mesh, step: CollectiveStep, peer: usize) -> Result<bool, CommError> {
        let Some((owner, index)) = self.piece(self.rank, peer, self.sent[peer]) else { return Ok(false) };
        // The root sends a peer that peer's own part first.
        let is_here = self.rank == self.root || index < self.received[self.root];
        if !is_here || !mesh.has_room(step, peer)? {
            return Ok(false);
        }
        let payload = self.encode(mesh, owner, index);
        mesh.send(step, peer, self.chunks[owner].is_last(index), payload);
        self.sent[peer] += 1;
        Ok(true)
    }

    /// Encodes a piece; one of this rank's part only once for all peers that are about as far.
    fn encode(&mut self, mesh: &Mesh, owner: usize, index: usize) -> Arc<Payload> {
        let range = self.chunks[owner].get(index);
        let encode = || pieces::encode(mesh, self.codec, self.data, &range);
        if owner == self.rank { self.encoded.get(index, encode) } else { encode() }
    }

    /// Stores the next piece of `peer`, if it has arrived.
    fn receive(&mut self, mesh: &Mesh, step: CollectiveStep, peer: usize) -> Result<bool, CommError> {
        let Some((owner, index)) = self.piece(peer, self.rank, self.received[peer]) else { return Ok(false) };
        let chunks = &self.chunks[owner];
        let Some(payload) = pieces::receive(mesh, step, peer, self.codec, chunks, index)? else { return Ok(false) };
        let range = chunks.get(index);
        self.codec.decode(&range, &payload, &mut self.data[range.clone()], |to, value| *to = value);
        self.received[peer] += 1;
        Ok(true)
    }
}

impl Exchange for Broadcast<'_> {
    type Error = CommError;

    /// One piece per peer in turn, so that all links have something to send as early as possible.
    fn advance(&mut self, mesh: &Mesh, step: CollectiveStep) -> Result<bool, CommError> {
        let mut moved = false;
        for peer in self.others() {
            moved |= self.receive(mesh, step, peer)?;
            moved |= self.send(mesh, step, peer)?;
        }
        Ok(moved)
    }

    fn awaited(&self) -> Option<usize> {
        let late = |&peer: &usize| self.piece(peer, self.rank, self.received[peer]).is_some();
        let unsent = |&peer: &usize| self.piece(self.rank, peer, self.sent[peer]).is_some();
        self.others().find(late).or_else(|| self.others().find(unsent))
    }
}
