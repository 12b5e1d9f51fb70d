//! Reads columns of tables: TSV, CSV, JSONL and Parquet, with one sample per record.
//!
//! Only the requested columns are kept, as text. Nothing here knows labels or tokens: that is
//! [`finetune`](crate::finetune), whose caller reads the table first.
//!
//! The rules:
//! - TSV has no quoting: a quote is text, as in the files of GLUE. CSV is quoted by RFC 4180, see
//!   `csv.rs`. JSONL has one object per line; values are strings, numbers or booleans. Parquet needs
//!   the feature `parquet`, see `parquet_rows.rs`; the rules about lines do not concern it.
//! - The first line of TSV and CSV is a header if a column is given by name, or if
//!   [`TableOptions::header`] says so.
//! - All records of TSV and CSV must have as many columns as the first line.
//! - An empty line is skipped, except in a table of one column, where it is an empty text: if it
//!   were skipped, predictions would no longer belong to their lines.
//! - Lines end with LF or CRLF; a byte order mark at the start is dropped; text must be UTF-8.

mod csv;
#[cfg(feature = "parquet")]
mod parquet_rows;
#[cfg(feature = "parquet")]
mod parquet_texts;

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::text::Lines;
use crate::error::{DataError, FinetuneError};
use csv::CsvParser;
#[cfg(feature = "parquet")]
pub(crate) use parquet_texts::ParquetTexts;

const BYTE_ORDER_MARK: char = '\u{feff}';

/// The format of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TableFormat {
    Tsv,
    Csv,
    Jsonl,
    /// Only with the feature `parquet`; else an error that says so.
    Parquet,
}

impl TableFormat {
    /// The format by the name of a file, which may also end in `.gz`.
    pub fn of(path: &Path) -> Result<Self, DataError> {
        let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
        let name = name.strip_suffix(".gz").unwrap_or(&name);
        match name.rsplit_once('.').map(|(_, extension)| extension) {
            Some("tsv" | "tab") => Ok(TableFormat::Tsv),
            Some("csv") => Ok(TableFormat::Csv),
            Some("jsonl" | "ndjson" | "json") => Ok(TableFormat::Jsonl),
            Some("parquet") => Ok(TableFormat::Parquet),
            _ => Err(FinetuneError::UnknownTableFormat { path: path.to_owned() }.into()),
        }
    }
}

/// A column by its name in the header, or its number from 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TableColumn {
    Number(usize),
    Name(String),
}

impl fmt::Display for TableColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TableColumn::Number(number) => write!(f, "{number}"),
            TableColumn::Name(name) => f.write_str(name),
        }
    }
}

/// How a table is read; by default as its name and columns suggest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TableOptions {
    /// By default decided by the name of the file.
    pub format: Option<TableFormat>,
    /// Whether TSV and CSV have a header; by default if a column is given by name.
    pub header: Option<bool>,
}

/// The requested columns of all records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableFile {
    path: PathBuf,
    columns: Vec<TableColumn>,
    /// The first line of each record, from 1.
    lines: Vec<usize>,
    /// All cells, record by record; `cell_ends` are their ends.
    text: String,
    cell_ends: Vec<usize>,
}

/// The columns of TSV and CSV, decided by the first line.
struct RecordLayout {
    /// The indices of the requested columns.
    indices: Vec<usize>,
    first_line: usize,
    columns: usize,
}

impl TableFile {
    /// Reads columns of a file, gzipped or not, or of standard input if the path is `-`.
    pub fn read(path: &Path, columns: &[TableColumn], options: &TableOptions) -> Result<Self, DataError> {
        let format = options.format.map_or_else(|| TableFormat::of(path), Ok)?;
        let mut table = TableFile {
            path: path.to_owned(),
            columns: columns.to_vec(),
            lines: Vec::new(),
            text: String::new(),
            cell_ends: Vec::new(),
        };
        if format == TableFormat::Parquet {
            table.read_parquet()?;
        } else {
            let mut lines = Lines::open(path)?;
            table.path = lines.path().to_owned();
            if format == TableFormat::Jsonl {
                table.read_objects(&mut lines)?;
            } else {
                let by_name = columns.iter().any(|column| matches!(column, TableColumn::Name(_)));
                table.read_records(&mut lines, format, options.header.unwrap_or(by_name))?;
            }
        }
        if table.lines.is_empty() {
            return Err(FinetuneError::NoRecords { path: table.path }.into());
        }
        Ok(table)
    }

    /// The file, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number of records.
    pub fn records(&self) -> usize {
        self.lines.len()
    }

    /// The requested columns.
    pub fn columns(&self) -> &[TableColumn] {
        &self.columns
    }

    /// A value by its record and the position of its column in the request; empty if there is none.
    pub fn cell(&self, record: usize, column: usize) -> &str {
        if column >= self.columns.len() {
            return "";
        }
        let at = record.saturating_mul(self.columns.len()).saturating_add(column);
        let start = at.checked_sub(1).and_then(|before| self.cell_ends.get(before)).copied().unwrap_or(0);
        self.cell_ends.get(at).and_then(|&end| self.text.get(start..end)).unwrap_or_default()
    }

    /// The first line of a record, from 1.
    pub fn line(&self, record: usize) -> usize {
        self.lines.get(record).copied().unwrap_or(0)
    }

    #[cfg(feature = "parquet")]
    fn read_parquet(&mut self) -> Result<(), DataError> {
        parquet_rows::read(self)
    }

    #[cfg(not(feature = "parquet"))]
    fn read_parquet(&mut self) -> Result<(), DataError> {
        Err(FinetuneError::NoParquet { path: self.path.clone() }.into())
    }

    fn read_records(&mut self, lines: &mut Lines, format: TableFormat, header: bool) -> Result<(), DataError> {
        let mut csv = CsvParser::new();
        let mut layout = None;
        // The first line of the record that is read.
        let mut start = 1;
        while let Some(line) = lines.next() {
            let (line, number) = (line?, lines.lines_read());
            let line = if number == 1 { line.trim_start_matches(BYTE_ORDER_MARK) } else { line.as_str() };
            if !csv.is_open() {
                start = number;
            }
            let fields: Vec<String> = match format {
                TableFormat::Csv => match csv.add(line) {
                    None => continue,
                    Some(Ok(fields)) => fields,
                    Some(Err(problem)) => return Err(self.bad(number, problem.text())),
                },
                _ => line.split('\t').map(str::to_owned).collect(),
            };
            let is_empty = line.is_empty() && fields.len() == 1;
            let Some(RecordLayout { indices, first_line, columns: expected }) = &layout else {
                if is_empty {
                    return Err(self.bad(start, "the first line is empty; remove it"));
                }
                let indices = self.indices(&fields, start, header)?;
                if !header {
                    self.add_fields(start, &fields, &indices);
                }
                layout = Some(RecordLayout { indices, first_line: start, columns: fields.len() });
                continue;
            };
            if is_empty && *expected > 1 {
                continue;
            }
            if fields.len() != *expected {
                let hint = match format {
                    TableFormat::Csv => "a field with a comma needs quotes",
                    _ => "a field must not contain a tab",
                };
                let (path, columns, first_line, expected) = (self.path.clone(), fields.len(), *first_line, *expected);
                return Err(
                    FinetuneError::TableColumns { path, line: start, columns, first_line, expected, hint }.into()
                );
            }
            self.add_fields(start, &fields, indices);
        }
        if csv.is_open() { Err(self.bad(start, csv::UNCLOSED)) } else { Ok(()) }
    }

    fn add_fields(&mut self, line: usize, fields: &[String], indices: &[usize]) {
        self.add(line, indices.iter().map(|&at| fields.get(at).map_or("", String::as_str)));
    }

    /// The indices of the requested columns.
    fn indices(&self, first: &[String], line: usize, header: bool) -> Result<Vec<usize>, DataError> {
        let index = |column: &TableColumn| match column {
            TableColumn::Number(number) if *number < first.len() => Ok(*number),
            TableColumn::Number(number) => {
                let (path, columns) = (self.path.clone(), first.len());
                Err(FinetuneError::ColumnBeyondEnd { path, line, column: *number, columns }.into())
            }
            TableColumn::Name(name) => {
                let (path, column) = (self.path.clone(), name.clone());
                let found: Vec<usize> = (0..first.len()).filter(|&at| header && first[at].trim() == name).collect();
                match found[..] {
                    [at] => Ok(at),
                    [] => Err(FinetuneError::NoSuchColumn { path, line, column, known: first.to_vec() }.into()),
                    _ => Err(FinetuneError::RepeatedColumn { path, line, column, times: found.len() }.into()),
                }
            }
        };
        self.columns.iter().map(index).collect()
    }

    fn read_objects(&mut self, lines: &mut Lines) -> Result<(), DataError> {
        let mut names = Vec::new();
        for column in &self.columns {
            match column {
                TableColumn::Name(name) => names.push(name.clone()),
                TableColumn::Number(number) => {
                    return Err(FinetuneError::NumberedKey { path: self.path.clone(), column: *number }.into());
                }
            }
        }
        while let Some(line) = lines.next() {
            let (line, number) = (line?, lines.lines_read());
            let line = if number == 1 { line.trim_start_matches(BYTE_ORDER_MARK) } else { line.as_str() };
            if line.trim().is_empty() {
                continue;
            }
            let object = match serde_json::from_str(line) {
                Ok(Value::Object(object)) => object,
                Ok(_) => {
                    return Err(self
                        .bad(number, "this is not a JSON object; write one object per line, as {\"text\": \"...\"}"));
                }
                Err(reason) => {
                    // The reason counts lines within this one line.
                    let reason = reason.to_string().replace(" at line 1 column ", " at column ");
                    return Err(
                        self.bad(number, &format!("this is not valid JSON: {reason}; write one object per line"))
                    );
                }
            };
            let mut cells = Vec::with_capacity(names.len());
            for name in &names {
                cells.push(match object.get(name) {
                    Some(Value::String(text)) => text.clone(),
                    Some(value @ (Value::Number(_) | Value::Bool(_))) => value.to_string(),
                    Some(_) => {
                        let problem = format!("`{name}` is neither a string nor a number nor a boolean; correct it");
                        return Err(self.bad(number, &problem));
                    }
                    None => {
                        let (path, key, known) = (self.path.clone(), name.clone(), object.keys().cloned().collect());
                        return Err(FinetuneError::NoSuchKey { path, line: number, key, known }.into());
                    }
                });
            }
            self.add(number, cells.iter().map(String::as_str));
        }
        Ok(())
    }

    fn add<'a>(&mut self, line: usize, cells: impl Iterator<Item = &'a str>) {
        self.lines.push(line);
        for cell in cells {
            self.text.push_str(cell);
            self.cell_ends.push(self.text.len());
        }
    }

    fn bad(&self, line: usize, problem: &str) -> DataError {
        FinetuneError::BadRecord { path: self.path.clone(), line, problem: problem.to_owned() }.into()
    }
}
