//! Compares the tokens of words with those of Hugging Face for words that were split beforehand:
//! recorded, and computed by the `tokenizers` crate.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use hetseq_data::finetune::{ConllColumns, ConllFile, ConllLabels, LabelSet, TokenSampleConfig, TokenSamples};
use hetseq_data::prep::bert::{PrepFormat, PrepSettings, VocabularySource, prepare};
use hetseq_data::prep::{PrepObserver, PrepOutcome};
use hetseq_data::source::text::DEFAULT_FIELD;
use hetseq_data::tokenize::Tokenizer;
use serde::Deserialize;

const UNK: u32 = 1;

fn read(text: &str) -> ConllFile {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.conll");
    std::fs::write(&path, text).unwrap();
    ConllFile::read(&path, &ConllColumns::default(), ConllLabels::Required).unwrap()
}

#[derive(Deserialize)]
struct SplitWords {
    vocab: Vec<String>,
    sentences: Vec<Vec<String>>,
    uncased: Vec<Vec<Vec<u32>>>,
    cased: Vec<Vec<Vec<u32>>>,
}

/// Recorded by scripts/fixtures/split_words.py with `is_split_into_words=True`.
#[test]
fn words_have_the_tokens_of_transformers() {
    let recorded: SplitWords = serde_json::from_str(include_str!("../fixtures/split_words.json")).unwrap();
    assert!(recorded.sentences.len() > 200);
    let text: String = recorded.sentences.iter().map(|words| words.join("\tO\n") + "\tO\n\n").collect();
    let file = read(&text);
    assert_eq!(file.sentences(), recorded.sentences.len());
    let config = TokenSampleConfig { max_seq_length: 1000, label_all: true, ..TokenSampleConfig::default() };
    for (cased, expected) in [(false, &recorded.uncased), (true, &recorded.cased)] {
        let tokenizer = Tokenizer::from_tokens(&recorded.vocab, cased).unwrap();
        let samples = TokenSamples::new(&file, Some(&LabelSet::found(["O"])), &tokenizer, &config).unwrap();
        for (sample, expected) in expected.iter().enumerate() {
            // A word without tokens is unknown here.
            let or_unknown = |ids: &Vec<u32>| if ids.is_empty() { vec![UNK] } else { ids.clone() };
            let expected: Vec<Vec<u32>> = expected.iter().map(or_unknown).collect();
            let (ids, _) = samples.token_labels(sample as u32).unwrap();
            assert_eq!(ids[1..ids.len() - 1], expected.concat(), "{:?}", recorded.sentences[sample]);
            let lengths: Vec<usize> = expected.iter().map(Vec::len).collect();
            assert_eq!(samples.positions_per_word(sample as u32), lengths);
        }
    }
}

struct Silent;

impl PrepObserver for Silent {
    fn begin(&self, _what: &str, _bytes: u64) {}

    fn progress(&self, _bytes: u64) {}

    fn is_stopped(&self) -> bool {
        false
    }
}

/// Trains a vocabulary on the words of a file, and returns the directory with its `tokenizer.json`.
fn train_vocabulary(file: &ConllFile, dir: &Path, cased: bool) -> PathBuf {
    let mut text = String::new();
    for sentence in 0..file.sentences() {
        let words: Vec<&str> = file.sentence(sentence).map(|word| file.word(word)).collect();
        let _ = writeln!(text, "{}", words.join(" "));
    }
    std::fs::write(dir.join("text.txt"), text).unwrap();
    let output = dir.join(if cased { "cased" } else { "uncased" });
    let settings = PrepSettings {
        inputs: vec![dir.join("text.txt")],
        valid: Vec::new(),
        valid_fraction: 0.0,
        output: output.clone(),
        vocabulary: VocabularySource::Trained { size: 3000, cased },
        sentences: None,
        field: DEFAULT_FIELD.to_owned(),
        format: PrepFormat::Compact,
        shard_mib: None,
        seed: 1,
    };
    assert!(matches!(prepare(&settings, &Silent).unwrap(), PrepOutcome::Finished { .. }));
    output
}

/// Compares all words of a file with the `tokenizers` crate. Returns the numbers of words and of
/// words without tokens.
fn compare(file: &ConllFile) -> (usize, usize) {
    let dir = tempfile::tempdir().unwrap();
    let mut empty = 0;
    for cased in [false, true] {
        let directory = train_vocabulary(file, dir.path(), cased);
        let mut reference = tokenizers::Tokenizer::from_file(directory.join("tokenizer.json")).unwrap();
        reference.set_encode_special_tokens(true);
        let tokenizer = Tokenizer::read(&directory).unwrap();
        let config = TokenSampleConfig { max_seq_length: 4000, label_all: true, ..TokenSampleConfig::default() };
        let labels = LabelSet::found(file.label_names());
        let samples = TokenSamples::new(file, Some(&labels), &tokenizer, &config).unwrap();
        assert_eq!((samples.len(), samples.counts().shortened_words), (file.sentences(), 0));
        for sentence in 0..file.sentences() {
            let words: Vec<&str> = file.sentence(sentence).map(|word| file.word(word)).collect();
            let encoding = reference.encode(&words[..], false).unwrap();
            let mut expected = vec![Vec::new(); words.len()];
            for (&id, word) in encoding.get_ids().iter().zip(encoding.get_word_ids()) {
                expected[word.unwrap() as usize].push(id);
            }
            for ids in expected.iter_mut().filter(|ids| ids.is_empty()) {
                ids.push(UNK);
                empty += 1;
            }
            let (ids, _) = samples.token_labels(sentence as u32).unwrap();
            assert_eq!(ids[1..ids.len() - 1], expected.concat(), "{words:?}");
            let lengths: Vec<usize> = expected.iter().map(Vec::len).collect();
            assert_eq!(samples.positions_per_word(sentence as u32), lengths, "{words:?}");
        }
    }
    (file.words(), empty)
}

#[test]
fn words_have_the_tokens_of_the_tokenizers_crate() {
    let mut text = String::new();
    for at in 0..3000u32 {
        let word = match at % 11 {
            0 => "\u{200b}".to_owned(),
            1 => format!("@user{}", at % 70),
            2 => format!("http://t.co/{at}?a={}", at % 7),
            3 => "@-@".to_owned(),
            4 => "[SEP]".to_owned(),
            5 => format!("Caf\u{e9}{}", at % 13),
            6 => "\u{1f602}\u{fe0f}".to_owned(),
            _ => format!("{}{}", ["sea", "Salt", "deep"][at as usize % 3], ["s", "", "ly", "ness"][at as usize % 4]),
        };
        let _ = writeln!(text, "{word}\tO{}", if at % 23 == 0 { "\n" } else { "" });
    }
    let (words, empty) = compare(&read(&text));
    assert_eq!((words, empty), (3000, 2 * 3000usize.div_ceil(11)));
}

/// `HETSEQ_CONLL=train.conll cargo test -p hetseq-data -- --ignored real_words`
#[test]
#[ignore = "needs a CoNLL file of real text"]
fn real_words_have_the_tokens_of_the_tokenizers_crate() {
    let path = PathBuf::from(std::env::var_os("HETSEQ_CONLL").expect("HETSEQ_CONLL names a file"));
    let file = ConllFile::read(&path, &ConllColumns::default(), ConllLabels::Required).unwrap();
    let (words, empty) = compare(&file);
    eprintln!("{}: {words} words equal, cased and uncased; {empty} without tokens", path.display());
    eprintln!("{}", hetseq_data::finetune::TagReport::new(&file, None));
}
