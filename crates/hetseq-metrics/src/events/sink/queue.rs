//! A thread that consumes items in order from a queue that never blocks the producer: a disk that
//! hangs or a terminal that is not read must not stop training. Used by `background` and
//! `terminal`.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(super) struct Queue<T> {
    shared: Arc<Shared<T>>,
    bounds: Bounds,
}

/// Limits of the queue's length.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// At this length, items that may be lost are dropped and counted.
    pub(super) optional: usize,
    /// At this length, no item is accepted.
    pub(super) all: usize,
}

/// The result of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pushed {
    Taken,
    Dropped,
    /// The item must not be lost, and the queue is full.
    Full,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    waiting: VecDeque<T>,
    /// Items since the start.
    pushed: u64,
    done: u64,
    /// Dropped since the last consumed item.
    dropped: u64,
    is_closed: bool,
}

impl<T: Send + 'static> Queue<T> {
    /// Starts the thread. `consume` gets each item, and the number of items dropped since the one
    /// before. With `tick`, it gets no item each time that none has come for so long.
    pub(super) fn start(
        name: &str,
        bounds: Bounds,
        tick: Option<Duration>,
        consume: impl FnMut(Option<T>, u64) + Send + 'static,
    ) -> io::Result<Self> {
        let state = State { waiting: VecDeque::new(), pushed: 0, done: 0, dropped: 0, is_closed: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        // Marks the queue as closed even if `consume` panics.
        let closing = Closing(shared.clone());
        std::thread::Builder::new().name(name.to_owned()).spawn(move || closing.0.consume_all(tick, consume))?;
        Ok(Queue { shared, bounds })
    }

    pub(super) fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Adds an item. Never blocks.
    pub(super) fn push(&self, item: T, may_be_lost: bool) -> Pushed {
        let mut state = self.shared.lock();
        let bound = if may_be_lost { self.bounds.optional } else { self.bounds.all };
        if state.waiting.len() >= bound {
            if may_be_lost {
                state.dropped += 1;
                return Pushed::Dropped;
            }
            return Pushed::Full;
        }
        state.waiting.push_back(item);
        state.pushed += 1;
        self.shared.changed.notify_all();
        Pushed::Taken
    }

    /// Waits until everything pushed so far is consumed, for at most `limit`. Returns how many
    /// items are not.
    pub(super) fn flush(&self, limit: Duration) -> u64 {
        let started = Instant::now();
        let mut state = self.shared.lock();
        let target = state.pushed;
        loop {
            let left = limit.saturating_sub(started.elapsed());
            if state.done >= target || state.is_closed || left.is_zero() {
                return target.saturating_sub(state.done);
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The thread consumes the remaining items and ends. `drop` does not wait for it, since it may
/// hang.
impl<T> Drop for Queue<T> {
    fn drop(&mut self) {
        self.shared.close();
    }
}

struct Closing<T>(Arc<Shared<T>>);

impl<T> Drop for Closing<T> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    fn consume_all(&self, tick: Option<Duration>, mut consume: impl FnMut(Option<T>, u64)) {
        let mut state = self.lock();
        loop {
            if let Some(item) = state.waiting.pop_front() {
                let dropped = std::mem::take(&mut state.dropped);
                drop(state);
                consume(Some(item), dropped);
                state = self.lock();
                state.done += 1;
                self.changed.notify_all();
            } else if state.is_closed {
                return;
            } else if let Some(tick) = tick {
                let waited = self.changed.wait_timeout(state, tick).unwrap_or_else(PoisonError::into_inner);
                state = waited.0;
                if waited.1.timed_out() && state.waiting.is_empty() {
                    drop(state);
                    consume(None, 0);
                    state = self.lock();
                }
            } else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn a_blocked_consumer_delays_only_its_items() {
        let (release, gate) = channel::<()>();
        let (seen, items) = channel();
        let consume = move |item: Option<u32>, dropped| {
            gate.recv().unwrap();
            seen.send((item.unwrap(), dropped)).unwrap();
        };
        let queue = Queue::start("test", Bounds { optional: 2, all: 4 }, None, consume).unwrap();
        assert_eq!(queue.push(0, false), Pushed::Taken);
        // The thread has taken it and is blocked.
        while !queue.shared.lock().waiting.is_empty() {
            std::thread::yield_now();
        }
        let outcomes = [(1, true), (2, true), (3, true), (4, false), (5, false), (6, true), (7, false)];
        let outcomes = outcomes.map(|(item, may_be_lost)| queue.push(item, may_be_lost));
        use Pushed::{Dropped, Full, Taken};
        assert_eq!(outcomes, [Taken, Taken, Dropped, Taken, Taken, Dropped, Full]);
        assert_eq!(queue.flush(Duration::from_millis(10)), 5);
        for _ in 0..5 {
            release.send(()).unwrap();
        }
        assert_eq!(queue.flush(SOON), 0);
        drop(queue);
        assert_eq!(items.iter().collect::<Vec<_>>(), [(0, 0), (1, 2), (2, 0), (4, 0), (5, 0)]);
    }

    #[test]
    fn without_items_the_consumer_is_called_at_each_tick() {
        let (seen, items) = channel();
        let consume = move |item: Option<u32>, _| _ = seen.send(item);
        let bounds = Bounds { optional: 4, all: 4 };
        let queue = Queue::start("test", bounds, Some(Duration::from_millis(1)), consume).unwrap();
        assert_eq!([items.recv_timeout(SOON).unwrap(), items.recv_timeout(SOON).unwrap()], [None, None]);
        queue.push(7, false);
        assert_eq!(items.iter().find(Option::is_some), Some(Some(7)));
    }

    #[test]
    fn flush_does_not_wait_for_a_consumer_that_panicked() {
        let bounds = Bounds { optional: 1, all: 1 };
        let queue = Queue::start("test", bounds, None, |_: Option<()>, _| panic!("on purpose")).unwrap();
        queue.push((), false);
        assert_eq!(queue.flush(SOON), 1);
    }
}
