//! The texts of files with one document per record: JSONL, and Parquet with the feature `parquet`.
//! Called by `documents`, which splits each text as it does a file.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use serde_json::Value;

use super::files::TextFile;
use super::format::TextFormat;
use super::lines::{LimitedLine, Lines};
use crate::error::{CorpusError, DataError};
#[cfg(feature = "parquet")]
use crate::source::table::ParquetTexts;

/// Longer lines of JSONL are refused: one is in memory at a time.
const MAX_RECORD_BYTES: usize = 256 << 20;

/// Iterator over the texts of a file. A record without a text is skipped.
pub(super) enum Records {
    Jsonl {
        lines: Lines,
        field: String,
    },
    #[cfg(feature = "parquet")]
    Parquet(Box<ParquetTexts>),
}

impl Records {
    /// `field` is the key or column with the text. `read` counts the bytes read from disk.
    pub(super) fn open(
        file: TextFile,
        format: TextFormat,
        field: &str,
        read: Arc<AtomicU64>,
    ) -> Result<Self, DataError> {
        match format {
            #[cfg(feature = "parquet")]
            TextFormat::Parquet => Ok(Records::Parquet(Box::new(ParquetTexts::open(&file.path, field, read)?))),
            #[cfg(not(feature = "parquet"))]
            TextFormat::Parquet => Err(crate::error::FinetuneError::NoParquet { path: file.path }.into()),
            _ => Ok(Records::Jsonl { lines: Lines::from_file(file, read)?, field: field.to_owned() }),
        }
    }

    /// The next text that is not empty.
    pub(super) fn next_text(&mut self) -> Result<Option<String>, DataError> {
        loop {
            let text = match self {
                Records::Jsonl { lines, field } => next_object(lines, field)?,
                #[cfg(feature = "parquet")]
                Records::Parquet(texts) => texts.next_text()?,
            };
            match text {
                Some(text) if text.trim().is_empty() => {}
                text => return Ok(text),
            }
        }
    }
}

/// The text of the next line; empty if it has none.
fn next_object(lines: &mut Lines, field: &str) -> Result<Option<String>, DataError> {
    let line = lines.next_limited(MAX_RECORD_BYTES)?;
    let number = lines.lines_read();
    let bad =
        |problem: String| Err(CorpusError::BadObject { path: lines.path().to_owned(), line: number, problem }.into());
    let line = match line {
        None => return Ok(None),
        Some(LimitedLine::TooLong) => return bad(format!("it has more than {} MiB", MAX_RECORD_BYTES >> 20)),
        Some(LimitedLine::Complete(line)) => line,
    };
    let line = line.trim_start_matches('\u{feff}').trim();
    if line.is_empty() {
        return Ok(Some(String::new()));
    }
    match serde_json::from_str(line) {
        Ok(Value::Object(mut object)) => match object.remove(field) {
            Some(Value::String(text)) => Ok(Some(text)),
            Some(Value::Null) => Ok(Some(String::new())),
            Some(_) => bad(format!("the value of `{field}` is not a text; name another field with --field")),
            None => {
                let (path, known) = (lines.path().to_owned(), object.into_iter().map(|(name, _)| name).collect());
                Err(CorpusError::NoField { path, line: number, field: field.to_owned(), known }.into())
            }
        },
        Ok(_) => bad("it is not a JSON object; write one object per line, as {\"text\": \"...\"}".to_owned()),
        Err(reason) => {
            // The reason counts lines within this one line.
            let reason = reason.to_string().replace(" at line 1 column ", " at column ");
            bad(format!("it is not valid JSON: {reason}; write one object per line"))
        }
    }
}
