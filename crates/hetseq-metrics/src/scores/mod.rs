//! Scores of translations, equal to sacrebleu's. All are based on sums, so that ranks can add them
//! up exactly.

pub mod bleu;
pub mod chrf;
mod corpus;
mod ngrams;
mod words;

pub use bleu::{Bleu, BleuSums, BleuTokenizer, Smoothing};
pub use chrf::{Chrf, ChrfSums};
pub use corpus::{Corpus, SACREBLEU, UnequalLines};
