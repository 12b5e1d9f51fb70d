//! Errors of labelled text for fine-tuning: CoNLL files, tables, label sets and entity embeddings.
//!
//! Part of [`DataError`](super::DataError), in a separate enum for the same reason as
//! [`CorpusError`](super::CorpusError).

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum FinetuneError {
    #[error(
        "{}, line {line}: {} but line {first_line} has {expected}; every line needs the same columns: correct the \
         line, or put a blank line between sentences",
        .path.display(),
        counted(*.columns, "column")
    )]
    ConllColumns { path: PathBuf, line: usize, columns: usize, first_line: usize, expected: usize },

    #[error(
        "{}, line {line}: the token is empty; write a word in column {column}, or leave the line blank",
        .path.display()
    )]
    EmptyToken { path: PathBuf, line: usize, column: usize },

    #[error("{}, line {line}: the label of `{token}` is empty; write a label in column {column}", .path.display())]
    EmptyLabel { path: PathBuf, line: usize, column: usize, token: String },

    #[error(
        "{} has no sentences; use a file with one word per line and a blank line after each sentence",
        .path.display()
    )]
    NoSentences { path: PathBuf },

    #[error(
        "{}, line {line}: there is no column {column}, which `{setting}` names: the line has {}, counted from 0, or \
         from -1 at the end; correct `{setting}`",
        .path.display(),
        counted(*.columns, "column")
    )]
    NoConllColumn { path: PathBuf, line: usize, setting: &'static str, column: i32, columns: usize },

    #[error(
        "{}, line {line}: `{other}` and `{setting}` are the same of {}; use a file with more columns, or correct the \
         two settings",
        .path.display(),
        counted(*.columns, "column")
    )]
    SameConllColumn { path: PathBuf, line: usize, setting: &'static str, other: &'static str, columns: usize },

    #[error(
        "{}, line {line}: the label `{label}` is not one of {}; correct it, or list all labels in the config",
        .path.display(),
        listed(.known)
    )]
    UnknownLabel { path: PathBuf, line: usize, label: String, known: Vec<String> },

    #[error(
        "{}, line {line}: the label in column `{column}` is empty; write a class, or remove the line",
        .path.display()
    )]
    EmptyClass { path: PathBuf, line: usize, column: String },

    #[error("{} has no labels, but they are needed here; use a file with a label column", .path.display())]
    Unlabelled { path: PathBuf },

    #[error("the label set is not valid: {problem}")]
    BadLabelSet { problem: String },

    #[error(
        "{} is not known as a table by its name; use a name that ends in .tsv, .csv or .jsonl, also with .gz, or in \
         .parquet, or set the format",
        .path.display()
    )]
    UnknownTableFormat { path: PathBuf },

    #[error(
        "{} is a Parquet file, but this program is built without Parquet; build it with `--features parquet`, or \
         convert the file to JSONL",
        .path.display()
    )]
    NoParquet { path: PathBuf },

    #[error(
        "{}, line {line}: {} but line {first_line} has {expected}; correct the line: {hint}",
        .path.display(),
        counted(*.columns, "column")
    )]
    TableColumns { path: PathBuf, line: usize, columns: usize, first_line: usize, expected: usize, hint: &'static str },

    #[error(
        "{}, line {line}: the header has no column `{column}`, only {}; correct the name, or give columns by number if \
         the file has no header",
        .path.display(),
        listed(.known)
    )]
    NoSuchColumn { path: PathBuf, line: usize, column: String, known: Vec<String> },

    #[error(
        "{}, line {line}: the header has {times} columns `{column}`; rename them, or give columns by number",
        .path.display()
    )]
    RepeatedColumn { path: PathBuf, line: usize, column: String, times: usize },

    #[error(
        "{}, line {line}: there is no column {column}: the line has {}, counted from 0",
        .path.display(),
        counted(*.columns, "column")
    )]
    ColumnBeyondEnd { path: PathBuf, line: usize, column: usize, columns: usize },

    #[error(
        "{}: column {column} is given by number, but the values of JSONL have names; use the name",
        .path.display()
    )]
    NumberedKey { path: PathBuf, column: usize },

    #[error(
        "{}, line {line}: there is no key `{key}`, only {}; add it, or correct the name",
        .path.display(),
        listed(.known)
    )]
    NoSuchKey { path: PathBuf, line: usize, key: String, known: Vec<String> },

    /// `problem` also says what to do.
    #[error("{}, line {line}: {problem}", .path.display())]
    BadRecord { path: PathBuf, line: usize, problem: String },

    #[error(
        "{}, line {line}: the entity is `{entity}`, but the mention begins in line {first_line} with `{first}`; give all \
         words of a mention one entity, or begin a mention with `B`",
        .path.display()
    )]
    TwoEntities { path: PathBuf, line: usize, entity: String, first_line: usize, first: String },

    #[error(
        "{} has no entities, but they are needed here; use a file with an entity column, and set `entity_column`",
        .path.display()
    )]
    NoEntities { path: PathBuf },

    /// `problem` also says what to do.
    #[error("{}: {problem}", .path.display())]
    BadFile { path: PathBuf, problem: String },

    #[error(
        "{}, line {line}: `{text}` in column `{column}` is not a finite number; correct it, or train classes",
        .path.display()
    )]
    BadNumber { path: PathBuf, line: usize, column: String, text: String },

    #[error("{} has no samples; use a file with at least one line after its header, if it has one", .path.display())]
    NoRecords { path: PathBuf },
}

fn counted(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Long lists are cut: a message is one line.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 20;
    let shown: Vec<&str> = names.iter().take(SHOWN).map(String::as_str).collect();
    match names.len() {
        0 => "none".to_owned(),
        all if all > SHOWN => format!("`{}` and {} others", shown.join("`, `"), all - SHOWN),
        _ => format!("`{}`", shown.join("`, `")),
    }
}
