//! A sink on its own thread. The caller only waits for it in `flush` and `sync`, with a limit. Used
//! by the trainer for `metrics.jsonl`.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use super::queue::{Bounds, Pushed, Queue};
use crate::{Event, Sink, thousands};

/// With this many queued events, warnings are dropped and counted.
const MAX_BEFORE_DROPPING: usize = 1_000;
/// With this many, about 50 MB, no more are accepted. Only warnings are ever dropped.
const MAX_QUEUED: usize = 100_000;

/// See the [module](self).
pub struct Background {
    name: &'static str,
    queue: Queue<Item>,
    notes: Arc<Mutex<Vec<String>>>,
}

enum Item {
    Event(Box<Event>, SystemTime),
    Sync,
}

/// The queue of a sink is full.
#[derive(Debug, thiserror::Error)]
#[error("{} events are waiting to be written to {name}: the disk is too slow or hangs", thousands(*waiting as u64))]
pub struct Overflow {
    name: &'static str,
    waiting: usize,
}

impl Background {
    pub fn start(name: &'static str, sink: Box<dyn Sink>) -> io::Result<Self> {
        Self::with_bounds(name, sink, Bounds { optional: MAX_BEFORE_DROPPING, all: MAX_QUEUED })
    }

    fn with_bounds(name: &'static str, sink: Box<dyn Sink>, bounds: Bounds) -> io::Result<Self> {
        let notes = Arc::default();
        let mut writer = Writer { name, sink, lost: 0, has_reported_error: false, notes: Arc::clone(&notes) };
        let queue = Queue::start(name, bounds, None, move |item, dropped| {
            if let Some(item) = item {
                writer.take(item, dropped);
            }
        })?;
        Ok(Background { name, queue, notes })
    }

    /// Queues an event. Never blocks. Warnings may be dropped; for other events a full queue is an
    /// error.
    pub fn event(&self, event: &Event) -> Result<(), Overflow> {
        let may_be_lost = matches!(event, Event::Warning { .. });
        match self.queue.push(Item::Event(Box::new(event.clone()), SystemTime::now()), may_be_lost) {
            Pushed::Taken | Pushed::Dropped => Ok(()),
            Pushed::Full => Err(Overflow { name: self.name, waiting: self.queue.bounds().all }),
        }
    }

    /// Waits until all events so far are written, for at most `limit`. Returns how many are not.
    pub fn flush(&self, limit: Duration) -> u64 {
        self.queue.flush(limit)
    }

    /// Waits until all events so far are on the disk, for at most `limit`. A timeout becomes a
    /// note.
    pub fn sync(&self, limit: Duration) {
        let is_queued = self.queue.push(Item::Sync, false) == Pushed::Taken;
        if !is_queued || self.queue.flush(limit) > 0 {
            locked(&self.notes).push(format!("timed out after {} s writing {}", limit.as_secs_f64(), self.name));
        }
    }

    /// Problems of this sink since the last call: events that could not be written, or not in time.
    pub fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut locked(&self.notes))
    }
}

fn locked(notes: &Mutex<Vec<String>>) -> MutexGuard<'_, Vec<String>> {
    notes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sink on its thread. An error (a full disk) does not end a run: the first error becomes a
/// note, and lost events are counted until writing works again or the run ends.
struct Writer {
    name: &'static str,
    sink: Box<dyn Sink>,
    lost: u64,
    has_reported_error: bool,
    notes: Arc<Mutex<Vec<String>>>,
}

impl Writer {
    fn take(&mut self, item: Item, dropped: u64) {
        if dropped > 0 {
            self.note(format!("writing {} was too slow: {dropped} warnings were dropped", self.name));
        }
        let is_event = matches!(item, Item::Event(..));
        let (result, is_end) = match &item {
            Item::Event(event, time) => (self.sink.event(event, *time), matches!(**event, Event::End { .. })),
            Item::Sync => (self.sink.sync(), false),
        };
        match result {
            Ok(()) if is_event => self.count_lost(),
            Ok(()) => {}
            Err(error) => {
                // An almost full disk takes some events and not others. That is one problem,
                // reported once.
                if !std::mem::replace(&mut self.has_reported_error, true) {
                    self.note(format!("{error}. The run continues, but events are missing from {}", self.name));
                }
                self.lost += u64::from(is_event);
                if is_end {
                    self.count_lost();
                }
            }
        }
    }

    fn count_lost(&mut self) {
        match std::mem::take(&mut self.lost) {
            0 => {}
            lost => self.note(format!("{lost} events were not written to {}", self.name)),
        }
    }

    fn note(&self, note: String) {
        locked(&self.notes).push(note);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn warning(message: &str) -> Event {
        Event::Warning { message: message.to_owned() }
    }

    fn checkpoint(update: u64) -> Event {
        Event::Checkpoint { update, path: "x".into(), best: false, seconds: 0.0, paused_seconds: 0.0 }
    }

    /// Follows the test's instruction for each event: returns an error, or stores the event.
    struct Slow(Receiver<Option<i32>>, Sender<String>);

    impl Sink for Slow {
        fn event(&mut self, event: &Event, _time: SystemTime) -> io::Result<()> {
            if let Some(code) = self.0.recv_timeout(SOON).unwrap() {
                return Err(io::Error::from_raw_os_error(code));
            }
            self.1.send(serde_json::to_string(event)?).unwrap();
            Ok(())
        }
    }

    fn slow(bounds: Bounds) -> (Background, Sender<Option<i32>>, Receiver<String>) {
        let (instruct, instructions) = channel();
        let (store, stored) = channel();
        (
            Background::with_bounds("metrics.jsonl", Box::new(Slow(instructions, store)), bounds).unwrap(),
            instruct,
            stored,
        )
    }

    #[test]
    fn only_warnings_are_dropped() {
        let (sink, instruct, stored) = slow(Bounds { optional: 2, all: 10 });
        let mut rejected = 0;
        for update in 0..20 {
            sink.event(&warning("again")).unwrap();
            rejected += u64::from(sink.event(&checkpoint(update)).is_err());
        }
        // Of the ten queued events one or two are warnings. One more event may already be at the
        // sink.
        assert!((9..=12).contains(&rejected), "{rejected}");
        let overflow = sink.event(&checkpoint(20)).unwrap_err().to_string();
        assert!(overflow.starts_with("10 events are waiting to be written to metrics.jsonl"), "{overflow}");
        for _ in 0..40 {
            instruct.send(None).unwrap();
        }
        assert_eq!(sink.flush(SOON), 0);
        let notes = sink.take_notes();
        assert!(notes.len() == 1 && notes[0].starts_with("writing metrics.jsonl was too slow: 1"), "{notes:?}");
        drop(sink);
        let stored: Vec<Event> = stored.iter().map(|line| serde_json::from_str(&line).unwrap()).collect();
        let updates: Vec<u64> = stored
            .iter()
            .filter_map(|event| if let Event::Checkpoint { update, .. } = event { Some(*update) } else { None })
            .collect();
        assert_eq!(updates, (0..20 - rejected).collect::<Vec<_>>());
    }

    #[test]
    fn events_lost_on_a_full_disk_are_counted() {
        let (sink, instruct, stored) = slow(Bounds { optional: 100, all: 100 });
        let write = |event: &Event, error: Option<i32>| {
            sink.event(event).unwrap();
            instruct.send(error).unwrap();
            assert_eq!(sink.flush(SOON), 0);
            sink.take_notes()
        };
        assert!(write(&warning("a"), None).is_empty());
        let full =
            "No space left on device (os error 28). The run continues, but events are missing from metrics.jsonl";
        assert_eq!(write(&warning("b"), Some(28)), [full]);
        assert!(write(&warning("c"), Some(28)).is_empty());
        assert_eq!(write(&warning("d"), None), ["2 events were not written to metrics.jsonl"]);
        assert!(write(&warning("e"), Some(28)).is_empty());
        let end = Event::End { update: 1, outcome: String::new(), seconds: 0.0, data_wait_s: 0.0, skipped: 0 };
        assert_eq!(write(&end, Some(28)), ["2 events were not written to metrics.jsonl"]);
        drop(sink);
        assert_eq!(stored.iter().count(), 2);
    }

    #[test]
    fn waiting_for_a_sink_that_hangs_times_out() {
        let (sink, _instruct, _stored) = slow(Bounds { optional: 100, all: 100 });
        sink.event(&warning("a")).unwrap();
        assert_eq!(sink.flush(Duration::from_millis(10)), 1);
        sink.sync(Duration::from_millis(10));
        assert_eq!(sink.take_notes(), ["timed out after 0.01 s writing metrics.jsonl"]);
    }
}
