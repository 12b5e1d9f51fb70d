//! Every part straight to its owner, who adds and sends the result straight to everybody.
//!
//! The owner adds in rank order, in f32, with its own contribution at its own place, so a sum does not depend on who was
//! faster: repeated runs and all ranks agree bit for bit. With a rounding wire the owner rounds its own result as well,
//! or the replicas would differ.
//!
//! Between two ranks flow first the contributions to the other's part, then the results of the own part, in chunks. A
//! result leaves as soon as its chunk is complete, while later contributions still come in, so the line never idles
//! between the two halves. Reducing, gathering and broadcasting are the same exchange with one half left out.

use std::ops::Range;
use std::sync::Arc;

use crate::buffers::Payload;
use crate::codec::Codec;
use crate::error::CommError;
use crate::mesh::{Exchange, Mesh};
use crate::outgoing::Step;
use crate::shards::Shards;

use super::chunks::Chunks;
use super::pieces::{self, Results};

/// Who contributes to the parts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum From {
    /// Everybody: a sum.
    All,
    /// Only the owner: its part is complete as it is.
    Owners,
    /// One rank has all values.
    Root(usize),
}

pub(super) struct Direct<'a> {
    rank: usize,
    data: &'a mut [f32],
    codec: Codec,
    from: From,
    /// Whether results are sent to everybody.
    returns: bool,
    /// Per rank: its part in pieces.
    chunks: Vec<Chunks>,
    /// Per rank: how far the traffic with it is.
    peers: Vec<Progress>,
    /// Complete pieces of the own part.
    complete: usize,
    /// Whose contribution to the next piece is due, and the sum of those before this rank's.
    turn: usize,
    before: Vec<f32>,
    encoded: Results,
}

/// In chunks.
#[derive(Clone, Copy, Default)]
struct Progress {
    /// Contributions to its part that were sent.
    given: usize,
    /// Its contributions to the own part that were added.
    added: usize,
    /// Results of the own part that it was sent.
    returned: usize,
    /// Results of its part that came.
    received: usize,
}

impl<'a> Direct<'a> {
    pub(super) fn new(
        mesh: &Mesh,
        data: &'a mut [f32],
        shards: &Shards,
        codec: Codec,
        from: From,
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
        if !(0..world).any(|other| other != rank && direct.contributes(other)) && from != From::All {
            direct.complete = direct.chunks[rank].count();
        }
        direct
    }

    fn contributes(&self, rank: usize) -> bool {
        match self.from {
            From::All => true,
            From::Owners => false,
            From::Root(root) => rank == root,
        }
    }

    /// How many contributions this rank owes to the owner `peer`, and how many it is due from it.
    fn owed(&self, peer: usize) -> usize {
        if self.contributes(self.rank) { self.chunks[peer].count() } else { 0 }
    }

    fn due(&self, peer: usize) -> usize {
        if self.contributes(peer) { self.chunks[self.rank].count() } else { 0 }
    }

    /// The one who has all values already needs no results.
    fn wants_results(&self, rank: usize) -> bool {
        self.returns && self.from != From::Root(rank)
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        pieces::others(self.rank, self.peers.len())
    }

    /// Queues the next piece for `peer`, if there is one that can go.
    fn queue(&mut self, mesh: &Mesh, step: Step, peer: usize) -> Result<bool, CommError> {
        let Progress { given, returned, .. } = self.peers[peer];
        let (owner, index) = if given < self.owed(peer) {
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

    /// An own result, encoded once for all who are about as far.
    fn result(&mut self, mesh: &Mesh, index: usize) -> Arc<Payload> {
        let range = self.chunks[self.rank].get(index);
        self.encoded.get(index, || pieces::encode(mesh, self.codec, self.data, &range))
    }

    /// Adds what has come to the own part, in rank order: `((r0 + r1) + r2) + ...`. What comes before the own turn is
    /// gathered aside; from then on the sum is in place, since `a + b` has the bits of `b + a`.
    fn add(&mut self, mesh: &Mesh, step: Step) -> Result<bool, CommError> {
        let mut moved = false;
        while self.complete < self.chunks[self.rank].count() {
            let range = self.chunks[self.rank].get(self.complete);
            while self.turn < self.peers.len() {
                if self.turn == self.rank {
                    if self.turn > 0 && self.from == From::All {
                        let own = &mut self.data[range.clone()];
                        own.iter_mut().zip(&self.before).for_each(|(own, before)| *own += before);
                    }
                } else if self.contributes(self.turn) {
                    let Some(payload) = self.piece(mesh, step, self.turn, self.rank, self.complete)? else {
                        return Ok(moved);
                    };
                    self.take_in(&range, &payload);
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

    /// One contribution of another rank.
    fn take_in(&mut self, range: &Range<usize>, payload: &Payload) {
        let own = &mut self.data[range.clone()];
        let (copy, add) = (|to: &mut f32, value| *to = value, |to: &mut f32, value| *to += value);
        if self.from != From::All {
            self.codec.decode(range, payload, own, copy);
        } else if self.turn > self.rank {
            self.codec.decode(range, payload, own, add);
        } else {
            self.before.resize(range.len(), 0.0);
            // The first is copied, not added to zero, which would turn -0.0 into 0.0.
            if self.turn == 0 {
                self.codec.decode(range, payload, &mut self.before, copy);
            } else {
                self.codec.decode(range, payload, &mut self.before, add);
            }
        }
    }

    /// Takes the results of `peer` that have come.
    fn receive(&mut self, mesh: &Mesh, step: Step, peer: usize) -> Result<bool, CommError> {
        let mut moved = false;
        // Its contributions come first on the same line.
        while self.expects_results(peer) && self.peers[peer].added == self.due(peer) {
            let Progress { received, given, .. } = self.peers[peer];
            let Some(payload) = self.piece(mesh, step, peer, peer, received)? else { break };
            let range = self.chunks[peer].get(received);
            if received >= given && self.owed(peer) > 0 {
                // Its result cannot be the sum yet, and would overwrite what this rank has still to contribute.
                let sent = format!("the result of values {range:?}");
                return Err(mesh.part_size(step, peer, sent, "no result before our contribution".to_owned()));
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

    /// The next frame from `peer`, which must be that piece of the part of `owner`.
    fn piece(
        &self,
        mesh: &Mesh,
        step: Step,
        peer: usize,
        owner: usize,
        index: usize,
    ) -> Result<Option<Arc<Payload>>, CommError> {
        pieces::receive(mesh, step, peer, self.codec, &self.chunks[owner], index)
    }
}

impl Exchange for Direct<'_> {
    type Error = CommError;

    fn advance(&mut self, mesh: &Mesh, step: Step) -> Result<bool, CommError> {
        let mut moved = false;
        // One piece each in turn, so that all lines have something to carry as early as possible.
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
        let late = |peer: usize| self.peers[peer].added < self.due(peer) || self.expects_results(peer);
        let unsent = |peer: usize| {
            let Progress { given, returned, .. } = self.peers[peer];
            given < self.owed(peer) || self.wants_results(peer) && returned < own
        };
        self.others().find(|&peer| late(peer)).or_else(|| self.others().find(|&peer| unsent(peer)))
    }
}
