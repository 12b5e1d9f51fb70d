//! A wake-up for a thread that sleeps on sockets: a pipe that is polled with them.
//!
//! If it is raised before the sleep, the sleep ends at once. Raised a thousand times, the pipe
//! holds one byte. `stream/` has one per rank, which any thread may raise through a [`Waker`], and
//! one for the heartbeat thread.

use std::io::{ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::Socket;

use crate::error::CommError;

/// A pipe that holds at most one byte.
pub(crate) struct Signal {
    reader: PipeReader,
    writer: PipeWriter,
    /// Whether the byte is in the pipe, or about to be written.
    is_raised: AtomicBool,
}

impl Signal {
    pub(crate) fn new() -> Result<Arc<Signal>, CommError> {
        let (reader, writer) =
            std::io::pipe().map_err(|reason| CommError::System { what: "create a pipe to wake a thread", reason })?;
        Ok(Arc::new(Signal { reader, writer, is_raised: AtomicBool::new(false) }))
    }

    pub(crate) fn raise(&self) {
        if self.is_raised.swap(true, Ordering::AcqRel) {
            return;
        }
        // It cannot fail while the reader, owned by this struct, is open; but it may be
        // interrupted.
        while matches!((&self.writer).write(&[1]), Err(error) if error.kind() == ErrorKind::Interrupted) {}
    }

    /// Returns whether the next sleep would end at once.
    #[cfg(feature = "mpi")]
    pub(crate) fn is_raised(&self) -> bool {
        self.is_raised.load(Ordering::Acquire)
    }

    /// Resets the signal; only for the thread that polls, when the pipe is readable. The byte is
    /// read before the flag is cleared: a thread that raises in between writes no byte, but its
    /// change is already visible to the check that follows.
    fn clear(&self) {
        while matches!((&self.reader).read(&mut [0]), Err(error) if error.kind() == ErrorKind::Interrupted) {}
        self.is_raised.swap(false, Ordering::AcqRel);
    }
}

/// Sleeps until a socket is ready for what it is polled for, the signal is raised, or `limit` has
/// passed; returns the time slept. The signal is reset: the caller then checks what has changed.
pub(crate) fn sleep(sockets: &[(Arc<Socket>, PollFlags)], signal: Option<&Signal>, limit: Duration) -> Duration {
    let mut watched: Vec<PollFd<'_>> = sockets.iter().map(|(socket, flags)| PollFd::new(socket, *flags)).collect();
    watched.extend(signal.map(|signal| PollFd::new(&signal.reader, PollFlags::IN)));
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    let start = Instant::now();
    // A system signal may end it early, which does no harm.
    let _ = poll(&mut watched, Some(&limit));
    let slept = start.elapsed();
    if let Some(signal) = signal.filter(|_| watched.last().is_some_and(|pipe| pipe.revents().contains(PollFlags::IN))) {
        signal.clear();
    }
    slept
}

/// Wakes a rank's thread that sleeps in a collective, to check whether its contribution is ready:
/// see [`crate::Group::all_reduce`]. May be used from any thread at any time, even if no thread
/// sleeps; never blocks.
#[derive(Clone)]
pub struct Waker(Arc<Signal>);

impl Waker {
    pub(crate) fn new(signal: &Arc<Signal>) -> Waker {
        Waker(signal.clone())
    }

    /// Wakes the thread, or ends its next sleep at once.
    pub fn wake(&self) {
        self.0.raise();
    }
}

impl std::fmt::Debug for Waker {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Waker")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_raises_end_one_sleep() {
        let signal = Signal::new().unwrap();
        for _ in 0..3 {
            // More often than a pipe can hold bytes.
            (0..100_000).for_each(|_| signal.raise());
            assert!(sleep(&[], Some(&signal), Duration::from_secs(1)) < Duration::from_millis(500));
            assert!(sleep(&[], Some(&signal), Duration::from_millis(50)) >= Duration::from_millis(50));
        }
    }

    #[test]
    fn no_raise_is_lost() {
        let signal = Signal::new().unwrap();
        let is_set = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..2_000 {
                    is_set.store(true, Ordering::Release);
                    signal.raise();
                    let start = Instant::now();
                    while is_set.load(Ordering::Acquire) {
                        assert!(start.elapsed() < Duration::from_millis(800), "the sleeper was not woken");
                        std::thread::yield_now();
                    }
                }
            });
            let mut seen = 0;
            while seen < 2_000 {
                if is_set.swap(false, Ordering::AcqRel) {
                    seen += 1;
                } else {
                    sleep(&[], Some(&signal), Duration::from_secs(1));
                }
            }
        });
    }
}
