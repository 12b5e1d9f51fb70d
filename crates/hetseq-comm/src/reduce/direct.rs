//! The direct algorithm of an all-reduce: every part goes to its owner, which adds it and sends the
//! result to all ranks.
//!
//! The owner adds in rank order, in f32, with its own contribution at its own position, so a sum
//! does not depend on which rank was faster: repeated runs and all ranks agree bit for bit. If the
//! wire format rounds, the owner rounds its own copy of the result as well, or the replicas would
//! differ.
//!
//! No rank waits for another to start. A rank that is done sends. One that still computes receives
//! contributions to its part and adds up those of lower ranks; those of higher ranks must wait for
//! its own. A rank that has everything it needs returns and leaves what others have not received
//! yet in the queues of its links. Its contribution stays as it was: if a rank is lost, the others
//! still have theirs.
//!
//! Two ranks send each other, in this order: the contributions to the peer's part, the results of
//! their own part, the note. A result is sent as soon as its piece is complete, while later
//! contributions still arrive. The note is last because it may be ready last: values never wait for
//! it. Called by `all_reduce.rs`.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::buffers::Payload;
use crate::codec::Codec;
use crate::error::CommError;
use crate::frame::CHUNK_BYTES;
use crate::mesh::{Exchange, Mesh};
use crate::outgoing::CollectiveStep;
use crate::shards::Shards;

use super::ALL_GATHER_LIMIT_BYTES;
use super::chunks::Chunks;
use super::own_contribution::{Contribution, Fault, NewParts, OwnContribution};
use super::pieces::{self, Results};
use super::sum_buffers::SumBuffers;

/// More than are received at a time, so that buffered pieces are added while more arrive.
const ADDED_AT_ONCE: usize = 2;

/// The exchange of the direct algorithm.
pub(super) struct Direct<'a, F> {
    rank: usize,
    codec: Codec,
    pub(super) own: OwnContribution<F>,
    /// This rank's values, once it has contributed, and the sum.
    buffers: &'a mut SumBuffers,
    /// The note in frames, for all peers; empty until it is ready.
    note: Vec<Arc<Payload>>,
    /// Per rank: the pieces of its part.
    chunks: Vec<Chunks>,
    /// Per rank, including this one: the progress of the traffic with it.
    peers: Vec<Peer>,
    /// Per rank: the number of pieces of its contribution to this rank's part that are added. Each
    /// rank's pieces wait for those of the rank before it, so that the sum is
    /// `((r0 + r1) + r2) + ...`; the count of the last rank is the number of complete pieces.
    added: Vec<usize>,
    /// Sums of the lower ranks, for the pieces to which this rank's contribution is not added yet.
    sums: VecDeque<Vec<f32>>,
    encoded: Results,
    /// This rank has everything it needs, and everything it sends is queued.
    is_done: bool,
}

/// The traffic with one rank, in pieces.
#[derive(Default)]
struct Peer {
    /// Queued for it: contributions to its part, results of this rank's part, and frames of the
    /// note.
    given: usize,
    returned: usize,
    notes_sent: usize,
    /// The part of its note that has arrived, and whether that is all.
    note: Vec<u8>,
    has_note: bool,
    /// The number of its contributions received, and those that are not added yet.
    taken: usize,
    pending: VecDeque<Arc<Payload>>,
    /// The number of results of its part received.
    received: usize,
}

impl<'a, F> Direct<'a, F> {
    pub(super) fn new(
        mesh: &Mesh,
        shards: &Shards,
        codec: Codec,
        own: OwnContribution<F>,
        buffers: &'a mut SumBuffers,
    ) -> Direct<'a, F> {
        buffers.sum.resize(shards.len(), 0.0);
        let (rank, world) = (mesh.rank, mesh.world());
        let smallest = mesh.transport.smallest_piece_bytes();
        let chunks: Vec<Chunks> =
            (0..world).map(|owner| Chunks::of(shards.of(owner), shards.len(), world, smallest)).collect();
        // Keep the memory of this update for the next: allocating costs more than adding.
        mesh.pool.raise_max_spare((chunks[rank].count() + 8) * world);
        Direct {
            rank,
            codec,
            own,
            buffers,
            note: Vec::new(),
            chunks,
            peers: (0..world).map(|_| Peer::default()).collect(),
            added: vec![0; world],
            sums: VecDeque::new(),
            encoded: Results::for_receivers(world - 1),
            is_done: false,
        }
    }

    /// Returns the notes of all ranks, in rank order.
    pub(super) fn take_notes(&mut self) -> Vec<Vec<u8>> {
        self.peers.iter_mut().map(|peer| std::mem::take(&mut peer.note)).collect()
    }

    fn has_contributed(&self) -> bool {
        self.own.ready.is_some()
    }

    /// Returns the number of complete pieces of this rank's part.
    fn complete(&self) -> usize {
        self.added[self.added.len() - 1]
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<'a, F> {
        pieces::others(self.rank, self.peers.len())
    }

    /// Returns whether all results of this rank's part are queued for `peer`.
    fn has_returned(&self, peer: usize) -> bool {
        self.peers[peer].returned == self.chunks[self.rank].count()
    }

    /// Stores the note, so that it can be sent.
    fn set_note(&mut self, note: Vec<u8>) {
        self.note = note.chunks(CHUNK_BYTES).map(|piece| Payload::new(piece.to_vec())).collect();
        if self.note.is_empty() {
            self.note.push(Payload::new(Vec::new()));
        }
        self.peers[self.rank].note = note;
    }

    /// Queues the next piece for `peer`, if one is ready and there is room or `all` is set.
    fn queue(&mut self, mesh: &Mesh, step: CollectiveStep, peer: usize, all: bool) -> Result<bool, CommError> {
        let Peer { given, returned, notes_sent, .. } = self.peers[peer];
        let Some(own) = &self.buffers.own else { return Ok(false) };
        let (to_give, notes) = (self.chunks[peer].count(), self.note.len());
        let can_send_note = self.has_returned(peer) && notes_sent < notes;
        if given == to_give && returned == self.complete() && !can_send_note {
            return Ok(false);
        }
        if !mesh.has_room(step, peer)? && !all {
            return Ok(false);
        }
        let (payload, last) = if given < to_give {
            self.peers[peer].given += 1;
            let range = self.chunks[peer].get(given);
            (pieces::contribution(mesh, self.codec, own, &range), self.chunks[peer].is_last(given))
        } else if returned < self.complete() {
            self.peers[peer].returned += 1;
            (self.result(mesh, returned), self.chunks[self.rank].is_last(returned))
        } else {
            self.peers[peer].notes_sent += 1;
            (self.note[notes_sent].clone(), notes_sent + 1 == notes)
        };
        mesh.send(step, peer, last, payload);
        Ok(true)
    }

    /// Returns a result of this rank's part, encoded once for all peers that are about as far.
    fn result(&mut self, mesh: &Mesh, index: usize) -> Arc<Payload> {
        let range = self.chunks[self.rank].get(index);
        self.encoded.get(index, || pieces::encode(mesh, self.codec, &self.buffers.sum, &range))
    }

    /// Takes the next frame of `peer`, if one has arrived that this rank can use now.
    fn take(&mut self, mesh: &Mesh, step: CollectiveStep, peer: usize) -> Result<bool, CommError> {
        let Peer { has_note, taken, received, .. } = self.peers[peer];
        if taken < self.chunks[self.rank].count() {
            let own_chunks = &self.chunks[self.rank];
            let Some(payload) = pieces::receive(mesh, step, peer, self.codec, own_chunks, taken)? else {
                return Ok(false);
            };
            self.peers[peer].pending.push_back(payload);
            self.peers[peer].taken += 1;
        } else if received < self.chunks[peer].count() {
            if !self.has_contributed() {
                return Ok(false);
            }
            let chunks = &self.chunks[peer];
            let Some(payload) = pieces::receive(mesh, step, peer, self.codec, chunks, received)? else {
                return Ok(false);
            };
            self.receive(mesh, step, peer, &payload)?;
        } else if !has_note {
            let Some(frame) = mesh.take(step, peer)? else { return Ok(false) };
            super::append(mesh, step, peer, &mut self.peers[peer].note, &frame, ALL_GATHER_LIMIT_BYTES)?;
            self.peers[peer].has_note = frame.last;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Stores a result of the part of `peer`.
    fn receive(&mut self, mesh: &Mesh, step: CollectiveStep, peer: usize, payload: &Payload) -> Result<(), CommError> {
        let Peer { given, received, .. } = self.peers[peer];
        let range = self.chunks[peer].get(received);
        if received >= given {
            // This cannot be the sum yet.
            let sent = format!("the result of values {range:?}");
            return Err(mesh.wrong_size(step, peer, sent, "no result before our contribution".to_owned()));
        }
        let values = &mut self.buffers.sum[range.clone()];
        self.codec.decode(&range, payload, values, |to, value| *to = value);
        self.peers[peer].received += 1;
        Ok(())
    }

    /// Adds the next piece of the contribution of `rank`, if it is there and it is its turn.
    fn add(&mut self, mesh: &Mesh, rank: usize) -> bool {
        let index = self.added[rank];
        let before = rank.checked_sub(1).map_or_else(|| self.chunks[self.rank].count(), |before| self.added[before]);
        // Ranks 0 and 1 have nothing to add up before their own contribution.
        let in_place = rank >= self.rank || self.rank == 1;
        if index >= before || in_place && !self.has_contributed() {
            return false;
        }
        let range = self.chunks[self.rank].get(index);
        let (copy, add) = (|to: &mut f32, value| *to = value, |to: &mut f32, value| *to += value);
        if rank == self.rank {
            let (own, sum) = self.buffers.both(&range);
            // On ranks 0 and 1 there is none: their values are added together with those of the other one.
            if let Some(before) = self.sums.pop_front() {
                // `a + b` has the same bits as `b + a`.
                sum.iter_mut().zip(own).zip(&before).for_each(|((sum, own), before)| *sum = own + before);
                mesh.pool.give_sum(before);
            }
        } else {
            let Some(payload) = self.peers[rank].pending.pop_front() else { return false };
            if in_place {
                let (own, sum) = self.buffers.both(&range);
                match (self.rank, rank) {
                    // `a + b` has the same bits as `b + a`.
                    (0, 1) | (1, 0) => self.codec.decode_plus(&range, &payload, own, sum),
                    _ => self.codec.decode(&range, &payload, sum, add),
                }
            } else if rank == 0 {
                // Copied: adding it to zero would turn -0.0 into 0.0.
                let mut sum = mesh.pool.take_sum(range.len());
                self.codec.decode(&range, &payload, &mut sum, copy);
                self.sums.push_back(sum);
            } else {
                self.codec.decode(&range, &payload, &mut self.sums[index - self.added[self.rank]], add);
            }
        }
        self.added[rank] += 1;
        if self.added.len() == rank + 1 {
            self.codec.round(&range, &mut self.buffers.sum[range.clone()]);
        }
        true
    }

    /// Returns whether this rank still needs something from `peer`.
    fn is_late(&self, peer: usize) -> bool {
        let Peer { has_note, taken, received, .. } = self.peers[peer];
        !has_note || taken < self.chunks[self.rank].count() || received < self.chunks[peer].count()
    }

    /// Queues the rest and finishes, once this rank has everything it needs: its results and its
    /// note are then all that others can wait for. One piece per peer in turn, so that the peers
    /// share the encoded results.
    fn finish(&mut self, mesh: &Mesh, step: CollectiveStep) -> Result<(), CommError> {
        if !self.own.is_complete()
            || self.complete() < self.chunks[self.rank].count()
            || self.others().any(|peer| self.is_late(peer))
        {
            return Ok(());
        }
        while let Some(furthest_behind) = self.others().min_by_key(|&peer| self.peers[peer].returned) {
            let at = self.peers[furthest_behind].returned;
            let mut queued = false;
            for peer in self.others().filter(|&peer| self.peers[peer].returned == at).collect::<Vec<_>>() {
                queued |= self.queue(mesh, step, peer, true)?;
            }
            if !queued {
                break;
            }
        }
        self.is_done = true;
        Ok(())
    }
}

impl<F, E> Exchange for Direct<'_, F>
where
    F: FnMut() -> Result<Option<Contribution>, E>,
{
    type Error = Fault<E>;

    /// Does a little of each task per call, so that none waits long for another.
    fn advance(&mut self, mesh: &Mesh, step: CollectiveStep) -> Result<bool, Fault<E>> {
        let mut moved = false;
        let NewParts { data, note } = self.own.poll(mesh)?;
        moved |= data.is_some() || note.is_some();
        if let Some(data) = data {
            self.buffers.own = Some(Arc::new(data));
        }
        if let Some(note) = note {
            self.set_note(note);
        }
        // In rank order, so that a piece is added while it is in the cache. Before anything is
        // queued, so that a result that arrives before this rank's contribution is detected.
        for rank in 0..self.peers.len() {
            if rank != self.rank {
                moved |= self.take(mesh, step, rank)?;
            }
            for _ in 0..ADDED_AT_ONCE {
                moved |= self.add(mesh, rank);
            }
        }
        for peer in self.others() {
            moved |= self.queue(mesh, step, peer, false)?;
        }
        self.finish(mesh, step)?;
        Ok(moved)
    }

    fn awaited(&self) -> Option<usize> {
        let late = self.others().find(|&peer| self.is_late(peer)).or_else(|| self.others().next());
        late.filter(|_| !self.is_done)
    }

    fn is_computing(&self) -> bool {
        !self.own.is_complete()
    }

    fn leaves_unsent(&self) -> bool {
        true
    }
}
