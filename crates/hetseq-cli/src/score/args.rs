//! Command-line arguments of `hetseq score`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use hetseq_metrics::{BleuTokenizer, Chrf, Smoothing};

/// Score translations by BLEU, chrF or chrF++, with the same results as sacrebleu
///
/// Compares each line of HYPOTHESES with the same line of every file in REFERENCES. Use plain text,
/// not tokens: `score` tokenizes all text in the same way, which makes scores comparable. Report
/// the signature together with the score. Files may be compressed with gzip; `-` is standard input.
#[derive(Debug, Args)]
#[command(
    // The files come first: --metrics takes several values, and would take files that follow it.
    override_usage = "hetseq score <HYPOTHESES> <REFERENCES>... [OPTIONS]",
    after_help = "Examples:
  hetseq score out.de test.de                         BLEU, as WMT computes it
  hetseq score out.de test.de --metrics bleu chrf++   two metrics
  hetseq score out.ru a.ru b.ru --tokenize intl       two references for each line
  hetseq score - test.de --json < out.de              from standard input, for scripts"
)]
pub(crate) struct ScoreArgs {
    /// Translations, one per line
    pub(super) hypotheses: PathBuf,
    /// References, one per line; each file is one more reference for every line
    #[arg(required = true)]
    pub(super) references: Vec<PathBuf>,
    /// Metrics to compute
    #[arg(long, short, value_enum, num_args = 1.., value_delimiter = ',', default_value = "bleu")]
    pub(super) metrics: Vec<MetricArg>,
    /// Tokenizer for BLEU
    #[arg(long, value_enum, default_value = "13a")]
    pub(super) tokenize: TokenizeArg,
    /// Ignore case
    #[arg(long)]
    pub(super) lowercase: bool,
    /// Smoothing for BLEU, for orders without a matching n-gram
    #[arg(long, value_enum, default_value = "exp")]
    pub(super) smooth: SmoothArg,
    /// Print one JSON object per metric and line, with unrounded scores
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum MetricArg {
    /// Word n-grams of one to four words, with a penalty for short translations
    Bleu,
    /// Character n-grams of one to six characters
    Chrf,
    /// chrF with words and pairs of words
    #[value(name = "chrf++")]
    ChrfPlusPlus,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum TokenizeArg {
    /// Western languages; the default of WMT
    #[value(name = "13a")]
    V13a,
    /// Splits punctuation and symbols of all scripts
    Intl,
    /// Splits at spaces only, for text that is already tokenized
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum SmoothArg {
    /// Counts half a match for the first such order, a quarter for the next
    Exp,
    /// Counts 0.1 matches for each such order
    Floor,
    /// Adds one match to all orders but the first, whether they match or not
    AddK,
    /// No smoothing: the score is 0
    None,
}

impl MetricArg {
    /// The variant of chrF; `None` for BLEU.
    pub(super) fn chrf(self) -> Option<Chrf> {
        match self {
            MetricArg::Bleu => None,
            MetricArg::Chrf => Some(Chrf::Plain),
            MetricArg::ChrfPlusPlus => Some(Chrf::PlusPlus),
        }
    }
}

impl From<TokenizeArg> for BleuTokenizer {
    fn from(tokenize: TokenizeArg) -> BleuTokenizer {
        match tokenize {
            TokenizeArg::V13a => BleuTokenizer::V13a,
            TokenizeArg::Intl => BleuTokenizer::Intl,
            TokenizeArg::None => BleuTokenizer::None,
        }
    }
}

impl From<SmoothArg> for Smoothing {
    fn from(smooth: SmoothArg) -> Smoothing {
        match smooth {
            SmoothArg::Exp => Smoothing::Exp,
            SmoothArg::Floor => Smoothing::Floor,
            SmoothArg::AddK => Smoothing::AddK,
            SmoothArg::None => Smoothing::None,
        }
    }
}
