//! Streams one column of texts of a Parquet file, a row group at a time. Called by
//! [`text`](crate::source::text) for `hetseq prep bert`, with the feature `parquet`.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fs_err as fs;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use parquet::schema::types::Type;

use crate::error::{CorpusError, DataError, FinetuneError};

pub(crate) struct ParquetTexts {
    path: PathBuf,
    reader: SerializedFileReader<std::fs::File>,
    projection: Type,
    /// The row group to read next.
    group: usize,
    /// Texts of the row group before it.
    texts: VecDeque<String>,
    read: Arc<AtomicU64>,
}

impl ParquetTexts {
    /// `read` counts the bytes of the row groups read.
    pub(crate) fn open(path: &Path, field: &str, read: Arc<AtomicU64>) -> Result<Self, DataError> {
        guarded(path, || {
            let file = fs::File::open(path).map_err(|reason| DataError::Io { path: path.to_owned(), reason })?;
            let reader = SerializedFileReader::new(file.into_file()).map_err(|reason| damaged(path, &reason))?;
            let schema = reader.metadata().file_metadata().schema();
            let Some(column) = schema.get_fields().iter().find(|column| column.name() == field) else {
                let known = schema.get_fields().iter().map(|column| column.name().to_owned()).collect();
                let (path, field) = (path.to_owned(), field.to_owned());
                return Err(CorpusError::NoField { path, line: 1, field, known }.into());
            };
            let projection = Type::group_type_builder(schema.name()).with_fields(vec![column.clone()]).build();
            let projection = projection.map_err(|reason| damaged(path, &reason))?;
            Ok(ParquetTexts { path: path.to_owned(), reader, projection, group: 0, texts: VecDeque::new(), read })
        })
    }

    /// The next text; empty for a missing value.
    pub(crate) fn next_text(&mut self) -> Result<Option<String>, DataError> {
        while self.texts.is_empty() && self.group < self.reader.num_row_groups() {
            self.texts = guarded(&self.path, || self.read_group())?;
            self.group += 1;
        }
        Ok(self.texts.pop_front())
    }

    fn read_group(&self) -> Result<VecDeque<String>, DataError> {
        let failed = |reason| damaged(&self.path, &reason);
        let group = self.reader.get_row_group(self.group).map_err(failed)?;
        let mut texts = VecDeque::new();
        for row in group.get_row_iter(Some(self.projection.clone())).map_err(failed)? {
            for (name, value) in row.map_err(failed)?.into_columns() {
                texts.push_back(match value {
                    Field::Str(text) => text,
                    Field::Null => String::new(),
                    _ => {
                        let problem = format!("the column `{name}` has no texts; name another with --field");
                        return Err(FinetuneError::BadFile { path: self.path.clone(), problem }.into());
                    }
                });
            }
        }
        let bytes = u64::try_from(group.metadata().compressed_size()).unwrap_or_default();
        self.read.fetch_add(bytes, Ordering::Relaxed);
        Ok(texts)
    }
}

/// Turns a panic of the Parquet reader, which damaged files can cause, into an error.
fn guarded<T>(path: &Path, read: impl FnOnce() -> Result<T, DataError>) -> Result<T, DataError> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| Err(damaged(path, &"it cannot be decoded")))
}

fn damaged(path: &Path, reason: &dyn std::fmt::Display) -> DataError {
    let problem = format!("this is not a valid Parquet file: {reason}; copy it again");
    FinetuneError::BadFile { path: path.to_owned(), problem }.into()
}
