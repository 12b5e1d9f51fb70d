//! The split of a part of a vector into frames. Pure; every rank splits alike, because the sizes
//! are not sent.

use std::ops::Range;

use crate::frame::CHUNK_BYTES;

const LARGEST_FLOATS: usize = CHUNK_BYTES / 4;
/// Enough pieces per part for sending, adding and returning to overlap.
const PIECES: usize = 4;

/// The pieces of one part, all of the same size except the last.
#[derive(Clone, Debug)]
pub(super) struct Chunks {
    part: Range<usize>,
    floats: usize,
}

impl Chunks {
    /// The pieces of `part` of a vector of `len` values over `world` ranks. Below `smallest_bytes` a
    /// frame costs more than its bytes.
    pub(super) fn of(part: Range<usize>, len: usize, world: usize, smallest_bytes: usize) -> Chunks {
        let floats = (len / world.max(1) / PIECES).max(smallest_bytes / 4).min(LARGEST_FLOATS);
        Chunks { part, floats }
    }

    pub(super) fn count(&self) -> usize {
        self.part.len().div_ceil(self.floats)
    }

    pub(super) fn get(&self, index: usize) -> Range<usize> {
        let start = (self.part.start + index * self.floats).min(self.part.end);
        start..(start + self.floats).min(self.part.end)
    }

    pub(super) fn is_last(&self, index: usize) -> bool {
        index + 1 == self.count()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn chunks_cover_their_part_in_order(start in 0usize..1_000, length in 0usize..3_000_000, world in 1usize..9) {
            let part = start..start + length;
            let chunks = Chunks::of(part.clone(), part.end, world, 16 << 10);
            let mut next = part.start;
            for index in 0..chunks.count() {
                let chunk = chunks.get(index);
                prop_assert!(chunk.start == next && !chunk.is_empty() && chunk.len() <= LARGEST_FLOATS);
                prop_assert_eq!(chunks.is_last(index), chunk.end == part.end);
                next = chunk.end;
            }
            prop_assert_eq!(next, part.end);
        }
    }
}
