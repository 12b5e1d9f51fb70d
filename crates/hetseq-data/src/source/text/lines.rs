//! All lines of a file, each as it is: for text whose lines stand beside those of another file, so that none may be lost,
//! joined or mended. Called by `hetseq score` and `hetseq generate`, and by [`parallel`](super::parallel).

use std::io::{BufRead, Error};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::files::{TextFile, unpacked};
use crate::error::{CorpusError, DataError};

/// What stands for standard input.
const STANDARD_INPUT: &str = "-";

/// The lines of a file, packed by gzip or not, or of standard input if `path` is `-`, one after the other. A line ends at a line
/// feed; a carriage return before that is taken off.
pub struct Lines {
    file: TextFile,
    reader: Box<dyn BufRead + Send>,
    /// Read so far.
    lines: usize,
    buffer: Vec<u8>,
}

/// What was asked for, or that it is longer.
pub(super) enum Line {
    Whole(String),
    TooLong,
}

impl Lines {
    pub fn open(path: &Path) -> Result<Self, DataError> {
        if path != Path::new(STANDARD_INPUT) {
            return Self::of(TextFile::new(path.to_owned(), String::new())?, Arc::default());
        }
        let file = TextFile { path: PathBuf::from("standard input"), name: String::new(), bytes: 0 };
        let reader = unpacked(std::io::stdin()).map_err(|reason| with_place(file.failed(reason)))?;
        Ok(Lines { file, reader, lines: 0, buffer: Vec::new() })
    }

    /// `read` counts what comes off the disk.
    pub(super) fn of(file: TextFile, read: Arc<AtomicU64>) -> Result<Self, DataError> {
        Ok(Lines { reader: file.open(read)?, file, lines: 0, buffer: Vec::new() })
    }

    /// What to call it.
    pub fn name(&self) -> String {
        self.path().display().to_string()
    }

    pub(super) fn path(&self) -> &Path {
        &self.file.path
    }

    /// How many lines were read so far.
    pub(super) fn count_read(&self) -> usize {
        self.lines
    }

    /// The next line, if it has no more than `limit` bytes; else it is passed over, and is never in memory as a whole.
    pub(super) fn next_within(&mut self, limit: usize) -> Result<Option<Line>, DataError> {
        let Some(is_whole) = self.fill(limit)? else { return Ok(None) };
        let bad = |problem| CorpusError::BadLine { path: self.file.path.clone(), line: self.lines, problem };
        if self.buffer.contains(&0) {
            return Err(bad("there is a zero byte, so it is not text").into());
        }
        if !is_whole {
            return Ok(Some(Line::TooLong));
        }
        let line = self.buffer.strip_suffix(b"\n").unwrap_or(&self.buffer);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let line = std::str::from_utf8(line).map_err(|_| bad("it is not UTF-8"))?;
        Ok(Some(Line::Whole(line.to_owned())))
    }

    /// Fills the buffer with the next line; false if only with its beginning. None at the end.
    fn fill(&mut self, limit: usize) -> Result<Option<bool>, DataError> {
        self.buffer.clear();
        let (mut is_begun, mut is_whole) = (false, true);
        loop {
            let read = self.reader.fill_buf().map_err(|reason| with_place(self.file.failed(reason)))?;
            let newline = read.iter().position(|&byte| byte == b'\n');
            let taken = newline.map_or(read.len(), |at| at + 1);
            is_begun |= taken > 0;
            if newline.is_some() || taken == 0 {
                self.lines += usize::from(is_begun);
            }
            let room = (limit - self.buffer.len()).min(taken);
            is_whole &= room == taken;
            self.buffer.extend_from_slice(&read[..room]);
            self.reader.consume(taken);
            if newline.is_some() || taken == 0 {
                return Ok(is_begun.then_some(is_whole));
            }
        }
    }
}

impl Iterator for Lines {
    type Item = Result<String, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.next_within(usize::MAX) {
            Ok(Some(Line::Whole(line))) => Some(Ok(line)),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        }
    }
}

/// All of them at once.
pub fn read_lines(path: &Path) -> Result<Vec<String>, DataError> {
    Lines::open(path)?.collect()
}

/// Of a file the reason names the path already.
fn with_place(error: DataError) -> DataError {
    match error {
        DataError::Io { path, reason } if !path.exists() => {
            let text = format!("reading {}: {reason}", path.display());
            DataError::Io { path, reason: Error::new(reason.kind(), text) }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<String>, DataError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.txt");
        std::fs::write(&path, bytes).unwrap();
        read_lines(&path)
    }

    #[test]
    fn every_line_is_kept_as_it_is() {
        assert_eq!(read(b"").unwrap(), [] as [&str; 0]);
        assert_eq!(read(b"\n").unwrap(), [""]);
        assert_eq!(
            read(" a \r\n\n\u{2028}\u{85}b\rc\r\r\nd".as_bytes()).unwrap(),
            [" a ", "", "\u{2028}\u{85}b\rc\r", "d"]
        );
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all("sch\u{f6}n\n\n".as_bytes()).unwrap();
        assert_eq!(read(&packer.finish().unwrap()).unwrap(), ["sch\u{f6}n", ""]);
    }

    #[test]
    fn what_is_no_text_is_named_with_its_line() {
        for (bytes, part) in [
            (&b"a\nb\xff\n"[..], "x.txt, line 2: it is not UTF-8"),
            (b"a\nb\n\0", "x.txt, line 3: there is a zero byte"),
            (b"\x1f\x8b\x08", "damaged or truncated gzip"),
        ] {
            let error = read(bytes).unwrap_err();
            assert!(error.is_usage() && error.to_string().contains(part), "{error}");
        }
        let missing = read_lines(Path::new("nowhere.txt")).unwrap_err();
        assert!(missing.is_usage() && missing.to_string().contains("nowhere.txt"), "{missing}");
    }
}
