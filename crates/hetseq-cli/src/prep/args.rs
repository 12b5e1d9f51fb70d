//! Command-line arguments of `hetseq prep`; those of `prep translate` are in `translate/args.rs`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use hetseq_data::source::text::DEFAULT_FIELD;

use super::PrepTranslateArgs;
use crate::args::{OutDirArgs, at_least_one};

/// Prepare training data
#[derive(Debug, Subcommand)]
pub(crate) enum PrepArgs {
    Digits(PrepDigitsArgs),
    ImageFolder(PrepImageFolderArgs),
    Bert(PrepBertArgs),
    Translate(PrepTranslateArgs),
    Verify(PrepVerifyArgs),
}

/// Draw digits in MNIST's file format, as data for first trials
///
/// Writes the four idx files of MNIST.
#[derive(Debug, Args)]
#[command(override_usage = "hetseq prep digits [OPTIONS] --out <DIR>")]
pub(crate) struct PrepDigitsArgs {
    #[command(flatten)]
    pub(crate) to: OutDirArgs,
    /// Number of training images
    #[arg(long, default_value_t = 9000, value_parser = at_least_one())]
    pub(crate) train: u32,
    /// Number of test images
    #[arg(long, default_value_t = 1000, value_parser = at_least_one())]
    pub(crate) test: u32,
    /// Seed of the drawings
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// Draw coloured digits as PNG and JPEG files in class folders
///
/// The folders are train/<class>/ and valid/<class>/.
#[derive(Debug, Args)]
#[command(override_usage = "hetseq prep image-folder [OPTIONS] --out <DIR>")]
pub(crate) struct PrepImageFolderArgs {
    #[command(flatten)]
    pub(crate) to: OutDirArgs,
    /// Number of training images
    #[arg(long, default_value_t = 3000, value_parser = at_least_one_each())]
    pub(crate) train: u32,
    /// Number of validation images
    #[arg(long, default_value_t = 500, value_parser = at_least_one_each())]
    pub(crate) valid: u32,
    /// Seed of the drawings
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// A parser of counts with at least one image for each of the ten classes.
fn at_least_one_each() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(10..)
}

/// Prepare text for BERT pre-training: train a vocabulary, tokenize, write shards
///
/// INPUT is plain text in UTF-8, JSONL or Parquet (in builds with the feature parquet), optionally
/// compressed with gzip or Zstandard. In plain text a blank line ends a document; headings of WikiText
/// and <doc> lines of WikiExtractor are recognized. In JSONL and Parquet each record is a document.
/// The same input and settings give the same bytes on any machine. After an interruption, the same
/// command resumes.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hetseq prep bert wiki/ --out data/wiki --valid-fraction 0.01
  hetseq prep bert text.txt.gz --out data/text --vocab bert-base-uncased/vocab.txt
  hetseq prep bert c4/*.jsonl.zst --out data/c4 --field text
  hetseq prep verify data/wiki")]
pub(crate) struct PrepBertArgs {
    /// Files, or directories with files that end in .txt, .jsonl or .parquet or have no extension
    #[arg(required = true, value_name = "INPUT")]
    pub(crate) inputs: Vec<PathBuf>,
    /// Output directory: a new one, or one that the same command has started
    #[arg(long, short, value_name = "DIR", alias = "output")]
    pub(crate) out: PathBuf,
    /// Size of the vocabulary to train
    #[arg(long, default_value_t = 30522, value_name = "N")]
    pub(crate) vocab_size: usize,
    /// Keep upper case and accents
    #[arg(long)]
    pub(crate) cased: bool,
    /// Use this vocab.txt instead of training a vocabulary
    #[arg(long, value_name = "FILE", conflicts_with_all = ["vocab_size", "tokenizer"])]
    pub(crate) vocab: Option<PathBuf>,
    /// Use this tokenizer.json instead of training a vocabulary
    #[arg(long, value_name = "FILE", conflicts_with_all = ["vocab_size", "cased"])]
    pub(crate) tokenizer: Option<PathBuf>,
    /// Field with the text, in JSONL and Parquet
    #[arg(long, value_name = "NAME", default_value = DEFAULT_FIELD)]
    pub(crate) field: String,
    /// Meaning of a line of text
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) sentences: SentencesArg,
    /// Fraction of the documents to hold out for validation
    #[arg(long, value_name = "FRACTION", default_value_t = 0.0)]
    pub(crate) valid_fraction: f64,
    /// Files or directories to use for validation
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(crate) valid: Vec<PathBuf>,
    /// Format of the shards
    #[arg(long, value_enum, default_value = "compact")]
    pub(crate) format: FormatArg,
    /// MiB of text per shard (default: 128; with hdf5: 32)
    #[arg(long, value_name = "N")]
    pub(crate) shard_mb: Option<u64>,
    /// Seed for the held-out documents and, with hdf5, for masks and pairs
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    // Last, because its heading applies to all flags after it.
    #[command(flatten)]
    pub(crate) hdf5: Hdf5Args,
}

/// Settings of masked samples. With `compact` the task has them, since it masks while training.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options for --format hdf5")]
pub(crate) struct Hdf5Args {
    /// Tokens per sample (default: 128)
    #[arg(long, value_name = "N")]
    pub(crate) max_seq_length: Option<usize>,
    /// Maximum number of masked tokens per sample (default: 20)
    #[arg(long, value_name = "N")]
    pub(crate) max_predictions: Option<usize>,
    /// Passes over the text, each with different masks and pairs (default: 5)
    #[arg(long, value_name = "N")]
    pub(crate) dupe_factor: Option<usize>,
    /// Fraction of samples that are shortened on purpose (default: 0.1)
    #[arg(long, value_name = "FRACTION")]
    pub(crate) short_seq_prob: Option<f64>,
    /// Mask whole words instead of single tokens
    #[arg(long)]
    pub(crate) whole_word: bool,
}

impl Hdf5Args {
    /// The name of a flag that was given, if any.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let all = [
            ("--max-seq-length", self.max_seq_length.is_some()),
            ("--max-predictions", self.max_predictions.is_some()),
            ("--dupe-factor", self.dupe_factor.is_some()),
            ("--short-seq-prob", self.short_seq_prob.is_some()),
            ("--whole-word", self.whole_word),
        ];
        all.into_iter().find(|(_, is_given)| *is_given).map(|(flag, _)| flag)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SentencesArg {
    /// Detect it for each file
    Auto,
    /// One sentence
    Lines,
    /// Several complete sentences
    Paragraphs,
    /// Part of a wrapped paragraph
    Wrapped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FormatArg {
    /// Tokens; training masks them differently in every epoch
    Compact,
    /// Masked samples in NVIDIA's layout
    Hdf5,
}

/// Check prepared data for damage
///
/// Reads a whole corpus for BERT or translation, or shards in NVIDIA's layout.
#[derive(Debug, Args)]
pub(crate) struct PrepVerifyArgs {
    /// Directory of the data
    pub(crate) dir: PathBuf,
    /// Vocabulary size of the model; larger token ids are an error
    #[arg(long, value_name = "N")]
    pub(crate) vocab_size: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
