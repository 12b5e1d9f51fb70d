//! One direction of a link of the `local` engine: a bounded queue of frames with an end, between two ranks that are
//! threads of one process. So that one wait of a rank covers all its links at once, waiting is done on the rank's
//! [`Bell`], not on a lane.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::frame::{CHUNK_BYTES, Frame};
use crate::link::{End, Next, locked};

/// A lane with this much in it takes no more until its reader catches up, whatever the size of the vectors.
const CAPACITY_BYTES: usize = 4 * CHUNK_BYTES;

/// Wakes one thread that waits for any of several lanes.
#[derive(Default)]
pub(crate) struct Bell {
    rings: Mutex<u64>,
    changed: Condvar,
}

impl Bell {
    /// How often it has rung. Read this *before* looking at the lanes, then pass it to [`Bell::wait`],
    /// so that a ring between the look and the wait is not lost.
    pub(crate) fn rings(&self) -> u64 {
        *locked(&self.rings)
    }

    pub(crate) fn ring(&self) {
        *locked(&self.rings) += 1;
        self.changed.notify_all();
    }

    /// Returns when it has rung since `seen`, or after `limit`; tells how long that took.
    pub(crate) fn wait(&self, seen: u64, limit: Duration) -> Duration {
        let start = Instant::now();
        let rings = locked(&self.rings);
        let waited = self.changed.wait_timeout_while(rings, limit, |rings| *rings == seen);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        start.elapsed()
    }
}

/// A bounded queue between a producer and a consumer, each woken through its own bell.
pub(crate) struct Lane {
    state: Mutex<State>,
    producer: Arc<Bell>,
    consumer: Arc<Bell>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Frame>,
    queued_bytes: usize,
    end: Option<End>,
    /// The consumer is gone: there is no room any more, and what is pushed is dropped. Its own lane has ended before, so
    /// that the producer finds out why.
    deaf: bool,
}

impl Lane {
    pub(crate) fn new(producer: Arc<Bell>, consumer: Arc<Bell>) -> Arc<Lane> {
        Arc::new(Lane { state: Mutex::default(), producer, consumer })
    }

    pub(crate) fn has_room(&self) -> bool {
        let state = locked(&self.state);
        !state.deaf && state.queued_bytes < CAPACITY_BYTES
    }

    /// Never blocks; the producer asks for room first.
    pub(crate) fn push(&self, frame: Frame) {
        let mut state = locked(&self.state);
        if state.deaf || state.end.is_some() {
            return;
        }
        state.queued_bytes += frame.payload.len();
        state.queue.push_back(frame);
        drop(state);
        self.consumer.ring();
    }

    /// Ends the lane; the first reason stays. What is queued is still delivered, except before an
    /// abort, which overtakes data that nobody needs any more.
    pub(crate) fn end(&self, end: End) {
        let mut state = locked(&self.state);
        if state.end.is_some() {
            return;
        }
        if matches!(end, End::Aborted(_)) {
            state.queue.clear();
            state.queued_bytes = 0;
        }
        state.end = Some(end);
        drop(state);
        self.consumer.ring();
    }

    /// The next frame; the end once all frames are taken.
    pub(crate) fn next(&self) -> Next {
        let mut state = locked(&self.state);
        match (state.queue.pop_front(), &state.end) {
            (Some(frame), _) => {
                let was_full = state.queued_bytes >= CAPACITY_BYTES;
                state.queued_bytes -= frame.payload.len();
                let ring = was_full && state.queued_bytes < CAPACITY_BYTES;
                drop(state);
                if ring {
                    self.producer.ring();
                }
                Next::Frame(frame)
            }
            (None, Some(end)) => Next::Ended(end.clone()),
            (None, None) => Next::Nothing,
        }
    }

    /// The end, though frames may still be queued before it.
    pub(crate) fn ended(&self) -> Option<End> {
        locked(&self.state).end.clone()
    }

    /// The consumer leaves: the queue is dropped and the producer never waits again.
    pub(crate) fn stop_listening(&self) {
        let mut state = locked(&self.state);
        state.deaf = true;
        state.queue.clear();
        state.queued_bytes = 0;
        drop(state);
        self.producer.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Kind;

    fn frame(bytes: usize) -> Frame {
        Frame::control(Kind::Agree, vec![0; bytes])
    }

    #[test]
    fn a_full_lane_takes_no_more_until_it_is_read() {
        let lane = Lane::new(Arc::default(), Arc::default());
        while lane.has_room() {
            lane.push(frame(CHUNK_BYTES));
        }
        assert_eq!(locked(&lane.state).queue.len(), CAPACITY_BYTES / CHUNK_BYTES);
        assert!(matches!(lane.next(), Next::Frame(_)));
        assert!(lane.has_room());
    }

    #[test]
    fn the_end_comes_after_the_frames_but_an_abort_overtakes_them() {
        let lane = Lane::new(Arc::default(), Arc::default());
        lane.push(frame(1));
        lane.end(End::Goodbye);
        lane.end(End::Closed("later".into()));
        assert!(matches!(lane.next(), Next::Frame(_)));
        assert!(matches!(lane.next(), Next::Ended(End::Goodbye)));

        let lane = Lane::new(Arc::default(), Arc::default());
        lane.push(frame(1));
        lane.end(End::Aborted("why".into()));
        assert!(matches!(lane.next(), Next::Ended(End::Aborted(_))));
    }

    #[test]
    fn a_ring_between_look_and_wait_is_not_lost() {
        let bell = Bell::default();
        let seen = bell.rings();
        bell.ring();
        let start = Instant::now();
        bell.wait(seen, Duration::from_secs(5));
        assert!(start.elapsed() < Duration::from_secs(1));
    }

    #[test]
    fn a_consumer_that_leaves_takes_nothing_more() {
        let lane = Lane::new(Arc::default(), Arc::default());
        assert!(lane.has_room());
        lane.stop_listening();
        assert!(!lane.has_room());
        lane.push(frame(1));
        assert!(matches!(lane.next(), Next::Nothing));
    }
}
