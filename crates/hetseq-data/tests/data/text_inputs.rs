//! `hetseq prep bert` reads the same text from plain, compressed and record files, and writes the
//! same tokens; other files are refused before anything is written.

use std::io::Write;
use std::path::{Path, PathBuf};

use hetseq_data::prep::PrepOutcome;
use hetseq_data::prep::bert::{PrepFormat, PrepSettings, VocabularySource, prepare};
use hetseq_data::source::text::DEFAULT_FIELD;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use crate::prep_runs::StopAfter;

const DOCUMENTS: usize = 30;

fn document(number: usize) -> String {
    let lines = (0..8).map(|line| format!("The ship {number} sailed {line} miles past the island .\n"));
    lines.collect()
}

fn settings(input: PathBuf, output: PathBuf) -> PrepSettings {
    PrepSettings {
        inputs: vec![input],
        valid: Vec::new(),
        valid_fraction: 0.0,
        output,
        vocabulary: VocabularySource::Trained { size: 120, cased: false },
        sentences: None,
        field: DEFAULT_FIELD.to_owned(),
        format: PrepFormat::Compact,
        shard_mib: None,
        seed: 1,
    }
}

/// The first shard of a preparation of one file.
fn shard(dir: &Path, name: &str, bytes: &[u8], field: &str) -> Vec<u8> {
    let path = dir.join(name);
    std::fs::write(&path, bytes).unwrap();
    let output = dir.join(format!("{name}-out"));
    let settings = PrepSettings { field: field.to_owned(), ..settings(path, output.clone()) };
    let prepared = prepare(&settings, &StopAfter::never()).unwrap();
    assert!(matches!(prepared, PrepOutcome::Finished { .. }));
    std::fs::read(output.join("train-00000.tokens")).unwrap()
}

#[test]
fn all_formats_give_the_same_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let plain: String = (0..DOCUMENTS).map(|number| document(number) + "\n").collect();
    let records = |field: &str| -> String {
        (0..DOCUMENTS)
            .map(|number| format!("{}\n", serde_json::json!({ "id": number, field: document(number) })))
            .collect()
    };
    let expected = shard(dir.path(), "a.txt", plain.as_bytes(), "text");
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(plain.as_bytes()).unwrap();
    let zstd = |text: &str| compress_to_vec(text.as_bytes(), CompressionLevel::Fastest);
    assert_eq!(shard(dir.path(), "b.txt.gz", &gzip.finish().unwrap(), "text"), expected);
    assert_eq!(shard(dir.path(), "c.txt.zst", &zstd(&plain), "text"), expected);
    assert_eq!(shard(dir.path(), "d.jsonl", records("text").as_bytes(), "text"), expected);
    assert_eq!(shard(dir.path(), "e.jsonl.zst", &zstd(&records("body")), "body"), expected);
    #[cfg(feature = "parquet")]
    {
        let path = dir.path().join("made.parquet");
        let texts: Vec<String> = (0..DOCUMENTS).map(document).collect();
        crate::parquet_tables::write_texts(&path, &texts);
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(shard(dir.path(), "f.parquet", &bytes, "text"), expected);
    }
}

#[test]
fn other_files_are_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes, part) in [
        ("a.csv", &b"id,text\n1,words\n"[..], "a.csv is a table, which `hetseq prep` does not read"),
        ("a.zip", b"PK\x03\x04", "a zip archive"),
        ("a.txt", b"words\0", "not text (it has zero bytes)"),
    ] {
        let (path, output) = (dir.path().join(name), dir.path().join("out"));
        std::fs::write(&path, bytes).unwrap();
        let error = prepare(&settings(path, output.clone()), &StopAfter::never()).unwrap_err();
        assert!(error.is_usage() && error.to_string().contains(part), "{error}");
        assert!(!output.exists());
    }
}

/// The error comes while words are counted, when the output directory is claimed already.
#[test]
fn the_same_command_works_after_the_input_is_corrected() {
    let dir = tempfile::tempdir().unwrap();
    let (path, output) = (dir.path().join("a.txt"), dir.path().join("out"));
    let text: String = (0..DOCUMENTS).map(|number| document(number) + "\n").collect();
    std::fs::write(&path, [text.as_bytes(), b"sch\xf6n\n"].concat()).unwrap();
    let settings = settings(path.clone(), output);
    let error = prepare(&settings, &StopAfter::never()).unwrap_err().to_string();
    assert!(error.contains("is not UTF-8"), "{error}");
    std::fs::write(&path, text).unwrap();
    assert!(prepare(&settings, &StopAfter::never()).is_ok());
}

#[cfg(not(feature = "parquet"))]
#[test]
fn parquet_needs_its_feature() {
    let dir = tempfile::tempdir().unwrap();
    let (path, output) = (dir.path().join("a.parquet"), dir.path().join("out"));
    std::fs::write(&path, b"PAR1....PAR1").unwrap();
    let error = prepare(&settings(path, output), &StopAfter::never()).unwrap_err().to_string();
    assert!(error.contains("built without Parquet"), "{error}");
}
