//! Training frees and allocates the same large tensors at every step. glibc gives such blocks back to the kernel and asks
//! for them again, page fault by page fault. Here it is told to keep them.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
pub(crate) fn keep_freed_memory() {
    const MMAP_THRESHOLD: libc::c_int = 1 << 30;
    const TRIM_THRESHOLD: libc::c_int = 1 << 30;
    const TOP_PAD: libc::c_int = 64 << 20;
    // SAFETY: mallopt only sets tunables of the allocator; called once, before any other thread exists.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD);
        libc::mallopt(libc::M_TRIM_THRESHOLD, TRIM_THRESHOLD);
        libc::mallopt(libc::M_TOP_PAD, TOP_PAD);
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn keep_freed_memory() {}
