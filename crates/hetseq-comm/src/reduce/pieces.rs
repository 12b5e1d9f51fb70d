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

/// The newest results of this rank's part, encoded once for all peers that are about as far.
#[derive(Default)]
pub(super) struct Results(VecDeque<(usize, Arc<Payload>)>);

impl Results {
    pub(super) fn get(&mut self, index: usize, encode: impl FnOnce() -> Arc<Payload>) -> Arc<Payload> {
        if let Some((_, payload)) = self.0.iter().find(|(at, _)| *at == index) {
            return payload.clone();
        }
        let payload = encode();
        if self.0.len() == CACHED {
            self.0.pop_front();
        }
        self.0.push_back((index, payload.clone()));
        payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_encoded_once_for_peers_that_are_about_as_far() {
        let (mut results, mut encoded) = (Results::default(), Vec::new());
        for index in [0, 0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 0, 8, 0, 8] {
            results.get(index, || {
                encoded.push(index);
                Payload::new(vec![index as u8])
            });
        }
        // The first was dropped from the cache when the ninth arrived.
        assert_eq!(encoded, [0, 1, 2, 3, 4, 5, 6, 7, 8, 0]);
        assert_eq!(results.get(8, || unreachable!("it is cached"))[..], [8]);
    }
}
