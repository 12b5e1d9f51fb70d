//! Tests of samples with a label for each text: tables, classes and numbers, pairs, and refused
//! inputs.

use std::path::Path;

use hetseq_data::SampleLengths;
use hetseq_data::finetune::{
    LabelSet, LabelledSamples, SequenceColumns, SequenceFile, SequenceSampleConfig, SequenceSamples, SequenceTarget,
    TableColumn, TableFormat, TableOptions,
};
use hetseq_data::tokenize::Tokenizer;
use proptest::prelude::*;

fn name(name: &str) -> TableColumn {
    TableColumn::Name(name.to_owned())
}

fn numbers(text: usize, second: Option<usize>, label: usize) -> SequenceColumns {
    let number = TableColumn::Number;
    SequenceColumns { text: number(text), second_text: second.map(number), label: number(label) }
}

fn pairs() -> SequenceColumns {
    SequenceColumns { text: name("a"), second_text: Some(name("b")), label: name("y") }
}

fn read_as(file: &str, bytes: &[u8], columns: &SequenceColumns, with_labels: bool) -> Result<SequenceFile, String> {
    read_with(file, bytes, columns, TableOptions::default(), with_labels)
}

fn read_with(
    file: &str,
    bytes: &[u8],
    columns: &SequenceColumns,
    options: TableOptions,
    with_labels: bool,
) -> Result<SequenceFile, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(file);
    std::fs::write(&path, bytes).unwrap();
    let message = |error: hetseq_data::DataError| {
        assert!(error.is_usage(), "{error}");
        error.to_string().replace(&format!("{}/", dir.path().display()), "")
    };
    SequenceFile::read(&path, columns, &options, with_labels).map_err(message)
}

/// The texts and the label of all samples.
fn rows(file: &SequenceFile) -> Vec<(&str, &str, &str)> {
    (0..file.len()).map(|at| (file.text(at, 0), file.text(at, 1), file.label(at).unwrap_or("?"))).collect()
}

/// Every letter is a sub-token.
fn tokenizer() -> Tokenizer {
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"].map(str::to_owned);
    let letters = ('a'..='e').flat_map(|letter| [letter.to_string(), format!("##{letter}")]);
    Tokenizer::from_tokens(&special.into_iter().chain(letters).collect::<Vec<_>>(), false).unwrap()
}

fn config(max_seq_length: usize) -> SequenceSampleConfig {
    SequenceSampleConfig { max_seq_length, pad_to_multiple: 4 }
}

#[test]
fn all_formats_give_the_same_rows() {
    let expected = vec![("say \"hi\"", "x, y", "pos"), ("", "z", "neg")];
    let tsv = "id\ty\tb\ta\r\n1\tpos \tx, y\tsay \"hi\"\r\n\r\n2\tneg\tz\t\r\n";
    let csv = "a,b,y\n\"say \"\"hi\"\"\",\"x, y\",pos\n\n,z, neg\n";
    let jsonl =
        "{\"y\":\"pos\",\"a\":\"say \\\"hi\\\"\",\"b\":\"x, y\",\"c\":[1]}\n\n{\"a\":\"\",\"b\":\"z\",\"y\":\"neg\"}";
    for (file, text) in [("x.tsv", tsv), ("x.csv", csv), ("X.CSV", &format!("\u{feff}{csv}")), ("x.jsonl", jsonl)] {
        let file = read_as(file, text.as_bytes(), &pairs(), true).unwrap();
        assert_eq!(rows(&file), expected);
        assert_eq!((file.texts(), file.line(1)), (2, if text == jsonl { 3 } else { 4 }));
    }
    let file = read_as("x.csv", b"a,b,y\n\"two\nlines\",b,1\nc,d,2\n", &pairs(), true).unwrap();
    assert_eq!((rows(&file), file.line(0), file.line(1)), (vec![("two\nlines", "b", "1"), ("c", "d", "2")], 2, 4));
    let file = read_as("x.jsonl", b"{\"text\": \"a\", \"label\": 1}\n", &SequenceColumns::default(), true).unwrap();
    assert_eq!(rows(&file), [("a", "", "1")]);
}

#[test]
fn columns_by_number_need_no_header() {
    let file = read_as("x.tsv", b"a\t1\nb\t2\n", &numbers(0, None, 1), true).unwrap();
    assert_eq!(rows(&file), [("a", "", "1"), ("b", "", "2")]);
    let options = TableOptions { format: Some(TableFormat::Tsv), header: Some(true) };
    let file = read_with("x.txt", b"text\ty\nb\t2\n", &numbers(0, None, 1), options, true).unwrap();
    assert_eq!(rows(&file), [("b", "", "2")]);
}

#[test]
fn prediction_needs_no_labels_and_keeps_every_line() {
    let file = read_as("x.tsv", b"a\n\nb\n", &numbers(0, None, 9), false).unwrap();
    assert_eq!(rows(&file), [("a", "", "?"), ("", "", "?"), ("b", "", "?")]);
    let samples = SequenceSamples::new(&file, SequenceTarget::None, &tokenizer(), &config(8)).unwrap();
    let batch = samples.collate(&[1, 0]).unwrap();
    assert_eq!((batch.counts(), batch.i32s("input_ids").unwrap()), (&[0][..], &[2, 3, 0, 0, 2, 5, 3, 0][..]));
    assert!(!batch.contains("labels") && !batch.contains("targets"));
    assert_eq!(samples.counts().empty_texts, 1);
    let labels = LabelSet::found(["x"]);
    let error = SequenceSamples::new(&file, SequenceTarget::Class(&labels), &tokenizer(), &config(8)).unwrap_err();
    assert!(error.to_string().contains("has no labels, but they are needed here"), "{error}");
}

#[test]
fn pairs_are_joined_and_truncated() {
    let file =
        read_as("x.csv", b"a,b,y\na b c,d e,pos\na,b c d e a b,neg\na b c d,a b c d,neg\n", &pairs(), true).unwrap();
    let labels = LabelSet::found(file.labels());
    assert_eq!(labels.names(), ["neg", "pos"]);
    let samples = SequenceSamples::new(&file, SequenceTarget::Class(&labels), &tokenizer(), &config(8)).unwrap();
    let batch = samples.collate(&[0, 1, 2]).unwrap();
    batch.check().unwrap();
    let (a, b, c, d, e) = (5, 7, 9, 11, 13);
    let expected = [[2, a, b, c, 3, d, e, 3], [2, a, 3, b, c, d, e, 3], [2, a, b, 3, a, b, c, 3]];
    assert_eq!(batch.i32s("input_ids").unwrap(), expected.concat());
    let segments = [[0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1, 1, 1]];
    assert_eq!(batch.i32s("segment_ids").unwrap(), segments.concat());
    assert_eq!(batch.i32s("lengths").unwrap(), [8, 8, 8]);
    assert_eq!(batch.i32s("labels").unwrap(), [1, 0, 0]);
    assert_eq!(batch.counts(), [3]);
    let counts = samples.counts();
    assert_eq!((counts.samples, counts.truncated_samples, counts.lost_tokens), (3, 2, 5));

    let samples = SequenceSamples::new(&file, SequenceTarget::Class(&labels), &tokenizer(), &config(10)).unwrap();
    assert_eq!(samples.lengths(), SampleLengths::PerSample(vec![8, 10, 10]), "at most the model's positions");
    assert_eq!((samples.longest(), samples.len(), samples.counts().truncated_samples), (10, 3, 1));
    let empty = samples.collate(&[]).unwrap();
    assert_eq!((empty.counts(), empty.shape("input_ids"), empty.shape("labels")), (&[0][..], Ok([0, 0]), Ok([0])));
    assert_eq!(samples.collate(&[3]).unwrap_err().to_string(), "there is no sample 3; there are 3");
}

#[test]
fn numbers_are_targets() {
    let file = read_as("x.tsv", b"text\tlabel\na\t-0.5\nb\t 3e1\n", &SequenceColumns::default(), true).unwrap();
    let samples = SequenceSamples::new(&file, SequenceTarget::Number, &tokenizer(), &config(8)).unwrap();
    let batch = samples.collate(&[1, 0]).unwrap();
    assert_eq!((batch.f32s("targets").unwrap(), batch.counts()), (&[30.0, -0.5][..], &[2][..]));
    for bad in ["x", "", "nan", "inf", "1e99"] {
        let text = format!("text\tlabel\na\t1\nb\t{bad}\n");
        let file = read_as("x.tsv", text.as_bytes(), &SequenceColumns::default(), true).unwrap();
        let error = SequenceSamples::new(&file, SequenceTarget::Number, &tokenizer(), &config(8)).unwrap_err();
        let expected =
            format!("x.tsv, line 3: `{bad}` in column `label` is not a finite number; correct it, or train classes");
        assert!(error.to_string().ends_with(&expected), "{error}");
    }
}

#[test]
fn an_unknown_class_is_refused_with_its_line() {
    let file = read_as("x.tsv", b"text\tlabel\na\tpos\nb\tPos\n", &SequenceColumns::default(), true).unwrap();
    let labels = LabelSet::found(["pos", "neg"]);
    let error = SequenceSamples::new(&file, SequenceTarget::Class(&labels), &tokenizer(), &config(8)).unwrap_err();
    let expected =
        "x.tsv, line 3: the label `Pos` is not one of `neg`, `pos`; correct it, or list all labels in the config";
    assert!(error.to_string().ends_with(expected), "{error}");
    let file = read_as("x.tsv", b"text\tlabel\na\tpos\nb\t \n", &SequenceColumns::default(), true).unwrap();
    let found = LabelSet::found(file.labels());
    let error = SequenceSamples::new(&file, SequenceTarget::Class(&found), &tokenizer(), &config(8)).unwrap_err();
    let expected = "x.tsv, line 3: the label in column `label` is empty; write a class, or remove the line";
    assert!(error.to_string().ends_with(expected), "{error}");
}

#[test]
fn fingerprints_differ_with_texts_and_targets() {
    let samples = |text: &str, number: bool| {
        let file = read_as("x.tsv", format!("text\tlabel\n{text}\n").as_bytes(), &SequenceColumns::default(), true);
        let file = file.unwrap();
        let labels = LabelSet::found(["1", "2"]);
        let target = if number { SequenceTarget::Number } else { SequenceTarget::Class(&labels) };
        SequenceSamples::new(&file, target, &tokenizer(), &config(8)).unwrap().fingerprint()
    };
    let all = [samples("a\t1", false), samples("b\t1", false), samples("a\t2", false), samples("a\t1", true)];
    assert!((0..4).all(|one| (0..one).all(|other| all[one] != all[other])), "{all:?}");
    assert_eq!(all[0], samples("A \t1", false));
}

#[cfg(not(feature = "parquet"))]
#[test]
fn without_the_feature_a_parquet_file_is_refused() {
    let message = "x.parquet is a Parquet file, but this program is built without Parquet; build it with `--features \
                   parquet`, or convert the file to JSONL";
    assert_eq!(read_as("x.parquet", b"PAR1", &SequenceColumns::default(), true).unwrap_err(), message);
}

#[test]
fn refused_tables_have_exact_messages() {
    let named = SequenceColumns::default();
    let by_number = numbers(0, None, 2);
    let quote = "write a quote inside a quoted field twice, as in \"a \"\"b\"\"\"";
    for (file, text, columns, message) in [
        (
            "x.txt",
            "",
            &named,
            "x.txt is not known as a table by its name; use a name that ends in .tsv, .csv or .jsonl, also with .gz, \
             or in .parquet, or set the format"
                .to_owned(),
        ),
        ("x.tsv", "", &named, none("x.tsv")),
        ("x.csv", "text,label\n", &named, none("x.csv")),
        ("x.jsonl", "\n", &named, none("x.jsonl")),
        (
            "x.tsv",
            "text\tclass\na\tb\n",
            &named,
            "x.tsv, line 1: the header has no column `label`, only `text`, `class`; correct the name, or give columns \
             by number if the file has no header"
                .to_owned(),
        ),
        (
            "x.csv",
            "text,label,text\na,b,c\n",
            &named,
            "x.csv, line 1: the header has 2 columns `text`; rename them, or give columns by number".to_owned(),
        ),
        (
            "x.tsv",
            "text\tlabel\na\tb\na\tb\tc\n",
            &named,
            "x.tsv, line 3: 3 columns but line 1 has 2; correct the line: a field must not contain a tab".to_owned(),
        ),
        (
            "x.csv",
            "text,label\na, b,c\n",
            &named,
            "x.csv, line 2: 3 columns but line 1 has 2; correct the line: a field with a comma needs quotes".to_owned(),
        ),
        (
            "x.tsv",
            "a\tb\n",
            &by_number,
            "x.tsv, line 1: there is no column 2: the line has 2 columns, counted from 0".to_owned(),
        ),
        ("x.tsv", "\na\tb\n", &named, "x.tsv, line 1: the first line is empty; remove it".to_owned()),
        (
            "x.jsonl",
            "{}",
            &by_number,
            "x.jsonl: column 0 is given by number, but the values of JSONL have names; use the name".to_owned(),
        ),
        (
            "x.jsonl",
            "{\"text\":\"a\",\"label\":1}\n{\"text\":\"a\"}\n",
            &named,
            "x.jsonl, line 2: there is no key `label`, only `text`; add it, or correct the name".to_owned(),
        ),
        (
            "x.jsonl",
            "{\"text\":null,\"label\":1}\n",
            &named,
            "x.jsonl, line 1: `text` is neither a string nor a number nor a boolean; correct it".to_owned(),
        ),
        (
            "x.jsonl",
            "[1]\n",
            &named,
            "x.jsonl, line 1: this is not a JSON object; write one object per line, as {\"text\": \"...\"}".to_owned(),
        ),
        (
            "x.jsonl",
            "{\"text\":\n",
            &named,
            "x.jsonl, line 1: this is not valid JSON: EOF while parsing a value at column 8; \
             write one object per line"
                .to_owned(),
        ),
        (
            "x.csv",
            "text,label\na,b\n\"c\"d,e\n",
            &named,
            format!("x.csv, line 3: there is text after a closing quote; {quote}"),
        ),
        (
            "x.csv",
            "text,label\na,b\n\"c,d\ne,f\n",
            &named,
            "x.csv, line 3: a quote opens a field here and is never closed; close it, or write it \
             inside quotes and twice"
                .to_owned(),
        ),
        (
            "x.tsv",
            "text\tlabel\na\t\0\n",
            &named,
            "x.tsv, line 2: there is a zero byte, so it is not text; fix the line, or convert the \
             file to UTF-8 (`iconv`)"
                .to_owned(),
        ),
    ] {
        assert_eq!(read_as(file, text.as_bytes(), columns, true).unwrap_err(), message);
    }
    let missing = SequenceFile::read(Path::new("no.csv"), &named, &TableOptions::default(), true).unwrap_err();
    assert_eq!(missing.to_string(), "there is no file or directory no.csv; check the path of the text");
}

fn none(file: &str) -> String {
    format!("{file} has no samples; use a file with at least one line after its header, if it has one")
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(
        bytes in prop::collection::vec(prop::sample::select(&b"ab\",,\t\t\n\n\r{}:1 \xff\xc3\xa9"[..]), 0..60),
        with_labels: bool, header: bool,
    ) {
        for format in [TableFormat::Tsv, TableFormat::Csv, TableFormat::Jsonl] {
            let options = TableOptions { format: Some(format), header: Some(header) };
            for columns in [numbers(0, None, 1), numbers(1, Some(0), 1), pairs()] {
                let Ok(file) = read_with("x", &bytes, &columns, options, with_labels) else { continue };
                prop_assert!(!file.is_empty());
                let labels = LabelSet::found(file.labels());
                let target = if with_labels { SequenceTarget::Class(&labels) } else { SequenceTarget::None };
                let Ok(samples) = SequenceSamples::new(&file, target, &tokenizer(), &config(8)) else {
                    prop_assert!(file.labels().any(str::is_empty), "only empty labels are refused");
                    continue;
                };
                let ids: Vec<u32> = (0..samples.len() as u32).rev().collect();
                let batch = samples.collate(&ids).unwrap();
                batch.check().unwrap();
                let [_, width] = batch.shape("input_ids").unwrap();
                prop_assert!(width <= 8);
                for (row, &id) in ids.iter().enumerate() {
                    let alone = samples.collate(&[id]).unwrap();
                    let length = alone.i32s("lengths").unwrap()[0] as usize;
                    for array in ["input_ids", "segment_ids"] {
                        let row = &batch.i32s(array).unwrap()[row * width..][..length];
                        prop_assert_eq!(row, &alone.i32s(array).unwrap()[..length]);
                    }
                }
            }
        }
    }
}
