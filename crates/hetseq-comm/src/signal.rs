//! What ends a sleep on sockets from another thread: a pipe that is watched with them.
//!
//! Raised before the sleeper lies down, it ends its sleep at once; raised a thousand times, the pipe holds one byte. The
//! rank's thread has one that anybody may raise through a [`Waker`], `heart.rs` has one of its own. Lanes have the bell.

use std::io::{ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::CommError;
use crate::lane::Bell;

pub(crate) struct Signal {
    reader: PipeReader,
    writer: PipeWriter,
    /// Whether the byte is in the pipe, or about to be.
    is_raised: AtomicBool,
}

impl Signal {
    pub(crate) fn new() -> Result<Arc<Signal>, CommError> {
        let (reader, writer) =
            std::io::pipe().map_err(|reason| CommError::System { what: "make a pipe to wake a thread", reason })?;
        Ok(Arc::new(Signal { reader, writer, is_raised: AtomicBool::new(false) }))
    }

    pub(crate) fn raise(&self) {
        if self.is_raised.swap(true, Ordering::AcqRel) {
            return;
        }
        // It cannot fail while the reader, which is here, is open; an interruption can come at any time.
        while matches!((&self.writer).write(&[1]), Err(error) if error.kind() == ErrorKind::Interrupted) {}
    }

    /// What to watch for being readable; then [`Signal::lower`] it, then look what has changed.
    pub(crate) fn pipe(&self) -> &PipeReader {
        &self.reader
    }

    /// Only for the one who watches, once the pipe can be read. The byte goes first: one who raises in between leaves no
    /// byte, but what it has to tell is there already, and is seen by the look that follows.
    pub(crate) fn lower(&self) {
        while matches!((&self.reader).read(&mut [0]), Err(error) if error.kind() == ErrorKind::Interrupted) {}
        self.is_raised.swap(false, Ordering::AcqRel);
    }
}

/// Makes a rank's thread that sleeps in a collective look again whether its contribution is there: see
/// [`crate::Group::all_reduce_late`]. From any thread, at any time, also when nobody sleeps; never blocks.
#[derive(Clone)]
pub struct Waker(Alarm);

#[derive(Clone)]
enum Alarm {
    Bell(Arc<Bell>),
    Signal(Arc<Signal>),
}

impl Waker {
    pub(crate) fn of_lanes(bell: &Arc<Bell>) -> Waker {
        Waker(Alarm::Bell(bell.clone()))
    }

    pub(crate) fn of_sockets(signal: &Arc<Signal>) -> Waker {
        Waker(Alarm::Signal(signal.clone()))
    }

    pub fn wake(&self) {
        match &self.0 {
            Alarm::Bell(bell) => bell.ring(),
            Alarm::Signal(signal) => signal.raise(),
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

    /// How long a sleep of at most `limit` takes.
    fn sleep(signal: &Signal, limit: Duration) -> Duration {
        let start = Instant::now();
        await_traffic(&[], Some(signal), start, limit);
        start.elapsed()
    }

    #[test]
    fn however_often_it_is_raised_it_ends_one_sleep() {
        let signal = Signal::new().unwrap();
        for _ in 0..3 {
            // More often than a pipe has bytes.
            (0..100_000).for_each(|_| signal.raise());
            assert!(sleep(&signal, Duration::from_secs(1)) < Duration::from_millis(500));
            assert!(sleep(&signal, Duration::from_millis(50)) >= Duration::from_millis(50));
        }
    }

    #[test]
    fn none_is_lost() {
        let signal = Signal::new().unwrap();
        let told = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..2_000 {
                    told.store(true, Ordering::Release);
                    signal.raise();
                    let start = Instant::now();
                    while told.load(Ordering::Acquire) {
                        assert!(start.elapsed() < Duration::from_millis(800), "the sleeper was not woken");
                        std::thread::yield_now();
                    }
                }
            });
            let mut heard = 0;
            while heard < 2_000 {
                if told.swap(false, Ordering::AcqRel) {
                    heard += 1;
                } else {
                    sleep(&signal, Duration::from_secs(1));
                }
            }
        });
    }
}
