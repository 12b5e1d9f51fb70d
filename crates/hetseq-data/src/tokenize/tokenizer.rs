//! A BERT tokenizer and its files: `tokenizer.json`, `vocab.txt` and `tokenizer_config.json`, which
//! `AutoTokenizer` loads. Called by [`prep`](crate::prep) and by the BERT task.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;

use fs_err as fs;
use serde_json::json;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::processors::bert::BertProcessing;
use tokenizers::{AddedToken, ModelWrapper, NormalizerWrapper, PreTokenizerWrapper};

use super::{
    BertWords, CONTINUATION, SPECIAL_TOKENS, SpecialTokens, TextEncoder, Vocabulary, bad, parse, vocabulary_size,
};
use crate::error::DataError;
use crate::source::bytes::write_atomic;

pub const TOKENIZER_FILE: &str = "tokenizer.json";
pub const VOCABULARY_FILE: &str = "vocab.txt";
pub const CONFIG_FILE: &str = "tokenizer_config.json";

/// The tokens of a text that BERT reads, in all published sizes. Only for the files of a preparation,
/// which knows no model.
const BERT_MAX_LENGTH: usize = 512;

/// Alternative names of the special tokens, in the order of [`SPECIAL_TOKENS`], as in RoBERTa.
const ALTERNATIVE_NAMES: [&str; 5] = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"];

/// A tokenizer of sentences, with BERT's special tokens.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    pub(super) inner: tokenizers::Tokenizer,
    /// Present if this is a BERT tokenizer, which has a fast path.
    pub(super) words: Option<BertWords>,
    vocabulary: Vocabulary,
    names: [&'static str; 5],
}

impl Tokenizer {
    /// Creates a BERT tokenizer from its tokens, in the order of their ids.
    pub fn from_tokens(tokens: &[String], cased: bool) -> Result<Self, DataError> {
        Self::bert(tokens.join("\n").as_bytes(), cased, Path::new(VOCABULARY_FILE))
    }

    /// Reads a `vocab.txt` with one token per line.
    pub fn read_vocabulary(path: &Path, cased: bool) -> Result<Self, DataError> {
        let bytes = fs::read(path).map_err(|reason| DataError::Io { path: path.to_owned(), reason })?;
        Self::bert(&bytes, cased, path)
    }

    /// Reads a `tokenizer.json` of any kind that has a token for each of BERT's special tokens.
    pub fn read_json(path: &Path) -> Result<Self, DataError> {
        let bytes = fs::read(path).map_err(|reason| DataError::Io { path: path.to_owned(), reason })?;
        Self::new(parse(&bytes, path)?, path)
    }

    /// Reads a tokenizer from its directory, its `tokenizer.json` or its `vocab.txt`.
    ///
    /// For a `vocab.txt`, `do_lower_case` in the `tokenizer_config.json` beside it decides whether
    /// the model is cased. Without it, the model is cased if the vocabulary has capital letters.
    pub fn read(path: &Path) -> Result<Self, DataError> {
        if path.is_dir() {
            let json = path.join(TOKENIZER_FILE);
            return Self::read(&if json.exists() { json } else { path.join(VOCABULARY_FILE) });
        }
        if path.extension().is_some_and(|extension| extension == "json") {
            return Self::read_json(path);
        }
        let bytes = fs::read(path).map_err(|reason| DataError::Io { path: path.to_owned(), reason })?;
        let cased = match lowers_case(&path.with_file_name(CONFIG_FILE))? {
            Some(lowers) => !lowers,
            None => String::from_utf8_lossy(&bytes).lines().any(has_capital),
        };
        Self::bert(&bytes, cased, path)
    }

    fn bert(vocabulary: &[u8], cased: bool, path: &Path) -> Result<Self, DataError> {
        let failed = |reason: tokenizers::Error| bad(path, reason.to_string());
        let ids = WordPiece::read_bytes(vocabulary).map_err(failed)?;
        // The crate would add missing special tokens with ids that are not in the vocabulary file.
        if let Some(missing) = SPECIAL_TOKENS.iter().find(|token| !ids.contains_key(**token)) {
            return Err(missing_token(path, missing));
        }
        let (cls, sep) = (ids["[CLS]"], ids["[SEP]"]);
        let model = WordPiece::builder().vocab(ids).build().map_err(failed)?;
        let mut inner = tokenizers::Tokenizer::new(model);
        inner
            .with_normalizer(Some(BertNormalizer::new(true, true, None, !cased)))
            .map_err(failed)?
            .with_pre_tokenizer(Some(BertPreTokenizer))
            .with_post_processor(Some(BertProcessing::new(("[SEP]".to_owned(), sep), ("[CLS]".to_owned(), cls))))
            .with_decoder(Some(tokenizers::decoders::wordpiece::WordPiece::new(CONTINUATION.to_owned(), true)));
        let special = SPECIAL_TOKENS.map(|token| AddedToken::from(token.to_owned(), true));
        inner.add_special_tokens(special).map_err(failed)?;
        Self::new(inner, path)
    }

    fn new(mut inner: tokenizers::Tokenizer, path: &Path) -> Result<Self, DataError> {
        let ids = inner.get_vocab(true);
        let mut names = SPECIAL_TOKENS;
        for (name, alternative) in names.iter_mut().zip(ALTERNATIVE_NAMES) {
            if !ids.contains_key(*name) && ids.contains_key(alternative) {
                *name = alternative;
            }
        }
        let id = |at: usize| ids.get(names[at]).copied().ok_or_else(|| missing_token(path, SPECIAL_TOKENS[at]));
        let special = SpecialTokens { pad: id(0)?, unk: id(1)?, cls: id(2)?, sep: id(3)?, mask: id(4)? };
        let size = vocabulary_size(&ids, path)?;
        let added = inner.get_added_tokens_decoder();
        let special_ids = added.iter().filter(|(_, token)| token.special).map(|(&id, _)| id);
        let continuations = ids.iter().filter(|(token, _)| token.starts_with(CONTINUATION)).map(|(_, &id)| id);
        let is_word_piece = matches!(inner.get_model(), ModelWrapper::WordPiece(_));
        let continuations: Vec<u32> = if is_word_piece { continuations.collect() } else { Vec::new() };
        let vocabulary = Vocabulary::new(size, special, special_ids, continuations);
        // Special tokens are never read from text, see `tokenize/mod.rs`. Sentences are neither
        // truncated nor padded.
        inner.set_encode_special_tokens(true);
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|reason| bad(path, reason.to_string()))?;
        let words = bert_words(&inner);
        Ok(Tokenizer { inner, words, vocabulary, names })
    }

    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Whether both have the same tokens with the same ids, so that a model of one can read the ids
    /// of the other. They may still split text differently.
    pub fn same_ids(&self, other: &Tokenizer) -> bool {
        self.inner.get_vocab(true) == other.inner.get_vocab(true)
    }

    /// Returns an encoder of sentences, with a cache of words.
    pub fn encoder(&self) -> TextEncoder<'_> {
        TextEncoder::new(self, true)
    }

    /// Returns an encoder that does not decode the escapes of corpora, so that its ids are exactly
    /// those of `BertTokenizerFast`. For labelled text.
    pub fn plain_encoder(&self) -> TextEncoder<'_> {
        TextEncoder::new(self, false)
    }

    /// Returns the names and contents of its files, `tokenizer.json` last. `max_length` is the number
    /// of tokens that the model reads.
    pub fn files(&self, max_length: usize) -> Result<[(&'static str, String); 3], DataError> {
        let text = self.inner.to_string(true).map_err(|reason| bad(Path::new(TOKENIZER_FILE), reason.to_string()))?;
        let config = format!("{:#}\n", self.config(max_length));
        Ok([(VOCABULARY_FILE, self.token_list()), (CONFIG_FILE, config), (TOKENIZER_FILE, text + "\n")])
    }

    /// Writes the files, each atomically and in that order: if `tokenizer.json` exists, the others
    /// do too.
    pub fn write(&self, dir: &Path) -> Result<(), DataError> {
        for (name, content) in self.files(BERT_MAX_LENGTH)? {
            write_atomic(&dir.join(name), |file| file.write_all(content.as_bytes()))?;
        }
        Ok(())
    }

    /// Content of the `vocab.txt`: one token per line. An id without a token is called `[unusedN]`,
    /// as in BERT's vocabularies.
    fn token_list(&self) -> String {
        let names: HashMap<u32, String> = self.inner.get_vocab(true).into_iter().map(|(name, id)| (id, name)).collect();
        let mut list = String::new();
        for id in 0..self.vocabulary.size() as u32 {
            let _ = match names.get(&id) {
                Some(name) => writeln!(list, "{name}"),
                None => writeln!(list, "[unused{id}]"),
            };
        }
        list
    }

    /// Content of the `tokenizer_config.json`.
    fn config(&self, max_length: usize) -> serde_json::Value {
        let [pad, unk, cls, sep, mask] = self.names;
        let mut config = json!({
            "cls_token": cls, "mask_token": mask, "pad_token": pad, "sep_token": sep, "unk_token": unk,
            "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_length,
        });
        if let Some(NormalizerWrapper::BertNormalizer(rule)) = self.inner.get_normalizer()
            && self.words.is_some()
        {
            config["tokenizer_class"] = "BertTokenizer".into();
            config["do_lower_case"] = rule.lowercase.into();
            config["strip_accents"] = rule.strip_accents.into();
            config["tokenize_chinese_chars"] = rule.handle_chinese_chars.into();
        }
        config
    }
}

/// Returns `do_lower_case` of a `tokenizer_config.json`, or `None` if the file or the key does not
/// exist.
fn lowers_case(config: &Path) -> Result<Option<bool>, DataError> {
    if !config.exists() {
        return Ok(None);
    }
    let bytes = fs::read(config).map_err(|reason| DataError::Io { path: config.to_owned(), reason })?;
    let config: serde_json::Value = serde_json::from_slice(&bytes).map_err(|reason| bad(config, reason.to_string()))?;
    Ok(config["do_lower_case"].as_bool())
}

/// Whether a token, in any script, has a letter that lowering case would change. Tokens in brackets
/// are special and do not count.
fn has_capital(token: &str) -> bool {
    let is_special = token.starts_with('[') && token.ends_with(']');
    !is_special && token.chars().any(|c| !c.to_lowercase().eq([c]))
}

/// Returns the word splitter of a BERT tokenizer. `None` for other kinds, and if it has added
/// tokens that are not special, because these are matched before words.
fn bert_words(inner: &tokenizers::Tokenizer) -> Option<BertWords> {
    let is_bert = matches!(inner.get_pre_tokenizer(), Some(PreTokenizerWrapper::BertPreTokenizer(_)))
        && matches!(inner.get_model(), ModelWrapper::WordPiece(_))
        && inner.get_added_tokens_decoder().values().all(|token| token.special);
    match inner.get_normalizer() {
        Some(NormalizerWrapper::BertNormalizer(normalizer)) if is_bert => BertWords::with(*normalizer),
        _ => None,
    }
}

fn missing_token(path: &Path, token: &str) -> DataError {
    bad(path, format!("it has no {token} token, which BERT needs"))
}
