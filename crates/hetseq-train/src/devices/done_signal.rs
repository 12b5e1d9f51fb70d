//! Tells the rank's thread that a device has replied: it sleeps here, or in a collective of the
//! group, whose waker is then woken. Shared by all devices of a pool.

use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use hetseq_comm::Waker;

#[derive(Default)]
pub(super) struct DoneSignal {
    replies: Mutex<u64>,
    changed: Condvar,
    group: OnceLock<Waker>,
}

impl DoneSignal {
    /// Also wakes a thread that waits for the group, from now on.
    pub(super) fn set_group(&self, waker: Waker) {
        _ = self.group.set(waker);
    }

    pub(super) fn raise(&self) {
        *self.replies.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.changed.notify_all();
        if let Some(waker) = self.group.get() {
            waker.wake();
        }
    }

    /// How often it was raised. Read this before looking for replies, then pass it to
    /// [`DoneSignal::wait`], so that a reply in between is not missed.
    pub(super) fn count(&self) -> u64 {
        *self.replies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is raised again after `seen`, at most for `limit`.
    pub(super) fn wait(&self, seen: u64, limit: Duration) {
        let replies = self.replies.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_timeout_while(replies, limit, |replies| *replies == seen));
    }
}
