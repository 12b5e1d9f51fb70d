//! Tests of samples with a label for each word: windows, labels and batches.

use std::collections::BTreeMap;

use hetseq_data::finetune::{
    ConllColumns, ConllFile, ConllLabels, IGNORED_LABEL, LabelSet, LabelledSamples, LongSentences, TokenSampleConfig,
    TokenSamples,
};
use hetseq_data::tokenize::Tokenizer;
use hetseq_data::{Batch, SampleLengths};
use proptest::prelude::*;

/// A file of sentences, which are lists of words with labels.
fn file(sentences: &[Vec<(&str, &str)>]) -> ConllFile {
    let text: Vec<String> = sentences
        .iter()
        .map(|words| words.iter().map(|(word, label)| format!("{word}\t{label}\n")).collect::<String>())
        .collect();
    read(&text.join("\n"), ConllLabels::Required)
}

fn read(text: &str, labels: ConllLabels) -> ConllFile {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.conll");
    std::fs::write(&path, text).unwrap();
    ConllFile::read(&path, &ConllColumns::default(), labels).unwrap()
}

/// Every letter is a sub-token, except in the words `sea` and `salt`.
pub(crate) fn tokenizer() -> Tokenizer {
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "salt"].map(str::to_owned);
    let letters = ('a'..='e').flat_map(|letter| [letter.to_string(), format!("##{letter}")]);
    Tokenizer::from_tokens(&special.into_iter().chain(letters).collect::<Vec<_>>(), false).unwrap()
}

pub(crate) fn config(max_seq_length: usize) -> TokenSampleConfig {
    TokenSampleConfig { max_seq_length, overlap_words: 2, pad_to_multiple: 4, ..TokenSampleConfig::default() }
}

const UNK: u32 = 1;
const CLS: u32 = 2;
const SEP: u32 = 3;

#[test]
fn the_first_sub_token_or_all_have_the_label() {
    let file = file(&[vec![("sea", "O"), ("abc", "B-x"), ("\u{200b}", "I-x"), ("Salt", "O")]]);
    let labels = LabelSet::found(file.label_names());
    assert_eq!(labels.names(), ["O", "B-x", "I-x"]);
    let ids = vec![CLS, 5, 7, 10, 12, UNK, 6, SEP];
    let first = TokenSamples::new(&file, Some(&labels), &tokenizer(), &config(16)).unwrap();
    assert_eq!(first.token_labels(0).unwrap(), (ids.clone(), vec![-100, 0, 1, -100, -100, 2, 0, -100]));
    assert_eq!(first.positions_per_word(0), [1, 1, 1, 1]);
    assert_eq!(first.counts().empty_words, 1);
    // The other sub-tokens of `B-x` are `I-x`.
    let all = TokenSampleConfig { label_all: true, ..config(16) };
    let all = TokenSamples::new(&file, Some(&labels), &tokenizer(), &all).unwrap();
    assert_eq!(all.token_labels(0).unwrap(), (ids, vec![-100, 0, 1, 2, 2, 2, 0, -100]));
    assert_eq!(all.positions_per_word(0), [1, 3, 1, 1]);
    assert_ne!(first.fingerprint(), all.fingerprint());
}

#[test]
fn long_sentences_are_split_with_context() {
    let sentence = vec![("sea", "O"); 10];
    let file = file(&[sentence, vec![("salt", "B-x")]]);
    let labels = LabelSet::found(file.label_names());
    let samples = TokenSamples::new(&file, Some(&labels), &tokenizer(), &config(8)).unwrap();
    let windows: Vec<_> = (0..3).map(|sample| samples.window(sample).unwrap()).collect();
    let parts: Vec<_> = windows.iter().map(|w| (w.sentence, w.words.clone(), w.labelled.clone())).collect();
    assert_eq!(parts, [(0, 0..6, 0..5), (0, 4..10, 5..10), (1, 0..1, 0..1)]);
    assert_eq!(samples.window(3), None);
    let counts = samples.counts();
    assert_eq!((counts.sentences, counts.words, counts.samples, counts.split_sentences), (2, 11, 3, 1));
    assert_eq!((counts.truncated_sentences, counts.lost_words), (0, 0));
    assert_eq!(samples.token_labels(1).unwrap().1, [-100, -100, 0, 0, 0, 0, 0, -100]);
    assert_eq!(samples.lengths(), SampleLengths::PerSample(vec![8, 8, 4]));
    assert_eq!(samples.longest(), 8);
}

#[test]
fn truncation_loses_the_last_words_and_counts_them() {
    let file = file(&[vec![("sea", "O"), ("abcd", "B-x"), ("abcd", "O"), ("sea", "O")], vec![("sea", "O")]]);
    let labels = LabelSet::found(file.label_names());
    let config = TokenSampleConfig { long_sentences: LongSentences::Truncate, label_all: true, ..config(8) };
    let samples = TokenSamples::new(&file, Some(&labels), &tokenizer(), &config).unwrap();
    // The third word keeps its first sub-token, as with Hugging Face.
    assert_eq!(samples.token_labels(0).unwrap().0, [CLS, 5, 7, 10, 12, 14, 7, SEP]);
    assert_eq!(samples.positions_per_word(0), [1, 4, 1]);
    let counts = samples.counts();
    assert_eq!((counts.truncated_sentences, counts.lost_words, counts.split_sentences), (1, 1, 0));
    // A word that is longer than a sample keeps its first sub-tokens, and its label.
    let file = read("abcdeabcde\tO\nsea\tO\n", ConllLabels::Required);
    let samples = TokenSamples::new(&file, Some(&labels), &tokenizer(), &self::config(8)).unwrap();
    assert_eq!((samples.len(), samples.counts().shortened_words), (2, 1));
    assert_eq!(samples.token_labels(0).unwrap().1, [-100, 0, -100, -100, -100, -100, -100, -100]);
}

#[test]
fn batches_have_positions_and_labels() {
    let file = file(&[vec![("sea", "B-x"), ("ab", "O")], vec![("salt", "O")]]);
    let labels = LabelSet::found(file.label_names());
    let samples = TokenSamples::new(&file, Some(&labels), &tokenizer(), &config(16)).unwrap();
    let batch = samples.collate(&[1, 0]).unwrap();
    batch.check().unwrap();
    assert_eq!(batch.shape("input_ids"), Ok([2, 8]));
    let expected = [[2, 6, 3, 0, 0, 0, 0, 0], [2, 5, 7, 10, 3, 0, 0, 0]].concat();
    assert_eq!(batch.i32s("input_ids").unwrap(), expected);
    assert_eq!(batch.i32s("segment_ids").unwrap(), [0; 16]);
    assert_eq!(batch.i32s("lengths").unwrap(), [3, 5]);
    assert_eq!(batch.i32s("label_positions").unwrap(), [1, 9, 10]);
    assert_eq!(batch.i32s("labels").unwrap(), [0, 1, 0]);
    assert_eq!(batch.counts(), [3]);

    let empty = samples.collate(&[]).unwrap();
    empty.check().unwrap();
    assert_eq!((empty.counts(), empty.shape("labels"), empty.shape("input_ids")), (&[0][..], Ok([0]), Ok([0, 0])));
    let missing = samples.collate(&[0, 7]).unwrap_err().to_string();
    assert_eq!(missing, "there is no sample 7; there are 2");

    let file = read("sea\nab\n", ConllLabels::IfPresent);
    let samples = TokenSamples::new(&file, None, &tokenizer(), &config(16)).unwrap();
    let batch = samples.collate(&[0]).unwrap();
    assert_eq!((batch.counts(), batch.i32s("label_positions").unwrap()), (&[0][..], &[1, 2][..]));
    assert!(!batch.contains("labels"));
    let error = TokenSamples::new(&file, Some(&labels), &tokenizer(), &config(16)).unwrap_err().to_string();
    assert!(error.ends_with("has no labels, but they are needed here; use a file with a label column"), "{error}");
}

#[test]
fn a_label_outside_the_set_is_refused_with_its_line() {
    let labels = LabelSet::found(["O", "B-x"]);
    let file = read("sea\tO\n\nab\tB-x\nsalt\tB-y\nsea\tB-y\n", ConllLabels::Required);
    let error = TokenSamples::new(&file, Some(&labels), &tokenizer(), &config(16)).unwrap_err().to_string();
    let (_, error) = error.split_once("x.conll").unwrap();
    let expected = ", line 4: the label `B-y` is not one of `O`, `B-x`; correct it, or list all labels in the config";
    assert_eq!(error, expected);
}

#[test]
fn fingerprints_differ_with_tokens_labels_and_names() {
    let fingerprint = |word: &str, label: &str, set: &[&str]| {
        let file = file(&[vec![(word, label), ("ab", "O")]]);
        let samples = TokenSamples::new(&file, Some(&LabelSet::found(set)), &tokenizer(), &config(16)).unwrap();
        samples.fingerprint()
    };
    let first = fingerprint("sea", "A", &["O", "A", "B"]);
    assert_eq!(first.len(), 16);
    assert_eq!(first, fingerprint("Sea", "A", &["O", "A", "B"]), "the same tokens");
    assert_ne!(first, fingerprint("salt", "A", &["O", "A", "B"]));
    assert_ne!(first, fingerprint("sea", "B", &["O", "A", "B"]));
    assert_ne!(first, fingerprint("sea", "A", &["O", "A", "C"]), "other names of the labels");
}

#[test]
fn samples_do_not_depend_on_the_number_of_cores() {
    let words = ["sea", "abc", "salt", "\u{200b}", "unknown"];
    let sentence = |at: usize| (0..at % 37 + 1).map(|word| (words[(at * 7 + word) % 5], "O")).collect::<Vec<_>>();
    let file = file(&(0..2000).map(sentence).collect::<Vec<_>>());
    assert!(file.words() > 3 * 4096, "several pieces of parallel work");
    let labels = LabelSet::found(["O"]);
    let fingerprint = |cores| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(cores).build().unwrap();
        pool.install(|| TokenSamples::new(&file, Some(&labels), &tokenizer(), &config(16)).unwrap().fingerprint())
    };
    assert_eq!(fingerprint(1), fingerprint(5));
}

proptest! {
    #[test]
    fn every_word_is_labelled_once_and_rows_are_independent(
        sentences in prop::collection::vec(prop::collection::vec(("[a-f]{1,9}|sea|\u{200b}", 0usize..3), 1..25), 1..6),
        max_seq_length in 8usize..24, overlap_words in 0usize..9, label_all: bool,
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let names = ["O", "B-x", "I-x"];
        let line = |(word, label): &(String, usize)| format!("{word}\t{}\n", names[*label]);
        let text: Vec<String> = sentences.iter().map(|words| words.iter().map(line).collect()).collect();
        let file = read(&text.join("\n"), ConllLabels::Required);
        let config = TokenSampleConfig { overlap_words, label_all, ..config(max_seq_length) };
        let labels = LabelSet::found(names);
        let samples = TokenSamples::new(&file, Some(&labels), &tokenizer(), &config).unwrap();

        let mut found = BTreeMap::new();
        for sample in 0..samples.len() as u32 {
            let window = samples.window(sample).unwrap();
            let (ids, dense) = samples.token_labels(sample).unwrap();
            prop_assert!(ids.len() <= max_seq_length);
            let dense: Vec<i32> = dense.into_iter().filter(|&label| label != IGNORED_LABEL).collect();
            let positions = samples.positions_per_word(sample);
            prop_assert_eq!(positions.iter().sum::<usize>(), dense.len());
            let mut at = 0;
            for (word, positions) in window.labelled.clone().zip(positions) {
                prop_assert!(positions > 0 && (label_all || positions == 1));
                prop_assert_eq!(found.insert((window.sentence, word), dense[at]), None);
                at += positions;
            }
        }
        let expected: BTreeMap<(usize, usize), i32> = (0..)
            .zip(&sentences)
            .flat_map(|(sentence, words)| {
                (0..).zip(words).map(move |(word, (_, label))| ((sentence, word), *label as i32))
            })
            .collect();
        prop_assert_eq!(found, expected);

        let ids: Vec<u32> = order.iter().map(|at| at.index(samples.len()) as u32).collect();
        let batch = samples.collate(&ids).unwrap();
        batch.check().unwrap();
        let [rows, width] = batch.shape("input_ids").unwrap();
        prop_assert_eq!(rows, ids.len());
        let lengths = samples.lengths();
        prop_assert_eq!(width as u32, ids.iter().map(|&id| lengths.tokens(id)).max().unwrap_or(0));
        for (row, &id) in ids.iter().enumerate() {
            prop_assert_eq!(row_of(&batch, row), row_of(&samples.collate(&[id]).unwrap(), 0));
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_give_samples_or_an_error(
        mut bytes in prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(&b"ab\t\n\n O"[..])], 0..200),
        is_gzip in prop::bool::weighted(0.1), max_seq_length in 8usize..20, label_all: bool, truncates: bool,
    ) {
        if is_gzip {
            bytes.splice(..0, [0x1f, 0x8b, 8, 0]);
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.conll");
        // Most random bytes are not UTF-8.
        for bytes in [String::from_utf8_lossy(&bytes).replace('\0', "").into_bytes(), bytes] {
            std::fs::write(&path, bytes).unwrap();
            let Ok(file) = ConllFile::read(&path, &ConllColumns::default(), ConllLabels::IfPresent) else { continue };
            let labels = file.has_labels().then(|| LabelSet::found(file.label_names()));
            let long_sentences = if truncates { LongSentences::Truncate } else { LongSentences::Windows };
            let config = TokenSampleConfig { label_all, long_sentences, ..config(max_seq_length) };
            let samples = TokenSamples::new(&file, labels.as_ref(), &tokenizer(), &config).unwrap();
            let ids: Vec<u32> = (0..samples.len() as u32).collect();
            let batch = samples.collate(&ids).unwrap();
            batch.check().unwrap();
            prop_assert!(batch.shape::<2>("input_ids").unwrap()[1] <= max_seq_length);
            let words: usize = ids.iter().map(|&id| samples.positions_per_word(id).len()).sum();
            prop_assert_eq!(words + samples.counts().lost_words, file.words());
        }
    }
}

/// The tokens of a row without padding, and its labels by column.
fn row_of(batch: &Batch, row: usize) -> (Vec<i32>, Vec<(usize, i32)>) {
    let [_, width] = batch.shape("input_ids").unwrap();
    let length = batch.i32s("lengths").unwrap()[row] as usize;
    let ids = batch.i32s("input_ids").unwrap()[row * width..(row + 1) * width].to_vec();
    assert!(ids[length..].iter().all(|&id| id == 0));
    let positions = batch.i32s("label_positions").unwrap().iter().map(|&position| position as usize);
    let labels = positions.zip(batch.i32s("labels").unwrap());
    let own = labels.filter(|(position, _)| position / width == row);
    (ids[..length].to_vec(), own.map(|(position, &label)| (position % width, label)).collect())
}
