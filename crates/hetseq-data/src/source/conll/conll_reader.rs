//! Collects the words of a CoNLL file line by line. Called by [`ConllFile::read`].

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::{ConllColumns, ConllFile, ConllLabels, WordColumn};
use crate::error::{DataError, FinetuneError};

const DOCUMENT_START: &str = "-DOCSTART-";
pub(super) const COMMENT: &str = "# ";

/// The columns of a file, decided by its first data line.
pub(super) struct ConllLayout {
    tabs: bool,
    columns: usize,
    token: usize,
    label: Option<usize>,
    entity: Option<usize>,
    /// The first data line, from 1.
    first_line: usize,
}

impl ConllLayout {
    pub(super) fn new(
        line: &str,
        number: usize,
        path: &Path,
        wanted: &ConllColumns,
        labels: ConllLabels,
    ) -> Result<Self, DataError> {
        let tabs = line.contains('\t');
        let columns = split(line, tabs).count();
        let missing = |setting, column| {
            let path = path.to_owned();
            DataError::from(FinetuneError::NoConllColumn { path, line: number, setting, column, columns })
        };
        let ConllColumns { token_column, label_column, entity_column } = *wanted;
        let token = resolve(token_column, columns).ok_or_else(|| missing("token_column", token_column))?;
        // A column that must not be one of `others`.
        let find = |setting, column, others: &[(&'static str, usize)]| {
            let found = resolve(column, columns);
            let other = others.iter().find(|(_, other)| found == Some(*other));
            match (found, other, labels) {
                (Some(found), None, _) => Ok(Some(found)),
                (_, _, ConllLabels::IfPresent) => Ok(None),
                (None, _, ConllLabels::Required) => Err(missing(setting, column)),
                (Some(_), Some((other, _)), ConllLabels::Required) => {
                    let path = path.to_owned();
                    Err(FinetuneError::SameConllColumn { path, line: number, setting, other, columns }.into())
                }
            }
        };
        let label = find("label_column", label_column, &[("token_column", token)])?;
        let entity = match entity_column {
            Some(column) => {
                let others = [Some(("token_column", token)), label.map(|label| ("label_column", label))];
                find("entity_column", column, &others.into_iter().flatten().collect::<Vec<_>>())?
            }
            None => None,
        };
        Ok(ConllLayout { tabs, columns, token, label, entity, first_line: number })
    }
}

/// The words read so far.
pub(super) struct ConllReader {
    file: ConllFile,
    layout: ConllLayout,
    line: usize,
    labels: HashMap<String, u32>,
    entities: HashMap<String, u32>,
    /// The number of sentences when the current document began.
    document_start: usize,
}

impl ConllReader {
    pub(super) fn new(path: PathBuf, layout: ConllLayout) -> Self {
        let (file, labels, entities) = (ConllFile::empty(path), HashMap::new(), HashMap::new());
        ConllReader { file, layout, line: 0, labels, entities, document_start: 0 }
    }

    pub(super) fn add(&mut self, line: &str) -> Result<(), DataError> {
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
            self.file.labels.push(label, &mut self.labels);
        }
        if let Some(at) = self.layout.entity {
            self.file.entities.push(column(at), &mut self.entities);
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

    pub(super) fn finish(mut self) -> ConllFile {
        self.end_sentence();
        self.end_document();
        self.file
    }

    fn path(&self) -> PathBuf {
        self.file.path.clone()
    }
}

impl WordColumn {
    /// Adds the value of a word. `indices` are those of the names so far.
    fn push(&mut self, value: &str, indices: &mut HashMap<String, u32>) {
        let index = match indices.get(value) {
            Some(&index) => index,
            None => {
                let index = self.names.len() as u32;
                self.names.push(value.to_owned());
                indices.insert(value.to_owned(), index);
                index
            }
        };
        self.indices.push(index);
    }
}

fn is_blank(line: &str) -> bool {
    line.bytes().all(|byte| byte == b' ' || byte == b'\t')
}

/// Neither blank nor the start of a document; possibly a comment.
pub(super) fn is_data(line: &str) -> bool {
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
