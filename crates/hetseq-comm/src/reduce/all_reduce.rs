//! The all-reduce: waits for this rank's contribution, then sums by one of two algorithms
//! (`direct.rs`, `ring.rs`). Called by `Group::all_reduce`.
//!
//! Only the direct algorithm starts before this rank has contributed. The ring has nothing to add
//! to before that: it waits, then exchanges the notes, then the values.

use std::sync::Arc;
use std::time::Duration;

use crate::codec::{Codec, WireFormat};
use crate::error::CommError;
use crate::frame::FrameKind;
use crate::mesh::Mesh;
use crate::shards::Shards;

use super::Algorithm;
use super::direct::Direct;
use super::own_contribution::{Awaiting, Contribution, Fault, OwnContribution};
use super::ring::Ring;
use super::sum_buffers::SumBuffers;

/// The result of [`crate::Group::all_reduce`].
#[derive(Clone, Debug)]
pub struct Summed {
    /// The notes of all ranks, in rank order.
    pub notes: Vec<Vec<u8>>,
    /// The sum.
    pub data: Vec<f32>,
    /// Time asleep since this rank contributed, waiting for other ranks or for links.
    pub waited: Duration,
    /// The rest of the time since this rank contributed.
    pub busy: Duration,
}

/// See [`crate::Group::all_reduce`].
pub(crate) fn all_reduce<E: From<CommError>>(
    mesh: &mut Mesh,
    shards: &Shards,
    wire_format: WireFormat,
    algorithm: Algorithm,
    buffers: &mut SumBuffers,
    contribution: impl FnMut() -> Result<Option<Contribution>, E>,
) -> Result<Summed, E> {
    buffers.recycle();
    let own = OwnContribution::new(contribution, shards.len());
    // A single rank has the sum already, and nothing is sent that would need rounding.
    let is_direct = mesh.world() > 1 && algorithm.choose(wire_format, shards) == Algorithm::Direct;
    let summed = mesh.run(FrameKind::AllReduce, |mesh, step| {
        if is_direct {
            let mut direct = Direct::new(mesh, shards, Codec::new(wire_format, shards.len()), own, buffers);
            mesh.drive(step, &mut direct)?;
            let (notes, ready) = (direct.take_notes(), direct.own.ready);
            return Ok((notes, buffers.take_sum(), ready));
        }
        let mut awaiting = Awaiting { rank: mesh.rank, own, data: Vec::new(), note: Vec::new() };
        let driven = mesh.drive(step, &mut awaiting);
        if mesh.world() > 1 && awaiting.own.ready.is_some() {
            // Also if a rank is lost before the sum has begun.
            buffers.own = Some(Arc::new(std::mem::take(&mut awaiting.data)));
        }
        driven?;
        Ok((vec![awaiting.note], awaiting.data, awaiting.own.ready))
    });
    let (mut notes, mut data, ready) = summed.map_err(|fault| match fault {
        Fault::Own(error) => error,
        Fault::Group(error) => error.into(),
    })?;
    if let Some(own) = buffers.own.clone().filter(|_| !is_direct) {
        notes = super::all_gather_bytes(mesh, &notes[0])?;
        buffers.sum.resize(shards.len(), 0.0);
        mesh.run(FrameKind::AllReduce, |mesh, step| {
            mesh.drive(step, &mut Ring::new(mesh, own, &mut buffers.sum, shards))
        })?;
        data = buffers.take_sum();
    }
    let (waited, took) =
        ready.map_or_else(Default::default, |ready| (mesh.time_asleep - ready.time_asleep, ready.at.elapsed()));
    Ok(Summed { notes, data, waited, busy: took.saturating_sub(waited) })
}
