//! Scores of translations, equal to sacrebleu's, of tags, classes and numbers, equal to seqeval's,
//! scikit-learn's and SciPy's, and of entity linking. All but Spearman correlation are based on sums, so that
//! ranks can add them up.

pub mod bleu;
pub mod chrf;
pub mod classification;
mod corpus;
pub mod correlation;
pub mod entities;
mod error;
pub mod f1;
pub mod linking;
mod ngrams;
mod words;

pub use bleu::{Bleu, BleuSums, BleuTokenizer, Smoothing};
pub use chrf::{Chrf, ChrfSums};
pub use classification::ClassSums;
pub use corpus::{Corpus, SACREBLEU, UnequalLines};
pub use correlation::{CorrelationSums, spearman};
pub use entities::{EntityReport, EntitySpan, EntitySums, TagScheme, entity_spans, entity_types};
pub use error::ScoreError;
pub use f1::{F1Averages, F1Score, LabelCounts};
pub use linking::{GoldEntity, GoldMention, LinkSums, PredictedMention};
