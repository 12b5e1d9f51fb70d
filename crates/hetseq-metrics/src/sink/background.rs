//! A sink with a thread of its own. The caller never waits for it, except to flush, with a limit.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::queue::{Bounds, Pushed, Queue};
use crate::{Event, Sink, thousands};

/// With this many events waiting, warnings are dropped and counted.
const MOST_BEFORE_DROPPING: usize = 1_000;
/// With this many, about 50 MB, nothing more is taken. Other events than warnings are never dropped.
const MOST_WAITING: usize = 100_000;

pub struct Background {
    name: &'static str,
    queue: Queue<Item>,
    notes: Arc<Mutex<Vec<String>>>,
}

enum Item {
    Event(Box<Event>),
    Sync,
}

/// A sink that takes nothing any more.
#[derive(Debug, thiserror::Error)]
#[error("{} events wait to be written to {name}: the disk is too slow or hangs", thousands(*waiting as u64))]
pub struct Overflow {
    name: &'static str,
    waiting: usize,
}

impl Background {
    pub fn start(name: &'static str, sink: Box<dyn Sink>) -> io::Result<Self> {
        Self::with_bounds(name, sink, Bounds { optional: MOST_BEFORE_DROPPING, all: MOST_WAITING })
    }

    fn with_bounds(name: &'static str, sink: Box<dyn Sink>, bounds: Bounds) -> io::Result<Self> {
        let notes = Arc::default();
        let mut writer = Writer { name, sink, missed: 0, is_told: false, notes: Arc::clone(&notes) };
        let queue = Queue::start(name, bounds, move |item, dropped| writer.take(item, dropped))?;
        Ok(Background { name, queue, notes })
    }

    /// Never blocks. Warnings may be dropped; the error means that another event had no room.
    pub fn event(&self, event: &Event) -> Result<(), Overflow> {
        let may_be_lost = matches!(event, Event::Warning { .. });
        match self.queue.push(Item::Event(Box::new(event.clone())), may_be_lost) {
            Pushed::Taken | Pushed::Dropped => Ok(()),
            Pushed::Full => Err(Overflow { name: self.name, waiting: self.queue.bounds().all }),
        }
    }

    /// Waits until all events so far are written. Returns how many are not, after `limit`.
    pub fn flush(&self, limit: Duration) -> u64 {
        self.queue.flush(limit)
    }

    /// Waits until all events so far are on the disk, but not longer than `limit`. Trouble becomes a note.
    pub fn sync(&self, limit: Duration) {
        let is_taken = self.queue.push(Item::Sync, false) == Pushed::Taken;
        if !is_taken || self.queue.flush(limit) > 0 {
            locked(&self.notes).push(format!("{} is not written within {} s", self.name, limit.as_secs_f64()));
        }
    }

    /// What there is to say about this sink since the last call: events it could not write or had no time for.
    pub fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut locked(&self.notes))
    }
}

fn locked(notes: &Mutex<Vec<String>>) -> MutexGuard<'_, Vec<String>> {
    notes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sink on its thread. One that fails (a full disk) does not end a run: the first error becomes a note, and what was
/// not written is counted until it works again or the run is over.
struct Writer {
    name: &'static str,
    sink: Box<dyn Sink>,
    missed: u64,
    is_told: bool,
    notes: Arc<Mutex<Vec<String>>>,
}

impl Writer {
    fn take(&mut self, item: Item, dropped: u64) {
        if dropped > 0 {
            self.note(format!("{} was too slow: {dropped} warnings were dropped", self.name));
        }
        let is_event = matches!(item, Item::Event(_));
        let (result, is_end) = match &item {
            Item::Event(event) => (self.sink.event(event), matches!(**event, Event::End { .. })),
            Item::Sync => (self.sink.sync(), false),
        };
        match result {
            Ok(()) if is_event => self.count_missed(),
            Ok(()) => {}
            Err(error) => {
                // A disk with a little room takes some events and not others; that is one trouble.
                if !std::mem::replace(&mut self.is_told, true) {
                    self.note(format!("{error}. The run continues without the events that {} cannot take", self.name));
                }
                self.missed += u64::from(is_event);
                if is_end {
                    self.count_missed();
                }
            }
        }
    }

    fn count_missed(&mut self) {
        match std::mem::take(&mut self.missed) {
            0 => {}
            missed => self.note(format!("{missed} events were not written to {}", self.name)),
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

    fn note(message: &str) -> Event {
        Event::Warning { message: message.to_owned() }
    }

    fn checkpoint(update: u64) -> Event {
        Event::Checkpoint { update, path: "x".into(), best: false, seconds: 0.0, paused_seconds: 0.0 }
    }

    /// Does what the test says, one word an event: an error, or it keeps the event.
    struct Slow(Receiver<Option<i32>>, Sender<String>);

    impl Sink for Slow {
        fn event(&mut self, event: &Event) -> io::Result<()> {
            if let Some(code) = self.0.recv_timeout(SOON).unwrap() {
                return Err(io::Error::from_raw_os_error(code));
            }
            self.1.send(serde_json::to_string(event)?).unwrap();
            Ok(())
        }
    }

    fn slow(bounds: Bounds) -> (Background, Sender<Option<i32>>, Receiver<String>) {
        let (say, words) = channel();
        let (keep, kept) = channel();
        (Background::with_bounds("metrics.jsonl", Box::new(Slow(words, keep)), bounds).unwrap(), say, kept)
    }

    #[test]
    fn warnings_give_way_and_nothing_else_does() {
        let (sink, say, kept) = slow(Bounds { optional: 2, all: 10 });
        let mut refused = 0;
        for update in 0..20 {
            sink.event(&note("again")).unwrap();
            refused += u64::from(sink.event(&checkpoint(update)).is_err());
        }
        // Of the ten that wait one or two are warnings, and one more event is at the sink, or is not yet.
        assert!((9..=12).contains(&refused), "{refused}");
        let overflow = sink.event(&checkpoint(20)).unwrap_err().to_string();
        assert!(overflow.starts_with("10 events wait to be written to metrics.jsonl"), "{overflow}");
        for _ in 0..40 {
            say.send(None).unwrap();
        }
        assert_eq!(sink.flush(SOON), 0);
        let notes = sink.take_notes();
        assert!(notes.len() == 1 && notes[0].starts_with("metrics.jsonl was too slow: 1"), "{notes:?}");
        drop(sink);
        let kept: Vec<Event> = kept.iter().map(|line| serde_json::from_str(&line).unwrap()).collect();
        let updates: Vec<u64> = kept
            .iter()
            .filter_map(|event| if let Event::Checkpoint { update, .. } = event { Some(*update) } else { None })
            .collect();
        assert_eq!(updates, (0..20 - refused).collect::<Vec<_>>());
    }

    #[test]
    fn what_a_full_disk_swallowed_is_counted() {
        let (sink, say, kept) = slow(Bounds { optional: 100, all: 100 });
        let write = |event: &Event, error: Option<i32>| {
            sink.event(event).unwrap();
            say.send(error).unwrap();
            assert_eq!(sink.flush(SOON), 0);
            sink.take_notes()
        };
        assert!(write(&note("a"), None).is_empty());
        let full = "No space left on device (os error 28). The run continues without the events that metrics.jsonl cannot take";
        assert_eq!(write(&note("b"), Some(28)), [full]);
        assert!(write(&note("c"), Some(28)).is_empty());
        assert_eq!(write(&note("d"), None), ["2 events were not written to metrics.jsonl"]);
        assert!(write(&note("e"), Some(28)).is_empty());
        let end = Event::End { update: 1, outcome: String::new(), seconds: 0.0, data_wait_s: 0.0, skipped: 0 };
        assert_eq!(write(&end, Some(28)), ["2 events were not written to metrics.jsonl"]);
        drop(sink);
        assert_eq!(kept.iter().count(), 2);
    }

    #[test]
    fn a_sink_that_hangs_is_waited_for_with_a_limit() {
        let (sink, _say, _kept) = slow(Bounds { optional: 100, all: 100 });
        sink.event(&note("a")).unwrap();
        assert_eq!(sink.flush(Duration::from_millis(10)), 1);
        sink.sync(Duration::from_millis(10));
        assert_eq!(sink.take_notes(), ["metrics.jsonl is not written within 0.01 s"]);
    }
}
