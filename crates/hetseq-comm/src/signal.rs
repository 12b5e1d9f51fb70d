//! A wake-up for a thread that sleeps on sockets: a pipe that is polled with them.
//!
//! If it is raised before the sleep, the sleep ends at once. Raised a thousand times, the pipe
//! holds one byte. The thread of a rank has one that any thread may raise through a [`Waker`];
//! `heartbeat.rs` has its own. The local transport uses [`Notify`] instead.

use std::io::{ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::CommError;
use crate::local_channel::Notify;

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

    /// Returns the end to poll for reading. When it is readable, call [`Signal::clear`], then check
    /// what has changed.
    pub(crate) fn pipe(&self) -> &PipeReader {
        &self.reader
    }

    /// Resets the signal; only for the thread that polls, when the pipe is readable. The byte is
    /// read before the flag is cleared: a thread that raises in between writes no byte, but its
    /// change is already visible to the check that follows.
    pub(crate) fn clear(&self) {
        while matches!((&self.reader).read(&mut [0]), Err(error) if error.kind() == ErrorKind::Interrupted) {}
        self.is_raised.swap(false, Ordering::AcqRel);
    }
}

/// Wakes a rank's thread that sleeps in a collective, to check whether its contribution is ready:
/// see [`crate::Group::all_reduce`]. May be used from any thread at any time, even if no
/// thread sleeps; never blocks.
#[derive(Clone)]
pub struct Waker(WakeTarget);

#[derive(Clone)]
enum WakeTarget {
    Notify(Arc<Notify>),
    Signal(Arc<Signal>),
}

impl Waker {
    pub(crate) fn of_local(notify: &Arc<Notify>) -> Waker {
        Waker(WakeTarget::Notify(notify.clone()))
    }

    pub(crate) fn of_sockets(signal: &Arc<Signal>) -> Waker {
        Waker(WakeTarget::Signal(signal.clone()))
    }

    /// Wakes the thread, or ends its next sleep at once.
    pub fn wake(&self) {
        match &self.0 {
            WakeTarget::Notify(notify) => notify.notify(),
            WakeTarget::Signal(signal) => signal.raise(),
        }
    }
}

impl std::fmt::Debug for Waker {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Waker")
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::tcp::await_traffic;

    /// Returns how long a sleep of at most `limit` takes.
    fn sleep(signal: &Signal, limit: Duration) -> Duration {
        let start = Instant::now();
        await_traffic(&[], Some(signal), start, limit);
        start.elapsed()
    }

    #[test]
    fn many_raises_end_one_sleep() {
        let signal = Signal::new().unwrap();
        for _ in 0..3 {
            // More often than a pipe can hold bytes.
            (0..100_000).for_each(|_| signal.raise());
            assert!(sleep(&signal, Duration::from_secs(1)) < Duration::from_millis(500));
            assert!(sleep(&signal, Duration::from_millis(50)) >= Duration::from_millis(50));
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
                    sleep(&signal, Duration::from_secs(1));
                }
            }
        });
    }
}
