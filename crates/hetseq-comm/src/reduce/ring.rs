//! Parts travel round a ring: each rank hears only its left neighbour and speaks only to its right one.
//!
//! A part starts at one rank, gathers the others' contributions on its way round, and goes round once more as the sum.
//! Seen from one rank, what it sends is a fixed sequence of parts: first its own, then each part as it has just received
//! it. So the whole exchange is one rule: *a chunk may leave once the chunk one part before it has come*. Sums are added
//! in the order of the ring, beginning at another rank for each part, and are copied afterwards, so all ranks agree bit
//! for bit.

use std::ops::Range;

use crate::buffers::Payload;
use crate::codec::{Codec, Wire};
use crate::error::CommError;
use crate::mesh::{Exchange, Mesh};
use crate::outgoing::Step;
use crate::shards::Shards;

use super::chunks::Chunks;

pub(super) struct Ring<'a> {
    data: &'a mut [f32],
    codec: Codec,
    left: usize,
    right: usize,
    /// Every chunk that passes here, in order, and whether it ends its part. All but those of the first part are
    /// received, all but those of the last part are sent.
    sequence: Vec<(Range<usize>, bool)>,
    /// Where the first round ends: what comes before is added, what comes after is the sum.
    round: usize,
    /// Where the last part begins.
    last: usize,
    sent: usize,
    /// Begins behind the first part, which needs nobody's contribution before it leaves.
    received: usize,
}

impl<'a> Ring<'a> {
    pub(super) fn new(mesh: &Mesh, data: &'a mut [f32], shards: &Shards) -> Ring<'a> {
        let (rank, world) = (mesh.rank, mesh.world());
        let hops = 2 * (world - 1);
        let mut sequence = Vec::new();
        let mut begins = Vec::with_capacity(hops + 2);
        for hop in 0..=hops {
            begins.push(sequence.len());
            let part = shards.of((rank + 2 * world - hop) % world);
            let chunks = Chunks::of(part, shards.len(), world);
            sequence.extend((0..chunks.count()).map(|index| (chunks.get(index), chunks.is_last(index))));
        }
        begins.push(sequence.len());
        Ring {
            data,
            codec: Codec::new(Wire::F32, shards.len()),
            left: (rank + world - 1) % world,
            right: (rank + 1) % world,
            round: begins[world],
            last: begins[hops],
            sequence,
            sent: 0,
            received: begins[1],
        }
    }

    fn send(&mut self, mesh: &Mesh, step: Step) -> Result<bool, CommError> {
        let mut moved = false;
        while self.sent < self.last.min(self.received) && mesh.has_room(step, self.right)? {
            let (range, last) = self.sequence[self.sent].clone();
            let mut bytes = mesh.pool.take(self.codec.bytes(&range));
            self.codec.encode(&range, &self.data[range.clone()], &mut bytes);
            mesh.send(step, self.right, last, Payload::pooled(bytes, &mesh.pool));
            self.sent += 1;
            moved = true;
        }
        Ok(moved)
    }

    fn receive(&mut self, mesh: &Mesh, step: Step) -> Result<bool, CommError> {
        let mut moved = false;
        while self.received < self.sequence.len() {
            let Some(frame) = mesh.take(step, self.left)? else { break };
            let (range, last) = self.sequence[self.received].clone();
            mesh.check_size(step, self.left, &frame, (self.codec.bytes(&range), last))?;
            let values = &mut self.data[range.clone()];
            if self.received < self.round {
                self.codec.decode(&range, &frame.payload, values, |to, value| *to += value);
            } else if self.received - self.round < self.sent {
                self.codec.decode(&range, &frame.payload, values, |to, value| *to = value);
            } else {
                let sent = format!("the sum of values {range:?}");
                return Err(mesh.part_size(step, self.left, sent, "no sum before our contribution".to_owned()));
            }
            self.received += 1;
            moved = true;
        }
        Ok(moved)
    }
}

impl Exchange for Ring<'_> {
    type Error = CommError;

    fn advance(&mut self, mesh: &Mesh, step: Step) -> Result<bool, CommError> {
        let sent = self.send(mesh, step)?;
        Ok(self.receive(mesh, step)? || sent)
    }

    fn awaited(&self) -> Option<usize> {
        if self.received < self.sequence.len() {
            Some(self.left)
        } else {
            (self.sent < self.last).then_some(self.right)
        }
    }
}
