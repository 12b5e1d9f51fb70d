//! What an input file of `hetseq prep bert` is, by its first bytes and its name: plain text, records
//! of JSONL or Parquet, or a kind of file that is refused with what to do instead. Called before
//! anything is prepared, and when a file is opened.

use std::borrow::Cow;
use std::io::{BufRead, Read};
use std::path::Path;
use std::sync::Arc;

use fs_err as fs;

use super::files::TextFile;
use crate::error::{CorpusError, DataError};

/// Bytes at the beginning of a file that decide.
const BEGINNING_BYTES: u64 = 4096;
const PARQUET_MAGIC: &[u8] = b"PAR1";
/// Where a tar file has its mark.
const TAR_MARK: (usize, &[u8]) = (257, b"ustar");

/// A file that can be prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextFormat {
    Plain,
    /// One JSON object per line.
    Jsonl,
    Parquet,
}

/// Kinds of files that are refused: their first bytes, what they are, and what to do. `FILE` is
/// replaced with the path.
const REFUSED: [(&[u8], &str, &str); 12] = [
    (b"PK\x03\x04", "a zip archive", "unpack it first: unzip FILE"),
    (b"BZh", "compressed with bzip2", "decompress it first: bunzip2 -k FILE"),
    (b"\xfd7zXZ\0", "compressed with xz", "decompress it first: unxz -k FILE"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it first: 7z x FILE"),
    (b"%PDF-", "a PDF file", "extract its text first: pdftotext FILE"),
    (b"SQLite format 3\0", "an SQLite database", "export its text as JSONL first"),
    (b"ARROW1", "an Arrow file", "convert it to JSONL or Parquet first"),
    (b"\x89PNG", "an image", "pass files with text"),
    (b"\xff\xd8\xff", "an image", "pass files with text"),
    (
        b"\x89HDF\r\n\x1a\n",
        "an HDF5 file",
        "shards in NVIDIA's layout need no preparation: set task.data to their directory",
    ),
    (b"\xff\xfe", "text in UTF-16", "convert it first: iconv -f UTF-16 -t UTF-8 FILE > text.txt"),
    (b"\xfe\xff", "text in UTF-16", "convert it first: iconv -f UTF-16 -t UTF-8 FILE > text.txt"),
];

impl TextFormat {
    /// Checks that a file can be prepared, by its beginning.
    pub fn of(file: &TextFile) -> Result<Self, DataError> {
        let failed = |reason| DataError::Io { path: file.path.clone(), reason };
        let mut beginning = Vec::new();
        let source = fs::File::open(&file.path).map_err(failed)?;
        source.take(BEGINNING_BYTES).read_to_end(&mut beginning).map_err(failed)?;
        if beginning.starts_with(PARQUET_MAGIC) {
            return Ok(TextFormat::Parquet);
        }
        // A compressed file is judged by its content.
        beginning.clear();
        let reader: Box<dyn BufRead + Send> = file.open(Arc::default())?;
        reader.take(BEGINNING_BYTES).read_to_end(&mut beginning).map_err(|reason| file.failed(reason))?;
        let refused = |what, remedy| Err(CorpusError::NoTextFile { path: file.path.clone(), what, remedy }.into());
        match judge(&beginning, &file.path) {
            Ok(format) => Ok(format),
            Err((what, remedy)) => refused(what, remedy),
        }
    }
}

/// The format of a file that begins with these bytes, or what it is and what to do.
fn judge(beginning: &[u8], path: &Path) -> Result<TextFormat, (&'static str, String)> {
    let named = path.display().to_string();
    if let Some((_, what, remedy)) = REFUSED.iter().find(|(magic, ..)| beginning.starts_with(magic)) {
        return Err((what, remedy.replace("FILE", &named)));
    }
    if beginning.get(TAR_MARK.0..).is_some_and(|rest| rest.starts_with(TAR_MARK.1)) {
        return Err(("a tar archive", format!("unpack it first: tar -xf {named}")));
    }
    if beginning.contains(&0) {
        let remedy = "remove it from the input, or convert it to text, JSONL or Parquet first";
        return Err(("not text (it has zero bytes)", remedy.to_owned()));
    }
    let text = String::from_utf8_lossy(beginning);
    let text = text.trim_start_matches('\u{feff}').trim_start();
    match extension(path).as_ref() {
        "csv" => return Err(("a table", table_remedy(&named, "csv.DictReader(open(sys.argv[1]))"))),
        "tsv" => return Err(("a table", table_remedy(&named, "csv.DictReader(open(sys.argv[1]), delimiter='\\t')"))),
        "jsonl" | "ndjson" => return Ok(TextFormat::Jsonl),
        "json" if text.starts_with('[') => {
            let remedy = format!("write one object per line first: jq -c '.[]' {named} > text.jsonl");
            return Err(("a JSON array", remedy));
        }
        _ => {}
    }
    let first_line = text.lines().next().unwrap_or_default();
    let is_object = |line: &str| serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(line).is_ok();
    // The first line may be longer than the beginning.
    let is_cut = first_line.len() + 1 >= text.len() && text.starts_with("{\"");
    Ok(if is_object(first_line) || is_cut { TextFormat::Jsonl } else { TextFormat::Plain })
}

fn table_remedy(path: &str, rows: &str) -> String {
    format!(
        "convert it to JSONL first, then name its column with the text: python3 -c \"import csv, json, sys; \
         [print(json.dumps(row)) for row in {rows}]\" {path} > text.jsonl, and --field COLUMN"
    )
}

/// The extension in lower case, without that of the compression.
fn extension(path: &Path) -> Cow<'static, str> {
    let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
    let name = [".gz", ".zst"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(&name);
    name.rsplit_once('.').map_or(Cow::Borrowed(""), |(_, extension)| Cow::Owned(extension.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(name: &str, bytes: &[u8]) -> Result<TextFormat, String> {
        judge(bytes, Path::new(name)).map_err(|(what, remedy)| format!("{what}; {remedy}"))
    }

    #[test]
    fn text_and_records_are_told_apart() {
        for (name, bytes, expected) in [
            ("a.txt", &b"some words"[..], TextFormat::Plain),
            ("a.txt", b"", TextFormat::Plain),
            ("a", b"{curly} words", TextFormat::Plain),
            ("a.jsonl", b"", TextFormat::Jsonl),
            ("a.JSONL.gz", b"{\"text\": 1}", TextFormat::Jsonl),
            ("wiki_00", b"{\"id\": \"1\", \"text\": \"a\"}\n{", TextFormat::Jsonl),
            ("wiki_00", b"{\"id\": \"1\", \"text\": \"a long text that is c", TextFormat::Jsonl),
            ("a.json", b" {\"text\": \"a\"}\n", TextFormat::Jsonl),
        ] {
            assert_eq!(judged(name, bytes), Ok(expected), "{name}");
        }
    }

    #[test]
    fn other_files_are_refused_with_a_remedy() {
        let tar = [vec![b'x'; 257], b"ustar\0".to_vec()].concat();
        for (name, bytes, part) in [
            ("a.zip", &b"PK\x03\x04..."[..], "a zip archive; unpack it first: unzip a.zip"),
            ("a.tar.gz", &tar, "a tar archive; unpack it first: tar -xf a.tar.gz"),
            ("a.txt", b"\xff\xfea\0", "UTF-16"),
            ("a.bin", b"ab\0c", "zero bytes"),
            ("a.csv", b"id,text\n", "--field COLUMN"),
            ("a.tsv.gz", b"id\ttext\n", "delimiter='\\t'"),
            ("a.json", b"[\n{\"text\": \"a\"}]", "jq -c '.[]' a.json"),
            ("a.hdf5", b"\x89HDF\r\n\x1a\n", "set task.data"),
        ] {
            let refused = judged(name, bytes).unwrap_err();
            assert!(refused.contains(part), "{name}: {refused}");
        }
    }
}
