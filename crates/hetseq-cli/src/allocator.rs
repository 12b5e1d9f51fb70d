//! Training frees and allocates the same large tensors at every step. glibc gives such blocks back to the kernel and asks
//! for them again, page fault by page fault. Here it is told to keep them.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
pub(crate) fn keep_freed_memory() {
    /// Never trim.
    const NEVER: libc::c_int = -1;
    const MMAP_THRESHOLD: libc::c_int = libc::c_int::MAX;
    /// The most that glibc before 2.35 takes.
    const OLD_MMAP_THRESHOLD: libc::c_int = 32 << 20;
    const TOP_PAD: libc::c_int = 64 << 20;
    // SAFETY: mallopt only sets tunables of the allocator; called once, before any other thread exists.
    unsafe {
        // Arenas of threads consist of heaps of 64 MiB: what is larger would be mapped anew each time all the same.
        libc::mallopt(libc::M_ARENA_MAX, 1);
        if libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD) == 0 {
            libc::mallopt(libc::M_MMAP_THRESHOLD, OLD_MMAP_THRESHOLD);
        }
        libc::mallopt(libc::M_TRIM_THRESHOLD, NEVER);
        libc::mallopt(libc::M_TOP_PAD, TOP_PAD);
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn keep_freed_memory() {}
