//! The collectives, each an exchange that `mesh.rs` drives. Called by `group.rs`, which checks the
//! arguments, and by `measure.rs`.
//!
//! Sums (`all_reduce.rs`) use one of two algorithms: `direct.rs`, where every part goes to its owner
//! and back, and `ring.rs`, where parts travel from neighbour to neighbour. Bytes are small and go
//! to all ranks directly.

mod all_reduce;
mod broadcast;
mod chunks;
mod direct;
mod own_contribution;
mod pieces;
mod ring;
mod sum_buffers;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::codec::WireFormat;
use crate::error::CommError;
use crate::frame::{FRAME_LIMIT_BYTES, Frame, FrameError, FrameKind};
use crate::mesh::{Exchange, Mesh};
use crate::outgoing::{CollectiveStep, Outgoing};
use crate::shards::Shards;

pub use all_reduce::Summed;
pub(crate) use all_reduce::all_reduce;
pub use own_contribution::Contribution;
pub(crate) use sum_buffers::SumBuffers;

use broadcast::Broadcast;

/// `all_gather_bytes` is for headers; larger data has an owner or a root.
pub(crate) const ALL_GATHER_LIMIT_BYTES: usize = FRAME_LIMIT_BYTES;
/// A broadcast of bytes has no announced length, so a limit bounds what a peer can make us hold.
pub(crate) const MESSAGE_LIMIT_BYTES: usize = 16 << 30;

/// The algorithm of a sum (`comm.algorithm`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// The faster one for the size of the vector and the world.
    #[default]
    Auto,
    /// Every part goes to its owner and back: two hops, any ownership. A rounding wire format
    /// rounds each contribution once, and the sum once.
    Direct,
    /// From neighbour to neighbour: each rank exchanges data with two others only. Needs even
    /// ownership and f32.
    Ring,
}

impl Algorithm {
    /// Returns the algorithm that a sum uses: `Direct` or `Ring`. The ring would round at every hop
    /// and cannot weight owners, so it is for even f32 only. There both send the same number of
    /// bytes. Direct has fewer hops, which matters for small vectors; the ring has one stream into
    /// each rank instead of `world - 1` that compete. Measured with 4 ranks on loopback: 1 MB takes
    /// 2.1 ms directly and 4.2 in a ring, 25 MB 65 and 52, 440 MB 1,195 and 998.
    pub fn choose(self, wire_format: WireFormat, shards: &Shards) -> Algorithm {
        const RING_FROM_RANKS: usize = 3;
        const RING_FROM_FLOATS: usize = 1 << 20;
        let world = shards.world();
        let ring_fits = wire_format == WireFormat::F32 && *shards == Shards::even(shards.len(), world);
        match self {
            Algorithm::Auto if ring_fits && world >= RING_FROM_RANKS && shards.len() >= RING_FROM_FLOATS => {
                Algorithm::Ring
            }
            Algorithm::Auto => Algorithm::Direct,
            Algorithm::Ring if !ring_fits => Algorithm::Direct,
            algorithm => algorithm,
        }
    }
}

/// Prints the name used in configs.
impl fmt::Display for Algorithm {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Algorithm::Auto => "auto",
            Algorithm::Direct => "direct",
            Algorithm::Ring => "ring",
        })
    }
}

/// Copies the root's values to all ranks.
pub(crate) fn broadcast(mesh: &mut Mesh, root: usize, data: &mut [f32]) -> Result<(), CommError> {
    mesh.run(FrameKind::Broadcast, |mesh, step| mesh.drive(step, &mut Broadcast::new(mesh, root, data)))
}

/// Returns the root's bytes on all ranks; the data of the others is dropped.
pub(crate) fn broadcast_bytes(mesh: &mut Mesh, root: usize, data: Vec<u8>) -> Result<Vec<u8>, CommError> {
    let (mut receivers, mut senders) = (Vec::new(), vec![root]);
    if mesh.rank == root {
        (receivers, senders) = (mesh.peers().collect(), Vec::new());
    }
    let mut messages = exchange(mesh, FrameKind::BroadcastBytes, &data, &receivers, &senders, MESSAGE_LIMIT_BYTES)?;
    Ok(if mesh.rank == root { data } else { messages.swap_remove(root) })
}

/// Returns every rank's bytes, in rank order.
pub(crate) fn all_gather_bytes(mesh: &mut Mesh, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
    let peers: Vec<usize> = mesh.peers().collect();
    let mut messages = exchange(mesh, FrameKind::AllGatherBytes, bytes, &peers, &peers, ALL_GATHER_LIMIT_BYTES)?;
    messages[mesh.rank] = bytes.to_vec();
    Ok(messages)
}

/// Returns once every rank has called it.
pub(crate) fn barrier(mesh: &mut Mesh) -> Result<(), CommError> {
    let peers: Vec<usize> = mesh.peers().collect();
    exchange(mesh, FrameKind::Barrier, &[], &peers, &peers, 0).map(|_| ())
}

/// Returns on rank 0 once every rank has called it, on the others at once. So afterwards no rank is
/// in an earlier collective when it hears from rank 0.
pub(crate) fn report_to_lead(mesh: &mut Mesh) -> Result<(), CommError> {
    let (receivers, senders) = match mesh.rank {
        0 => (Vec::new(), mesh.peers().collect()),
        _ => (vec![0], Vec::new()),
    };
    exchange(mesh, FrameKind::Barrier, &[], &receivers, &senders, 0).map(|_| ())
}

/// Sends `bytes` to the receivers and returns what the senders send, by rank.
fn exchange(
    mesh: &mut Mesh,
    kind: FrameKind,
    bytes: &[u8],
    receivers: &[usize],
    senders: &[usize],
    limit_bytes: usize,
) -> Result<Vec<Vec<u8>>, CommError> {
    mesh.run(kind, |mesh, step| {
        let mut outgoing = Outgoing::default();
        receivers.iter().for_each(|&peer| outgoing.add(peer, bytes));
        let messages = vec![Vec::new(); mesh.world()];
        let mut messages = Messages { outgoing, missing: senders.to_vec(), messages, limit_bytes };
        mesh.drive(step, &mut messages)?;
        Ok(messages.messages)
    })
}

/// An exchange of one message of bytes per rank.
struct Messages<'a> {
    outgoing: Outgoing<'a>,
    /// Ranks whose message is not complete yet.
    missing: Vec<usize>,
    messages: Vec<Vec<u8>>,
    limit_bytes: usize,
}

impl Exchange for Messages<'_> {
    type Error = CommError;

    fn advance(&mut self, mesh: &Mesh, step: CollectiveStep) -> Result<bool, CommError> {
        let mut moved = self.outgoing.pump(mesh, step)?;
        let mut at = 0;
        while let Some(&peer) = self.missing.get(at) {
            let Some(frame) = mesh.take(step, peer)? else {
                at += 1;
                continue;
            };
            moved = true;
            append(mesh, step, peer, &mut self.messages[peer], &frame, self.limit_bytes)?;
            if frame.last {
                self.missing.swap_remove(at);
            }
        }
        Ok(moved)
    }

    fn awaited(&self) -> Option<usize> {
        self.missing.first().copied().or_else(|| self.outgoing.next_peer())
    }
}

/// Appends a frame to a message of unknown length. Too much is the peer's fault, not an allocation
/// failure.
fn append(
    mesh: &Mesh,
    step: CollectiveStep,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_is_used_only_where_it_is_correct() {
        let (small, large) = (1_000, 10_000_000);
        let even = Shards::even(large, 64);
        let uneven = Shards::weighted(large, &std::array::from_fn::<f64, 64, _>(|rank| rank as f64));
        let bf16 = WireFormat::Bf16 { exact_tail: 0 };
        assert_eq!(Algorithm::Auto.choose(WireFormat::F32, &even), Algorithm::Ring);
        assert_eq!(Algorithm::Auto.choose(WireFormat::F32, &Shards::even(large, 2)), Algorithm::Direct);
        assert_eq!(Algorithm::Auto.choose(WireFormat::F32, &Shards::even(small, 4)), Algorithm::Direct);
        assert_eq!(Algorithm::Ring.choose(WireFormat::F32, &Shards::even(small, 4)), Algorithm::Ring);
        for algorithm in [Algorithm::Auto, Algorithm::Ring, Algorithm::Direct] {
            assert_eq!(algorithm.choose(bf16, &even), Algorithm::Direct);
            assert_eq!(algorithm.choose(WireFormat::F32, &uneven), Algorithm::Direct);
        }
    }
}
