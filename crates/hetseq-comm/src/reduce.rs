//! The collectives, written once over a mesh of links.
//!
//! Every part goes directly to or from its owner. The owner adds in rank order, in f32, with its own
//! contribution at its own place, so a sum does not depend on who was faster: repeated runs and all
//! ranks agree bit for bit. Called by `group.rs` only, which checks the arguments.

use crate::error::CommError;
use crate::frame::{CHUNK_BYTES, FRAME_LIMIT_BYTES, Frame, FrameError, Kind};
use crate::mesh::Mesh;
use crate::outgoing::{Content, Outgoing, Step};
use crate::shards::Shards;

const CHUNK_FLOATS: usize = CHUNK_BYTES / 4;
/// `agree` is for headers; larger things have an owner or a root.
pub(crate) const AGREE_LIMIT_BYTES: usize = FRAME_LIMIT_BYTES;
/// A broadcast of bytes has no announced length, so something must bound what a peer can make us hold.
pub(crate) const MESSAGE_LIMIT_BYTES: usize = 16 << 30;

/// Afterwards this rank's part holds the sum over ranks.
pub(crate) fn reduce_scatter(mesh: &mut Mesh, data: &mut [f32], shards: &Shards) -> Result<(), CommError> {
    mesh.run(Kind::ReduceScatter, |mesh, step| {
        let (before, mine, after) = split(data, shards, mesh.rank);
        let after_start = before.len() + mine.len();
        let mut outgoing = Outgoing::default();
        for peer in mesh.peers() {
            let part = shards.of(peer);
            let part =
                if peer < mesh.rank { &before[part] } else { &after[part.start - after_start..part.end - after_start] };
            // Nothing is sent to an owner of nothing.
            if !part.is_empty() {
                outgoing.add(peer, Content::Floats(part));
            }
        }
        let mut left = mine.len();
        let mut sum = Vec::with_capacity(left.min(CHUNK_FLOATS));
        for own in mine.chunks_mut(CHUNK_FLOATS) {
            left -= own.len();
            for rank in 0..mesh.world() {
                if rank == mesh.rank {
                    add(&mut sum, own.iter().copied(), rank == 0);
                } else {
                    let (_, frame) = mesh.receive(step, |peer| peer == rank, &mut outgoing)?;
                    let values = floats(mesh, step, rank, &frame, own.len(), left)?;
                    add(&mut sum, values, rank == 0);
                    mesh.recycle(rank, frame);
                }
            }
            own.copy_from_slice(&sum);
        }
        mesh.finish(step, &mut outgoing)
    })
}

/// The first contribution is copied, not added to zero, which would turn -0.0 into 0.0.
fn add(sum: &mut Vec<f32>, values: impl Iterator<Item = f32>, first: bool) {
    if first {
        sum.clear();
        sum.extend(values);
    } else {
        for (total, value) in sum.iter_mut().zip(values) {
            *total += value;
        }
    }
}

/// Everybody gets every owner's part.
pub(crate) fn all_gather(mesh: &mut Mesh, data: &mut [f32], shards: &Shards) -> Result<(), CommError> {
    mesh.run(Kind::AllGather, |mesh, step| {
        let (before, mine, after) = split(data, shards, mesh.rank);
        let mine: &[f32] = mine;
        let after_start = before.len() + mine.len();
        let mut outgoing = Outgoing::default();
        if !mine.is_empty() {
            mesh.peers().for_each(|peer| outgoing.add(peer, Content::Floats(mine)));
        }
        // From whoever is ready, so that a slow owner does not hold up the others.
        let mut missing: Vec<_> = (0..mesh.world()).map(|rank| shards.of(rank)).collect();
        missing[mesh.rank] = 0..0;
        while missing.iter().any(|part| !part.is_empty()) {
            let wanted = |peer: usize| !missing[peer].is_empty();
            let (peer, frame) = mesh.receive(step, wanted, &mut outgoing)?;
            let part = &mut missing[peer];
            let start = part.start;
            let count = part.len().min(CHUNK_FLOATS);
            part.start += count;
            let values = floats(mesh, step, peer, &frame, count, part.len())?;
            let target = if peer < mesh.rank {
                &mut before[start..start + count]
            } else {
                &mut after[start - after_start..start - after_start + count]
            };
            target.iter_mut().zip(values).for_each(|(to, value)| *to = value);
            mesh.recycle(peer, frame);
        }
        mesh.finish(step, &mut outgoing)
    })
}

/// Everybody gets the root's values.
pub(crate) fn broadcast(mesh: &mut Mesh, root: usize, data: &mut [f32]) -> Result<(), CommError> {
    mesh.run(Kind::Broadcast, |mesh, step| {
        let mut outgoing = Outgoing::default();
        if mesh.rank == root {
            mesh.peers().for_each(|peer| outgoing.add(peer, Content::Floats(data)));
            return mesh.finish(step, &mut outgoing);
        }
        // An empty message still is one frame, so that the ranks stay in step.
        let mut left = data.len();
        loop {
            let start = data.len() - left;
            let count = left.min(CHUNK_FLOATS);
            left -= count;
            let (_, frame) = mesh.receive(step, |peer| peer == root, &mut outgoing)?;
            let values = floats(mesh, step, root, &frame, count, left)?;
            data[start..start + count].iter_mut().zip(values).for_each(|(to, value)| *to = value);
            mesh.recycle(root, frame);
            if left == 0 {
                return Ok(());
            }
        }
    })
}

/// Everybody gets the root's bytes; what the others pass in is dropped.
pub(crate) fn broadcast_bytes(mesh: &mut Mesh, root: usize, data: Vec<u8>) -> Result<Vec<u8>, CommError> {
    mesh.run(Kind::BroadcastBytes, |mesh, step| {
        let mut outgoing = Outgoing::default();
        if mesh.rank == root {
            mesh.peers().for_each(|peer| outgoing.add(peer, Content::Bytes(&data)));
            mesh.finish(step, &mut outgoing)?;
            return Ok(data);
        }
        let mut message = Vec::new();
        loop {
            let (_, frame) = mesh.receive(step, |peer| peer == root, &mut outgoing)?;
            append(mesh, step, root, &mut message, &frame, MESSAGE_LIMIT_BYTES)?;
            let last = frame.last;
            mesh.recycle(root, frame);
            if last {
                return Ok(message);
            }
        }
    })
}

/// Every rank's bytes, in rank order.
pub(crate) fn agree(mesh: &mut Mesh, mine: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
    gather_bytes(mesh, Kind::Agree, mine, AGREE_LIMIT_BYTES)
}

/// Returns once every rank has called it.
pub(crate) fn barrier(mesh: &mut Mesh) -> Result<(), CommError> {
    gather_bytes(mesh, Kind::Barrier, &[], 0).map(|_| ())
}

fn gather_bytes(mesh: &mut Mesh, kind: Kind, mine: &[u8], limit_bytes: usize) -> Result<Vec<Vec<u8>>, CommError> {
    mesh.run(kind, |mesh, step| {
        let mut outgoing = Outgoing::default();
        mesh.peers().for_each(|peer| outgoing.add(peer, Content::Bytes(mine)));
        let mut messages = vec![Vec::new(); mesh.world()];
        messages[mesh.rank] = mine.to_vec();
        let mut missing: Vec<bool> = (0..mesh.world()).map(|rank| rank != mesh.rank).collect();
        while missing.contains(&true) {
            let (peer, frame) = mesh.receive(step, |peer| missing[peer], &mut outgoing)?;
            append(mesh, step, peer, &mut messages[peer], &frame, limit_bytes)?;
            missing[peer] = !frame.last;
            mesh.recycle(peer, frame);
        }
        mesh.finish(step, &mut outgoing)?;
        Ok(messages)
    })
}

/// What lies before, in and after the part of `rank`.
fn split<'a>(data: &'a mut [f32], shards: &Shards, rank: usize) -> (&'a mut [f32], &'a mut [f32], &'a mut [f32]) {
    let part = shards.of(rank);
    let (rest, after) = data.split_at_mut(part.end);
    let (before, mine) = rest.split_at_mut(part.start);
    (before, mine, after)
}

/// The values of a frame that must hold exactly `count`, with `left` more to come after it.
fn floats<'a>(
    mesh: &Mesh,
    step: Step,
    peer: usize,
    frame: &'a Frame,
    count: usize,
    left: usize,
) -> Result<impl Iterator<Item = f32> + use<'a>, CommError> {
    let bytes = frame.payload.len();
    if (bytes, frame.last) != (count * 4, left == 0) {
        let named = |bytes: usize, last: bool| format!("{bytes} bytes{}", if last { "" } else { " and more to come" });
        let due = named(count * 4, left == 0);
        return Err(mesh.part_size(step, peer, named(bytes, frame.last), due));
    }
    Ok(frame.payload.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)))
}

/// Adds a frame to a message of unknown length; too much is the peer's fault, not an allocation failure.
fn append(
    mesh: &Mesh,
    step: Step,
    peer: usize,
    message: &mut Vec<u8>,
    frame: &Frame,
    limit_bytes: usize,
) -> Result<(), CommError> {
    let bytes = message.len() + frame.payload.len();
    if bytes > limit_bytes || message.try_reserve(frame.payload.len()).is_err() {
        let fault = FrameError::TooLarge { bytes: bytes as u64, limit_bytes: limit_bytes as u64 };
        return Err(mesh.garbled(step, peer, fault));
    }
    message.extend_from_slice(&frame.payload);
    Ok(())
}
