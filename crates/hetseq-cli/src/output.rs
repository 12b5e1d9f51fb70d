//! Results to standard output, words to standard error. A reader that went away is no reason to fail.

use std::io::Write;
use std::time::Duration;

use hetseq_metrics::terminal;

/// A standard error that is not read holds up a command for so long, and no longer.
const UNREAD: Duration = Duration::from_secs(2);

/// A line of the result.
pub(crate) fn print_line(line: &str) {
    _ = writeln!(std::io::stdout(), "{line}");
}

/// A word to the person who waits.
pub(crate) fn say(line: &str) {
    terminal::print(line);
    flush();
}

/// Waits until everything is shown.
pub(crate) fn flush() {
    terminal::flush(UNREAD);
}
