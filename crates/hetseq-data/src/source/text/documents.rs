//! Streams documents from text files. Only one document at a time is in memory. Called by
//! [`prep`](crate::prep).

use std::collections::VecDeque;
use std::io::{BufRead, Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::files::TextFile;
use super::format::TextFormat;
use super::records::Records;
use super::sentences;
use super::style::SentenceStyle;
use crate::error::{CorpusError, DataError};

/// Longer documents are split, to bound memory. A book is about as long.
const MAX_DOCUMENT_BYTES: usize = 1 << 20;
/// Longer lines are split, between words if possible.
const MAX_LINE_BYTES: usize = 256 << 10;
/// Bytes at the beginning of a file that the sentence style is detected from.
const STYLE_BYTES: u64 = 256 << 10;
/// The field of JSONL and Parquet that has the text, unless another is given.
pub const DEFAULT_FIELD: &str = "text";

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
    field: String,
    read: Arc<AtomicU64>,
    open: Option<OpenFile>,
}

struct OpenFile {
    file: TextFile,
    /// The text of the file, or of one of its records.
    reader: Box<dyn BufRead + Send>,
    /// The other records, if the file has records.
    records: Option<Records>,
    /// Records that were read to detect the style.
    first_records: VecDeque<String>,
    /// Number of complete lines read so far.
    lines: u64,
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
        Documents { files: files.into(), style, field: DEFAULT_FIELD.to_owned(), read, open: None }
    }

    /// Reads another field of JSONL and Parquet than [`DEFAULT_FIELD`].
    #[must_use]
    pub fn with_field(self, field: &str) -> Self {
        Documents { field: field.to_owned(), ..self }
    }

    fn next_document(&mut self) -> Result<Option<Document>, DataError> {
        loop {
            if self.open.is_none() {
                let Some(file) = self.files.pop_front() else { return Ok(None) };
                self.open = Some(OpenFile::new(file, self.style, &self.field, self.read.clone())?);
            }
            let Some(open) = &mut self.open else { return Ok(None) };
            match open.next_document()? {
                Some(document) => return Ok(Some(document)),
                None if open.next_record()? => {}
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
    fn new(file: TextFile, style: Option<SentenceStyle>, field: &str, read: Arc<AtomicU64>) -> Result<Self, DataError> {
        let format = TextFormat::of(&file)?;
        let mut beginning = Vec::new();
        let mut first_records = VecDeque::new();
        let (reader, records): (Box<dyn BufRead + Send>, _) = if format == TextFormat::Plain {
            let mut reader = file.open(read)?;
            // `read_to_end`, because a single read may return fewer bytes.
            (&mut reader).take(STYLE_BYTES).read_to_end(&mut beginning).map_err(|reason| file.failed(reason))?;
            (Box::new(Cursor::new(beginning.clone()).chain(reader)), None)
        } else {
            let mut records = Records::open(file.clone(), format, field, read)?;
            while (beginning.len() as u64) < STYLE_BYTES
                && let Some(text) = records.next_text()?
            {
                beginning.extend_from_slice(text.as_bytes());
                beginning.extend_from_slice(b"\n\n");
                first_records.push_back(text);
            }
            (Box::new(std::io::empty()), Some(records))
        };
        let style = style.unwrap_or_else(|| detect_style(&beginning));
        let (line, rest) = (Vec::new(), Vec::new());
        Ok(OpenFile { file, reader, records, first_records, lines: 0, style, is_marked: false, line, rest })
    }

    /// Continues with the next record. False if there is none.
    fn next_record(&mut self) -> Result<bool, DataError> {
        let Some(records) = &mut self.records else { return Ok(false) };
        let text = match self.first_records.pop_front() {
            Some(text) => Some(text),
            None => records.next_text()?,
        };
        let Some(text) = text else { return Ok(false) };
        self.reader = Box::new(Cursor::new(text.into_bytes()));
        // A record is a document, with blank lines between its paragraphs.
        self.is_marked = true;
        Ok(true)
    }

    fn next_document(&mut self) -> Result<Option<Document>, DataError> {
        let mut text = String::new();
        while text.len() < MAX_DOCUMENT_BYTES && self.read_line()? {
            let line = std::str::from_utf8(&self.line).map_err(|_| self.not_utf8())?;
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
                self.lines += 1;
                return Ok(true);
            }
            if self.line.len() == MAX_LINE_BYTES {
                self.rest = self.line.split_off(split_point(&self.line));
                return Ok(true);
            }
        }
    }
}

impl OpenFile {
    fn not_utf8(&self) -> CorpusError {
        let read = match self.file.path.extension().and_then(|extension| extension.to_str()) {
            Some("gz") => "zcat",
            Some("zst") => "zstdcat",
            _ => "cat",
        };
        let line = self.lines + u64::from(!self.line.ends_with(b"\n"));
        CorpusError::NotUtf8 { path: self.file.path.clone(), line, read }
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
    fn compressed_files_are_read() {
        let zstd =
            ruzstd::encoding::compress_to_vec("sch\u{f6}n\n".as_bytes(), ruzstd::encoding::CompressionLevel::Fastest);
        assert_eq!(texts(&zstd), ["sch\u{f6}n\n"]);
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all("sch\u{f6}n\n".as_bytes()).unwrap();
        assert_eq!(texts(&encoder.finish().unwrap()), ["sch\u{f6}n\n"]);
    }

    #[test]
    fn a_record_is_a_document() {
        let jsonl = "{\"text\": \"a\\n\\nb\", \"id\": 1}\n\n{\"text\": null}\n{\"text\": \" c \"}";
        assert_eq!(texts(jsonl.as_bytes()), ["a\n\nb\n", "c\n"]);
        let failure = |text: &str| {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("x.jsonl");
            std::fs::write(&path, text).unwrap();
            let mut documents = Documents::new(find(&[path]).unwrap(), None, Arc::default()).with_field("body");
            documents.find_map(Result::err).unwrap().to_string()
        };
        for (text, part) in [
            ("{\"body\": \"a\"}\n{\"text\": \"a\"}", "line 2: there is no field `body`, only `text`"),
            ("{\"body\": 3}", "line 1: the value of `body` is not a text"),
            ("\n[1]", "line 2: it is not a JSON object"),
            ("{\"body\": ", "line 1: it is not valid JSON"),
        ] {
            assert!(failure(text).contains(part), "{}", failure(text));
        }
    }

    #[test]
    fn damaged_and_binary_files_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&b"some words and more of them\n".repeat(1000)).unwrap();
        let mut truncated = encoder.finish().unwrap();
        truncated.truncate(truncated.len() - 20);
        for (name, bytes, part) in [
            ("cut.gz", truncated, "damaged or truncated gzip"),
            ("x.txt", vec![b'a', 0, 1], "not text"),
            ("latin.txt", b"one\ntwo\nsch\xf6n\n".to_vec(), "latin.txt, line 3 is not UTF-8"),
            ("latin", b"one\nsch\xf6n".to_vec(), "line 2 is not UTF-8"),
        ] {
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
