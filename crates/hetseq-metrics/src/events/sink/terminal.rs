//! Standard error of this process: log lines, messages and the progress of a run, written in order
//! by one thread.
//!
//! On a terminal, the last line is the status of the run, drawn again a few times a second. Elsewhere
//! (a file, a pipe) lines of a run begin with the time.
//!
//! Only [`flush`] waits for the thread, with a limit. If a pipe is not read or a terminal is halted
//! (Ctrl-S), output is delayed and then lines are dropped, but training never stops. A closed
//! terminal is not an error.

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use terminal_size::{Width, terminal_size_of};
use tracing::Level;

use super::console::{Console, Verbosity};
use super::queue::{Bounds, Queue};
use crate::Event;
use crate::format::utc_seconds;

/// The largest queue; beyond it, lines are dropped and counted. `metrics.jsonl` contains all
/// events.
const MAX_QUEUED: usize = 10_000;
/// The status line is drawn this often.
const REDRAW: Duration = Duration::from_millis(200);
/// The width if it is not known.
const DEFAULT_WIDTH: usize = 80;

enum Item {
    Line(String),
    /// From now on, lines have the time if they do not go to a terminal.
    Stamp,
    /// From now on shows events, and lines above the status line.
    Show(Box<Console>),
    Event(Box<Event>),
    Shares(Vec<f64>),
    Validating {
        done: u64,
        samples: u64,
    },
    Hide,
}

/// Prints a line.
pub fn print(line: &str) {
    push(Item::Line(line.to_owned()));
}

/// Begins each line with the time from now on, if standard error is not a terminal.
pub fn stamp_lines() {
    push(Item::Stamp);
}

/// Shows the events of a run from now on; in a log, every `line_every`th update.
pub fn show(line_every: u64) {
    let line_every = (!has_status_line()).then_some(line_every);
    push(Item::Show(Box::new(Console::new(verbosity(), line_every))));
}

/// Shows the events of a run from now on, as a rank besides rank 0 does. `name` is that of this rank.
pub fn follow(name: &str) {
    push(Item::Show(Box::new(Console::follower(verbosity(), name))));
}

/// Shows an event, after [`show`] or [`follow`].
pub fn event(event: &Event) {
    push(Item::Event(Box::new(event.clone())));
}

/// Shows the part of an update that each rank, or device, computes now.
pub fn shares(shares: Vec<f64>) {
    push(Item::Shares(shares));
}

/// Shows the progress of a validation.
pub fn validating(done: u64, samples: u64) {
    push(Item::Validating { done, samples });
}

/// Removes the status line, before this process ends at once.
pub fn hide() {
    push(Item::Hide);
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

/// As the log level: `-q` and `-v` of the command line.
fn verbosity() -> Verbosity {
    if tracing::enabled!(Level::DEBUG) {
        Verbosity::Verbose
    } else if tracing::enabled!(Level::INFO) {
        Verbosity::Normal
    } else {
        Verbosity::Quiet
    }
}

fn has_status_line() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
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
        let mut screen = Screen::new(has_status_line());
        let bounds = Bounds { optional: MAX_QUEUED, all: MAX_QUEUED };
        // Without a status line nothing changes while there are no items.
        let tick = screen.is_terminal.then_some(REDRAW);
        let consume = move |item, dropped| {
            let (text, now) = (screen.take(item, dropped, Instant::now(), window_width()), &mut io::stderr());
            if !text.is_empty() {
                _ = now.write_all(text.as_bytes());
            }
        };
        Queue::start("terminal", bounds, tick, consume).ok()
    };
    QUEUE.get_or_init(start).as_ref()
}

fn window_width() -> usize {
    let width = terminal_size_of(io::stderr()).map(|(Width(width), _)| usize::from(width));
    width.filter(|&width| width > 0).unwrap_or(DEFAULT_WIDTH)
}

/// What is on the screen, and what follows.
struct Screen {
    is_terminal: bool,
    has_stamps: bool,
    console: Option<Box<Console>>,
    /// When the console was set: its clock starts there.
    shown_since: Instant,
    /// Columns of the status line on the screen, and when it was drawn.
    drawn: Option<(usize, Instant)>,
}

impl Screen {
    fn new(is_terminal: bool) -> Self {
        Screen { is_terminal, has_stamps: false, console: None, shown_since: Instant::now(), drawn: None }
    }

    /// Takes an item, or a tick without one. Returns what to write to a window of this width.
    fn take(&mut self, item: Option<Item>, dropped: u64, at: Instant, width: usize) -> String {
        let now = at.saturating_duration_since(self.shown_since);
        let mut lines = Vec::new();
        if dropped > 0 {
            lines.push(format!("({dropped} lines and events were dropped: standard error was not read)"));
        }
        match (item, &mut self.console) {
            (Some(Item::Line(line)), _) => lines.push(line),
            (Some(Item::Stamp), _) => self.has_stamps = !self.is_terminal,
            (Some(Item::Show(console)), _) => (self.console, self.shown_since) = (Some(console), at),
            (Some(Item::Event(event)), Some(console)) => lines.extend(console.event(&event, now)),
            (Some(Item::Shares(shares)), Some(console)) => console.set_shares(shares),
            (Some(Item::Validating { done, samples }), Some(console)) => {
                lines.extend(console.validating(done, samples, now));
            }
            (Some(Item::Hide), _) => self.console = None,
            (Some(Item::Event(_) | Item::Shares(_) | Item::Validating { .. }), None) | (None, _) => {}
        }
        self.write(&lines, at, width)
    }

    fn write(&mut self, lines: &[String], at: Instant, width: usize) -> String {
        let stamp = if self.has_stamps { utc_seconds(SystemTime::now()) + " " } else { String::new() };
        let mut text: String = lines.iter().map(|line| format!("{stamp}{line}\n")).collect();
        if !self.is_terminal {
            return text;
        }
        let is_current = self.drawn.is_some_and(|(_, drawn)| at.saturating_duration_since(drawn) < REDRAW);
        if lines.is_empty() && is_current && self.console.is_some() {
            return text;
        }
        let now = at.saturating_duration_since(self.shown_since);
        // In the last column some terminals begin a new line, also behind the `^C` of Ctrl-C.
        let columns = width.saturating_sub(3);
        let status = self.console.as_ref().map_or_else(String::new, |console| console.status(now, columns));
        if let Some((columns, _)) = self.drawn.take() {
            text.insert_str(0, &erase(columns, width));
        }
        if !status.is_empty() {
            self.drawn = Some((status.chars().count(), at));
            text.push_str(&status);
        }
        text
    }
}

/// Removes a line of `columns` columns. In a window that has become smaller it takes several rows.
fn erase(columns: usize, width: usize) -> String {
    let rows = columns.saturating_sub(1) / width.max(1);
    let up = if rows > 0 { format!("\x1b[{rows}A") } else { String::new() };
    format!("\r{up}\x1b[J")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end() -> Item {
        let outcome = "finished".to_owned();
        Item::Event(Box::new(Event::End { update: 8, outcome, seconds: 1.0, data_wait_s: 0.0, skipped: 0 }))
    }

    fn lead() -> Item {
        Item::Event(Box::new(Event::Lead { update: 4, host: "alpha".to_owned(), total_updates: 8 }))
    }

    /// Shown items, each with the width of the window, and what is written.
    fn written(mut screen: Screen, items: Vec<(Option<Item>, usize)>) -> Vec<String> {
        let start = Instant::now();
        let times = (0..).map(|step| start + REDRAW * step);
        items.into_iter().zip(times).map(|((item, width), at)| screen.take(item, 0, at, width)).collect()
    }

    #[test]
    fn the_status_line_stays_below_other_lines_and_survives_a_smaller_window() {
        let console = || Some(Item::Show(Box::new(Console::new(Verbosity::Normal, None))));
        let line = || Some(Item::Line("hello".to_owned()));
        let items = vec![
            (line(), 60),
            (console(), 60),
            (Some(lead()), 60),
            (None, 60),
            (line(), 12),
            (Some(Item::Hide), 12),
            (Some(end()), 12),
            (None, 12),
        ];
        let text = written(Screen::new(true), items);
        let bar = |columns: usize| format!("{}{}", "█".repeat(columns / 2), "░".repeat(columns / 2));
        assert_eq!(text[0], "hello\n");
        assert_eq!(text[1], "");
        assert_eq!(
            text[2],
            format!(
                "this rank (alpha) writes checkpoints and metrics from now on: rank 0 is gone\n{}  4/8  50.0 %",
                bar(24)
            )
        );
        assert_eq!(text[3], format!("\r\x1b[J{}  4/8  50.0 %", bar(24)));
        // The line of 37 columns now takes four rows of twelve.
        assert_eq!(text[4], "\r\x1b[3A\x1b[Jhello\n4/8");
        assert_eq!(text[5..], ["\r\x1b[J", "", ""]);
    }

    #[test]
    fn the_echo_of_ctrl_c_stays_in_the_row_of_the_status_line() {
        for width in 20..120 {
            let console = Item::Show(Box::new(Console::new(Verbosity::Normal, None)));
            let text = written(Screen::new(true), vec![(Some(console), width), (Some(lead()), width)]);
            let status = text[1].lines().last().unwrap();
            assert!(status.chars().count() + "^C".len() < width, "{width}: {status}");
        }
    }

    #[test]
    fn the_end_of_a_run_removes_the_status_line() {
        let console = Item::Show(Box::new(Console::new(Verbosity::Normal, None)));
        let text = written(Screen::new(true), [console, lead(), end()].map(|item| (Some(item), 20)).into());
        assert_eq!(text[2], "\r\x1b[Jfinished after update 8 in 1.0 s\n");
    }

    #[test]
    fn a_log_has_times_and_no_status_line() {
        let console = Item::Show(Box::new(Console::new(Verbosity::Normal, Some(1))));
        let line = || Item::Line("hello".to_owned());
        let items = vec![(line(), 80), (Item::Stamp, 80), (line(), 80), (console, 80), (lead(), 80), (end(), 80)];
        let text = written(Screen::new(false), items.into_iter().map(|(item, width)| (Some(item), width)).collect());
        assert_eq!(text[0], "hello\n");
        let time = text[2].strip_suffix(" hello\n").unwrap();
        assert!(time.len() == "2026-11-18T16:08:21Z".len() && time.ends_with('Z'), "{time}");
        assert!(text[4].ends_with("rank 0 is gone\n") && text[5].ends_with("Z finished after update 8 in 1.0 s\n"));
    }
}
