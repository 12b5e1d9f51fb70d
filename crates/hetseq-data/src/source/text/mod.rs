//! Raw text: files and directories, compressed or not, to documents and their sentences.
//!
//! [`find`] lists the files in an order that is the same on every machine, [`Documents`] streams
//! their documents, and [`sentences`](Document::sentences) splits a document. Nothing here is
//! random, and only one document at a time is in memory. [`tokenize`](crate::tokenize) turns
//! sentences into tokens. Called by [`prep`](crate::prep).
//!
//! [`read_lines`] keeps every line, for text whose lines belong to those of another file, such as
//! translations. Where line n of one file is the translation of line n of another,
//! [`ParallelLines`] reads both.
//!
//! A document is:
//! - by default, a block of lines between blank lines;
//! - in a file with level-1 headings in WikiText's format (` = Title = `), the text from one such
//!   heading to the next. Other headings end a paragraph. Headings are dropped;
//! - in a file with WikiExtractor's `<doc ...>` and `</doc>` lines, the text between them;
//! - in JSONL and Parquet, the text of a record.

mod documents;
mod files;
mod format;
mod lines;
mod parallel;
mod records;
mod sentences;
mod style;
mod zstd;

pub use documents::{DEFAULT_FIELD, Document, Documents};
pub use files::{TextFile, find};
pub use format::TextFormat;
pub use lines::{Lines, read_lines};
pub use parallel::{LinePair, ParallelLines};
pub use style::SentenceStyle;
