//! Settings of glibc's allocator. Training frees and allocates the same large tensors at every
//! step. By default glibc returns such blocks to the kernel and maps them again, which costs a page
//! fault per page. These settings keep them.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
pub(crate) fn keep_freed_memory() {
    const NEVER: libc::c_int = -1;
    const MMAP_THRESHOLD: libc::c_int = libc::c_int::MAX;
    /// The largest value that glibc before 2.35 accepts.
    const OLD_MMAP_THRESHOLD: libc::c_int = 32 << 20;
    const TOP_PAD: libc::c_int = 64 << 20;
    // SAFETY: mallopt only sets tunables of the allocator; called once, before any other thread
    // exists.
    unsafe {
        // A thread's arena consists of heaps of 64 MiB: larger blocks would still be mapped each
        // time.
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
