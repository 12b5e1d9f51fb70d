//! A sum whose own part comes late: the rank is in it while it still computes what it will contribute.
//!
//! The parts go as in `direct.rs`, straight to their owners and back, and are added in the same order, so the bits are the
//! same. What differs is that nobody waits for anybody to begin. A rank that is done sends; one that is not takes in what
//! comes for its part, and adds the contributions of the ranks before it to each other; those of the ranks behind it must
//! wait for its own. And a rank that has all it needs leaves what others have not taken yet in the queues of its links.
//!
//! Between two ranks flow, in this order: the contributions to the other's part, the results of the own part, the note. The note is
//! last because it may be ready last: values never wait for it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::buffers::Payload;
use crate::codec::{Codec, Wire};
use crate::error::CommError;
use crate::frame::{CHUNK_BYTES, Kind};
use crate::mesh::{Exchange, Mesh};
use crate::outgoing::Step;
use crate::shards::Shards;

use super::chunks::Chunks;
use super::own::{Awaiting, Contribution, Fault, New, Own};
use super::pieces::{self, Results};
use super::{AGREE_LIMIT_BYTES, Route};

/// More than one is taken at a time, so that what was kept is added up while more comes.
const ADDED_AT_ONCE: usize = 2;

/// What all ranks contributed.
#[derive(Clone, Debug)]
pub struct Summed {
    /// Of all ranks, in rank order.
    pub notes: Vec<Vec<u8>>,
    /// The sum, in the memory of this rank's contribution.
    pub data: Vec<f32>,
    /// Since the own contribution was given: asleep, waiting for others or for the line.
    pub waited: Duration,
    /// Since the own contribution was given: all the rest.
    pub busy: Duration,
}

/// See [`crate::Group::all_reduce_late`].
pub(crate) fn all_reduce_late<E: From<CommError>>(
    mesh: &mut Mesh,
    shards: &Shards,
    wire: Wire,
    route: Route,
    mine: impl FnMut() -> Result<Option<Contribution>, E>,
) -> Result<Summed, E> {
    let own = Own::new(mine, shards.len());
    let direct = mesh.world() > 1 && route.choose(wire, shards) == Route::Direct;
    let summed = mesh.run(Kind::AllReduceLate, |mesh, step| {
        if direct {
            let mut late = Late::new(mesh, shards, Codec::new(wire, shards.len()), own);
            mesh.drive(step, &mut late)?;
            return Ok((late.data, late.peers.into_iter().map(|peer| peer.note).collect(), late.own.given));
        }
        let mut awaiting = Awaiting { rank: mesh.rank, own, data: Vec::new(), note: Vec::new() };
        mesh.drive(step, &mut awaiting)?;
        Ok((awaiting.data, vec![awaiting.note], awaiting.own.given))
    });
    let (mut data, mut notes, given) = summed.map_err(|fault| match fault {
        Fault::Own(error) => error,
        Fault::Group(error) => error.into(),
    })?;
    if !direct {
        notes = super::agree(mesh, &notes[0])?;
        super::all_reduce(mesh, &mut data, shards, wire, route)?;
    }
    let (waited, took) = given.map_or_else(Default::default, |given| (mesh.asleep - given.asleep, given.at.elapsed()));
    Ok(Summed { notes, data, waited, busy: took.saturating_sub(waited) })
}

/// The exchange by the direct route.
struct Late<F> {
    rank: usize,
    codec: Codec,
    own: Own<F>,
    /// This rank's values, once they are there; they turn into the sum in place.
    data: Vec<f32>,
    /// The note in frames, for all peers; none until it is there.
    note: Vec<Arc<Payload>>,
    /// Per rank: its part in pieces.
    chunks: Vec<Chunks>,
    /// Per rank, the own one included: how far the traffic with it is.
    peers: Vec<Peer>,
    /// Per rank: how many pieces of its contribution to the own part are added. Each rank's wait for those of the rank
    /// before it, so that the sum is `((r0 + r1) + r2) + ...`, and the last one's are the complete ones.
    added: Vec<usize>,
    /// Of the ranks before this one, for the pieces to which the own contribution is not added yet.
    sums: VecDeque<Vec<f32>>,
    encoded: Results,
    /// This rank has everything, and the links have everything from it.
    is_over: bool,
}

/// In pieces.
#[derive(Default)]
struct Peer {
    /// Of the contributions to its part, of the results of the own part and of the note that were queued for it.
    given: usize,
    returned: usize,
    noted: usize,
    /// Its note as far as it has come, and whether that is all.
    note: Vec<u8>,
    has_noted: bool,
    /// Its contributions that have come, and those of them that are not added yet.
    come: usize,
    kept: VecDeque<Arc<Payload>>,
    /// Results of its part that have come.
    received: usize,
}

impl<F> Late<F> {
    fn new(mesh: &Mesh, shards: &Shards, codec: Codec, own: Own<F>) -> Late<F> {
        let (rank, world) = (mesh.rank, mesh.world());
        let chunks: Vec<Chunks> = (0..world).map(|owner| Chunks::of(shards.of(owner), shards.len(), world)).collect();
        // What this update needs is there for the next, too: fresh memory costs more than the adding.
        mesh.pool.keep((chunks[rank].count() + 8) * world);
        Late {
            rank,
            codec,
            own,
            data: Vec::new(),
            note: Vec::new(),
            chunks,
            peers: (0..world).map(|_| Peer::default()).collect(),
            added: vec![0; world],
            sums: VecDeque::new(),
            encoded: Results::default(),
            is_over: false,
        }
    }

    fn is_given(&self) -> bool {
        self.own.given.is_some()
    }

    /// Complete pieces of the own part.
    fn complete(&self) -> usize {
        self.added[self.added.len() - 1]
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<F> {
        pieces::others(self.rank, self.peers.len())
    }

    /// Whether all results of the own part are queued for `peer`.
    fn has_returned(&self, peer: usize) -> bool {
        self.peers[peer].returned == self.chunks[self.rank].count()
    }

    /// Now it can be sent.
    fn give_note(&mut self, note: Vec<u8>) {
        self.note = note.chunks(CHUNK_BYTES).map(|piece| Payload::new(piece.to_vec())).collect();
        if self.note.is_empty() {
            self.note.push(Payload::new(Vec::new()));
        }
        self.peers[self.rank].note = note;
    }

    /// Queues the next piece for `peer`, if there is one, and if there is room or `all` must go.
    fn queue(&mut self, mesh: &Mesh, step: Step, peer: usize, all: bool) -> Result<bool, CommError> {
        let Peer { given, returned, noted, .. } = self.peers[peer];
        let (owed, notes) = (self.chunks[peer].count(), self.note.len());
        let is_note_due = self.has_returned(peer) && noted < notes;
        if !self.is_given() || given == owed && returned == self.complete() && !is_note_due {
            return Ok(false);
        }
        if !mesh.has_room(step, peer)? && !all {
            return Ok(false);
        }
        let (payload, last) = if given < owed {
            self.peers[peer].given += 1;
            (self.encode(mesh, peer, given), self.chunks[peer].is_last(given))
        } else if returned < self.complete() {
            self.peers[peer].returned += 1;
            (self.result(mesh, returned), self.chunks[self.rank].is_last(returned))
        } else {
            self.peers[peer].noted += 1;
            (self.note[noted].clone(), noted + 1 == notes)
        };
        mesh.send(step, peer, last, payload);
        Ok(true)
    }

    fn encode(&self, mesh: &Mesh, owner: usize, index: usize) -> Arc<Payload> {
        pieces::encode(mesh, self.codec, &self.data, &self.chunks[owner].get(index))
    }

    /// An own result, encoded once for all who are about as far.
    fn result(&mut self, mesh: &Mesh, index: usize) -> Arc<Payload> {
        let range = self.chunks[self.rank].get(index);
        self.encoded.get(index, || pieces::encode(mesh, self.codec, &self.data, &range))
    }

    /// Takes the next frame of `peer`, if one has come that this rank can do something with.
    fn take(&mut self, mesh: &Mesh, step: Step, peer: usize) -> Result<bool, CommError> {
        let Peer { has_noted, come, received, .. } = self.peers[peer];
        if come < self.chunks[self.rank].count() {
            let Some(payload) = self.piece(mesh, step, peer, self.rank, come)? else { return Ok(false) };
            self.peers[peer].kept.push_back(payload);
            self.peers[peer].come += 1;
        } else if received < self.chunks[peer].count() {
            if !self.is_given() {
                return Ok(false);
            }
            let Some(payload) = self.piece(mesh, step, peer, peer, received)? else { return Ok(false) };
            self.receive(mesh, step, peer, &payload)?;
        } else if !has_noted {
            let Some(frame) = mesh.take(step, peer)? else { return Ok(false) };
            super::append(mesh, step, peer, &mut self.peers[peer].note, &frame, AGREE_LIMIT_BYTES)?;
            self.peers[peer].has_noted = frame.last;
        } else {
            return Ok(false);
        }
        Ok(true)
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

    /// A result of the part of `peer`.
    fn receive(&mut self, mesh: &Mesh, step: Step, peer: usize, payload: &Payload) -> Result<(), CommError> {
        let Peer { given, received, .. } = self.peers[peer];
        let range = self.chunks[peer].get(received);
        if received >= given {
            // It cannot be the sum yet, and would overwrite what this rank has still to contribute.
            let sent = format!("the result of values {range:?}");
            return Err(mesh.part_size(step, peer, sent, "no result before our contribution".to_owned()));
        }
        let values = &mut self.data[range.clone()];
        self.codec.decode(&range, payload, values, |to, value| *to = value);
        self.peers[peer].received += 1;
        Ok(())
    }

    /// Adds the next piece of the contribution of `rank`, if it is there and its turn has come.
    fn add(&mut self, mesh: &Mesh, rank: usize) -> bool {
        let index = self.added[rank];
        let before = rank.checked_sub(1).map_or_else(|| self.chunks[self.rank].count(), |before| self.added[before]);
        if index >= before || rank == self.rank && !self.is_given() {
            return false;
        }
        let range = self.chunks[self.rank].get(index);
        let (copy, add) = (|to: &mut f32, value| *to = value, |to: &mut f32, value| *to += value);
        if rank == self.rank {
            if let Some(sum) = self.sums.pop_front() {
                // `a + b` has the bits of `b + a`.
                self.data[range.clone()].iter_mut().zip(&sum).for_each(|(own, before)| *own += before);
                mesh.pool.give_sum(sum);
            }
        } else {
            let Some(payload) = self.peers[rank].kept.pop_front() else { return false };
            if rank > self.rank {
                self.codec.decode(&range, &payload, &mut self.data[range.clone()], add);
            } else if rank == 0 {
                // Copied, not added to zero, which would turn -0.0 into 0.0.
                let mut sum = mesh.pool.take_sum(range.len());
                self.codec.decode(&range, &payload, &mut sum, copy);
                self.sums.push_back(sum);
            } else {
                self.codec.decode(&range, &payload, &mut self.sums[index - self.added[self.rank]], add);
            }
        }
        self.added[rank] += 1;
        if self.added.len() == rank + 1 {
            self.codec.round(&range, &mut self.data[range.clone()]);
        }
        true
    }

    /// Whether something that this rank needs of `peer` has not come.
    fn is_late(&self, peer: usize) -> bool {
        let Peer { has_noted, come, received, .. } = self.peers[peer];
        !has_noted || come < self.chunks[self.rank].count() || received < self.chunks[peer].count()
    }

    /// With its own results and its note a rank has done all that others can wait for, once the rest is queued. Piece by piece
    /// to all, so that they share it.
    fn finish(&mut self, mesh: &Mesh, step: Step) -> Result<(), CommError> {
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
        self.is_over = true;
        Ok(())
    }
}

impl<F, E> Exchange for Late<F>
where
    F: FnMut() -> Result<Option<Contribution>, E>,
{
    type Error = Fault<E>;

    /// A little of everything, so that nothing waits long for anything else.
    fn advance(&mut self, mesh: &Mesh, step: Step) -> Result<bool, Fault<E>> {
        let mut moved = false;
        let New { data, note } = self.own.ask(mesh)?;
        moved |= data.is_some() || note.is_some();
        if let Some(data) = data {
            self.data = data;
        }
        if let Some(note) = note {
            self.give_note(note);
        }
        // In rank order, so that a piece is added while it is in the cache; before anything is queued, so that a result which came
        // before the own contribution is found out.
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
        late.filter(|_| !self.is_over)
    }

    fn is_computing(&self) -> bool {
        !self.own.is_complete()
    }

    fn leaves_unsent(&self) -> bool {
        true
    }
}
