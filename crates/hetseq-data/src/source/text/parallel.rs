//! Reads pairs of lines from pairs of files, where line n of one is the translation of line n of
//! the other. Called by [`prep::translate`](crate::prep::translate).
//!
//! Unlike documents, lines are read unchanged or are an error: a line lost or split on one side
//! would shift all lines after it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::files::TextFile;
use super::lines::{LimitedLine, Lines};
use crate::error::{CorpusError, DataError};

/// Longer lines are not sentences and are not kept in memory.
const MAX_LINE_BYTES: usize = 1 << 20;
const BYTE_ORDER_MARK: char = '\u{feff}';

/// A line and its translation, without line ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinePair {
    /// Source and target.
    pub lines: [String; 2],
    /// A side was longer than 1 MiB and is empty here.
    pub is_too_long: bool,
    /// Index of its pair of files, from 0.
    pub file: usize,
    /// Line number in its files, from 1.
    pub line: u64,
}

/// Iterator over the line pairs of files, in order.
pub struct ParallelLines {
    files: VecDeque<[TextFile; 2]>,
    read: Arc<AtomicU64>,
    open: Option<[Lines; 2]>,
    /// Number of file pairs opened so far.
    opened: usize,
}

impl ParallelLines {
    /// `read` counts the bytes read from disk.
    pub fn new(files: Vec<[TextFile; 2]>, read: Arc<AtomicU64>) -> Self {
        ParallelLines { files: files.into(), read, open: None, opened: 0 }
    }

    fn next_pair(&mut self) -> Result<Option<LinePair>, DataError> {
        loop {
            if self.open.is_none() {
                let Some([source, target]) = self.files.pop_front() else { return Ok(None) };
                let open = |file| Lines::from_file(file, self.read.clone());
                self.open = Some([open(source)?, open(target)?]);
                self.opened += 1;
            }
            let Some([source, target]) = &mut self.open else { return Ok(None) };
            let (one, other) = (source.next_limited(MAX_LINE_BYTES)?, target.next_limited(MAX_LINE_BYTES)?);
            let (file, line) = (self.opened - 1, source.lines_read() as u64);
            match (one, other) {
                (Some(one), Some(other)) => {
                    let is_too_long = [&one, &other].iter().any(|line| matches!(line, LimitedLine::TooLong));
                    let text = |taken: LimitedLine| match taken {
                        LimitedLine::Complete(text) if line == 1 => text.trim_start_matches(BYTE_ORDER_MARK).to_owned(),
                        LimitedLine::Complete(text) => text,
                        LimitedLine::TooLong => String::new(),
                    };
                    return Ok(Some(LinePair { lines: [one, other].map(text), is_too_long, file, line }));
                }
                (None, None) if line > 0 => self.open = None,
                _ => return Err(unequal(source, target)),
            }
        }
    }
}

impl Iterator for ParallelLines {
    type Item = Result<LinePair, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_pair().transpose()
    }
}

/// The error for files of unequal length or without lines. Reads both to the end to count their
/// lines.
fn unequal(source: &mut Lines, target: &mut Lines) -> DataError {
    for lines in [&mut *source, &mut *target] {
        loop {
            match lines.next_limited(MAX_LINE_BYTES) {
                Ok(Some(_)) => {}
                Ok(None) if lines.lines_read() == 0 => {
                    return CorpusError::EmptyFile { path: lines.path().to_owned() }.into();
                }
                Ok(None) => break,
                Err(error) => return error,
            }
        }
    }
    let (source_path, target_path) = (source.path().to_owned(), target.path().to_owned());
    let [source_lines, target_lines] = [source.lines_read() as u64, target.lines_read() as u64];
    CorpusError::UnequalLines { source_path, source_lines, target_path, target_lines }.into()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::source::text::find;

    /// A source and a target.
    type Contents<'a> = [&'a [u8]; 2];

    fn files(dir: &Path, contents: &[Contents<'_>]) -> Vec<[TextFile; 2]> {
        let file = |name: String, bytes: &[u8]| {
            std::fs::write(dir.join(&name), bytes).unwrap();
            find(&[dir.join(name)]).unwrap().remove(0)
        };
        contents
            .iter()
            .enumerate()
            .map(|(at, [source, target])| [file(format!("{at}.en"), source), file(format!("{at}.de"), target)])
            .collect()
    }

    fn read(contents: &[Contents<'_>]) -> Result<Vec<(String, String, usize, u64)>, String> {
        let dir = tempfile::tempdir().unwrap();
        let pairs: Result<Vec<LinePair>, DataError> =
            ParallelLines::new(files(dir.path(), contents), Arc::default()).collect();
        let message = |error: DataError| error.to_string().replace(&dir.path().display().to_string(), "");
        let parts = |pair: LinePair| {
            let [source, target] = pair.lines;
            (source, target, pair.file, pair.line)
        };
        pairs.map(|pairs| pairs.into_iter().map(parts).collect()).map_err(message)
    }

    #[test]
    fn only_a_newline_ends_a_line() {
        let pair = |a: &str, b: &str, file, line| (a.to_owned(), b.to_owned(), file, line);
        let [source, target] =
            ["\u{feff}a\r\n b\u{2028}\u{85}\n\nlast".as_bytes(), "x\n\ty\x0c \nz\r\r\nend\n".as_bytes()];
        assert_eq!(
            read(&[[source, target], [b"\n", b"q"]]).unwrap(),
            [
                pair("a", "x", 0, 1),
                pair(" b\u{2028}\u{85}", "\ty\x0c ", 0, 2),
                pair("", "z\r", 0, 3),
                pair("last", "end", 0, 4),
                pair("", "q", 1, 1)
            ]
        );
    }

    #[test]
    fn errors_name_file_and_line() {
        let cases: [(&[Contents<'_>], &[&str]); 6] = [
            (&[[b"a\nb\nc\n", b"x\n"]], &["/0.en has 3 lines but", "/0.de has 1;"]),
            (&[[b"a\n", b"x\n"], [b"a", b"x\ny\nz"]], &["/1.en has 1 lines but", "/1.de has 3;"]),
            (&[[b"a\nb\n", b"x\ny\xffz\n"]], &["/0.de, line 2: it is not UTF-8"]),
            (&[[b"a\nb\0\n", b"x\ny\n"]], &["/0.en, line 2: there is a zero byte"]),
            (&[[b"a\n", b""]], &["/0.de has no lines"]),
            (&[[b"", b""]], &["/0.en has no lines"]),
        ];
        for (contents, parts) in cases {
            let error = read(contents).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
    }

    #[test]
    fn an_endless_line_is_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let mut long = vec![b'x'; 3 * MAX_LINE_BYTES];
        long.extend_from_slice(b"\nb\n");
        let files = files(dir.path(), &[[&long, b"1\n2\n"]]);
        let pairs: Vec<LinePair> = ParallelLines::new(files, Arc::default()).collect::<Result<_, _>>().unwrap();
        assert_eq!(pairs.iter().map(|pair| pair.is_too_long).collect::<Vec<_>>(), [true, false]);
        assert_eq!(pairs[1].lines, ["b", "2"]);
    }
}
