//! A SIGBUS handler for mapped files.
//!
//! If a mapped file is truncated while in use, the kernel sends SIGBUS, which ends the process
//! without a message. The handler names the file first. A failing disk or network file system is
//! reported in the same way.
//!
//! Reading instead of mapping would return an error, but samples are found by binary search in the
//! shards' tables, and each step would be a system call. Called by [`bytes`](super::bytes) for
//! every mapped file.
#![allow(unsafe_code, reason = "installing a signal handler is unsafe, and the handler follows raw pointers")]

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{SIGBUS, STDERR_FILENO, siginfo_t};

/// A file that is or was mapped: an entry of the list that the handler reads.
///
/// Entries are added at the head of the list and are never changed or removed, so the list can be
/// read at any moment. The newest entry for an address is the valid one.
struct Mapping {
    start: usize,
    bytes: usize,
    /// The complete message, because the handler must not allocate.
    message: Vec<u8>,
    older: *const Mapping,
}

static NEWEST: AtomicPtr<Mapping> = AtomicPtr::new(ptr::null_mut());

/// Adds a mapped file to the list, and installs the handler on the first call.
pub(super) fn register(path: &Path, map: &[u8]) {
    static HANDLER: OnceLock<()> = OnceLock::new();
    HANDLER.get_or_init(|| {
        // SAFETY: `report` only reads memory that is never freed, and only calls `write` and
        // `_exit`, which are async-signal-safe. If it cannot be installed, SIGBUS keeps its default
        // action.
        _ = unsafe { signal_hook_registry::register_sigaction(SIGBUS, report) };
    });
    let mut message = b"error: ".to_vec();
    message.extend_from_slice(path.as_os_str().as_bytes());
    message.extend_from_slice(
        b" was truncated or became unreadable while it was in use (SIGBUS). Copy the file again, verify its \
          checksum (`hetseq prep verify`), and start the run again: it resumes from its last checkpoint.\n",
    );
    let older = NEWEST.load(Ordering::Acquire);
    let entry = Box::into_raw(Box::new(Mapping { start: map.as_ptr() as usize, bytes: map.len(), message, older }));
    let mut expected = older;
    while let Err(newer) = NEWEST.compare_exchange(expected, entry, Ordering::AcqRel, Ordering::Acquire) {
        expected = newer;
        // SAFETY: no other thread has a pointer to this entry yet.
        unsafe { (*entry).older = newer };
    }
}

/// The signal handler. Prints the message of the file at the fault address and exits. If the
/// address is in no mapped file, it returns, and the signal has its previous effect.
fn report(signal: &siginfo_t) {
    // SAFETY: for SIGBUS the kernel sets the address.
    let address = unsafe { signal.si_addr() } as usize;
    let mut at: *const Mapping = NEWEST.load(Ordering::Acquire);
    // SAFETY: every pointer in the list comes from `Box::into_raw` in `register` and is never
    // freed.
    while let Some(entry) = unsafe { at.as_ref() } {
        if address.wrapping_sub(entry.start) < entry.bytes {
            // SAFETY: the message is valid for its length. A failed write cannot be reported.
            unsafe {
                _ = libc::write(STDERR_FILENO, entry.message.as_ptr().cast(), entry.message.len());
                libc::_exit(1);
            }
        }
        at = entry.older;
    }
}
