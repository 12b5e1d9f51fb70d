//! Frame buffers that go round instead of being allocated anew: a vector of 440 MB is 440 frames, and
//! fresh memory for each costs more in page faults than copying into it.
//!
//! One pool per lane: the producer takes a buffer, fills and queues it, the consumer gives it back.

use std::sync::{Mutex, PoisonError};

use crate::frame::CHUNK_BYTES;

/// What a full lane holds, and one at each of its ends; more than this is left to the allocator.
const KEPT: usize = 6;

#[derive(Default)]
pub(crate) struct Buffers {
    spare: Mutex<Vec<Vec<u8>>>,
}

impl Buffers {
    /// A buffer for about `bytes`, with arbitrary contents and length. Only whole chunks go round:
    /// small frames are cheap to allocate, and would waste a large buffer.
    pub(crate) fn take(&self, bytes: usize) -> Vec<u8> {
        if bytes < CHUNK_BYTES / 2 {
            return Vec::new();
        }
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        spare.pop().unwrap_or_default()
    }

    pub(crate) fn give(&self, buffer: Vec<u8>) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if (CHUNK_BYTES..=2 * CHUNK_BYTES).contains(&buffer.capacity()) && spare.len() < KEPT {
            spare.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_chunks_go_round_and_others_do_not() {
        let buffers = Buffers::default();
        for bytes in [10, CHUNK_BYTES, 100 * CHUNK_BYTES] {
            buffers.give(vec![0; bytes]);
        }
        assert!(buffers.take(10).capacity() == 0);
        assert_eq!(buffers.take(CHUNK_BYTES).len(), CHUNK_BYTES);
        assert!(buffers.take(CHUNK_BYTES).capacity() == 0);
        for _ in 0..100 {
            buffers.give(vec![0; CHUNK_BYTES]);
        }
        assert_eq!(buffers.spare.lock().unwrap().len(), KEPT);
    }
}
