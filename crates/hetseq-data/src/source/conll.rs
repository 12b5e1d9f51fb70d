//! Reads files in the style of CoNLL: one word per line with its columns, a blank line after each
//! sentence.
//!
//! Only words and labels are kept. Nothing here knows tag schemes or tokens: that is
//! [`finetune`](crate::finetune), whose caller reads the file first.
//!
//! The rules:
//! - A line with nothing but spaces and tabs is blank. It ends a sentence.
//! - The first data line decides for the whole file: if it has a tab, tabs separate columns, and a
//!   word may contain spaces. If not, runs of spaces and tabs do. All data lines must have as many
//!   columns as the first.
//! - A line whose first word is `-DOCSTART-` ends a document and a sentence. Its other columns are
//!   not read.
//! - A line that starts with `# ` is a comment if its number of columns differs from that of the
//!   data. So `# text = ...` is skipped, and the word `#` with its columns is kept. Such a line is
//!   never the first data line.
//! - Lines end with LF or CRLF; a byte order mark at the start is dropped; text must be UTF-8.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::text::Lines;
use crate::error::{DataError, FinetuneError};

const DOCUMENT_START: &str = "-DOCSTART-";
const COMMENT: &str = "# ";
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Which columns are read. Negative numbers count from the end: -1 is the last column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConllColumns {
    pub token_column: i32,
    pub label_column: i32,
}

impl Default for ConllColumns {
    fn default() -> Self {
        ConllColumns { token_column: 0, label_column: -1 }
    }
}

/// Whether a file must have a label column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConllLabels {
    Required,
    /// For prediction: without the column, or if it is the token column, the file has no labels.
    IfPresent,
}

/// The sentences of one file. Words are numbered over the whole file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConllFile {
    path: PathBuf,
    /// All words, one after the other; `word_ends` are their ends.
    text: String,
    word_ends: Vec<usize>,
    /// The line of each word, from 1.
    lines: Vec<usize>,
    /// The number of words up to the end of each sentence.
    sentence_ends: Vec<usize>,
    documents: usize,
    /// Different labels, in the order of their first use.
    label_names: Vec<String>,
    /// Indices into `label_names`, one per word; empty without labels.
    labels: Vec<u32>,
}

impl ConllFile {
    /// Reads a file, gzipped or not, or standard input if the path is `-`.
    pub fn read(path: &Path, columns: &ConllColumns, labels: ConllLabels) -> Result<Self, DataError> {
        let mut lines = Lines::open(path)?;
        let path = lines.path().to_owned();
        let mut head = Vec::new();
        let mut layout = None;
        // Comments before the first data line wait until the number of columns is known.
        for line in lines.by_ref() {
            let mut line = line?;
            if head.is_empty() && line.starts_with(BYTE_ORDER_MARK) {
                line.remove(0);
            }
            head.push(line);
            let Some(line) = head.last().filter(|line| is_data(line) && !line.starts_with(COMMENT)) else { continue };
            layout = Some(Layout::new(line, head.len(), &path, columns, labels)?);
            break;
        }
        let Some(layout) = layout else { return Err(FinetuneError::NoSentences { path }.into()) };
        let mut reader = Reader::new(path, layout);
        for line in head.into_iter().map(Ok).chain(lines) {
            reader.add(&line?)?;
        }
        Ok(reader.finish())
    }

    /// The file, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn sentences(&self) -> usize {
        self.sentence_ends.len()
    }

    /// Words of all sentences.
    pub fn words(&self) -> usize {
        self.word_ends.len()
    }

    /// Documents that have sentences; 1 if no line says `-DOCSTART-`.
    pub fn documents(&self) -> usize {
        self.documents
    }

    pub fn has_labels(&self) -> bool {
        !self.labels.is_empty()
    }

    /// The words of a sentence; empty for a sentence that does not exist.
    pub fn sentence(&self, sentence: usize) -> Range<usize> {
        let end = self.sentence_ends.get(sentence).copied().unwrap_or(self.words());
        let start = match sentence.checked_sub(1) {
            Some(before) => self.sentence_ends.get(before).copied().unwrap_or(self.words()),
            None => 0,
        };
        start..end
    }

    /// A word; empty for a word that does not exist.
    pub fn word(&self, word: usize) -> &str {
        let start = word.checked_sub(1).and_then(|before| self.word_ends.get(before)).copied().unwrap_or(0);
        self.word_ends.get(word).and_then(|&end| self.text.get(start..end)).unwrap_or_default()
    }

    /// The label of a word, if the file has labels.
    pub fn label(&self, word: usize) -> Option<&str> {
        self.label_names.get(*self.labels.get(word)? as usize).map(String::as_str)
    }

    /// The line of a word, from 1.
    pub fn line(&self, word: usize) -> usize {
        self.lines.get(word).copied().unwrap_or(0)
    }

    /// Different labels, in the order of their first use.
    pub fn label_names(&self) -> &[String] {
        &self.label_names
    }

    /// The labels as indices into [`ConllFile::label_names`], one per word; empty without labels.
    pub(crate) fn label_indices(&self) -> &[u32] {
        &self.labels
    }
}

/// The columns of a file, decided by its first data line.
struct Layout {
    tabs: bool,
    columns: usize,
    token: usize,
    label: Option<usize>,
    /// The first data line, from 1.
    first_line: usize,
}

impl Layout {
    fn new(
        line: &str,
        number: usize,
        path: &Path,
        wanted: &ConllColumns,
        labels: ConllLabels,
    ) -> Result<Self, DataError> {
        let tabs = line.contains('\t');
        let columns = split(line, tabs).count();
        let missing = |setting, column| FinetuneError::NoConllColumn {
            path: path.to_owned(),
            line: number,
            setting,
            column,
            columns,
        };
        let token =
            resolve(wanted.token_column, columns).ok_or_else(|| missing("token_column", wanted.token_column))?;
        let label = match (resolve(wanted.label_column, columns), labels) {
            (Some(label), _) if label != token => Some(label),
            (_, ConllLabels::IfPresent) => None,
            (Some(_), ConllLabels::Required) => {
                return Err(FinetuneError::NoLabels { path: path.to_owned(), line: number, columns }.into());
            }
            (None, ConllLabels::Required) => return Err(missing("label_column", wanted.label_column).into()),
        };
        Ok(Layout { tabs, columns, token, label, first_line: number })
    }
}

/// Collects the words of a file, line by line.
struct Reader {
    file: ConllFile,
    layout: Layout,
    line: usize,
    label_ids: HashMap<String, u32>,
    /// The number of sentences when the current document began.
    document_start: usize,
}

impl Reader {
    fn new(path: PathBuf, layout: Layout) -> Self {
        let file = ConllFile {
            path,
            text: String::new(),
            word_ends: Vec::new(),
            lines: Vec::new(),
            sentence_ends: Vec::new(),
            documents: 0,
            label_names: Vec::new(),
            labels: Vec::new(),
        };
        Reader { file, layout, line: 0, label_ids: HashMap::new(), document_start: 0 }
    }

    fn add(&mut self, line: &str) -> Result<(), DataError> {
        self.line += 1;
        if !is_data(line) {
            self.end_sentence();
            if !is_blank(line) {
                self.end_document();
            }
            return Ok(());
        }
        let columns = split(line, self.layout.tabs).count();
        if columns != self.layout.columns {
            if line.starts_with(COMMENT) {
                return Ok(());
            }
            let (first_line, expected) = (self.layout.first_line, self.layout.columns);
            return Err(FinetuneError::ConllColumns {
                path: self.path(),
                line: self.line,
                columns,
                first_line,
                expected,
            }
            .into());
        }
        // Spaces beside a tab are not part of a word or label.
        let column = |at: usize| split(line, self.layout.tabs).nth(at).unwrap_or_default().trim_matches(' ');
        let token = column(self.layout.token);
        if token.is_empty() {
            let column = self.layout.token;
            return Err(FinetuneError::EmptyToken { path: self.path(), line: self.line, column }.into());
        }
        if let Some(at) = self.layout.label {
            let label = column(at);
            if label.is_empty() {
                let (path, token) = (self.path(), token.to_owned());
                return Err(FinetuneError::EmptyLabel { path, line: self.line, column: at, token }.into());
            }
            let id = match self.label_ids.get(label) {
                Some(&id) => id,
                None => {
                    let id = self.file.label_names.len() as u32;
                    self.file.label_names.push(label.to_owned());
                    self.label_ids.insert(label.to_owned(), id);
                    id
                }
            };
            self.file.labels.push(id);
        }
        self.file.text.push_str(token);
        self.file.word_ends.push(self.file.text.len());
        self.file.lines.push(self.line);
        Ok(())
    }

    fn end_sentence(&mut self) {
        if self.file.words() > self.file.sentence_ends.last().copied().unwrap_or(0) {
            self.file.sentence_ends.push(self.file.words());
        }
    }

    fn end_document(&mut self) {
        self.file.documents += usize::from(self.file.sentences() > self.document_start);
        self.document_start = self.file.sentences();
    }

    fn finish(mut self) -> ConllFile {
        self.end_sentence();
        self.end_document();
        self.file
    }

    fn path(&self) -> PathBuf {
        self.file.path.clone()
    }
}

fn is_blank(line: &str) -> bool {
    line.bytes().all(|byte| byte == b' ' || byte == b'\t')
}

/// Neither blank nor the start of a document; possibly a comment.
fn is_data(line: &str) -> bool {
    !is_blank(line) && split(line, false).next() != Some(DOCUMENT_START)
}

/// The columns of a line.
fn split(line: &str, tabs: bool) -> impl Iterator<Item = &str> {
    let separators: &[char] = if tabs { &['\t'] } else { &[' ', '\t'] };
    line.split(separators).filter(move |column| tabs || !column.is_empty())
}

/// The index of a column that may be counted from the end.
fn resolve(column: i32, columns: usize) -> Option<usize> {
    let at = if column < 0 { i64::try_from(columns).ok()? + i64::from(column) } else { i64::from(column) };
    usize::try_from(at).ok().filter(|&at| at < columns)
}
