//! One direction of a link of the `local` transport: a bounded queue of frames with an end, between
//! two ranks that are threads of one process. A rank waits on its [`Notify`] and not on a channel,
//! so that one wait covers all its links.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::frame::{CHUNK_BYTES, Frame};
use crate::link::{LinkEnd, Received, locked};

/// A channel that holds this much accepts no more until its reader catches up, whatever the size of
/// the vectors.
const CAPACITY_BYTES: usize = 4 * CHUNK_BYTES;

/// Wakes a thread that waits for any of several channels.
#[derive(Default)]
pub(crate) struct Notify {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Notify {
    /// Returns how often it was notified. Read this *before* checking the channels, then pass it to
    /// [`Notify::wait`], so that a notification in between is not lost.
    pub(crate) fn count(&self) -> u64 {
        *locked(&self.count)
    }

    pub(crate) fn notify(&self) {
        *locked(&self.count) += 1;
        self.changed.notify_all();
    }

    /// Waits for a notification after `seen`, at most for `limit`; returns the time waited.
    pub(crate) fn wait(&self, seen: u64, limit: Duration) -> Duration {
        let start = Instant::now();
        let count = locked(&self.count);
        let waited = self.changed.wait_timeout_while(count, limit, |count| *count == seen);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        start.elapsed()
    }
}

/// A bounded queue between a producer and a consumer, each with its own notify.
pub(crate) struct LocalChannel {
    state: Mutex<State>,
    producer: Arc<Notify>,
    consumer: Arc<Notify>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Frame>,
    queued_bytes: usize,
    end: Option<LinkEnd>,
    /// The consumer is gone: there is no room any more, and pushed frames are dropped. Its own
    /// channel ended before that, so the producer finds out why.
    receiver_closed: bool,
}

impl LocalChannel {
    pub(crate) fn new(producer: Arc<Notify>, consumer: Arc<Notify>) -> Arc<LocalChannel> {
        Arc::new(LocalChannel { state: Mutex::default(), producer, consumer })
    }

    pub(crate) fn has_room(&self) -> bool {
        let state = locked(&self.state);
        !state.receiver_closed && state.queued_bytes < CAPACITY_BYTES
    }

    /// Never blocks; the producer checks for room first.
    pub(crate) fn push(&self, frame: Frame) {
        let mut state = locked(&self.state);
        if state.receiver_closed || state.end.is_some() {
            return;
        }
        state.queued_bytes += frame.payload.len();
        state.queue.push_back(frame);
        drop(state);
        self.consumer.notify();
    }

    /// Ends the channel; the first reason is kept. Queued frames are still delivered, except before
    /// an abort, which overtakes data that is not needed any more.
    pub(crate) fn end(&self, end: LinkEnd) {
        let mut state = locked(&self.state);
        if state.end.is_some() {
            return;
        }
        if matches!(end, LinkEnd::Aborted(_)) {
            state.queue.clear();
            state.queued_bytes = 0;
        }
        state.end = Some(end);
        drop(state);
        self.consumer.notify();
    }

    /// Returns the next frame, and the end after all frames are taken.
    pub(crate) fn next(&self) -> Received {
        let mut state = locked(&self.state);
        match (state.queue.pop_front(), &state.end) {
            (Some(frame), _) => {
                let was_full = state.queued_bytes >= CAPACITY_BYTES;
                state.queued_bytes -= frame.payload.len();
                let has_room_again = was_full && state.queued_bytes < CAPACITY_BYTES;
                drop(state);
                if has_room_again {
                    self.producer.notify();
                }
                Received::Frame(frame)
            }
            (None, Some(end)) => Received::Ended(end.clone()),
            (None, None) => Received::Nothing,
        }
    }

    /// Returns the end, even if frames are still queued before it.
    pub(crate) fn ended(&self) -> Option<LinkEnd> {
        locked(&self.state).end.clone()
    }

    /// Closes the consumer side: the queue is dropped and the producer never waits again.
    pub(crate) fn close_receiver(&self) {
        let mut state = locked(&self.state);
        state.receiver_closed = true;
        state.queue.clear();
        state.queued_bytes = 0;
        drop(state);
        self.producer.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::FrameKind;

    fn frame(bytes: usize) -> Frame {
        Frame::control(FrameKind::AllGatherBytes, vec![0; bytes])
    }

    #[test]
    fn a_full_channel_takes_no_more_until_it_is_read() {
        let channel = LocalChannel::new(Arc::default(), Arc::default());
        while channel.has_room() {
            channel.push(frame(CHUNK_BYTES));
        }
        assert_eq!(locked(&channel.state).queue.len(), CAPACITY_BYTES / CHUNK_BYTES);
        assert!(matches!(channel.next(), Received::Frame(_)));
        assert!(channel.has_room());
    }

    #[test]
    fn the_end_comes_after_the_frames_but_an_abort_overtakes_them() {
        let channel = LocalChannel::new(Arc::default(), Arc::default());
        channel.push(frame(1));
        channel.end(LinkEnd::Goodbye);
        channel.end(LinkEnd::Closed("later".into()));
        assert!(matches!(channel.next(), Received::Frame(_)));
        assert!(matches!(channel.next(), Received::Ended(LinkEnd::Goodbye)));

        let channel = LocalChannel::new(Arc::default(), Arc::default());
        channel.push(frame(1));
        channel.end(LinkEnd::Aborted("why".into()));
        assert!(matches!(channel.next(), Received::Ended(LinkEnd::Aborted(_))));
    }

    #[test]
    fn a_notification_between_check_and_wait_is_not_lost() {
        let notify = Notify::default();
        let seen = notify.count();
        notify.notify();
        let start = Instant::now();
        notify.wait(seen, Duration::from_secs(5));
        assert!(start.elapsed() < Duration::from_secs(1));
    }

    #[test]
    fn a_closed_receiver_takes_nothing_more() {
        let channel = LocalChannel::new(Arc::default(), Arc::default());
        assert!(channel.has_room());
        channel.close_receiver();
        assert!(!channel.has_room());
        channel.push(frame(1));
        assert!(matches!(channel.next(), Received::Nothing));
    }
}
