//! The collectives, each an exchange that `mesh.rs` drives. Called by `group.rs` only, which checks the arguments.
//!
//! Floats go by one of two routes: `reduce/direct.rs`, where every part goes straight to and from its owner, and
//! `reduce/ring.rs`, where parts travel from neighbour to neighbour. Bytes are small and go to everybody.

mod chunks;
mod direct;
mod late;
mod own;
mod pieces;
mod ring;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::codec::{Codec, Wire};
use crate::error::CommError;
use crate::frame::{FRAME_LIMIT_BYTES, Frame, FrameError, Kind};
use crate::mesh::{Exchange, Mesh};
use crate::outgoing::{Outgoing, Step};
use crate::shards::Shards;

pub use late::Summed;
pub(crate) use late::all_reduce_late;
pub use own::Contribution;

use direct::{Direct, From};
use ring::Ring;

/// `agree` is for headers; larger things have an owner or a root.
pub(crate) const AGREE_LIMIT_BYTES: usize = FRAME_LIMIT_BYTES;
/// A broadcast of bytes has no announced length, so something must bound what a peer can make us hold.
pub(crate) const MESSAGE_LIMIT_BYTES: usize = 16 << 30;

/// Which way the parts of a sum travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Route {
    /// The faster one by what is known of size and world.
    #[default]
    Auto,
    /// Every part straight to its owner and back: two hops, any ownership. A rounding wire rounds each contribution once, and
    /// the sum once.
    Direct,
    /// From neighbour to neighbour: each rank talks to two others only. Needs even ownership and f32.
    Ring,
}

impl Route {
    /// The one that a sum takes: `Direct` or `Ring`. The ring rounds at every hop and cannot weigh owners, so it is for even
    /// f32 only. There both carry the same bytes. The direct way is shorter, which counts for small vectors; the ring has
    /// one stream into each rank instead of `world - 1` that crowd each other out. Measured with 4 ranks: on loopback 1 MB
    /// takes 2.1 ms directly and 4.2 in a ring, 25 MB 65 and 52, 440 MB 1,195 and 998.
    pub fn choose(self, wire: Wire, shards: &Shards) -> Route {
        const RING_FROM_RANKS: usize = 3;
        const RING_FROM_FLOATS: usize = 1 << 20;
        let world = shards.world();
        let ring_fits = wire == Wire::F32 && *shards == Shards::even(shards.len(), world);
        match self {
            Route::Auto if ring_fits && world >= RING_FROM_RANKS && shards.len() >= RING_FROM_FLOATS => Route::Ring,
            Route::Auto => Route::Direct,
            Route::Ring if !ring_fits => Route::Direct,
            route => route,
        }
    }
}

/// As it is called in configs.
impl fmt::Display for Route {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Route::Auto => "auto",
            Route::Direct => "direct",
            Route::Ring => "ring",
        })
    }
}

/// Afterwards everybody holds the sum over ranks.
pub(crate) fn all_reduce(
    mesh: &mut Mesh,
    data: &mut [f32],
    shards: &Shards,
    wire: Wire,
    route: Route,
) -> Result<(), CommError> {
    // Alone it is the sum already, and not to be rounded for a wire that nobody uses.
    if mesh.world() == 1 {
        return Ok(());
    }
    mesh.run(Kind::AllReduce, |mesh, step| match route.choose(wire, shards) {
        Route::Ring => mesh.drive(step, &mut Ring::new(mesh, data, shards)),
        _ => mesh.drive(step, &mut Direct::new(mesh, data, shards, Codec::new(wire, shards.len()), From::All, true)),
    })
}

/// Afterwards this rank's part holds the sum over ranks.
pub(crate) fn reduce_scatter(mesh: &mut Mesh, data: &mut [f32], shards: &Shards) -> Result<(), CommError> {
    let codec = Codec::new(Wire::F32, data.len());
    mesh.run(Kind::ReduceScatter, |mesh, step| {
        mesh.drive(step, &mut Direct::new(mesh, data, shards, codec, From::All, false))
    })
}

/// Everybody gets every owner's part.
pub(crate) fn all_gather(mesh: &mut Mesh, data: &mut [f32], shards: &Shards) -> Result<(), CommError> {
    let codec = Codec::new(Wire::F32, data.len());
    mesh.run(Kind::AllGather, |mesh, step| {
        mesh.drive(step, &mut Direct::new(mesh, data, shards, codec, From::Owners, true))
    })
}

/// Everybody gets the root's values: they are spread over all ranks, which pass their parts on, so that the root sends
/// them once and not once per rank.
pub(crate) fn broadcast(mesh: &mut Mesh, root: usize, data: &mut [f32]) -> Result<(), CommError> {
    let codec = Codec::new(Wire::F32, data.len());
    let shards = Shards::even(data.len(), mesh.world());
    mesh.run(Kind::Broadcast, |mesh, step| {
        mesh.drive(step, &mut Direct::new(mesh, data, &shards, codec, From::Root(root), true))
    })
}

/// Everybody gets the root's bytes; what the others pass in is dropped.
pub(crate) fn broadcast_bytes(mesh: &mut Mesh, root: usize, data: Vec<u8>) -> Result<Vec<u8>, CommError> {
    let (mut receivers, mut senders) = (Vec::new(), vec![root]);
    if mesh.rank == root {
        (receivers, senders) = (mesh.peers().collect(), Vec::new());
    }
    let mut messages = exchange(mesh, Kind::BroadcastBytes, &data, &receivers, &senders, MESSAGE_LIMIT_BYTES)?;
    Ok(if mesh.rank == root { data } else { messages.swap_remove(root) })
}

/// Every rank's bytes, in rank order.
pub(crate) fn agree(mesh: &mut Mesh, mine: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
    let peers: Vec<usize> = mesh.peers().collect();
    let mut messages = exchange(mesh, Kind::Agree, mine, &peers, &peers, AGREE_LIMIT_BYTES)?;
    messages[mesh.rank] = mine.to_vec();
    Ok(messages)
}

/// Returns once every rank has called it.
pub(crate) fn barrier(mesh: &mut Mesh) -> Result<(), CommError> {
    let peers: Vec<usize> = mesh.peers().collect();
    exchange(mesh, Kind::Barrier, &[], &peers, &peers, 0).map(|_| ())
}

/// Sends `mine` to the receivers and collects what the senders send, by rank.
fn exchange(
    mesh: &mut Mesh,
    kind: Kind,
    mine: &[u8],
    receivers: &[usize],
    senders: &[usize],
    limit_bytes: usize,
) -> Result<Vec<Vec<u8>>, CommError> {
    mesh.run(kind, |mesh, step| {
        let mut outgoing = Outgoing::default();
        receivers.iter().for_each(|&peer| outgoing.add(peer, mine));
        let messages = vec![Vec::new(); mesh.world()];
        let mut messages = Messages { outgoing, missing: senders.to_vec(), messages, limit_bytes };
        mesh.drive(step, &mut messages)?;
        Ok(messages.messages)
    })
}

struct Messages<'a> {
    outgoing: Outgoing<'a>,
    /// Whose message is not complete yet.
    missing: Vec<usize>,
    messages: Vec<Vec<u8>>,
    limit_bytes: usize,
}

impl Exchange for Messages<'_> {
    type Error = CommError;

    fn advance(&mut self, mesh: &Mesh, step: Step) -> Result<bool, CommError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_is_taken_only_where_it_is_right() {
        let (small, large) = (1_000, 10_000_000);
        let even = Shards::even(large, 64);
        let uneven = Shards::weighted(large, &std::array::from_fn::<f64, 64, _>(|rank| rank as f64));
        let bf16 = Wire::Bf16 { exact_tail: 0 };
        assert_eq!(Route::Auto.choose(Wire::F32, &even), Route::Ring);
        assert_eq!(Route::Auto.choose(Wire::F32, &Shards::even(large, 2)), Route::Direct);
        assert_eq!(Route::Auto.choose(Wire::F32, &Shards::even(small, 4)), Route::Direct);
        assert_eq!(Route::Ring.choose(Wire::F32, &Shards::even(small, 4)), Route::Ring);
        for route in [Route::Auto, Route::Ring, Route::Direct] {
            assert_eq!(route.choose(bf16, &even), Route::Direct);
            assert_eq!(route.choose(Wire::F32, &uneven), Route::Direct);
        }
    }
}
