//! What can be typed after `hetseq generate`.

use std::path::PathBuf;

use clap::Args;

/// Translate text with a trained model: lines in, lines out, in the same order.
///
/// The model is a run directory (its best checkpoint, else the newest), a checkpoint, what `hetseq export` or `hetseq average`
/// made, or a Hugging Face directory of a Marian model with a tokenizer.json. An empty line gives an empty line, and a line that is too long is
/// cut and translated; both are told on standard error, and line numbers never shift.
///
///   hetseq generate runs/multi30k < test.en > test.de
///   hetseq generate runs/multi30k --input test.en.gz --output test.de --beam 5
///   hetseq generate runs/multi30k --interactive
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct GenerateArgs {
    /// A run, a checkpoint, or a Hugging Face directory
    #[arg(value_name = "RUN|CHECKPOINT|DIR")]
    pub(crate) model: PathBuf,
    /// The text, one sentence per line, plain or .gz (default: standard input)
    #[arg(long, short, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    /// Where the translations go; complete or absent (default: standard output)
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// How many hypotheses of a sentence are followed; 1 is greedy, and fastest
    #[arg(long, short, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) beam: u16,
    /// Scores are divided by length to this power: more than 1 favours longer translations, 0 compares plain sums
    #[arg(long, default_value_t = 1.0, value_name = "P", allow_negative_numbers = true)]
    pub(crate) length_penalty: f64,
    /// Print so many hypotheses of each line, as LINE NUMBER, SCORE and TEXT between tabs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) n_best: Option<u16>,
    /// A translation has at most this many tokens per token of its source ...
    #[arg(long, default_value_t = 2.0, value_name = "X")]
    pub(crate) max_ratio: f64,
    /// ... and this many more
    #[arg(long, default_value_t = 10, value_name = "N")]
    pub(crate) max_more: usize,
    /// Tokens of the source that are translated at once on each device
    #[arg(long, default_value_t = 1024, value_name = "N")]
    pub(crate) batch_tokens: usize,
    /// Which devices: `cpu` (one per core), `cpu:4`, `cpu:2x8` (two of eight threads)
    #[arg(long, default_value = "cpu")]
    pub(crate) devices: String,
    /// Translate each line as soon as it is typed
    #[arg(long, conflicts_with_all = ["input", "output"])]
    pub(crate) interactive: bool,
}
