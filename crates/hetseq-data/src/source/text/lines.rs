//! Reads all lines of a file, unchanged.
//!
//! For text whose lines correspond to those of another file: no line may be lost, joined or
//! repaired. Called by `hetseq score`, `hetseq generate` and [`parallel`](super::parallel).

use std::io::{BufRead, Error};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::files::{TextFile, decompress};
use crate::error::{CorpusError, DataError};

/// The path that means standard input.
const STANDARD_INPUT: &str = "-";

/// Iterator over the lines of a file, gzipped or not, or of standard input if the path is `-`.
///
/// A line ends at a line feed; a carriage return before it is removed.
pub struct Lines {
    file: TextFile,
    reader: Box<dyn BufRead + Send>,
    /// Number of lines read so far.
    lines: usize,
    buffer: Vec<u8>,
}

/// The result of reading a line with a length limit.
pub(super) enum LimitedLine {
    Complete(String),
    TooLong,
}

impl Lines {
    pub fn open(path: &Path) -> Result<Self, DataError> {
        if path != Path::new(STANDARD_INPUT) {
            return Self::from_file(TextFile::new(path.to_owned(), String::new())?, Arc::default());
        }
        let file = TextFile { path: PathBuf::from("standard input"), name: String::new(), bytes: 0 };
        let reader = decompress(std::io::stdin()).map_err(|reason| with_path(file.failed(reason)))?;
        Ok(Lines { file, reader, lines: 0, buffer: Vec::new() })
    }

    /// `read` counts the bytes read from disk.
    pub(super) fn from_file(file: TextFile, read: Arc<AtomicU64>) -> Result<Self, DataError> {
        Ok(Lines { reader: file.open(read)?, file, lines: 0, buffer: Vec::new() })
    }

    /// Name of the file for messages.
    pub fn name(&self) -> String {
        self.path().display().to_string()
    }

    pub(in crate::source) fn path(&self) -> &Path {
        &self.file.path
    }

    /// Number of lines read so far.
    pub(in crate::source) fn lines_read(&self) -> usize {
        self.lines
    }

    /// Reads the next line. A line of more than `limit` bytes is skipped without keeping it in
    /// memory.
    pub(super) fn next_limited(&mut self, limit: usize) -> Result<Option<LimitedLine>, DataError> {
        let Some(is_complete) = self.fill(limit)? else { return Ok(None) };
        let bad = |problem| CorpusError::BadLine { path: self.file.path.clone(), line: self.lines, problem };
        if self.buffer.contains(&0) {
            return Err(bad("there is a zero byte, so it is not text").into());
        }
        if !is_complete {
            return Ok(Some(LimitedLine::TooLong));
        }
        let line = self.buffer.strip_suffix(b"\n").unwrap_or(&self.buffer);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let line = std::str::from_utf8(line).map_err(|_| bad("it is not UTF-8"))?;
        Ok(Some(LimitedLine::Complete(line.to_owned())))
    }

    /// Fills the buffer with the next line. Returns false if only its beginning fits, `None` at the
    /// end.
    fn fill(&mut self, limit: usize) -> Result<Option<bool>, DataError> {
        self.buffer.clear();
        let (mut is_begun, mut is_complete) = (false, true);
        loop {
            let read = self.reader.fill_buf().map_err(|reason| with_path(self.file.failed(reason)))?;
            let newline = read.iter().position(|&byte| byte == b'\n');
            let taken = newline.map_or(read.len(), |at| at + 1);
            is_begun |= taken > 0;
            if newline.is_some() || taken == 0 {
                self.lines += usize::from(is_begun);
            }
            let room = (limit - self.buffer.len()).min(taken);
            is_complete &= room == taken;
            self.buffer.extend_from_slice(&read[..room]);
            self.reader.consume(taken);
            if newline.is_some() || taken == 0 {
                return Ok(is_begun.then_some(is_complete));
            }
        }
    }
}

impl Iterator for Lines {
    type Item = Result<String, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.next_limited(usize::MAX) {
            Ok(Some(LimitedLine::Complete(line))) => Some(Ok(line)),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        }
    }
}

/// Reads all lines of a file.
pub fn read_lines(path: &Path) -> Result<Vec<String>, DataError> {
    Lines::open(path)?.collect()
}

/// Adds the name of standard input to an error. For a real file the reason already names the path.
fn with_path(error: DataError) -> DataError {
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
    fn every_line_is_kept_unchanged() {
        assert_eq!(read(b"").unwrap(), [] as [&str; 0]);
        assert_eq!(read(b"\n").unwrap(), [""]);
        assert_eq!(
            read(" a \r\n\n\u{2028}\u{85}b\rc\r\r\nd".as_bytes()).unwrap(),
            [" a ", "", "\u{2028}\u{85}b\rc\r", "d"]
        );
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all("sch\u{f6}n\n\n".as_bytes()).unwrap();
        assert_eq!(read(&encoder.finish().unwrap()).unwrap(), ["sch\u{f6}n", ""]);
    }

    #[test]
    fn errors_name_file_and_line() {
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
