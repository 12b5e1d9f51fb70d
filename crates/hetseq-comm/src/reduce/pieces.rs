//! Encoding, caching and checking of pieces of a vector, for the exchanges through owners:
//! `direct.rs` and `broadcast.rs`.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::buffers::Payload;
use crate::codec::Codec;
use crate::error::CommError;
use crate::mesh::Mesh;
use crate::outgoing::CollectiveStep;

use super::chunks::Chunks;

/// The number of encoded results to cache. A peer that is further behind gets them encoded again.
const CACHED: usize = 8;

/// Encodes the values of `range` as the payload of a frame.
pub(super) fn encode(mesh: &Mesh, codec: Codec, data: &[f32], range: &Range<usize>) -> Arc<Payload> {
    let mut bytes = mesh.pool.take(codec.bytes(range));
    codec.encode(range, &data[range.clone()], &mut bytes);
    Payload::pooled(bytes, &mesh.pool)
}

/// Returns the values of `range` of this rank's contribution as the payload of a frame, without a
/// copy if the wire format allows it.
pub(super) fn contribution(mesh: &Mesh, codec: Codec, own: &Arc<Vec<f32>>, range: &Range<usize>) -> Arc<Payload> {
    if codec.sends_memory(range) { Payload::values(own, range.clone()) } else { encode(mesh, codec, own, range) }
}

/// Returns the next frame from `peer`, if it has arrived; it must be piece `index` of `chunks`.
pub(super) fn receive(
    mesh: &Mesh,
    step: CollectiveStep,
    peer: usize,
    codec: Codec,
    chunks: &Chunks,
    index: usize,
) -> Result<Option<Arc<Payload>>, CommError> {
    let Some(frame) = mesh.take(step, peer)? else { return Ok(None) };
    let expected = (codec.bytes(&chunks.get(index)), chunks.is_last(index));
    mesh.check_size(step, peer, &frame, expected)?;
    Ok(Some(frame.payload))
}

/// Returns the other ranks, starting after `rank`, so that not all send to rank 0 first.
pub(super) fn others(rank: usize, world: usize) -> impl Iterator<Item = usize> {
    (1..world).map(move |step| (rank + step) % world)
}

/// The newest results, encoded once for all receivers that are about as far. A result that all have
/// is dropped at once: its memory is reused while it is in the cache.
pub(super) struct Results {
    receivers: usize,
    /// The index of each result, its payload, and the number of receivers that it still goes to.
    newest: VecDeque<(usize, Arc<Payload>, usize)>,
}

impl Results {
    pub(super) fn for_receivers(receivers: usize) -> Results {
        Results { receivers, newest: VecDeque::new() }
    }

    /// Returns a result for its next receiver.
    pub(super) fn get(&mut self, index: usize, encode: impl FnOnce() -> Arc<Payload>) -> Arc<Payload> {
        let cached = self.newest.iter().position(|(at, ..)| *at == index).and_then(|at| self.newest.remove(at));
        let (_, payload, receivers) = cached.unwrap_or_else(|| (index, encode(), self.receivers));
        if receivers > 1 {
            if self.newest.len() == CACHED {
                self.newest.pop_front();
            }
            self.newest.push_back((index, payload.clone(), receivers - 1));
        }
        payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_encoded_once_for_receivers_that_are_about_as_far() {
        let (mut results, mut encoded) = (Results::for_receivers(3), Vec::new());
        for index in [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 1, 9, 2, 9, 0] {
            results.get(index, || {
                encoded.push(index);
                Payload::new(vec![index as u8])
            });
        }
        // The second was dropped from the cache when the ninth arrived, the first once all had it.
        assert_eq!(encoded, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 0]);
        assert_eq!(results.get(8, || unreachable!("it is cached"))[..], [8]);
    }
}
