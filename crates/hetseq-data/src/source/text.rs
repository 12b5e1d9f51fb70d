//! Raw text, as it is found: files and directories, packed or not, to documents and their sentences.
//!
//! [`find`] lists the files in an order that is the same everywhere, [`Documents`] streams what they hold, and
//! [`sentences`](Document::sentences) takes a document apart. Nothing here is random, and nothing but one document at a
//! time is in memory. Tokens are [`tokenize`](crate::tokenize)'s business. Called by [`prep`](crate::prep).
//! [`read_lines`] is for text whose lines stand beside those of another file, such as translations.
//!
//! Where line n of one file is the translation of line n of another, [`ParallelLines`] reads both.
//!
//! What a document is:
//! - by default, a block of lines between blank lines;
//! - in a file with level-1 headings as WikiText has them (` = Title = `), from one such heading to the next; other
//!   headings end a paragraph. No heading is kept;
//! - in a file with `<doc ...>` and `</doc>` lines, as WikiExtractor writes them, what is between them.

mod documents;
mod files;
mod lines;
mod parallel;
mod sentences;
mod style;

pub use documents::{Document, Documents};
pub use files::{TextFile, find};
pub use lines::{Lines, read_lines};
pub use parallel::{LinePair, ParallelLines};
pub use style::SentenceStyle;
