//! The direct algorithm: every part goes to its owner, which adds it and sends the result to all
//! ranks.
//!
//! The owner adds in rank order, in f32, with its own contribution at its own position, so a sum
//! does not depend on which rank was faster: repeated runs and all ranks agree bit for bit. If the
//! wire format rounds, the owner rounds its own copy of the result as well, or the replicas would
//! differ.
//!
//! Two ranks first send each other their contributions, then the results of their own parts, in
//! chunks. A result is sent as soon as its chunk is complete, while later contributions still
//! arrive, so the link never idles between the two halves. Reducing, gathering and broadcasting are
//! the same exchange with one half left out.

use std::ops::Range;
use std::sync::Arc;

use crate::buffers::Payload;
use crate::codec::Codec;
use crate::error::CommError;
use crate::mesh::{Exchange, Mesh};
use crate::outgoing::CollectiveStep;
use crate::shards::Shards;

use super::chunks::Chunks;
use super::pieces::{self, Results};

/// The ranks that contribute to the parts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Contributors {
    /// All ranks: a sum.
    All,
    /// Only the owner: its part is already complete.
    Owners,
    /// One rank has all values.
    Root(usize),
}

/// One exchange by the direct algorithm.
pub(super) struct Direct<'a> {
    rank: usize,
    data: &'a mut [f32],
    codec: Codec,
    from: Contributors,
    /// Whether results are sent to all ranks.
    returns: bool,
    /// Per rank: the pieces of its part.
    chunks: Vec<Chunks>,
    /// Per rank: the progress of the traffic with it.
    peers: Vec<Progress>,
    /// Number of complete pieces of this rank's part.
    complete: usize,
    /// The rank whose contribution to the next piece is added next, and the sum of those before
    /// this rank's.
    turn: usize,
    before: Vec<f32>,
    encoded: Results,
}

/// The traffic with one peer, in pieces.
#[derive(Clone, Copy, Default)]
struct Progress {
    /// Contributions to its part that were sent.
    given: usize,
    /// Its contributions to this rank's part that were added.
    added: usize,
    /// Results of this rank's part that were sent to it.
    returned: usize,
    /// Results of its part that were received.
    received: usize,
}

impl<'a> Direct<'a> {
    pub(super) fn new(
        mesh: &Mesh,
        data: &'a mut [f32],
        shards: &Shards,
        codec: Codec,
        from: Contributors,
        returns: bool,
    ) -> Direct<'a> {
        let (rank, world) = (mesh.rank, mesh.world());
        let chunks: Vec<Chunks> = (0..world).map(|owner| Chunks::of(shards.of(owner), shards.len(), world)).collect();
        let mut direct = Direct {
            rank,
            data,
            codec,
            from,
            returns,
            chunks,
            peers: vec![Progress::default(); world],
            complete: 0,
            turn: 0,
            before: Vec::new(),
            encoded: Results::default(),
        };
        if !(0..world).any(|other| other != rank && direct.contributes(other)) && from != Contributors::All {
            direct.complete = direct.chunks[rank].count();
        }
        direct
    }

    /// Returns whether `rank` contributes to parts that it does not own.
    fn contributes(&self, rank: usize) -> bool {
        match self.from {
            Contributors::All => true,
            Contributors::Owners => false,
            Contributors::Root(root) => rank == root,
        }
    }

    /// Returns the number of contributions that this rank sends to the owner `peer`.
    fn to_give(&self, peer: usize) -> usize {
        if self.contributes(self.rank) { self.chunks[peer].count() } else { 0 }
    }

    /// Returns the number of contributions that this rank receives from `peer`.
    fn to_add(&self, peer: usize) -> usize {
        if self.contributes(peer) { self.chunks[self.rank].count() } else { 0 }
    }

    /// Returns whether results are sent to `rank`; the root of a broadcast has all values already.
    fn wants_results(&self, rank: usize) -> bool {
        self.returns && self.from != Contributors::Root(rank)
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        pieces::others(self.rank, self.peers.len())
    }

    /// Queues the next piece for `peer`, if one is ready.
    fn queue(&mut self, mesh: &Mesh, step: CollectiveStep, peer: usize) -> Result<bool, CommError> {
        let Progress { given, returned, .. } = self.peers[peer];
        let (owner, index) = if given < self.to_give(peer) {
            (peer, given)
        } else if self.wants_results(peer) && returned < self.complete {
            (self.rank, returned)
        } else {
            return Ok(false);
        };
        if !mesh.has_room(step, peer)? {
            return Ok(false);
        }
        let payload = if owner == peer {
            self.peers[peer].given += 1;
            self.encode(mesh, owner, index)
        } else {
            self.peers[peer].returned += 1;
            self.result(mesh, index)
        };
        mesh.send(step, peer, self.chunks[owner].is_last(index), payload);
        Ok(true)
    }

    fn encode(&self, mesh: &Mesh, owner: usize, index: usize) -> Arc<Payload> {
        pieces::encode(mesh, self.codec, self.data, &self.chunks[owner].get(index))
    }

    /// Returns a result of this rank's part, encoded once for all peers that are about as far.
    fn result(&mut self, mesh: &Mesh, index: usize) -> Arc<Payload> {
        let range = self.chunks[self.rank].get(index);
        self.encoded.get(index, || pieces::encode(mesh, self.codec, self.data, &range))
    }

    /// Adds the contributions that arrived for this rank's part, in rank order:
    /// `((r0 + r1) + r2) + ...`. Those of lower ranks are summed in `before`; from this rank's turn
    /// on the sum is in place, since `a + b` has the same bits as `b + a`.
    fn add(&mut self, mesh: &Mesh, step: CollectiveStep) -> Result<bool, CommError> {
        let mut moved = false;
        while self.complete < self.chunks[self.rank].count() {
            let range = self.chunks[self.rank].get(self.complete);
            while self.turn < self.peers.len() {
                if self.turn == self.rank {
                    if self.turn > 0 && self.from == Contributors::All {
                        let own = &mut self.data[range.clone()];
                        own.iter_mut().zip(&self.before).for_each(|(own, before)| *own += before);
                    }
                } else if self.contributes(self.turn) {
                    let Some(payload) = self.piece(mesh, step, self.turn, self.rank, self.complete)? else {
                        return Ok(moved);
                    };
                    self.add_contribution(&range, &payload);
                    self.peers[self.turn].added += 1;
                }
                moved = true;
                self.turn += 1;
            }
            if self.returns {
                self.codec.round(&range, &mut self.data[range.clone()]);
            }
            self.turn = 0;
            self.complete += 1;
        }
        Ok(moved)
    }

    /// Adds one contribution of another rank.
    fn add_contribution(&mut self, range: &Range<usize>, payload: &Payload) {
        let own = &mut self.data[range.clone()];
        let (copy, add) = (|to: &mut f32, value| *to = value, |to: &mut f32, value| *to += value);
        if self.from != Contributors::All {
            self.codec.decode(range, payload, own, copy);
        } else if self.turn > self.rank {
            self.codec.decode(range, payload, own, add);
        } else {
            self.before.resize(range.len(), 0.0);
            // The first is copied: adding it to zero would turn -0.0 into 0.0.
            if self.turn == 0 {
                self.codec.decode(range, payload, &mut self.before, copy);
            } else {
                self.codec.decode(range, payload, &mut self.before, add);
            }
        }
    }

    /// Receives the results of `peer` that have arrived.
    fn receive(&mut self, mesh: &Mesh, step: CollectiveStep, peer: usize) -> Result<bool, CommError> {
        let mut moved = false;
        // Its contributions come first on the same link.
        while self.expects_results(peer) && self.peers[peer].added == self.to_add(peer) {
            let Progress { received, given, .. } = self.peers[peer];
            let Some(payload) = self.piece(mesh, step, peer, peer, received)? else { break };
            let range = self.chunks[peer].get(received);
            if received >= given && self.to_give(peer) > 0 {
                // This cannot be the sum yet, and would overwrite what this rank has still to
                // contribute.
                let sent = format!("the result of values {range:?}");
                return Err(mesh.wrong_size(step, peer, sent, "no result before our contribution".to_owned()));
            }
            self.codec.decode(&range, &payload, &mut self.data[range.clone()], |to, value| *to = value);
            self.peers[peer].received += 1;
            moved = true;
        }
        Ok(moved)
    }

    fn expects_results(&self, peer: usize) -> bool {
        self.wants_results(self.rank) && self.peers[peer].received < self.chunks[peer].count()
    }

    /// Returns the next frame from `peer`, which must be that piece of the part of `owner`.
    fn piece(
        &self,
        mesh: &Mesh,
        step: CollectiveStep,
        peer: usize,
        owner: usize,
        index: usize,
    ) -> Result<Option<Arc<Payload>>, CommError> {
        pieces::receive(mesh, step, peer, self.codec, &self.chunks[owner], index)
    }
}

impl Exchange for Direct<'_> {
    type Error = CommError;

    fn advance(&mut self, mesh: &Mesh, step: CollectiveStep) -> Result<bool, CommError> {
        let mut moved = false;
        // One piece per peer in turn, so that all links have something to send as early as
        // possible.
        loop {
            let mut queued = false;
            for peer in self.others() {
                queued |= self.queue(mesh, step, peer)?;
            }
            if !queued {
                break;
            }
            moved = true;
        }
        moved |= self.add(mesh, step)?;
        for peer in self.others() {
            moved |= self.receive(mesh, step, peer)?;
        }
        Ok(moved)
    }

    fn awaited(&self) -> Option<usize> {
        let own = self.chunks[self.rank].count();
        let late = |peer: usize| self.peers[peer].added < self.to_add(peer) || self.expects_results(peer);
        let unsent = |peer: usize| {
            let Progress { given, returned, .. } = self.peers[peer];
            given < self.to_give(peer) || self.wants_results(peer) && returned < own
        };
        self.others().find(|&peer| late(peer)).or_else(|| self.others().find(|&peer| unsent(peer)))
    }
}
