//! Shared, recycled memory for frame payloads. A vector of 440 MB is thousands of frames, and fresh
//! memory for each costs more in page faults than the copy into it.
//!
//! One [`Pool`] per rank. A [`Payload`] is written once, then shared: the same result goes to every
//! peer without another copy or checksum. Its memory returns to the pool when the last owner drops
//! it. A contribution is not copied at all: its payloads are parts of the vector itself.

use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::checksum;
use crate::frame::CHUNK_BYTES;
use crate::lock::locked;

/// Smaller buffers are left to the allocator. The pieces of a sum have at least this size, except
/// for the last of each part: an allocator that returns their memory to the system in every update
/// made a sum of 1 MB take a third longer.
const SMALLEST_BYTES: usize = 16 << 10;

/// The spare buffers of one rank.
pub(crate) struct Pool {
    spare: Mutex<Vec<Vec<u8>>>,
    /// The most spare buffers to keep; more are freed.
    max_spare: AtomicUsize,
    /// Buffers for partial sums, as many as were ever in use at once.
    sums: Mutex<Vec<Vec<f32>>>,
}

impl Pool {
    /// A pool for a rank with `links` links, each with a few chunks in flight in each direction.
    pub(crate) fn new(links: usize) -> Arc<Pool> {
        Arc::new(Pool { spare: Mutex::default(), max_spare: AtomicUsize::new(8 * links), sums: Mutex::default() })
    }

    /// Raises the number of spare buffers to keep to at least `buffers`.
    pub(crate) fn raise_max_spare(&self, buffers: usize) {
        self.max_spare.fetch_max(buffers, Ordering::Relaxed);
    }

    /// Returns a buffer for about `bytes`, with arbitrary contents and length. Frames below
    /// `SMALLEST_BYTES` are cheap to allocate and would waste a large buffer.
    pub(crate) fn take(&self, bytes: usize) -> Vec<u8> {
        if bytes < SMALLEST_BYTES {
            return Vec::new();
        }
        let mut spare = locked(&self.spare);
        // Growing a buffer that is too small would copy it; dropping it makes room for one of the
        // size in use now.
        std::iter::from_fn(|| spare.pop()).find(|buffer| buffer.capacity() >= bytes).unwrap_or_default()
    }

    fn give(&self, buffer: Vec<u8>) {
        let mut spare = locked(&self.spare);
        if (SMALLEST_BYTES..=2 * CHUNK_BYTES).contains(&buffer.capacity())
            && spare.len() < self.max_spare.load(Ordering::Relaxed)
        {
            spare.push(buffer);
        }
    }

    /// Returns a buffer for the sum of `len` values, with arbitrary contents.
    pub(crate) fn take_sum(&self, len: usize) -> Vec<f32> {
        let mut sum = locked(&self.sums).pop().unwrap_or_default();
        sum.resize(len, 0.0);
        sum
    }

    pub(crate) fn give_sum(&self, sum: Vec<f32>) {
        locked(&self.sums).push(sum);
    }
}

/// The bytes of a frame; shared once they are complete.
pub(crate) struct Payload {
    memory: Memory,
    checksum: OnceLock<u32>,
}

/// Where the bytes of a payload are.
enum Memory {
    Own(Vec<u8>),
    /// Returns to the pool.
    Pooled(Vec<u8>, Arc<Pool>),
    /// A range of a vector, in the byte order of the wire.
    Values(Arc<Vec<f32>>, Range<usize>),
}

impl Payload {
    pub(crate) fn new(bytes: Vec<u8>) -> Arc<Payload> {
        Payload::of(Memory::Own(bytes))
    }

    /// A payload whose memory returns to `pool`.
    pub(crate) fn pooled(bytes: Vec<u8>, pool: &Arc<Pool>) -> Arc<Payload> {
        Payload::of(Memory::Pooled(bytes, pool.clone()))
    }

    /// The values of a range, as they are in memory: only where that is little-endian.
    pub(crate) fn values(values: &Arc<Vec<f32>>, range: Range<usize>) -> Arc<Payload> {
        Payload::of(Memory::Values(values.clone(), range))
    }

    fn of(memory: Memory) -> Arc<Payload> {
        Arc::new(Payload { memory, checksum: OnceLock::new() })
    }

    /// Returns its crc32c, computed at the first call.
    pub(crate) fn checksum(&self) -> u32 {
        *self.checksum.get_or_init(|| checksum::crc32c(self))
    }

    /// Returns its bytes to be changed, without a copy if they have no other owner.
    pub(crate) fn into_bytes(self: Arc<Payload>) -> Vec<u8> {
        match Arc::try_unwrap(self).as_mut().map(|payload| &mut payload.memory) {
            Ok(Memory::Own(bytes) | Memory::Pooled(bytes, _)) => std::mem::take(bytes),
            Ok(Memory::Values(values, range)) => bytemuck::cast_slice(&values[range.clone()]).to_vec(),
            Err(shared) => shared.to_vec(),
        }
    }
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Own(bytes) | Memory::Pooled(bytes, _) => bytes,
            Memory::Values(values, range) => bytemuck::cast_slice(&values[range.clone()]),
        }
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        if let Memory::Pooled(bytes, pool) = &mut self.memory {
            pool.give(std::mem::take(bytes));
        }
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Payload) -> bool {
        **self == **other
    }
}

impl std::fmt::Debug for Payload {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} bytes", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_chunks_are_recycled() {
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
        pool.raise_max_spare(20);
        pool.raise_max_spare(10);
        (0..100).for_each(|_| pool.give(vec![0; CHUNK_BYTES]));
        assert_eq!(pool.spare.lock().unwrap().len(), 20);
    }

    #[test]
    fn pieces_of_a_short_vector_are_recycled() {
        let pool = Pool::new(1);
        drop(Payload::pooled(vec![0; SMALLEST_BYTES], &pool));
        assert_eq!(pool.take(SMALLEST_BYTES).len(), SMALLEST_BYTES);
        drop(Payload::pooled(vec![0; SMALLEST_BYTES - 1], &pool));
        assert!(pool.spare.lock().unwrap().is_empty());
    }

    #[test]
    fn a_buffer_fits_its_use() {
        let pool = Pool::new(1);
        for capacity in [CHUNK_BYTES, CHUNK_BYTES, CHUNK_BYTES / 2] {
            pool.give(vec![0; capacity]);
        }
        assert_eq!(pool.take(CHUNK_BYTES).capacity(), CHUNK_BYTES);
        assert_eq!(pool.take(SMALLEST_BYTES).capacity(), CHUNK_BYTES);
        assert!(pool.spare.lock().unwrap().is_empty());
    }

    #[test]
    fn memory_returns_when_the_last_owner_drops_it() {
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
