//! The ring algorithm: each rank receives only from its left neighbour and sends only to its right
//! one.
//!
//! A part starts at one rank, collects the contributions of the others on its way around, and goes
//! around once more as the sum. Each rank sends a fixed sequence of parts: first its own, then each
//! part as it has just received it. So the whole exchange is one rule: *a chunk may be sent once
//! the chunk one part before it has arrived*. Sums are added in the order of the ring, starting at
//! a different rank for each part, and are copied afterwards, so all ranks agree bit for bit.

use std::ops::Range;

use crate::buffers::Payload;
use crate::codec::{Codec, WireFormat};
use crate::error::CommError;
use crate::mesh::{Exchange, Mesh};
use crate::outgoing::CollectiveStep;
use crate::shards::Shards;

use super::chunks::Chunks;

/// One exchange by the ring algorithm.
pub(super) struct Ring<'a> {
    data: &'a mut [f32],
    codec: Codec,
    left: usize,
    right: usize,
    /// Every chunk that passes this rank, in order, and whether it ends its part. All but those of
    /// the first part are received, all but those of the last part are sent.
    sequence: Vec<(Range<usize>, bool)>,
    /// Index where the first round ends: chunks before it are added, chunks after it are the sum.
    round: usize,
    /// Index where the last part starts.
    last: usize,
    sent: usize,
    /// Starts after the first part, which is sent without any contribution of others.
    received: usize,
}

impl<'a> Ring<'a> {
    pub(super) fn new(mesh: &Mesh, data: &'a mut [f32], shards: &Shards) -> Ring<'a> {
        let (rank, world) = (mesh.rank, mesh.world());
        let hops = 2 * (world - 1);
        let mut sequence = Vec::new();
        let mut starts = Vec::with_capacity(hops + 2);
        for hop in 0..=hops {
            starts.push(sequence.len());
            let part = shards.of((rank + 2 * world - hop) % world);
            let chunks = Chunks::of(part, shards.len(), world);
            sequence.extend((0..chunks.count()).map(|index| (chunks.get(index), chunks.is_last(index))));
        }
        starts.push(sequence.len());
        Ring {
            data,
            codec: Codec::new(WireFormat::F32, shards.len()),
            left: (rank + world - 1) % world,
            right: (rank + 1) % world,
            round: starts[world],
            last: starts[hops],
            sequence,
            sent: 0,
            received: starts[1],
        }
    }

    fn send(&mut self, mesh: &Mesh, step: CollectiveStep) -> Result<bool, CommError> {
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

    fn receive(&mut self, mesh: &Mesh, step: CollectiveStep) -> Result<bool, CommError> {
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
                return Err(mesh.wrong_size(step, self.left, sent, "no sum before our contribution".to_owned()));
            }
            self.received += 1;
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
        if self.received < self.sequence.len() {
            Some(self.left)
        } else {
            (self.sent < self.last).then_some(self.right)
        }
    }
}
