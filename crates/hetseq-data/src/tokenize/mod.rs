//! Tokenizers: sentences to token ids, and the training of vocabularies. Called by
//! [`prep`](crate::prep), [`translate`](crate::translate) and the BERT task.
//!
//! For BERT, with the ids of `BertTokenizerFast`: [`train_word_piece`] trains a WordPiece
//! vocabulary from word counts, [`Tokenizer`] reads and writes it in Hugging Face's files, and its
//! [`TextEncoder`] encodes sentences. [`Vocabulary`] is the part that masking needs. Normalisation,
//! splitting and matching are those of the `tokenizers` crate. A fast path for ASCII and a cache of
//! encoded words make it ten times as fast.
//!
//! For translation, where ids must be decoded into text again: [`Subwords`] with byte pair encoding
//! ([`train_bpe`]) or a unigram model ([`train_unigram`]). Words begin with the space before them.
//!
//! Special tokens are never read from text: `[SEP]` in a document is a bracket, a word and a
//! bracket. The same is true of `</s>`.

mod encoder;
mod pre_tokens;
mod subwords;
mod tokenizer;
mod training;
mod unigram;
mod vocabulary;
mod words;

use std::collections::HashMap;
use std::path::Path;

use crate::error::{CorpusError, DataError};

pub use encoder::TextEncoder;
pub use pre_tokens::for_each_pre_token;
pub use subwords::{SubwordEncoder, SubwordSpecialTokens, Subwords};
pub use tokenizer::{CONFIG_FILE, TOKENIZER_FILE, Tokenizer, VOCABULARY_FILE};
pub use training::{BpeVocabulary, TrainOptions, train_bpe, train_word_piece};
pub use unigram::train_unigram;
pub use vocabulary::{SpecialTokens, Vocabulary};
pub use words::{BertWords, WordCounts};

/// Parses a `tokenizer.json`. From a string, because the crate has that function precompiled;
/// parsing bytes would compile the generic code here again, which is slow.
fn parse(json: &[u8], path: &Path) -> Result<tokenizers::Tokenizer, DataError> {
    let text = std::str::from_utf8(json).map_err(|reason| bad(path, reason.to_string()))?;
    // `tokenizers` panics if a decoder is not valid JSON.
    serde_json::from_str::<serde_json::Value>(text).map_err(|reason| bad(path, reason.to_string()))?;
    text.parse().map_err(|reason: tokenizers::Error| bad(path, reason.to_string()))
}

fn bad(path: &Path, problem: String) -> DataError {
    CorpusError::BadTokenizer { path: path.to_owned(), problem }.into()
}

/// Maximum number of ids: four times as many as any published vocabulary has. Memory is allocated
/// for each id up to the largest, so without a limit one wrong number in a file could exhaust it.
const MAX_IDS: usize = 1 << 22;

/// Returns the size of a vocabulary: the largest id plus one.
fn vocabulary_size(ids: &HashMap<String, u32>, path: &Path) -> Result<usize, DataError> {
    let Some((token, &largest)) = ids.iter().max_by_key(|(_, id)| **id) else { return Ok(0) };
    if largest as usize >= MAX_IDS {
        let problem = format!(
            "the token {token:?} has the id {largest}, but the largest allowed id is {}: correct the id, or download the \
             file again",
            MAX_IDS - 1
        );
        return Err(bad(path, problem));
    }
    Ok(largest as usize + 1)
}

/// The error of a tokenizer in memory, under the name of its file.
fn failed(reason: tokenizers::Error) -> DataError {
    bad(Path::new(TOKENIZER_FILE), reason.to_string())
}

/// BERT's special tokens, in the order of their ids in vocabularies trained here.
pub const SPECIAL_TOKENS: [&str; 5] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
/// Prefix of a piece that continues a word.
pub const CONTINUATION: &str = "##";
/// Longer words are encoded as unknown, so training skips them.
pub const MAX_WORD_CHARS: usize = 100;
