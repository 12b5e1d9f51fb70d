//! A subword tokenizer whose ids can be decoded into the same text. Called by
//! [`translate`](crate::translate) and its preparation.
//!
//! It is a `tokenizer.json` of the `tokenizers` crate, trained here or read from a file. Those
//! trained here normalise text to Unicode's form C, keep case, begin every word with `▁` for the
//! space before it, and number `</s>` 0, `<unk>` 1 and `<pad>` last, as Marian models do. For
//! these, [`SubwordEncoder`] has a fast path: it encodes word by word, with a cache.

use std::path::Path;

use fs_err as fs;
use serde_json::{Map, Value, json};
use tokenizers::{Model, NormalizedString};

use super::encoder::ChunkCache;
use super::pre_tokens::{OPENS_SPECIAL, SPACE};
use super::{TrainOptions, bad, failed, parse, train_bpe, train_unigram, vocabulary_size};
use crate::error::DataError;

const EOS: &str = "</s>";
const UNK: &str = "<unk>";
const PAD: &str = "<pad>";
/// The first tokens, in the order of their ids.
const FIRST_TOKENS: [&str; 2] = [EOS, UNK];

/// The ids of the special tokens of [`Subwords`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubwordSpecialTokens {
    pub pad: u32,
    pub eos: u32,
    pub unk: u32,
}

/// A tokenizer that encodes lines into ids and decodes ids into lines.
#[derive(Debug, Clone)]
pub struct Subwords {
    inner: tokenizers::Tokenizer,
    special: SubwordSpecialTokens,
    vocabulary: usize,
    /// Whether it normalises and splits lines as [`pipeline`] does, with any model.
    has_our_pipeline: bool,
    json: Vec<u8>,
}

impl Subwords {
    /// Trains byte pair encoding on pre-tokens ([`for_each_pre_token`](super::for_each_pre_token))
    /// with their counts.
    pub fn train_bpe(words: &[(Box<str>, u64)], size: usize) -> Result<Self, DataError> {
        let trained = train_bpe(words, &TrainOptions::for_subwords(size.saturating_sub(1)), &FIRST_TOKENS);
        let tokens = trained.tokens.into_iter().chain([PAD.to_owned()]);
        let vocabulary: Map<String, Value> = tokens.enumerate().map(|(id, token)| (token, id.into())).collect();
        let pad = vocabulary.len() - 1;
        let model = json!({
            "type": "BPE", "dropout": null, "unk_token": UNK, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary, "merges": trained.merges,
        });
        Self::from_model(model, pad)
    }

    /// Trains a unigram model on pre-tokens with their counts.
    pub fn train_unigram(words: &[(Box<str>, u64)], size: usize) -> Result<Self, DataError> {
        let special_tokens = FIRST_TOKENS.len() + 1;
        let pieces = train_unigram(words, &TrainOptions::for_subwords(size.saturating_sub(special_tokens)));
        let special = |token: &str| (token.to_owned(), 0.0);
        let first = FIRST_TOKENS.map(special).into_iter();
        let vocabulary: Vec<(String, f64)> = first.chain(pieces).chain([special(PAD)]).collect();
        let pad = vocabulary.len() - 1;
        Self::from_model(json!({ "type": "Unigram", "unk_id": 1, "vocab": vocabulary, "byte_fallback": false }), pad)
    }

    /// Reads a `tokenizer.json`, which must have the special tokens.
    pub fn read(path: &Path) -> Result<Self, DataError> {
        let json = fs::read(path).map_err(|reason| DataError::Io { path: path.to_owned(), reason })?;
        Self::new(parse(&json, path)?, json, path)
    }

    fn from_model(model: Value, pad: usize) -> Result<Self, DataError> {
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
        // Special tokens are never read from text, see `tokenize/mod.rs`. Sentences are neither
        // truncated nor padded.
        inner.set_encode_special_tokens(true);
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|reason| bad(path, reason.to_string()))?;
        let has_our_pipeline = has_our_pipeline(&inner, &json);
        Ok(Subwords { inner, special: SubwordSpecialTokens { pad, eos, unk }, vocabulary, has_our_pipeline, json })
    }

    /// Returns the ids of a line, with `</s>` at the end.
    pub fn encode(&self, line: &str) -> Result<Vec<u32>, DataError> {
        self.encoder().encode(line)
    }

    /// Returns an encoder of lines, with a cache of words.
    pub fn encoder(&self) -> SubwordEncoder<'_> {
        SubwordEncoder { subwords: self, cache: ChunkCache::default(), buffer: String::new() }
    }

    /// Decodes ids into plain text, without special tokens.
    pub fn decode(&self, ids: &[u32]) -> Result<String, DataError> {
        self.inner.decode(ids, true).map_err(failed)
    }

    pub fn special(&self) -> SubwordSpecialTokens {
        self.special
    }

    /// Number of ids. All ids are smaller.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Content of the `tokenizer.json`.
    pub fn json(&self) -> &[u8] {
        &self.json
    }
}

/// Encodes lines, with a cache of words.
pub struct SubwordEncoder<'a> {
    subwords: &'a Subwords,
    cache: ChunkCache,
    buffer: String,
}

impl SubwordEncoder<'_> {
    /// Returns the ids of a line, with `</s>` at the end.
    pub fn encode(&mut self, line: &str) -> Result<Vec<u32>, DataError> {
        let Subwords { inner, special, has_our_pipeline, .. } = self.subwords;
        let (line, mut ids) = (line.trim(), Vec::new());
        if *has_our_pipeline && !line.contains(SPACE) {
            line.split(' ').filter(|_| !line.is_empty()).try_for_each(|word| self.encode_word(word, &mut ids))?;
        } else if !line.is_empty() {
            ids.extend_from_slice(inner.encode_fast(line, false).map_err(failed)?.get_ids());
        }
        // Other unigram models match their special tokens in text.
        ids.iter_mut().filter(|id| **id == special.eos || **id == special.pad).for_each(|id| *id = special.unk);
        ids.push(special.eos);
        Ok(ids)
    }

    /// Encodes a word as [`pipeline`] does. Words are independent, because normalisation does not
    /// cross spaces.
    fn encode_word(&mut self, word: &str, ids: &mut Vec<u32>) -> Result<(), DataError> {
        if self.cache.append_to(word, ids) {
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
        for part in self.buffer.split_inclusive(OPENS_SPECIAL) {
            ids.extend(model.tokenize(part).map_err(failed)?.iter().map(|piece| piece.id));
        }
        self.cache.insert(word, &ids[start..]);
        Ok(())
    }
}

/// Whether a tokenizer normalises and splits lines exactly as [`pipeline`] does.
fn has_our_pipeline(inner: &tokenizers::Tokenizer, json: &[u8]) -> bool {
    let ours = pipeline(Value::Null, 0);
    let is_same = |json: Value| ["normalizer", "pre_tokenizer"].iter().all(|part| json[*part] == ours[*part]);
    inner.get_added_tokens_decoder().values().all(|token| token.special)
        && serde_json::from_slice(json).is_ok_and(is_same)
}

/// Wraps a model in our normaliser, pre-tokenizer, post-processor and decoder.
fn pipeline(model: Value, pad: usize) -> Value {
    let added = |(id, token): (usize, &str)| {
        json!({
            "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        })
    };
    let added: Vec<Value> = [(0, EOS), (1, UNK), (pad, PAD)].into_iter().map(added).collect();
    let spaces = json!({ "type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": true });
    // Without this split, a unigram model would match `</s>` in text as one of its pieces.
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
    use crate::tokenize::{WordCounts, for_each_pre_token};

    const TEXT: &str = "A dog barks. Two dogs, a cat and the Zoo! Ein Hund bellt: \u{fc}ber Stra\u{df}en l\u{e4}uft er </s> oft. \
                        <unk> <pad> barking dogs bark (never) \u{201e}bei\u{201c} 12 dogs. x<y/s>z \u{6211}\u{7231}\u{4f60}\u{3002} qwerty uiop";

    /// One of each kind.
    fn trained() -> &'static [Subwords; 2] {
        static TRAINED: OnceLock<[Subwords; 2]> = OnceLock::new();
        TRAINED.get_or_init(|| {
            let (mut counts, mut buffer) = (WordCounts::default(), String::new());
            (0..3).for_each(|_| for_each_pre_token(TEXT, &mut buffer, |token| counts.count_word(token)));
            let words = counts.into_sorted();
            [Subwords::train_bpe(&words, 400).unwrap(), Subwords::train_unigram(&words, 400).unwrap()]
        })
    }

    #[test]
    fn special_tokens_are_numbered_as_in_marian_models() {
        for tokenizer in trained() {
            let last = tokenizer.vocabulary() as u32 - 1;
            assert_eq!(tokenizer.special(), SubwordSpecialTokens { pad: last, eos: 0, unk: 1 });
            assert!(last > 60, "pieces beside characters: {last}");
        }
    }

    #[test]
    fn special_tokens_are_never_read_from_text() {
        for tokenizer in trained() {
            let SubwordSpecialTokens { pad, eos, unk } = tokenizer.special();
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
    fn outer_spaces_are_dropped_and_unknown_characters_are_one_token() {
        for tokenizer in trained() {
            let ids = |line: &str| tokenizer.encode(line).unwrap();
            assert_eq!(ids("  a dog\t"), ids("a dog"));
            assert_eq!((ids(""), ids(" \u{a0}")), (vec![0], vec![0]));
            assert_eq!(ids("u\u{308}ber"), ids("\u{fc}ber"), "two ways to write one character");
            let unknown = ids("dog\u{1f600}\u{1f601}");
            assert_eq!(unknown.iter().filter(|&&id| id == 1).count(), 1, "{unknown:?}");
            assert_eq!(tokenizer.decode(&unknown).unwrap(), "dog");
            assert_ne!(ids("dog"), ids("Dog"), "case is kept");
        }
    }

    #[test]
    fn a_tokenizer_is_read_back_and_a_missing_token_is_refused() {
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
    fn other_unigram_models_read_no_special_token_from_text() {
        let other = String::from_utf8(trained()[1].json().to_vec()).unwrap();
        let mut json: Value = serde_json::from_str(&other).unwrap();
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
        fn the_fast_path_gives_the_ids_of_the_full_pipeline(
            line in "([a-zA-Z]|[<>/ .]|\\PC|[\u{300}-\u{304}]|[\u{a0}\u{2000}\u{2581}\t]|<pad>|</s>){0,30}"
        ) {
            for tokenizer in trained() {
                prop_assert!(tokenizer.has_our_pipeline);
                let encoding = tokenizer.inner.encode_fast(line.as_str(), true).unwrap();
                let expected = if line.trim().is_empty() { &[0] } else { encoding.get_ids() };
                prop_assert_eq!(tokenizer.encode(&line).unwrap(), expected);
            }
        }

        #[test]
        fn ids_are_decoded_into_the_same_line(words in prop::collection::vec("[A-Za-z.,:!()</>12\u{e4}\u{fc}\u{df}\u{201e}\u{6211}\u{3002}]{1,12}", 1..8)) {
            let known: Vec<char> = TEXT.chars().collect();
            let words: Vec<String> = words
                .iter()
                .map(|word| word.chars().filter(|c| known.contains(c)).collect::<String>())
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
