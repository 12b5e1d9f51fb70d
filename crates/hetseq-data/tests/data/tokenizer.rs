//! Compares our tokens with those of transformers' `BertTokenizerFast`, recorded by
//! scripts/fixtures/tokens.py, and tests reading and writing tokenizers.

use hetseq_data::tokenize::{BertWords, Tokenizer, TrainOptions, WordCounts, train_word_piece};
use serde::Deserialize;

#[derive(Deserialize)]
struct Recorded {
    vocab: Vec<String>,
    lines: Vec<String>,
    uncased: Vec<Vec<u32>>,
    cased: Vec<Vec<u32>>,
}

fn recorded() -> Recorded {
    serde_json::from_str(include_str!("../fixtures/tokens.json")).unwrap()
}

fn encode(tokenizer: &Tokenizer, line: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    tokenizer.encoder().encode(line, &mut ids).unwrap();
    ids
}

#[test]
fn tokens_equal_those_of_transformers() {
    let recorded = recorded();
    assert!(recorded.lines.len() > 350);
    for (cased, expected) in [(false, &recorded.uncased), (true, &recorded.cased)] {
        let tokenizer = Tokenizer::from_tokens(&recorded.vocab, cased).unwrap();
        let mut encoder = tokenizer.encoder();
        for (line, expected) in recorded.lines.iter().zip(expected) {
            // Twice: the second time from the cache.
            for _ in 0..2 {
                let mut ids = Vec::new();
                encoder.encode(line, &mut ids).unwrap();
                assert_eq!(&ids, expected, "{line:?}, cased: {cased}");
            }
        }
    }
}

#[test]
fn a_tokenizer_is_read_back_with_the_same_tokens() {
    let recorded = recorded();
    let dir = tempfile::tempdir().unwrap();
    for cased in [false, true] {
        let written = Tokenizer::from_tokens(&recorded.vocab, cased).unwrap();
        written.write(dir.path()).unwrap();
        let from_json = Tokenizer::read_json(&dir.path().join("tokenizer.json")).unwrap();
        let from_list = Tokenizer::read_vocabulary(&dir.path().join("vocab.txt"), cased).unwrap();
        for read in [from_json, from_list] {
            assert_eq!(read.vocabulary(), written.vocabulary());
            for line in &recorded.lines {
                assert_eq!(encode(&read, line), encode(&written, line), "{line:?}");
            }
        }
        let listed = std::fs::read_to_string(dir.path().join("vocab.txt")).unwrap();
        assert!(listed.lines().eq(recorded.vocab.iter().map(String::as_str)));
    }
    let special = Tokenizer::from_tokens(&recorded.vocab, false).unwrap().vocabulary().special;
    assert_eq!([special.pad, special.unk, special.cls, special.sep, special.mask], [0, 1, 2, 3, 4]);
}

#[test]
fn escapes_of_corpora_are_decoded() {
    let tokenizer = Tokenizer::from_tokens(&recorded().vocab, false).unwrap();
    assert_eq!(
        encode(&tokenizer, "a <unk> is"),
        encode(&tokenizer, "a \u{10ffff} is")
            .iter()
            .copied()
            .take(1)
            .chain([1])
            .chain(encode(&tokenizer, "is"))
            .collect::<Vec<_>>()
    );
    assert_eq!(encode(&tokenizer, "1 @,@ 000 @.@ 5 @-@ x"), encode(&tokenizer, "1,000.5-x"));
}

#[test]
fn a_trained_vocabulary_encodes_its_text() {
    let text = "the sea is wide and the sea is deep and they see the sea";
    let mut counts = WordCounts::default();
    counts.count(&BertWords::new(false), text, &mut String::new());
    let vocabulary = train_word_piece(&counts.into_sorted(), &TrainOptions::for_word_piece(200));
    let tokenizer = Tokenizer::from_tokens(&vocabulary, false).unwrap();
    let ids = encode(&tokenizer, text);
    assert!(ids.iter().all(|&id| id > 4), "nothing is unknown");
    assert!(ids.len() < text.len() / 2);
    assert!(tokenizer.vocabulary().continues_word(vocabulary.iter().position(|t| t.starts_with("##")).unwrap() as u32));
}

#[test]
fn the_config_decides_whether_a_vocabulary_is_cased_or_else_its_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vocab.txt");
    let special = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n[unused1]\n[";
    // A word in capitals is known to a tokenizer that lowers case, and unknown to one that does
    // not.
    let lowers = |word: &str| encode(&Tokenizer::read(&path).unwrap(), word) != [1];
    for (words, word, expected) in [
        ("sea\nwide", "SEA", true),
        ("sea\nWide", "SEA", false),
        ("море\nширь", "МОРЕ", true),
        ("море\nШирь", "МОРЕ", false),
        ("κυμα\nΚυμα", "ΚΥΜΑ", false),
        // A mathematical capital has no lower case, so lowering case does not change it.
        ("sea\n\u{1d400}", "SEA", true),
        ("sea\n[X", "SEA", false),
    ] {
        std::fs::write(&path, format!("{special}\n{words}\n")).unwrap();
        assert_eq!(lowers(word), expected, "{words:?}");
    }

    std::fs::write(&path, format!("{special}\nsea\nWide\n")).unwrap();
    let config = dir.path().join("tokenizer_config.json");
    for (json, expected) in [
        (r#"{ "do_lower_case": true }"#, true),
        (r#"{ "do_lower_case": false }"#, false),
        (r#"{ "model_max_length": 512 }"#, false),
    ] {
        std::fs::write(&config, json).unwrap();
        assert_eq!(lowers("SEA"), expected, "{json}");
    }
    std::fs::write(&config, "{").unwrap();
    let error = Tokenizer::read(dir.path()).unwrap_err().to_string();
    assert!(error.contains("tokenizer_config.json"), "{error}");
}

#[test]
fn tokenizers_are_compared_by_their_ids() {
    let tokens: Vec<String> = recorded().vocab;
    let tokenizer = |tokens: &[String], cased| Tokenizer::from_tokens(tokens, cased).unwrap();
    let one = tokenizer(&tokens, false);
    assert!(one.same_ids(&one) && one.same_ids(&tokenizer(&tokens, true)));
    let mut swapped = tokens.clone();
    swapped.swap(10, 11);
    assert_eq!(tokenizer(&swapped, false).vocabulary().size(), one.vocabulary().size());
    assert!(!one.same_ids(&tokenizer(&swapped, false)));
    assert!(!one.same_ids(&tokenizer(&tokens[..tokens.len() - 1], false)));
    let mut longer = tokens;
    longer.push("onemore".to_owned());
    assert!(!one.same_ids(&tokenizer(&longer, false)) && !tokenizer(&longer, false).same_ids(&one));
}

#[test]
fn invalid_tokenizer_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vocab.txt");
    std::fs::write(&path, "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n").unwrap();
    let error = Tokenizer::read_vocabulary(&path, false).unwrap_err().to_string();
    assert!(error.contains("vocab.txt") && error.contains("[MASK]"), "{error}");
    std::fs::write(&path, "{ \"model\": 5 }").unwrap();
    let error = Tokenizer::read_json(&path).unwrap_err().to_string();
    assert!(error.contains("vocab.txt") && error.contains("is not a valid tokenizer"), "{error}");
    // Truncated inside its decoder.
    std::fs::write(&path, "{ \"version\": \"1.0\", \"decoder\": { \"type\"").unwrap();
    let error = Tokenizer::read_json(&path).unwrap_err().to_string();
    assert!(error.contains("is not a valid tokenizer: EOF while parsing"), "{error}");
    assert!(Tokenizer::read_json(&dir.path().join("none.json")).unwrap_err().to_string().contains("none.json"));
}

#[test]
fn a_huge_id_is_refused_before_memory_is_allocated() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    let tokens: Vec<String> = recorded().vocab;
    Tokenizer::from_tokens(&tokens, false).unwrap().write(dir.path()).unwrap();
    let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for id in [1u32 << 22, 4_000_000_000, u32::MAX] {
        json["model"]["vocab"]["zebra"] = id.into();
        std::fs::write(&path, json.to_string()).unwrap();
        let error = Tokenizer::read_json(&path).unwrap_err().to_string();
        assert!(error.contains("tokenizer.json") && error.contains(&format!("\"zebra\" has the id {id}")), "{error}");
    }
    json["model"]["vocab"]["zebra"] = ((1u32 << 22) - 1).into();
    std::fs::write(&path, json.to_string()).unwrap();
    assert_eq!(Tokenizer::read_json(&path).unwrap().vocabulary().size(), 1 << 22);
}
