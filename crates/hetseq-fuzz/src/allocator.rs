//! An allocator that counts what a thread has allocated, and the check on it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static COUNT: Count = const { Count { live: Cell::new(0), peak: Cell::new(0), largest: Cell::new(0) } };
}

/// Bytes that a thread has allocated and not freed. May be negative, for a thread that frees what
/// another one has allocated.
struct Count {
    live: Cell<isize>,
    /// The most of `live` since the last [`bounded`] began.
    peak: Cell<isize>,
    /// The most that one [`bounded`] has taken.
    largest: Cell<usize>,
}

/// The system's allocator, with a count per thread. A crate whose tests call [`bounded`] declares it
/// as its `#[global_allocator]` in tests.
pub struct CountingAllocator;

fn allocated(bytes: usize) {
    COUNT.with(|count| {
        count.live.set(count.live.get() + bytes as isize);
        count.peak.set(count.peak.get().max(count.live.get()));
    });
}

fn freed(bytes: usize) {
    COUNT.with(|count| count.live.set(count.live.get() - bytes as isize));
}

#[expect(unsafe_code, reason = "an allocator; it passes all calls on to the system's")]
// SAFETY: all memory comes from `System`. Counting does not allocate: the thread-local variable is
// initialised at compile time and needs no destructor.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        allocated(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        allocated(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // Both exist while the content is copied.
        allocated(bytes);
        freed(layout.size());
        unsafe { System.realloc(memory, layout, bytes) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        freed(layout.size());
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Runs `run` and panics if this thread has allocated more than `limit_bytes` at any time in it,
/// besides what it had allocated before.
#[track_caller]
pub fn bounded<T>(limit_bytes: usize, run: impl FnOnce() -> T) -> T {
    let before = COUNT.with(|count| {
        count.peak.set(count.live.get());
        count.live.get()
    });
    let result = run();
    let peak = COUNT.with(|count| {
        let peak = (count.peak.get() - before).max(0) as usize;
        count.largest.set(count.largest.get().max(peak));
        peak
    });
    assert!(peak <= limit_bytes, "allocated {peak} bytes, more than the limit of {limit_bytes}");
    result
}

pub(crate) fn reset_largest() {
    COUNT.with(|count| count.largest.set(0));
}

pub(crate) fn largest() -> usize {
    COUNT.with(|count| count.largest.get())
}

/// Panics if nothing is counted, because every check would pass then.
pub(crate) fn require_installed() {
    let live = || COUNT.with(|count| count.live.get());
    let before = live();
    let memory = std::hint::black_box(Box::new(0u64));
    assert!(live() > before, "CountingAllocator is not the global allocator of this test");
    drop(memory);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rng, fuzz};

    #[global_allocator]
    static ALLOCATOR: CountingAllocator = CountingAllocator;

    fn fails(run: impl FnOnce() + Send + 'static) -> bool {
        std::thread::spawn(run).join().is_err()
    }

    #[test]
    fn memory_over_the_limit_is_found() {
        bounded(2_000, || drop(std::hint::black_box(vec![0u8; 2_000])));
        assert!(fails(|| bounded(1_999, || drop(std::hint::black_box(vec![0u8; 2_000])))));
        // Freed before the end, but allocated at once.
        assert!(fails(|| bounded(3_000, || {
            let first = std::hint::black_box(vec![0u8; 2_000]);
            drop(std::hint::black_box(vec![0u8; 2_000]));
            drop(first);
        })));
        // One after the other.
        bounded(3_000, || (0..10).for_each(|_| drop(std::hint::black_box(vec![0u8; 2_000]))));
        // A buffer that grows is copied.
        assert!(fails(|| bounded(2_500, || {
            let mut bytes = std::hint::black_box(vec![0u8; 1_000]);
            bytes.reserve_exact(1_000);
            std::hint::black_box(bytes);
        })));
    }

    #[test]
    fn an_input_that_panics_fails_the_test() {
        assert!(fails(|| fuzz("that has to fail", |rng: &mut Rng| assert!(rng.below(3) > 0))));
    }
}
