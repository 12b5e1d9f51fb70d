//! What happens when a mapped file is cut short while it is in use: the system sends SIGBUS, which would end the process
//! without a word. A handler names the file first. A failing disk or network file system is reported in the same way.
//!
//! Reading instead of mapping would return an error, but samples are found by binary search in the shards' tables, each
//! step of which would be a system call. Called by [`bytes`](super::bytes) for every file that it maps.
#![allow(unsafe_code, reason = "a signal handler can only be installed so, and it follows raw pointers of its own")]

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{SIGBUS, STDERR_FILENO, siginfo_t};

/// A file that is or was mapped. A list of them is all that the handler looks at: entries are added at its head and never
/// change or go, so that it can be read at any moment. The newest entry for an address is the one that holds.
struct Mapped {
    start: usize,
    bytes: usize,
    /// The whole message, since nothing may be allocated in the handler.
    message: Vec<u8>,
    older: *const Mapped,
}

static NEWEST: AtomicPtr<Mapped> = AtomicPtr::new(ptr::null_mut());

/// Remembers what is mapped where.
pub(super) fn watch(path: &Path, map: &[u8]) {
    static HANDLER: OnceLock<()> = OnceLock::new();
    HANDLER.get_or_init(|| {
        // SAFETY: `explain` only reads memory that is never freed, and calls nothing but `write` and `_exit`, which are
        // async-signal-safe. If it cannot be registered, SIGBUS stays as it was.
        _ = unsafe { signal_hook_registry::register_sigaction(SIGBUS, explain) };
    });
    let mut message = b"error: ".to_vec();
    message.extend_from_slice(path.as_os_str().as_bytes());
    message.extend_from_slice(
        b" was cut short or became unreadable while it was in use (SIGBUS). Copy the file again, compare it with its \
          checksum (`hetseq prep verify`), and start the run again: it resumes from its last checkpoint.\n",
    );
    let older = NEWEST.load(Ordering::Acquire);
    let entry = Box::into_raw(Box::new(Mapped { start: map.as_ptr() as usize, bytes: map.len(), message, older }));
    let mut expected = older;
    while let Err(newer) = NEWEST.compare_exchange(expected, entry, Ordering::AcqRel, Ordering::Acquire) {
        expected = newer;
        // SAFETY: no other thread has a pointer to the entry yet.
        unsafe { (*entry).older = newer };
    }
}

/// The handler. If the address is in none of the files, it returns, and the signal takes its usual course.
fn explain(signal: &siginfo_t) {
    // SAFETY: for SIGBUS the system fills in the address.
    let address = unsafe { signal.si_addr() } as usize;
    let mut at: *const Mapped = NEWEST.load(Ordering::Acquire);
    // SAFETY: every pointer in the list comes from `Box::into_raw` in `watch` and is never freed.
    while let Some(entry) = unsafe { at.as_ref() } {
        if address.wrapping_sub(entry.start) < entry.bytes {
            // SAFETY: the message is valid for its length. What cannot be written is lost: there is no way to report it.
            unsafe {
                _ = libc::write(STDERR_FILENO, entry.message.as_ptr().cast(), entry.message.len());
                libc::_exit(1);
            }
        }
        at = entry.older;
    }
}
