//! Pairs of lines out of pairs of files, where line n of one is the translation of line n of the other.
//!
//! Unlike documents, lines are taken as they are or not at all: a line lost or cut on one side would shift all after it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::files::TextFile;
use super::lines::{Line, Lines};
use crate::error::{CorpusError, DataError};

/// Longer lines are no sentences, and are not kept in memory.
const LINE_BYTES: usize = 1 << 20;
const BYTE_ORDER_MARK: char = '\u{feff}';

/// A line and its translation, without their ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinePair {
    /// Source and target.
    pub lines: [String; 2],
    /// A side was longer than a sentence can be, and is empty here.
    pub is_endless: bool,
    /// Which pair of files it is of, from 0.
    pub file: usize,
    /// In its files, from 1.
    pub line: u64,
}

/// The pairs of files, in order.
pub struct ParallelLines {
    files: VecDeque<[TextFile; 2]>,
    read: Arc<AtomicU64>,
    open: Option<[Lines; 2]>,
    /// How many pairs of files were opened.
    opened: usize,
}

impl ParallelLines {
    /// `read` counts the bytes that came off the disk.
    pub fn new(files: Vec<[TextFile; 2]>, read: Arc<AtomicU64>) -> Self {
        ParallelLines { files: files.into(), read, open: None, opened: 0 }
    }

    fn next_pair(&mut self) -> Result<Option<LinePair>, DataError> {
        loop {
            if self.open.is_none() {
                let Some([source, target]) = self.files.pop_front() else { return Ok(None) };
                let open = |file| Lines::of(file, self.read.clone());
                self.open = Some([open(source)?, open(target)?]);
                self.opened += 1;
            }
            let Some([source, target]) = &mut self.open else { return Ok(None) };
            let (one, other) = (source.next_within(LINE_BYTES)?, target.next_within(LINE_BYTES)?);
            let (file, line) = (self.opened - 1, source.count_read() as u64);
            match (one, other) {
                (Some(one), Some(other)) => {
                    let is_endless = [&one, &other].iter().any(|line| matches!(line, Line::TooLong));
                    let text = |taken: Line| match taken {
                        Line::Whole(text) if line == 1 => text.trim_start_matches(BYTE_ORDER_MARK).to_owned(),
                        Line::Whole(text) => text,
                        Line::TooLong => String::new(),
                    };
                    return Ok(Some(LinePair { lines: [one, other].map(text), is_endless, file, line }));
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

/// One file ended before the other, or both at once: they are counted to their ends.
fn unequal(source: &mut Lines, target: &mut Lines) -> DataError {
    for lines in [&mut *source, &mut *target] {
        loop {
            match lines.next_within(LINE_BYTES) {
                Ok(Some(_)) => {}
                Ok(None) if lines.count_read() == 0 => {
                    return CorpusError::EmptyFile { path: lines.path().to_owned() }.into();
                }
                Ok(None) => break,
                Err(error) => return error,
            }
        }
    }
    let (source_path, target_path) = (source.path().to_owned(), target.path().to_owned());
    let [source_lines, target_lines] = [source.count_read() as u64, target.count_read() as u64];
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
        let told = |error: DataError| error.to_string().replace(&dir.path().display().to_string(), "");
        let parts = |pair: LinePair| {
            let [source, target] = pair.lines;
            (source, target, pair.file, pair.line)
        };
        pairs.map(|pairs| pairs.into_iter().map(parts).collect()).map_err(told)
    }

    #[test]
    fn lines_end_at_newlines_and_at_nothing_else() {
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
    fn what_cannot_be_read_is_named_with_its_line() {
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
    fn a_line_without_end_is_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let mut long = vec![b'x'; 3 * LINE_BYTES];
        long.extend_from_slice(b"\nb\n");
        let files = files(dir.path(), &[[&long, b"1\n2\n"]]);
        let pairs: Vec<LinePair> = ParallelLines::new(files, Arc::default()).collect::<Result<_, _>>().unwrap();
        assert_eq!(pairs.iter().map(|pair| pair.is_endless).collect::<Vec<_>>(), [true, false]);
        assert_eq!(pairs[1].lines, ["b", "2"]);
    }
}
