//! Tests of tables in Parquet files, which the same crate writes here.

use std::path::Path;
use std::sync::Arc;

use hetseq_data::finetune::{TableColumn, TableFile, TableFormat, TableOptions};
use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, FloatType, Int32Type, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use proptest::prelude::*;

const SCHEMA: &str = "message table {
    required binary text (STRING);
    optional int32 small (INTEGER(8, true));
    required int64 label;
    required float single;
    required double wide;
    required boolean flag;
    required group pair { required int64 inner; }
    required int32 day (DATE);
}";

fn write_column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, std::fs::File>,
    values: &[T::T],
    levels: Option<&[i16]>,
) {
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<T>().write_batch(values, levels, None).unwrap();
    column.close().unwrap();
}

/// Writes the records in groups of two. The last `small` is null.
fn write(path: &Path, texts: &[&str], compression: Compression) {
    let properties = WriterProperties::builder().set_compression(compression).build();
    let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
    let file = std::fs::File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).unwrap();
    for (at, texts) in texts.chunks(2).enumerate() {
        let rows: Vec<i64> = (0..texts.len()).map(|row| (2 * at + row) as i64).collect();
        let mut group = writer.next_row_group().unwrap();
        let bytes: Vec<ByteArray> = texts.iter().map(|text| ByteArray::from(text.as_bytes().to_vec())).collect();
        let is_there: Vec<i16> = rows.iter().map(|&row| i16::from(row < 4)).collect();
        let small: Vec<i32> = rows.iter().filter(|&&row| row < 4).map(|&row| -(row as i32)).collect();
        write_column::<ByteArrayType>(&mut group, &bytes, None);
        write_column::<Int32Type>(&mut group, &small, Some(&is_there));
        write_column::<Int64Type>(
            &mut group,
            &rows.iter().map(|row| row * 1_000_000_000_000).collect::<Vec<_>>(),
            None,
        );
        write_column::<FloatType>(&mut group, &rows.iter().map(|&row| row as f32 / 2.0).collect::<Vec<_>>(), None);
        write_column::<DoubleType>(&mut group, &rows.iter().map(|&row| row as f64 / 10.0).collect::<Vec<_>>(), None);
        write_column::<BoolType>(&mut group, &rows.iter().map(|row| row % 2 == 0).collect::<Vec<_>>(), None);
        write_column::<Int64Type>(&mut group, &rows, None);
        write_column::<Int32Type>(&mut group, &rows.iter().map(|&row| row as i32).collect::<Vec<_>>(), None);
        group.close().unwrap();
    }
    writer.close().unwrap();
}

/// Writes a table of texts in groups of two.
pub(crate) fn write_texts(path: &Path, texts: &[String]) {
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    write(path, &texts, Compression::ZSTD(ZstdLevel::default()));
}

const TEXTS: [&str; 5] = ["a\tb", "sch\u{f6}n", "", "a\nb", "end"];

fn names(names: &[&str]) -> Vec<TableColumn> {
    names.iter().map(|name| TableColumn::Name((*name).to_owned())).collect()
}

fn read(path: &Path, columns: &[TableColumn]) -> Result<Vec<Vec<String>>, String> {
    let table = TableFile::read(path, columns, &TableOptions::default()).map_err(|error| {
        assert!(error.is_usage(), "{error}");
        error.to_string().replace(&format!("{}/", path.parent().unwrap().display()), "")
    })?;
    let record = |record| (0..columns.len()).map(|column| table.cell(record, column).to_owned()).collect();
    Ok((0..table.records()).map(record).collect())
}

#[test]
fn columns_are_read_by_name_or_number() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.parquet");
    for compression in [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::ZSTD(ZstdLevel::default())] {
        write(&path, &TEXTS, compression);
        let columns = names(&["wide", "text", "flag", "single", "label", "text"]);
        let found = read(&path, &columns).unwrap();
        assert_eq!(found.len(), 5);
        assert_eq!(found[1], ["0.1", "sch\u{f6}n", "false", "0.5", "1000000000000", "sch\u{f6}n"]);
        assert_eq!(found[2], ["0.2", "", "true", "1.0", "2000000000000", ""]);
        let texts: Vec<&str> = found.iter().map(|record| record[1].as_str()).collect();
        assert_eq!(texts, TEXTS);
    }
    let found = read(&path, &[TableColumn::Number(2), TableColumn::Number(0)]).unwrap();
    assert_eq!(found[0], ["0", "a\tb"]);
    let other = dir.path().join("x.bin");
    std::fs::rename(&path, &other).unwrap();
    let options = TableOptions { format: Some(TableFormat::Parquet), header: None };
    assert_eq!(TableFile::read(&other, &names(&["text"]), &options).unwrap().line(4), 5);
}

#[test]
fn refused_files_have_exact_messages() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.parquet");
    write(&path, &TEXTS, Compression::SNAPPY);
    for (columns, message) in [
        (names(&["small"]), "x.parquet, line 5: `small` has no value; fill it in, or remove the record"),
        (
            names(&["day"]),
            "x.parquet, line 1: `day` is neither a string nor a number nor a boolean; convert the column",
        ),
        (names(&["pair"]), "x.parquet: the column `pair` is a list or a group; use one of texts or numbers"),
        (
            vec![TableColumn::Number(8)],
            "x.parquet, line 1: there is no column 8: the line has 8 columns, counted from 0",
        ),
    ] {
        assert_eq!(read(&path, &columns).unwrap_err(), message);
    }
    let unknown = read(&path, &names(&["texts"])).unwrap_err();
    assert!(unknown.contains("there is no column `texts`") || unknown.contains("has no column `texts`"), "{unknown}");
    write(&path, &[], Compression::SNAPPY);
    let empty = "x.parquet has no samples; use a file with at least one line after its header, if it has one";
    assert_eq!(read(&path, &names(&["text"])).unwrap_err(), empty);
    std::fs::write(&path, "text\n").unwrap();
    let damaged = read(&path, &names(&["text"])).unwrap_err();
    assert!(damaged.starts_with("x.parquet: this is not a valid Parquet file: "), "{damaged}");
    let missing = read(&dir.path().join("nowhere.parquet"), &names(&["text"])).unwrap_err();
    assert!(missing.contains("nowhere.parquet"), "{missing}");
}

proptest! {
    #[test]
    fn damaged_files_are_read_or_refused(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()), compression in 0usize..3,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.parquet");
        let all = [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::ZSTD(ZstdLevel::default())];
        write(&path, &TEXTS, all[compression]);
        let mut bytes = std::fs::read(&path).unwrap();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        std::fs::write(&path, bytes).unwrap();
        let _ = read(&path, &names(&["text", "label", "single", "wide", "flag"]));
    }
}
