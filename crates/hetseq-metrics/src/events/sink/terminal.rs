//! Standard error of this process: log lines, messages and the progress of a run, written in order
//! by one thread.
//!
//! Only [`flush`] waits for it, with a limit. If a pipe is not read or a terminal is halted
//! (Ctrl-S), output is delayed and then lines are dropped, but training never stops. A closed
//! terminal is not an error.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::time::Duration;

use super::queue::{Bounds, Queue};
use crate::{Console, Event, Sink};

/// The largest queue; beyond it, lines are dropped and counted. `metrics.jsonl` contains all
/// events.
const MAX_QUEUED: usize = 10_000;

enum Item {
    Line(String),
    /// From now on shows events, and lines above the progress bar.
    Show(Box<Console>),
    Event(Box<Event>),
}

/// Prints a line.
pub fn print(line: &str) {
    push(Item::Line(line.to_owned()));
}

/// Shows the events of a run from now on; on plain output, every `line_every`th update.
pub fn show(line_every: u64) {
    push(Item::Show(Box::new(Console::new(line_every))));
}

/// Shows an event, after [`show`].
pub fn event(event: &Event) {
    push(Item::Event(Box::new(event.clone())));
}

/// Waits until everything so far is shown, for at most `limit`.
pub fn flush(limit: Duration) {
    if let Some(queue) = queue() {
        queue.flush(limit);
    }
}

/// A writer for log lines. Each write must be a whole line.
#[derive(Debug, Default)]
pub struct LogLines;

impl Write for LogLines {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        print(String::from_utf8_lossy(text).trim_end_matches('\n'));
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn push(item: Item) {
    if let Some(queue) = queue() {
        queue.push(item, true);
    }
}

/// `None` if no thread can be started; then nothing is shown.
fn queue() -> Option<&'static Queue<Item>> {
    static QUEUE: OnceLock<Option<Queue<Item>>> = OnceLock::new();
    let start = || {
        let mut screen = Screen(None);
        let bounds = Bounds { optional: MAX_QUEUED, all: MAX_QUEUED };
        Queue::start("terminal", bounds, move |item, dropped| screen.take(item, dropped)).ok()
    };
    QUEUE.get_or_init(start).as_ref()
}

/// The terminal's state: the console, once a run is shown.
struct Screen(Option<Box<Console>>);

impl Screen {
    fn take(&mut self, item: Item, dropped: u64) {
        if dropped > 0 {
            self.print(&format!("({dropped} lines and events were dropped: standard error was not read)"));
        }
        match item {
            Item::Line(line) => self.print(&line),
            Item::Show(console) => self.0 = Some(console),
            Item::Event(event) => {
                if let Some(console) = &mut self.0 {
                    _ = console.event(&event);
                }
            }
        }
    }

    fn print(&mut self, line: &str) {
        match &mut self.0 {
            Some(console) => console.print(line),
            None => _ = writeln!(io::stderr(), "{line}"),
        }
    }
}
