//! A table of texts with labels: which columns are texts, and which is the label. Read by the
//! sequence-classification task, which passes it to `SequenceSamples`.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::DataError;
use crate::source::table::{TableColumn, TableFile, TableOptions};

/// The columns of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SequenceColumns {
    pub text: TableColumn,
    /// The second text of a pair.
    pub second_text: Option<TableColumn>,
    /// A class or a number.
    pub label: TableColumn,
}

impl Default for SequenceColumns {
    fn default() -> Self {
        let name = |name: &str| TableColumn::Name(name.to_owned());
        SequenceColumns { text: name("text"), second_text: None, label: name("label") }
    }
}

/// Texts, or pairs of texts, with or without labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SequenceFile {
    table: TableFile,
    /// 1, or 2 for pairs. They are the first columns of the table.
    texts: usize,
    has_labels: bool,
}

impl SequenceFile {
    /// Reads a table. Without `with_labels`, for prediction, the label column is not read and need
    /// not exist.
    pub fn read(
        path: &Path,
        columns: &SequenceColumns,
        options: &TableOptions,
        with_labels: bool,
    ) -> Result<Self, DataError> {
        let SequenceColumns { text, second_text, label } = columns;
        let texts = [Some(text), second_text.as_ref()].into_iter().flatten();
        let request: Vec<TableColumn> = texts.chain(with_labels.then_some(label)).cloned().collect();
        let table = TableFile::read(path, &request, options)?;
        Ok(SequenceFile { table, texts: 1 + usize::from(second_text.is_some()), has_labels: with_labels })
    }

    /// The file, for messages.
    pub fn path(&self) -> &Path {
        self.table.path()
    }

    pub fn len(&self) -> usize {
        self.table.records()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Texts per sample: 1, or 2 for pairs.
    pub fn texts(&self) -> usize {
        self.texts
    }

    /// A text of a sample; empty if there is none.
    pub fn text(&self, sample: usize, text: usize) -> &str {
        if text < self.texts { self.table.cell(sample, text) } else { "" }
    }

    /// The label of a sample without white space around it, if labels were read.
    pub fn label(&self, sample: usize) -> Option<&str> {
        self.has_labels.then(|| self.table.cell(sample, self.texts).trim())
    }

    /// The labels of all samples, in their order.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).filter_map(|sample| self.label(sample))
    }

    /// The line of a sample, from 1.
    pub fn line(&self, sample: usize) -> usize {
        self.table.line(sample)
    }

    /// The name or number of the label column, for messages.
    pub(super) fn label_column(&self) -> String {
        self.table.columns().get(self.texts).map(TableColumn::to_string).unwrap_or_default()
    }
}
