//! Tests of reading CoNLL files: the rules of columns, comments and documents, and refused inputs.

use std::io::Write;
use std::path::Path;

use hetseq_data::source::conll::{ConllColumns, ConllFile, ConllLabels};
use proptest::prelude::*;

fn read_with(bytes: &[u8], token_column: i32, label_column: i32, labels: ConllLabels) -> Result<ConllFile, String> {
    read_columns(bytes, ConllColumns { token_column, label_column, entity_column: None }, labels)
}

fn read_columns(bytes: &[u8], columns: ConllColumns, labels: ConllLabels) -> Result<ConllFile, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.conll");
    std::fs::write(&path, bytes).unwrap();
    let message = |error: hetseq_data::DataError| {
        assert!(error.is_usage(), "{error}");
        error.to_string().replace(&format!("{}/", dir.path().display()), "")
    };
    ConllFile::read(&path, &columns, labels).map_err(message)
}

fn read(text: &str) -> Result<ConllFile, String> {
    read_with(text.as_bytes(), 0, -1, ConllLabels::Required)
}

/// The sentences as `word/label`.
fn sentences(file: &ConllFile) -> Vec<Vec<String>> {
    let word = |word| format!("{}/{}", file.word(word), file.label(word).unwrap_or("?"));
    (0..file.sentences()).map(|sentence| file.sentence(sentence).map(word).collect()).collect()
}

#[test]
fn columns_are_separated_by_tabs_or_spaces() {
    let expected = vec![vec!["a/O", "b/B-x"], vec!["c/O"]];
    for text in [
        "a\tO\nb\tB-x\n\nc\tO\n",
        "a O\nb   B-x\n\n\n\nc O",
        // WNUT 2017 has a tab in its blank lines; CRLF; a byte order mark.
        "\u{feff}a\tO\r\nb\tB-x\r\n\t\r\nc\tO\r\n\r\n",
        // Spaces first decide for spaces, and tabs separate too.
        " a O\nb\tB-x \n  \nc O",
        // Middle columns are not read.
        "a NN x O\nb VB y B-x\n\nc NN z O",
        // Spaces beside a tab do not count.
        "a \tO\nb\t B-x\n\nc\tO\n",
    ] {
        assert_eq!(sentences(&read(text).unwrap()), expected, "{text:?}");
    }
    assert_eq!(sentences(&read("New York\tB-x\nof\tO").unwrap()), [["New York/B-x", "of/O"]]);
    let file = read_with(b"1 a NN O\n2 b VB O\n", 1, 2, ConllLabels::Required).unwrap();
    assert_eq!(sentences(&file), [["a/NN", "b/VB"]]);
    let file = read_with(b"1 a NN O\n2 b VB O\n", -3, -2, ConllLabels::Required).unwrap();
    assert_eq!(sentences(&file), [["a/NN", "b/VB"]]);
}

#[test]
fn comments_and_documents_are_not_words() {
    let text = "# newdoc id = 1\n\n-DOCSTART- -X- -X- O\n\n# text = a\na NN O\n# x\n# NN O\n-DOCSTART-\nb NN O\n";
    let file = read(text).unwrap();
    // `# NN O` has the columns of a word.
    assert_eq!(sentences(&file), [vec!["a/O", "#/O"], vec!["b/O"]]);
    assert_eq!((file.documents(), file.words(), file.line(0), file.line(1), file.line(2)), (2, 3, 6, 8, 10));
    let file = read("a\tO\n#\tO\n#tag\tO\n# comment\nb\tO\n").unwrap();
    assert_eq!(sentences(&file), [["a/O", "#/O", "#tag/O", "b/O"]]);
    assert_eq!(file.documents(), 1);
    // A hash before the first other word is a word too.
    assert_eq!(sentences(&read("# O\na O\n").unwrap()), [["#/O", "a/O"]]);
}

#[test]
fn labels_may_be_absent_in_prediction() {
    let file = read_with(b"a\nb\n\nc\n", 0, -1, ConllLabels::IfPresent).unwrap();
    assert_eq!(sentences(&file), [vec!["a/?", "b/?"], vec!["c/?"]]);
    assert!(!file.has_labels());
    assert!(!read_with(b"a\tb\n", 0, 2, ConllLabels::IfPresent).unwrap().has_labels());
    assert!(read_with(b"a\tO\n", 0, -1, ConllLabels::IfPresent).unwrap().has_labels());
}

#[test]
fn the_entity_column_is_read_if_it_is_given() {
    let read = |text: &str, label_column, entity_column, labels| {
        let columns = ConllColumns { token_column: 0, label_column, entity_column };
        read_columns(text.as_bytes(), columns, labels)
    };
    let entities = |file: &ConllFile| {
        let entity = |word| file.entity(word).map(str::to_owned);
        (0..file.words()).map(entity).collect::<Option<Vec<_>>>()
    };
    let text = "New\tB\t New_York \nYork\tI\tNew_York\nis\tO\t\n";
    let file = read(text, 1, Some(-1), ConllLabels::Required).unwrap();
    assert_eq!(sentences(&file), [["New/B", "York/I", "is/O"]]);
    assert_eq!(entities(&file).unwrap(), ["New_York", "New_York", ""]);
    assert!(file.has_entities() && file.entity(3).is_none());
    let file = read(text, 1, None, ConllLabels::Required).unwrap();
    assert!(!file.has_entities() && entities(&file).is_none());

    // For prediction, the last columns may be missing.
    for (text, has_labels) in [("New\nYork\n", false), ("New B\nYork I\n", true)] {
        let file = read(text, 1, Some(2), ConllLabels::IfPresent).unwrap();
        assert_eq!((file.has_labels(), file.has_entities()), (has_labels, false));
    }
    assert!(!read("New B\n", 1, Some(-1), ConllLabels::IfPresent).unwrap().has_entities());
    assert_eq!(
        read("New B\n", 1, Some(2), ConllLabels::Required).unwrap_err(),
        "x.conll, line 1: there is no column 2, which `entity_column` names: the line has 2 columns, counted from 0, or \
         from -1 at the end; correct `entity_column`"
    );
    for (column, other) in [(0, "token_column"), (-1, "label_column")] {
        assert_eq!(
            read("New B\n", 1, Some(column), ConllLabels::Required).unwrap_err(),
            format!(
                "x.conll, line 1: `{other}` and `entity_column` are the same of 2 columns; use a file with more \
                 columns, or correct the two settings"
            )
        );
    }
}

#[test]
fn gzip_is_decompressed() {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all("sch\u{f6}n O\n".as_bytes()).unwrap();
    let file = read_with(&encoder.finish().unwrap(), 0, -1, ConllLabels::Required).unwrap();
    assert_eq!(sentences(&file), [["sch\u{f6}n/O"]]);
}

#[test]
fn refused_files_have_exact_messages() {
    let same = "every line needs the same columns: correct the line, or put a blank line between sentences";
    for (text, message) in [
        ("a\tO\n\nb\tNN\tO\n", format!("x.conll, line 3: 3 columns but line 1 has 2; {same}")),
        ("\na O\nb\n", format!("x.conll, line 3: 1 column but line 2 has 2; {same}")),
        (
            "a\tO\n\tO\n",
            "x.conll, line 2: the token is empty; write a word in column 0, or leave the line blank".to_owned(),
        ),
        (
            "a\tO\n \tO\n",
            "x.conll, line 2: the token is empty; write a word in column 0, or leave the line blank".to_owned(),
        ),
        ("a\tO\nb\t\n", "x.conll, line 2: the label of `b` is empty; write a label in column 1".to_owned()),
        (
            "a\nb\n",
            "x.conll, line 1: `token_column` and `label_column` are the same of 1 column; use a file with more columns, \
             or correct the two settings"
                .to_owned(),
        ),
    ] {
        assert_eq!(read(text).unwrap_err(), message);
    }
    for empty in ["", "\n\n", "-DOCSTART- O\n\n", "# a comment\n"] {
        assert_eq!(
            read(empty).unwrap_err(),
            "x.conll has no sentences; use a file with one word per line and a blank line after each sentence"
        );
    }
    let column = |token, label| read_with(b"\na O\n", token, label, ConllLabels::Required).unwrap_err();
    let counted = "the line has 2 columns, counted from 0, or from -1 at the end";
    assert_eq!(
        column(2, -1),
        format!("x.conll, line 2: there is no column 2, which `token_column` names: {counted}; correct `token_column`")
    );
    assert_eq!(
        column(0, -3),
        format!(
            "x.conll, line 2: there is no column -3, which `label_column` names: {counted}; correct `label_column`"
        )
    );
    assert_eq!(
        read_with(b"a O\n\xff O\n", 0, -1, ConllLabels::Required).unwrap_err(),
        "x.conll, line 2: it is not UTF-8; fix the line, or convert the file to UTF-8 (`iconv`)"
    );
    let missing = ConllFile::read(Path::new("nowhere.conll"), &ConllColumns::default(), ConllLabels::Required);
    assert_eq!(
        missing.unwrap_err().to_string(),
        "there is no file or directory nowhere.conll; check the path of the text"
    );
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(
        bytes in prop::collection::vec(prop::sample::select(&b"ab# \t\n\r\n-O\xff\xc3\xa9"[..]), 0..60),
        token_column in -3i32..3, label_column in -3i32..3, entity_column in prop::option::of(-3i32..3),
    ) {
        let columns = ConllColumns { token_column, label_column, entity_column };
        for labels in [ConllLabels::Required, ConllLabels::IfPresent] {
            if let Ok(file) = read_columns(&bytes, columns, labels) {
                let words: usize = (0..file.sentences()).map(|sentence| file.sentence(sentence).len()).sum();
                prop_assert_eq!(words, file.words());
                prop_assert!(words > 0 && (0..words).all(|word| !file.word(word).is_empty()));
                prop_assert!((0..words).all(|word| file.label(word).is_some() == file.has_labels()));
                prop_assert!((0..words).all(|word| file.entity(word).is_some() == file.has_entities()));
                prop_assert_eq!((file.sentence(usize::MAX).len(), file.word(words), file.label(words)), (0, "", None));
            }
        }
    }
}
