//! Command-line arguments of `hetseq generate`.

use std::path::PathBuf;

use clap::Args;

/// Translate text with a trained model, line by line
///
/// The model is a run directory (its best checkpoint, else the newest), a checkpoint, a directory
/// that `hetseq export` or `hetseq average` wrote, or a Hugging Face directory of a Marian model
/// with a tokenizer.json.
///
/// Each input line gives one output line, in the same order. An empty line stays empty; a line that
/// is too long is cut and translated. Both are reported on standard error.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hetseq generate runs/multi30k < test.en > test.de
  hetseq generate runs/multi30k --input test.en.gz --out test.de --beam 5
  hetseq generate runs/multi30k --interactive")]
pub(crate) struct GenerateArgs {
    /// Run directory, checkpoint or Hugging Face directory
    #[arg(value_name = "RUN|CHECKPOINT|DIR")]
    pub(crate) model: PathBuf,
    /// Text with one sentence per line, plain or .gz (default: standard input)
    #[arg(long, short, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    /// File for the translations, written only when complete (default: standard output)
    #[arg(long, short, value_name = "FILE", alias = "output")]
    pub(crate) out: Option<PathBuf>,
    /// Beam width: hypotheses kept per sentence; 1 is greedy search, the fastest
    #[arg(long, short, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) beam: u16,
    /// Exponent of the length that divides scores
    ///
    /// More than 1 favours longer translations; 0 compares plain sums of log-probabilities.
    #[arg(long, default_value_t = 1.0, value_name = "P", allow_negative_numbers = true)]
    pub(crate) length_penalty: f64,
    /// Print the N best hypotheses of each line, as line number, score and text, separated by tabs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) n_best: Option<u16>,
    /// Maximum length of a translation, as a multiple of its source length
    #[arg(long, default_value_t = 2.0, value_name = "X")]
    pub(crate) max_ratio: f64,
    /// Tokens to add to that maximum
    #[arg(long, default_value_t = 10, value_name = "N")]
    pub(crate) max_more: usize,
    /// Source tokens per batch on each device
    #[arg(long, default_value_t = 1024, value_name = "N")]
    pub(crate) batch_tokens: usize,
    /// Devices to use: `cpu` (one per core), `cpu:4`, `cpu:2x8` (two devices of eight threads)
    #[arg(long, default_value = "cpu")]
    pub(crate) devices: String,
    /// Translate each line as soon as it is entered
    #[arg(long, conflicts_with_all = ["input", "out"])]
    pub(crate) interactive: bool,
}
