//! Results to standard output, words to standard error. A reader that went away is no reason to fail.

use std::io::Write;

/// A line of the result.
pub(crate) fn print_line(line: &str) {
    _ = writeln!(std::io::stdout(), "{line}");
}

/// A word to the person who waits.
pub(crate) fn say(line: &str) {
    _ = writeln!(std::io::stderr(), "{line}");
}
