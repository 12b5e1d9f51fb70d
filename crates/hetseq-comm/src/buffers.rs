//! The bytes of a frame, shared and recycled: a vector of 440 MB is thousands of frames, and fresh memory for each costs
//! more in page faults than copying into it.
//!
//! One [`Pool`] per rank. A [`Payload`] is written once, then shared: the same result goes to every peer without being
//! copied or checked again. When the last holder drops it, its memory goes back to the pool.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::frame::CHUNK_BYTES;
use crate::link::locked;

/// Smaller ones are left to the allocator.
const SMALLEST_BYTES: usize = CHUNK_BYTES / 4;

/// Spare memory of one rank.
pub(crate) struct Pool {
    spare: Mutex<Vec<Vec<u8>>>,
    /// More than this is left to the allocator.
    kept: AtomicUsize,
    /// Sums on their way; as many as there ever were at once.
    sums: Mutex<Vec<Vec<f32>>>,
}

impl Pool {
    /// For a rank with `links` links, each with a few chunks on their way in and out.
    pub(crate) fn new(links: usize) -> Arc<Pool> {
        Arc::new(Pool { spare: Mutex::default(), kept: AtomicUsize::new(8 * links), sums: Mutex::default() })
    }

    /// From now on so many go round, if there were fewer.
    pub(crate) fn keep(&self, buffers: usize) {
        self.kept.fetch_max(buffers, Ordering::Relaxed);
    }

    /// A buffer for about `bytes`, with arbitrary contents and length. Only large ones go round: small frames are cheap to
    /// allocate, and would waste a large buffer.
    pub(crate) fn take(&self, bytes: usize) -> Vec<u8> {
        if bytes < SMALLEST_BYTES {
            return Vec::new();
        }
        let mut spare = locked(&self.spare);
        match spare.last().map(Vec::capacity) {
            Some(capacity) if capacity > 2 * bytes => Vec::new(),
            // One that is too small would be copied to grow; it makes way for what is needed now.
            Some(_) => spare.pop().filter(|buffer| buffer.capacity() >= bytes).unwrap_or_default(),
            None => Vec::new(),
        }
    }

    fn give(&self, buffer: Vec<u8>) {
        let mut spare = locked(&self.spare);
        if (SMALLEST_BYTES..=2 * CHUNK_BYTES).contains(&buffer.capacity())
            && spare.len() < self.kept.load(Ordering::Relaxed)
        {
            spare.push(buffer);
        }
    }

    /// Room for the sum of `len` values, with arbitrary contents.
    pub(crate) fn take_sum(&self, len: usize) -> Vec<f32> {
        let mut sum = locked(&self.sums).pop().unwrap_or_default();
        sum.resize(len, 0.0);
        sum
    }

    pub(crate) fn give_sum(&self, sum: Vec<f32>) {
        locked(&self.sums).push(sum);
    }
}

/// What a frame carries; immutable once made.
pub(crate) struct Payload {
    bytes: Vec<u8>,
    home: Option<Arc<Pool>>,
    checksum: OnceLock<u32>,
}

impl Payload {
    pub(crate) fn new(bytes: Vec<u8>) -> Arc<Payload> {
        Arc::new(Payload { bytes, home: None, checksum: OnceLock::new() })
    }

    /// Whose memory goes back to `pool`.
    pub(crate) fn pooled(bytes: Vec<u8>, pool: &Arc<Pool>) -> Arc<Payload> {
        Arc::new(Payload { bytes, home: Some(pool.clone()), checksum: OnceLock::new() })
    }

    /// Its crc32c, computed by whoever asks first.
    pub(crate) fn checksum(&self) -> u32 {
        *self.checksum.get_or_init(|| crc32c::crc32c(&self.bytes))
    }
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        if let Some(pool) = self.home.take() {
            pool.give(std::mem::take(&mut self.bytes));
        }
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Payload) -> bool {
        self.bytes == other.bytes
    }
}

impl std::fmt::Debug for Payload {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} bytes", self.bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_chunks_go_round_and_others_do_not() {
        let pool = Pool::new(1);
        for bytes in [10, CHUNK_BYTES, 100 * CHUNK_BYTES] {
            drop(Payload::pooled(vec![0; bytes], &pool));
        }
        assert!(pool.take(10).capacity() == 0);
        assert_eq!(pool.take(CHUNK_BYTES).len(), CHUNK_BYTES);
        assert!(pool.take(CHUNK_BYTES).is_empty());
        for _ in 0..100 {
            pool.give(vec![0; CHUNK_BYTES]);
        }
        assert_eq!(pool.spare.lock().unwrap().len(), 8);
        pool.keep(20);
        pool.keep(10);
        (0..100).for_each(|_| pool.give(vec![0; CHUNK_BYTES]));
        assert_eq!(pool.spare.lock().unwrap().len(), 20);
    }

    #[test]
    fn a_buffer_fits_what_it_is_for() {
        let pool = Pool::new(1);
        pool.give(vec![0; CHUNK_BYTES]);
        assert_eq!(pool.take(CHUNK_BYTES / 2 - 1).capacity(), 0);
        assert_eq!(pool.take(CHUNK_BYTES / 2).capacity(), CHUNK_BYTES);
        pool.give(vec![0; CHUNK_BYTES / 2]);
        assert_eq!(pool.take(CHUNK_BYTES).capacity(), 0);
        assert!(pool.spare.lock().unwrap().is_empty());
    }

    #[test]
    fn memory_returns_only_when_the_last_holder_lets_go() {
        let pool = Pool::new(1);
        let first = Payload::pooled(vec![7; CHUNK_BYTES], &pool);
        let second = first.clone();
        drop(first);
        assert!(pool.take(CHUNK_BYTES).is_empty());
        assert_eq!(second[5], 7);
        drop(second);
        assert_eq!(pool.take(CHUNK_BYTES).len(), CHUNK_BYTES);
    }
}
