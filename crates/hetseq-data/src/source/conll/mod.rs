//! Reads files in the style of CoNLL: one word per line with its columns, a blank line after each
//! sentence.
//!
//! Only words, labels and entities are kept. Nothing here knows tag schemes or tokens: that is
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

mod conll_reader;

use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::text::Lines;
use crate::error::{DataError, FinetuneError};
use conll_reader::{COMMENT, ConllLayout, ConllReader, is_data};

const BYTE_ORDER_MARK: char = '\u{feff}';

/// Which columns are read. Negative numbers count from the end: -1 is the last column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConllColumns {
    pub token_column: i32,
    pub label_column: i32,
    /// The entity of a word, for entity linking. Not read if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entity_column: Option<i32>,
}

impl Default for ConllColumns {
    fn default() -> Self {
        ConllColumns { token_column: 0, label_column: -1, entity_column: None }
    }
}

/// Whether a file must have a label column, and an entity column if one is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConllLabels {
    Required,
    /// For prediction: without the column, or if it is one of the others, the file has no labels or
    /// no entities.
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
    /// Empty without labels.
    labels: WordColumn,
    /// Empty without entities.
    entities: WordColumn,
}

/// A value for each word.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct WordColumn {
    /// Different values, in the order of their first use.
    names: Vec<String>,
    /// Indices into `names`, one per word.
    indices: Vec<u32>,
}

impl WordColumn {
    fn get(&self, word: usize) -> Option<&str> {
        self.names.get(*self.indices.get(word)? as usize).map(String::as_str)
    }
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
            layout = Some(ConllLayout::new(line, head.len(), &path, columns, labels)?);
            break;
        }
        let Some(layout) = layout else { return Err(FinetuneError::NoSentences { path }.into()) };
        let mut reader = ConllReader::new(path, layout);
        for line in head.into_iter().map(Ok).chain(lines) {
            reader.add(&line?)?;
        }
        Ok(reader.finish())
    }

    fn empty(path: PathBuf) -> Self {
        ConllFile {
            path,
            text: String::new(),
            word_ends: Vec::new(),
            lines: Vec::new(),
            sentence_ends: Vec::new(),
            documents: 0,
            labels: WordColumn::default(),
            entities: WordColumn::default(),
        }
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
        !self.labels.indices.is_empty()
    }

    pub fn has_entities(&self) -> bool {
        !self.entities.indices.is_empty()
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
        self.labels.get(word)
    }

    /// The text in the entity column of a word, if the file has entities. It may be empty.
    pub fn entity(&self, word: usize) -> Option<&str> {
        self.entities.get(word)
    }

    /// The line of a word, from 1.
    pub fn line(&self, word: usize) -> usize {
        self.lines.get(word).copied().unwrap_or(0)
    }

    /// Different labels, in the order of their first use.
    pub fn label_names(&self) -> &[String] {
        &self.labels.names
    }

    /// The labels as indices into [`ConllFile::label_names`], one per word; empty without labels.
    pub(crate) fn label_indices(&self) -> &[u32] {
        &self.labels.indices
    }
}
