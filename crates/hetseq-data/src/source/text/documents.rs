//! Streams documents from text files. Only one document at a time is in memory. Called by
//! [`prep`](crate::prep).

use std::collections::VecDeque;
use std::io::{BufRead, Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::files::TextFile;
use super::sentences;
use super::style::SentenceStyle;
use crate::error::{CorpusError, DataError};

/// Longer documents are split, to bound memory. A book is about as long.
const MAX_DOCUMENT_BYTES: usize = 1 << 20;
/// Longer lines are split, between words if possible.
const MAX_LINE_BYTES: usize = 256 << 10;
/// Bytes at the beginning of a file that the sentence style is detected from.
const STYLE_BYTES: u64 = 256 << 10;
/// Bytes at the beginning of a file that must not contain a zero byte.
const TEXT_CHECK_BYTES: usize = 4096;

/// The lines of a document, without headings. A blank line ends a paragraph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    pub text: String,
    pub style: SentenceStyle,
}

impl Document {
    /// Calls `found` with each sentence.
    pub fn sentences(&self, mut found: impl FnMut(&str)) {
        match self.style {
            SentenceStyle::Lines => self.text.lines().map(str::trim).filter(|line| !line.is_empty()).for_each(found),
            SentenceStyle::Paragraphs => self.text.lines().for_each(|line| sentences::split(line, &mut found)),
            SentenceStyle::Wrapped => {
                let mut paragraph = String::new();
                for line in self.text.lines().chain([""]) {
                    if line.is_empty() {
                        sentences::split(&paragraph, &mut found);
                        paragraph.clear();
                    } else {
                        paragraph.push_str(line);
                        paragraph.push(' ');
                    }
                }
            }
        }
    }
}

/// Iterator over the documents of files, in order.
pub struct Documents {
    files: VecDeque<TextFile>,
    style: Option<SentenceStyle>,
    read: Arc<AtomicU64>,
    open: Option<OpenFile>,
}

struct OpenFile {
    file: TextFile,
    reader: Box<dyn BufRead + Send>,
    style: SentenceStyle,
    /// The file marks where documents begin, so blank lines do not separate them.
    is_marked: bool,
    line: Vec<u8>,
    /// The remainder of a line that was too long.
    rest: Vec<u8>,
}

enum LineKind {
    Blank,
    /// A level-1 heading: a document begins.
    Title,
    /// A heading of another level.
    Heading,
    /// `<doc ...>` or `</doc>`.
    DocTag,
    Text,
}

impl Documents {
    /// Without a `style` it is detected for each file. `read` counts the bytes read from disk.
    pub fn new(files: Vec<TextFile>, style: Option<SentenceStyle>, read: Arc<AtomicU64>) -> Self {
        Documents { files: files.into(), style, read, open: None }
    }

    fn next_document(&mut self) -> Result<Option<Document>, DataError> {
        loop {
            if self.open.is_none() {
                let Some(file) = self.files.pop_front() else { return Ok(None) };
                self.open = Some(OpenFile::new(file, self.style, self.read.clone())?);
            }
            let Some(open) = &mut self.open else { return Ok(None) };
            match open.next_document()? {
                Some(document) => return Ok(Some(document)),
                None => self.open = None,
            }
        }
    }
}

impl Iterator for Documents {
    type Item = Result<Document, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_document().transpose()
    }
}

impl OpenFile {
    fn new(file: TextFile, style: Option<SentenceStyle>, read: Arc<AtomicU64>) -> Result<Self, DataError> {
        let mut reader = file.open(read)?;
        // `read_to_end`, because a single read may return fewer bytes.
        let mut beginning = Vec::new();
        (&mut reader).take(STYLE_BYTES).read_to_end(&mut beginning).map_err(|reason| file.failed(reason))?;
        if beginning.iter().take(TEXT_CHECK_BYTES).any(|&byte| byte == 0) {
            return Err(CorpusError::NotText { path: file.path }.into());
        }
        let style = style.unwrap_or_else(|| detect_style(&beginning));
        let reader = Box::new(Cursor::new(beginning).chain(reader));
        Ok(OpenFile { file, reader, style, is_marked: false, line: Vec::new(), rest: Vec::new() })
    }

    fn next_document(&mut self) -> Result<Option<Document>, DataError> {
        let mut text = String::new();
        while text.len() < MAX_DOCUMENT_BYTES && self.read_line()? {
            let line = String::from_utf8_lossy(&self.line);
            let line = line.trim_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
            let ends_document = match kind(line) {
                LineKind::Blank => !self.is_marked,
                LineKind::Title | LineKind::DocTag => {
                    self.is_marked = true;
                    true
                }
                LineKind::Heading => false,
                LineKind::Text => {
                    text.push_str(line);
                    text.push('\n');
                    continue;
                }
            };
            if ends_document && !text.is_empty() {
                return Ok(Some(Document { text, style: self.style }));
            }
            if !text.is_empty() && !text.ends_with("\n\n") {
                text.push('\n');
            }
        }
        Ok((!text.is_empty()).then_some(Document { text, style: self.style }))
    }

    /// Reads a line, or its first [`MAX_LINE_BYTES`]. Returns false at the end of the file.
    fn read_line(&mut self) -> Result<bool, DataError> {
        self.line.clear();
        self.line.append(&mut self.rest);
        loop {
            let buffer = self.reader.fill_buf().map_err(|reason| self.file.failed(reason))?;
            if buffer.is_empty() {
                return Ok(!self.line.is_empty());
            }
            let room = buffer.len().min(MAX_LINE_BYTES - self.line.len());
            let newline = buffer[..room].iter().position(|&byte| byte == b'\n');
            let taken = newline.map_or(room, |at| at + 1);
            self.line.extend_from_slice(&buffer[..taken]);
            self.reader.consume(taken);
            if newline.is_some() {
                return Ok(true);
            }
            if self.line.len() == MAX_LINE_BYTES {
                self.rest = self.line.split_off(split_point(&self.line));
                return Ok(true);
            }
        }
    }
}

/// Detects the sentence style from the beginning of a file.
fn detect_style(beginning: &[u8]) -> SentenceStyle {
    // The last line may be incomplete and would look like a wrapped one.
    let whole = beginning.iter().rposition(|&byte| byte == b'\n').map_or(beginning, |at| &beginning[..at]);
    let beginning = String::from_utf8_lossy(whole);
    let is_text = |line: &&str| matches!(kind(line), LineKind::Text | LineKind::Blank);
    let text: Vec<&str> = beginning.lines().filter(is_text).collect();
    SentenceStyle::detect(&text.join("\n"))
}

/// Where to split a line that is too long: after its last space, else between two characters.
fn split_point(line: &[u8]) -> usize {
    let space = line.iter().rposition(|&byte| byte == b' ').map(|at| at + 1);
    let is_continuation = |byte: u8| byte & 0b1100_0000 == 0b1000_0000;
    let character = line.iter().rposition(|&byte| !is_continuation(byte)).filter(|&at| at > 0);
    space.or(character).unwrap_or(line.len())
}

fn kind(line: &str) -> LineKind {
    let line = line.trim();
    if line.is_empty() {
        return LineKind::Blank;
    }
    if (line.starts_with("<doc ") && line.ends_with('>')) || line == "</doc>" {
        return LineKind::DocTag;
    }
    match heading_level(line) {
        None => LineKind::Text,
        Some(1) => LineKind::Title,
        Some(_) => LineKind::Heading,
    }
}

/// Returns the level of a heading: 1 for ` = Title = `, 2 for ` = = Part = = ` and `== Part ==`.
fn heading_level(line: &str) -> Option<usize> {
    let is_mark = |c: char| c == '=' || c == ' ';
    let inner = line.trim_start_matches(is_mark);
    let before = &line[..line.len() - inner.len()];
    let title = inner.trim_end_matches(is_mark);
    let after = &inner[title.len()..];
    let level = |marks: &str| marks.bytes().filter(|&byte| byte == b'=').count();
    let is_heading = line.starts_with('=') && before.ends_with(' ') && after.starts_with(' ') && !title.is_empty();
    (is_heading && level(before) == level(after)).then(|| level(before))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::source::text::find;

    fn documents(bytes: &[u8]) -> Vec<Document> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, bytes).unwrap();
        let files = find(&[path]).unwrap();
        Documents::new(files, None, Arc::default()).collect::<Result<_, _>>().unwrap()
    }

    fn texts(bytes: &[u8]) -> Vec<String> {
        documents(bytes).into_iter().map(|document| document.text).collect()
    }

    #[test]
    fn blank_lines_separate_documents() {
        assert_eq!(texts(b"a\nb\n\n \n\nc\n"), ["a\nb\n", "c\n"]);
        assert_eq!(texts(b"\xef\xbb\xbfa\r\nb\r\n\r\nc"), ["a\nb\n", "c\n"]);
        assert_eq!(texts(b"\n\n"), [] as [&str; 0]);
    }

    #[test]
    fn titles_separate_documents_if_there_are_any() {
        let wiki = b" \n = One = \n \n a . \n \n = = Part = = \n b . \n c . \n \n = Two = \n \n d . \n";
        assert_eq!(texts(wiki), ["a .\n\nb .\nc .\n\n", "d .\n"]);
        assert_eq!(texts(b"before\n\n = One = \na\n\nb\n"), ["before\n", "a\n\nb\n"]);
        assert_eq!(
            texts(b"<doc id=\"1\">\nOne\n\na\n</doc>\n\n<doc id=\"2\">\nTwo\n</doc>\n"),
            ["One\n\na\n", "Two\n"]
        );
    }

    #[test]
    fn headings_have_levels() {
        for (line, level) in [("= A =", Some(1)), ("= = A = =", Some(2)), ("=== A b ===", Some(3))] {
            assert_eq!(heading_level(line), level);
        }
        for line in ["=====", "a = b", "= a", "=a=", "= = a =", "x"] {
            assert_eq!(heading_level(line), None, "{line}");
        }
    }

    #[test]
    fn gzip_and_invalid_utf8_are_read() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all("sch\u{f6}n\n".as_bytes()).unwrap();
        assert_eq!(texts(&encoder.finish().unwrap()), ["sch\u{f6}n\n"]);
        assert_eq!(texts(b"a\xffb\n"), ["a\u{fffd}b\n"]);
    }

    #[test]
    fn damaged_and_binary_files_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&b"some words and more of them\n".repeat(1000)).unwrap();
        let mut truncated = encoder.finish().unwrap();
        truncated.truncate(truncated.len() - 20);
        for (name, bytes, part) in
            [("cut.gz", truncated, "damaged or truncated gzip"), ("x.txt", vec![b'a', 0, 1], "not text")]
        {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            let error = Documents::new(find(&[path]).unwrap(), None, Arc::default()).find_map(Result::err).unwrap();
            assert!(error.to_string().contains(name) && error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn endless_lines_and_documents_are_split_without_loss() {
        for word in ["words ", "w\u{f6}rter", "x\n"] {
            let text = word.repeat(3_000_000 / word.len());
            let parts = documents(text.as_bytes());
            assert!(parts.len() > 1);
            assert!(parts.iter().all(|document| document.text.len() <= MAX_DOCUMENT_BYTES + MAX_LINE_BYTES + 1));
            let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).count();
            assert_eq!(parts.iter().map(|document| letters(&document.text)).sum::<usize>(), letters(&text));
            assert!(!parts.iter().any(|document| document.text.contains('\u{fffd}')));
        }
    }

    #[test]
    fn a_wrapped_paragraph_is_joined() {
        let document =
            Document { text: "He went\nhome. She\nstayed.\n\nThe end\n".to_owned(), style: SentenceStyle::Wrapped };
        let mut found = Vec::new();
        document.sentences(|sentence| found.push(sentence.to_owned()));
        assert_eq!(found, ["He went home.", "She stayed.", "The end"]);
    }
}
