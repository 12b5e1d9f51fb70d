//! A tokenizer whose ids become the same text again: words with the space before them, in pieces.
//!
//! It is a `tokenizer.json` of the `tokenizers` crate, trained here or given. Ours are in Unicode's form C, keep case, begin
//! every word with `▁` for the space before it, and number `</s>` 0, `<unk>` 1 and `<pad>` last, as Marian models do.
//! Called by [`translate`](crate::translate) and by its preparation. For a tokenizer of ours, [`SubwordEncoder`] takes a short
//! cut: it goes from word to word and remembers those it has seen.

use std::path::Path;

use fs_err as fs;
use serde_json::{Map, Value, json};
use tokenizers::{Model, NormalizedString};

use super::encoder::SeenRuns;
use super::spaced::{OPENS_SPECIAL, SPACE};
use super::{TrainOptions, bad, failed, parse, train_merges, train_unigram, vocabulary_size};
use crate::error::DataError;

const EOS: &str = "</s>";
const UNK: &str = "<unk>";
const PAD: &str = "<pad>";
/// In the order of their ids.
const FIRST_TOKENS: [&str; 2] = [EOS, UNK];

/// The ids of the special tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Special {
    pub pad: u32,
    pub eos: u32,
    pub unk: u32,
}

/// Turns lines into ids and ids into lines.
#[derive(Debug, Clone)]
pub struct Subwords {
    inner: tokenizers::Tokenizer,
    special: Special,
    vocabulary: usize,
    /// Whether it takes lines apart as ours do, whatever its model.
    is_ours: bool,
    json: Vec<u8>,
}

impl Subwords {
    /// Trains byte pair encoding on stretches of words ([`each_stretch`](super::each_stretch)) with their counts.
    pub fn train_bpe(words: &[(Box<str>, u64)], size: usize) -> Result<Self, DataError> {
        let trained = train_merges(words, &TrainOptions::of_subwords(size.saturating_sub(1)), &FIRST_TOKENS);
        let tokens = trained.tokens.into_iter().chain([PAD.to_owned()]);
        let vocabulary: Map<String, Value> = tokens.enumerate().map(|(id, token)| (token, id.into())).collect();
        let pad = vocabulary.len() - 1;
        let model = json!({
            "type": "BPE", "dropout": null, "unk_token": UNK, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary, "merges": trained.joins,
        });
        Self::of_model(model, pad)
    }

    /// Trains a unigram model on the same.
    pub fn train_unigram(words: &[(Box<str>, u64)], size: usize) -> Result<Self, DataError> {
        let own = FIRST_TOKENS.len() + 1;
        let pieces = train_unigram(words, &TrainOptions::of_subwords(size.saturating_sub(own)));
        let special = |token: &str| (token.to_owned(), 0.0);
        let first = FIRST_TOKENS.map(special).into_iter();
        let vocabulary: Vec<(String, f64)> = first.chain(pieces).chain([special(PAD)]).collect();
        let pad = vocabulary.len() - 1;
        Self::of_model(json!({ "type": "Unigram", "unk_id": 1, "vocab": vocabulary, "byte_fallback": false }), pad)
    }

    /// Reads a `tokenizer.json` that has the special tokens.
    pub fn read(path: &Path) -> Result<Self, DataError> {
        let json = fs::read(path).map_err(|reason| DataError::Io { path: path.to_owned(), reason })?;
        Self::new(parse(&json, path)?, json, path)
    }

    fn of_model(model: Value, pad: usize) -> Result<Self, DataError> {
        let path = Path::new(super::TOKENIZER_FILE);
        let inner = parse(pipeline(model, pad).to_string().as_bytes(), path)?;
        let json = inner.to_string(true).map_err(failed)? + "\n";
        Self::new(inner, json.into_bytes(), path)
    }

    fn new(mut inner: tokenizers::Tokenizer, json: Vec<u8>, path: &Path) -> Result<Self, DataError> {
        let ids = inner.get_vocab(true);
        let missing: Vec<&str> = [EOS, UNK, PAD].into_iter().filter(|token| !ids.contains_key(*token)).collect();
        let (Some(&eos), Some(&unk), Some(&pad)) = (ids.get(EOS), ids.get(UNK), ids.get(PAD)) else {
            return Err(bad(path, format!("it has no {}, which translation needs", missing.join(" and no "))));
        };
        let vocabulary = vocabulary_size(&ids, path)?;
        // Text is only text, see the head of `tokenize`. And nobody asked to cut or fill sentences.
        inner.set_encode_special_tokens(true);
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|reason| bad(path, reason.to_string()))?;
        let is_ours = is_ours(&inner, &json);
        Ok(Subwords { inner, special: Special { pad, eos, unk }, vocabulary, is_ours, json })
    }

    /// The ids of a line, with `</s>` at the end.
    pub fn encode(&self, line: &str) -> Result<Vec<u32>, DataError> {
        self.encoder().encode(line)
    }

    /// Encodes line after line, and remembers words.
    pub fn encoder(&self) -> SubwordEncoder<'_> {
        SubwordEncoder { subwords: self, seen: SeenRuns::default(), buffer: String::new() }
    }

    /// Plain text; special tokens are left out.
    pub fn decode(&self, ids: &[u32]) -> Result<String, DataError> {
        self.inner.decode(ids, true).map_err(failed)
    }

    pub fn special(&self) -> Special {
        self.special
    }

    /// How many ids there are: all are below.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// The `tokenizer.json`.
    pub fn json(&self) -> &[u8] {
        &self.json
    }
}

/// Encodes line after line.
pub struct SubwordEncoder<'a> {
    subwords: &'a Subwords,
    seen: SeenRuns,
    buffer: String,
}

impl SubwordEncoder<'_> {
    /// The ids of a line, with `</s>` at the end.
    pub fn encode(&mut self, line: &str) -> Result<Vec<u32>, DataError> {
        let Subwords { inner, special, is_ours, .. } = self.subwords;
        let (line, mut ids) = (line.trim(), Vec::new());
        if *is_ours && !line.contains(SPACE) {
            line.split(' ').filter(|_| !line.is_empty()).try_for_each(|word| self.encode_word(word, &mut ids))?;
        } else if !line.is_empty() {
            ids.extend_from_slice(inner.encode_fast(line, false).map_err(failed)?.get_ids());
        }
        // Unigram models of others find their special tokens in text by themselves.
        ids.iter_mut().filter(|id| **id == special.eos || **id == special.pad).for_each(|id| *id = special.unk);
        ids.push(special.eos);
        Ok(ids)
    }

    /// What [`pipeline`] does with a word. Normalising does not look across a space.
    fn encode_word(&mut self, word: &str, ids: &mut Vec<u32>) -> Result<(), DataError> {
        if self.seen.recall(word, ids) {
            return Ok(());
        }
        let start = ids.len();
        self.buffer.clear();
        self.buffer.push(SPACE);
        if word.is_ascii() {
            self.buffer.push_str(word);
        } else {
            let mut normalized = NormalizedString::from(word);
            self.buffer.push_str(normalized.nfc().get());
        }
        let model = self.subwords.inner.get_model();
        for stretch in self.buffer.split_inclusive(OPENS_SPECIAL) {
            ids.extend(model.tokenize(stretch).map_err(failed)?.iter().map(|piece| piece.id));
        }
        self.seen.remember(word, &ids[start..]);
        Ok(())
    }
}

/// Whether a tokenizer does with a line what [`pipeline`] says, and nothing more.
fn is_ours(inner: &tokenizers::Tokenizer, json: &[u8]) -> bool {
    let ours = pipeline(Value::Null, 0);
    let same = |json: Value| ["normalizer", "pre_tokenizer"].iter().all(|part| json[*part] == ours[*part]);
    inner.get_added_tokens_decoder().values().all(|token| token.special) && serde_json::from_slice(json).is_ok_and(same)
}

/// A model with what stands before and after it.
fn pipeline(model: Value, pad: usize) -> Value {
    let added = |(id, token): (usize, &str)| {
        json!({
            "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        })
    };
    let added: Vec<Value> = [(0, EOS), (1, UNK), (pad, PAD)].into_iter().map(added).collect();
    let spaces = json!({ "type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": true });
    // A unigram model would find `</s>` among its pieces, were it not cut in two before.
    let no_special = json!({
        "type": "Split", "pattern": { "String": OPENS_SPECIAL }, "behavior": "MergedWithPrevious", "invert": false,
    });
    let sequence = |id: &str| json!({ "Sequence": { "id": id, "type_id": 0 } });
    let end = json!({ "SpecialToken": { "id": EOS, "type_id": 0 } });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": { "type": "Sequence", "normalizers": [
            { "type": "NFC" }, { "type": "Strip", "strip_left": true, "strip_right": true },
        ] },
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": [spaces.clone(), no_special] },
        "post_processor": {
            "type": "TemplateProcessing", "single": [sequence("A"), end.clone()],
            "pair": [sequence("A"), end.clone(), sequence("B"), end],
            "special_tokens": { EOS: { "id": EOS, "ids": [0], "tokens": [EOS] } },
        },
        "decoder": spaces, "model": model,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use proptest::prelude::*;

    use super::*;
    use crate::tokenize::{WordCounts, each_stretch};

    const TEXT: &str = "A dog barks. Two dogs, a cat and the Zoo! Ein Hund bellt: \u{fc}ber Stra\u{df}en l\u{e4}uft er </s> oft. \
                        <unk> <pad> barking dogs bark (never) \u{201e}bei\u{201c} 12 dogs. x<y/s>z \u{6211}\u{7231}\u{4f60}\u{3002} qwerty uiop";

    /// One of each kind.
    fn trained() -> &'static [Subwords; 2] {
        static TRAINED: OnceLock<[Subwords; 2]> = OnceLock::new();
        TRAINED.get_or_init(|| {
            let (mut counts, mut buffer) = (WordCounts::default(), String::new());
            (0..3).for_each(|_| each_stretch(TEXT, &mut buffer, |stretch| counts.count_word(stretch)));
            let words = counts.into_sorted();
            [Subwords::train_bpe(&words, 400).unwrap(), Subwords::train_unigram(&words, 400).unwrap()]
        })
    }

    #[test]
    fn special_tokens_are_numbered_as_in_marian_models() {
        for tokenizer in trained() {
            let last = tokenizer.vocabulary() as u32 - 1;
            assert_eq!(tokenizer.special(), Special { pad: last, eos: 0, unk: 1 });
            assert!(last > 60, "pieces beside letters: {last}");
        }
    }

    #[test]
    fn text_is_only_text() {
        for tokenizer in trained() {
            let Special { pad, eos, unk } = tokenizer.special();
            for line in ["</s>", "a </s> b", "</s></s>", "<pad> <unk>", "x<unk>", "<<pad>>"] {
                let ids = tokenizer.encode(line).unwrap();
                let (end, text) = ids.split_last().unwrap();
                assert_eq!(*end, eos);
                assert!(!text.iter().any(|id| [pad, eos, unk].contains(id)), "{line}: {ids:?}");
                assert_eq!(tokenizer.decode(&ids).unwrap(), line);
            }
        }
    }

    #[test]
    fn outer_spaces_go_and_unknown_letters_are_one_token() {
        for tokenizer in trained() {
            let ids = |line: &str| tokenizer.encode(line).unwrap();
            assert_eq!(ids("  a dog\t"), ids("a dog"));
            assert_eq!((ids(""), ids(" \u{a0}")), (vec![0], vec![0]));
            assert_eq!(ids("u\u{308}ber"), ids("\u{fc}ber"), "two ways to write one letter");
            let unknown = ids("dog\u{1f600}\u{1f601}");
            assert_eq!(unknown.iter().filter(|&&id| id == 1).count(), 1, "{unknown:?}");
            assert_eq!(tokenizer.decode(&unknown).unwrap(), "dog");
            assert_ne!(ids("dog"), ids("Dog"), "case is kept");
        }
    }

    #[test]
    fn what_is_written_is_read_again_and_what_lacks_a_token_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokenizer.json");
        for tokenizer in trained() {
            fs::write(&path, tokenizer.json()).unwrap();
            let read = Subwords::read(&path).unwrap();
            assert_eq!((read.special(), read.vocabulary()), (tokenizer.special(), tokenizer.vocabulary()));
            assert_eq!(read.encode(TEXT).unwrap(), tokenizer.encode(TEXT).unwrap());
            assert_eq!(read.json(), tokenizer.json());
            let other = String::from_utf8(tokenizer.json().to_vec()).unwrap();
            fs::write(&path, other.replace("<pad>", "<fill>").replace("<unk>", "<what>")).unwrap();
            let error = Subwords::read(&path).unwrap_err().to_string();
            assert!(error.contains("tokenizer.json") && error.contains("no <unk> and no <pad>"), "{error}");
        }
    }

    #[test]
    fn a_unigram_model_of_others_makes_no_special_token_of_text_either() {
        let of_others = String::from_utf8(trained()[1].json().to_vec()).unwrap();
        let mut json: Value = serde_json::from_str(&of_others).unwrap();
        json["pre_tokenizer"] = json["decoder"].clone();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokenizer.json");
        fs::write(&path, json.to_string()).unwrap();
        let ids = Subwords::read(&path).unwrap().encode("a</s>b").unwrap();
        assert_eq!(ids.iter().filter(|&&id| id == 0).count(), 1, "{ids:?}");
        assert!(ids.contains(&1), "unknown instead: {ids:?}");
    }

    proptest! {
        #[test]
        fn the_short_cut_gives_the_ids_of_the_whole_pipeline(
            line in "([a-zA-Z]|[<>/ .]|\\PC|[\u{300}-\u{304}]|[\u{a0}\u{2000}\u{2581}\t]|<pad>|</s>){0,30}"
        ) {
            for tokenizer in trained() {
                prop_assert!(tokenizer.is_ours);
                let encoding = tokenizer.inner.encode_fast(line.as_str(), true).unwrap();
                let expected = if line.trim().is_empty() { &[0] } else { encoding.get_ids() };
                prop_assert_eq!(tokenizer.encode(&line).unwrap(), expected);
            }
        }

        #[test]
        fn ids_become_the_line_again(words in prop::collection::vec("[A-Za-z.,:!()</>12\u{e4}\u{fc}\u{df}\u{201e}\u{6211}\u{3002}]{1,12}", 1..8)) {
            let known: Vec<char> = TEXT.chars().collect();
            let words: Vec<String> = words
                .iter()
                .map(|word| word.chars().filter(|letter| known.contains(letter)).collect::<String>())
                .filter(|word| !word.is_empty())
                .collect();
            let line = words.join(" ");
            for tokenizer in trained() {
                let ids = tokenizer.encode(&line).unwrap();
                prop_assert_eq!(ids.iter().filter(|&&id| id == tokenizer.special().eos).count(), 1);
                prop_assert_eq!(tokenizer.decode(&ids).unwrap(), line.clone());
            }
        }
    }
}
