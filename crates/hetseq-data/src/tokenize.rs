//! Sentences to token ids, and the vocabulary that they come from.
//!
//! For BERT, as `BertTokenizerFast` makes them:
//! [`train`] makes a WordPiece vocabulary from word counts, [`Tokenizer`] holds it, reads and writes it in the files that
//! Hugging Face's libraries know, and its [`Encoder`] applies it. [`Vocabulary`] is what masking needs to know of it.
//! The rules themselves (normalising, splitting, matching) are those of the `tokenizers` crate; what is ours is a short
//! cut for plain ASCII and a memory of words already seen, which makes them ten times as fast.
//!
//! For translation, where ids must become text again, [`Subwords`]: byte pair encoding ([`train_merges`]) or a unigram model
//! ([`train_unigram`]) of words that begin with the space before them.
//!
//! Text is only text: `[SEP]` in a document is a bracket, a word and a bracket, never the token; so is `</s>`.

mod encoder;
mod spaced;
mod subwords;
mod tokenizer;
mod training;
mod unigram;
mod vocabulary;
mod words;

use std::collections::HashMap;
use std::path::Path;

use crate::error::{CorpusError, DataError};

pub use encoder::Encoder;
pub use spaced::each_stretch;
pub use subwords::{Special, SubwordEncoder, Subwords};
pub use tokenizer::{CONFIG_FILE, TOKENIZER_FILE, Tokenizer, VOCABULARY_FILE};
pub use training::{Merges, TrainOptions, train, train_merges};
pub use unigram::train_unigram;
pub use vocabulary::{SpecialTokens, Vocabulary};
pub use words::{BertWords, WordCounts};

/// The content of a `tokenizer.json`. Read as a string, since the crate is compiled for that once; reading bytes would compile all of it
/// here again, which takes long.
fn parse(json: &[u8], path: &Path) -> Result<tokenizers::Tokenizer, DataError> {
    let text = std::str::from_utf8(json).map_err(|reason| bad(path, reason.to_string()))?;
    // `tokenizers` panics where a decoder is not JSON.
    serde_json::from_str::<serde_json::Value>(text).map_err(|reason| bad(path, reason.to_string()))?;
    text.parse().map_err(|reason: tokenizers::Error| bad(path, reason.to_string()))
}

fn bad(path: &Path, problem: String) -> DataError {
    CorpusError::BadTokenizer { path: path.to_owned(), problem }.into()
}

/// The most ids of a vocabulary: four times as many as any published one has. Memory is reserved for each id up to the
/// largest, so that one wrong number in a file could take all of it.
const MOST_IDS: usize = 1 << 22;

/// How many ids a vocabulary has: one more than the largest.
fn vocabulary_size(ids: &HashMap<String, u32>, path: &Path) -> Result<usize, DataError> {
    let Some((token, &largest)) = ids.iter().max_by_key(|(_, id)| **id) else { return Ok(0) };
    if largest as usize >= MOST_IDS {
        let problem = format!(
            "the token {token:?} has the id {largest}, and ids end at {}: correct the id, or get the file again",
            MOST_IDS - 1
        );
        return Err(bad(path, problem));
    }
    Ok(largest as usize + 1)
}

/// Of a tokenizer in memory, as its file would be called.
fn failed(reason: tokenizers::Error) -> DataError {
    bad(Path::new(TOKENIZER_FILE), reason.to_string())
}

/// The special tokens of BERT, in the order of their ids in a vocabulary of ours.
pub const SPECIAL_TOKENS: [&str; 5] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
/// What a piece that continues a word begins with.
pub const CONTINUATION: &str = "##";
/// Longer words are unknown, so there is no use in learning from them.
pub const LONGEST_WORD_CHARS: usize = 100;
