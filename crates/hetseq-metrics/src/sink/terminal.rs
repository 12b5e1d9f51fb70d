//! Standard error of this process: log lines, messages and the progress of a run, written in order by one thread.
//!
//! Nothing waits for it, except [`flush`], with a limit: a pipe that is not read or a terminal that is halted (Ctrl-S) delays
//! what is shown, then loses lines, and never stops training. A terminal that is gone is no error.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::time::Duration;

use super::queue::{Bounds, Queue};
use crate::{Console, Event, Sink};

/// What waits to be shown; beyond this, lines are dropped and counted. `metrics.jsonl` has them all.
const MOST_WAITING: usize = 10_000;

enum Item {
    Line(String),
    /// From now on events are shown, and lines above the progress bar.
    Show(Box<Console>),
    Event(Box<Event>),
}

/// Shows a line.
pub fn print(line: &str) {
    push(Item::Line(line.to_owned()));
}

/// Shows the events of a run from now on, on plain output every `line_every`th update.
pub fn show(line_every: u64) {
    push(Item::Show(Box::new(Console::new(line_every))));
}

pub fn event(event: &Event) {
    push(Item::Event(Box::new(event.clone())));
}

/// Waits until everything so far is shown, but not longer than `limit`.
pub fn flush(limit: Duration) {
    if let Some(queue) = queue() {
        queue.flush(limit);
    }
}

/// A writer for log lines; takes whole lines.
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

/// None if the system gives no more threads; then nothing is shown.
fn queue() -> Option<&'static Queue<Item>> {
    static QUEUE: OnceLock<Option<Queue<Item>>> = OnceLock::new();
    let start = || {
        let mut screen = Screen(None);
        let bounds = Bounds { optional: MOST_WAITING, all: MOST_WAITING };
        Queue::start("terminal", bounds, move |item, dropped| screen.take(item, dropped)).ok()
    };
    QUEUE.get_or_init(start).as_ref()
}

/// What is on the screen besides lines.
struct Screen(Option<Box<Console>>);

impl Screen {
    fn take(&mut self, item: Item, dropped: u64) {
        if dropped > 0 {
            self.print(&format!("({dropped} lines and events were not shown: standard error was not read)"));
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
