//! Sentences to token ids, as `BertTokenizerFast` makes them, and the vocabulary that they come from.
//!
//! [`train`] makes a WordPiece vocabulary from word counts, [`Tokenizer`] holds it, reads and writes it in the files that
//! Hugging Face's libraries know, and its [`Encoder`] applies it. [`Vocabulary`] is what masking needs to know of it.
//! The rules themselves (normalising, splitting, matching) are those of the `tokenizers` crate; what is ours is a short
//! cut for plain ASCII and a memory of words already seen, which makes them ten times as fast.
//!
//! Text is only text: `[SEP]` in a document is a bracket, a word and a bracket, never the token.

mod encoder;
mod tokenizer;
mod training;
mod vocabulary;
mod words;

pub use encoder::Encoder;
pub use tokenizer::{CONFIG_FILE, TOKENIZER_FILE, Tokenizer, VOCABULARY_FILE};
pub use training::{TrainOptions, train};
pub use vocabulary::{SpecialTokens, Vocabulary};
pub use words::{BertWords, WordCounts};

/// The special tokens of BERT, in the order of their ids in a vocabulary of ours.
pub const SPECIAL_TOKENS: [&str; 5] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
/// What a piece that continues a word begins with.
pub const CONTINUATION: &str = "##";
/// Longer words are unknown, so there is no use in learning from them.
pub const LONGEST_WORD_CHARS: usize = 100;
