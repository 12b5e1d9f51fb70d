//! Reads columns of Parquet files, compressed with Snappy or Zstandard or not at all. Called by
//! [`table`](super), with the feature `parquet`.
//!
//! A column is a top-level field of strings, integers, floats or booleans. Its number counts
//! top-level fields. Values become the text that they are in JSONL. A missing value (null) is an
//! error. Record n counts as line n in messages.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use fs_err as fs;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use parquet::schema::types::Type;

use super::TableFile;
use crate::error::{DataError, FinetuneError};

/// Adds all records. A panic of the Parquet reader, which damaged files can cause, becomes an
/// error.
pub(super) fn read(table: &mut TableFile) -> Result<(), DataError> {
    let damaged = bad(table, "this is not a valid Parquet file: it cannot be decoded; copy it again".to_owned());
    catch_unwind(AssertUnwindSafe(|| read_rows(table))).unwrap_or(Err(damaged))
}

fn read_rows(table: &mut TableFile) -> Result<(), DataError> {
    let path = table.path.clone();
    let damaged = |reason| {
        let problem = format!("this is not a valid Parquet file: {reason}; copy it again");
        DataError::from(FinetuneError::BadFile { path: path.clone(), problem })
    };
    let file = fs::File::open(&path).map_err(|reason| DataError::Io { path: path.clone(), reason })?;
    let reader = SerializedFileReader::new(file.into_file()).map_err(damaged)?;
    let schema = reader.metadata().file_metadata().schema();
    let names: Vec<String> = schema.get_fields().iter().map(|field| field.name().to_owned()).collect();
    let indices = table.indices(&names, 1, true)?;

    // Other columns, such as images, are not decoded.
    let mut wanted = indices.clone();
    wanted.sort_unstable();
    wanted.dedup();
    let fields: Vec<Arc<Type>> = wanted.iter().filter_map(|&at| schema.get_fields().get(at).cloned()).collect();
    if let Some(group) = fields.iter().find(|field| !field.is_primitive()) {
        let name = group.name();
        return Err(bad(table, format!("the column `{name}` is a list or a group; use one of texts or numbers")));
    }
    let projection = Type::group_type_builder(schema.name()).with_fields(fields).build().map_err(damaged)?;
    let cells: Vec<Option<usize>> = indices.iter().map(|at| wanted.binary_search(at).ok()).collect();
    for row in reader.get_row_iter(Some(projection)).map_err(damaged)? {
        let line = table.records() + 1;
        let values: Vec<(String, Field)> = row.map_err(damaged)?.into_columns();
        let mut texts = Vec::with_capacity(values.len());
        for (name, value) in &values {
            texts.push(text(value).map_err(|problem| table.bad(line, &format!("`{name}` {problem}")))?);
        }
        let texts = cells.iter().map(|cell| cell.and_then(|at| texts.get(at)).map_or("", String::as_str));
        table.add(line, texts);
    }
    Ok(())
}

/// The value as text, or what is wrong with it.
fn text(value: &Field) -> Result<String, &'static str> {
    Ok(match value {
        Field::Str(text) => text.clone(),
        Field::Bool(value) => value.to_string(),
        Field::Byte(value) => value.to_string(),
        Field::Short(value) => value.to_string(),
        Field::Int(value) => value.to_string(),
        Field::Long(value) => value.to_string(),
        Field::UByte(value) => value.to_string(),
        Field::UShort(value) => value.to_string(),
        Field::UInt(value) => value.to_string(),
        Field::ULong(value) => value.to_string(),
        Field::Float16(value) => format!("{:?}", value.to_f32()),
        Field::Float(value) => format!("{value:?}"),
        Field::Double(value) => format!("{value:?}"),
        Field::Null => return Err("has no value; fill it in, or remove the record"),
        _ => return Err("is neither a string nor a number nor a boolean; convert the column"),
    })
}

fn bad(table: &TableFile, problem: String) -> DataError {
    FinetuneError::BadFile { path: table.path.clone(), problem }.into()
}
