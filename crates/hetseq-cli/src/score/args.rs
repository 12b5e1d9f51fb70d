//! What can be typed after `hetseq score`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use hetseq_metrics::{Chrf, Smoothing, Tokenizer};

/// Score translations against references by BLEU, chrF or chrF++, with the numbers and the signatures of sacrebleu.
///
/// Each line of HYPOTHESES is compared with the same line of every file of REFERENCES. Give text as people write it: it is
/// taken apart into words here, in the same way for everybody, and that makes scores comparable. When you quote a score,
/// quote its signature too. Files may be packed by gzip; `-` is standard input.
#[derive(Debug, Args)]
#[command(
    // Metrics follow each other, and would take files for more of them.
    override_usage = "hetseq score <HYPOTHESES> <REFERENCES>... [OPTIONS]",
    after_help = "Examples:
  hetseq score out.de test.de                         BLEU, as WMT computes it
  hetseq score out.de test.de --metrics bleu chrf++   two metrics
  hetseq score out.ru a.ru b.ru --tokenize intl       two references for each line
  hetseq score - test.de --json < out.de              from standard input, for scripts"
)]
pub(crate) struct ScoreArgs {
    /// The translations, one a line
    pub(super) hypotheses: PathBuf,
    /// What they should be, line by line; several files are several references for each line
    #[arg(required = true)]
    pub(super) references: Vec<PathBuf>,
    /// What to compute
    #[arg(long, short, value_enum, num_args = 1.., value_delimiter = ',', default_value = "bleu")]
    pub(super) metrics: Vec<MetricArg>,
    /// How BLEU takes lines apart into words
    #[arg(long, value_enum, default_value = "13a")]
    pub(super) tokenize: TokenizeArg,
    /// Do not tell upper case from lower case
    #[arg(long)]
    pub(super) lowercase: bool,
    /// What BLEU does if no n-gram of some order matches
    #[arg(long, value_enum, default_value = "exp")]
    pub(super) smooth: SmoothArg,
    /// Print one JSON object a line, one for each metric, with scores unrounded
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum MetricArg {
    /// Sequences of one to four words, with a penalty for being short
    Bleu,
    /// Sequences of one to six characters
    Chrf,
    /// Those, and words and pairs of words
    #[value(name = "chrf++")]
    ChrfPlusPlus,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum TokenizeArg {
    /// Western languages; what WMT uses
    #[value(name = "13a")]
    V13a,
    /// Punctuation and symbols of all scripts
    Intl,
    /// At spaces only: the text is taken apart already
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum SmoothArg {
    /// Count half a match for the first such order, a quarter for the next
    Exp,
    /// Count 0.1 matches for each
    Floor,
    /// Count one match more for all orders but the first, whether they match or not
    AddK,
    /// The score is 0
    None,
}

impl MetricArg {
    /// Which chrF it is; none: BLEU.
    pub(super) fn chrf(self) -> Option<Chrf> {
        match self {
            MetricArg::Bleu => None,
            MetricArg::Chrf => Some(Chrf::Plain),
            MetricArg::ChrfPlusPlus => Some(Chrf::PlusPlus),
        }
    }
}

impl From<TokenizeArg> for Tokenizer {
    fn from(tokenize: TokenizeArg) -> Tokenizer {
        match tokenize {
            TokenizeArg::V13a => Tokenizer::V13a,
            TokenizeArg::Intl => Tokenizer::Intl,
            TokenizeArg::None => Tokenizer::None,
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
