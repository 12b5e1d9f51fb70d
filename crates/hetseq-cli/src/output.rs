//! Output of all subcommands: results to standard output, messages to standard error. A closed pipe
//! is not an error.

use std::io::Write;
use std::time::Duration;

use hetseq_metrics::terminal;

/// The longest that a command waits for a standard error that is not read.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Prints a line of the result to standard output.
pub(crate) fn print_line(line: &str) {
    _ = writeln!(std::io::stdout(), "{line}");
}

/// Prints a message to standard error, without disturbing a progress bar.
pub(crate) fn eprint_line(line: &str) {
    terminal::print(line);
    flush();
}

/// Waits until all messages are written, but at most [`FLUSH_TIMEOUT`].
pub(crate) fn flush() {
    terminal::flush(FLUSH_TIMEOUT);
}
