//! Command-line arguments of `hetseq predict`.

use std::path::PathBuf;

use clap::Args;

/// Label the words, texts or images of a file with a trained model
///
/// The model is a run directory (its best checkpoint, else the newest), a checkpoint, a directory
/// that `hetseq export` wrote, or a Hugging Face directory of a BERT model for token or sequence
/// classification.
///
/// The input is of the kind that the model was trained on: a CoNLL file, a table (TSV, CSV, JSONL),
/// or images (a directory, one file, or a text file that lists files). It needs no labels. There is
/// a result for every word, text or image, in the order of the input: for words the CoNLL columns
/// word, label (if the input has labels) and predicted label; otherwise a table separated by tabs.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hetseq predict runs/ner --input new.conll --out tagged.conll
  hetseq predict runs/reviews --input new.tsv --set task.text=review > labels.tsv
  hetseq predict runs/digits --input photos/ --json")]
pub(crate) struct PredictArgs {
    /// Run directory, checkpoint or Hugging Face directory
    #[arg(value_name = "RUN|CHECKPOINT|DIR")]
    pub(crate) model: PathBuf,
    /// The file to predict, plain or .gz; a directory for images
    #[arg(long, short, value_name = "FILE")]
    pub(crate) input: PathBuf,
    /// File for the predictions, written only when complete (default: standard output)
    #[arg(long, short, value_name = "FILE", alias = "output")]
    pub(crate) out: Option<PathBuf>,
    /// Write one JSON object per sentence, text or image, with all probabilities
    #[arg(long)]
    pub(crate) json: bool,
    /// Set a config key for this input: task.text=review, task.token_column=1
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) sets: Vec<String>,
    /// Tokens per batch on each device, padding included
    #[arg(long, default_value_t = 4096, value_name = "N")]
    pub(crate) batch_tokens: usize,
    /// Devices to use: `cpu` (one per core), `cpu:4`, `cpu:2x8` (two devices of eight threads)
    #[arg(long, default_value = "cpu")]
    pub(crate) devices: String,
}
