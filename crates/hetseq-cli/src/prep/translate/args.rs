//! Command-line arguments of `hetseq prep translate`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Prepare parallel text for translation: train a vocabulary, tokenize, write shards
///
/// Line n of a target file is the translation of line n of the source file. Both are plain UTF-8
/// text, optionally compressed with gzip. Pairs that exceed the limits below are dropped; the table
/// at the end shows how many and why. Lengths are in tokens. The same input and settings give the
/// same bytes on any machine. After an interruption, the same command resumes.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hetseq prep translate --source train.en.gz --target train.de.gz --valid-source val.en.gz --valid-target val.de.gz \\
    --source-lang en --target-lang de --out data/en-de
  hetseq prep verify data/en-de")]
pub(crate) struct PrepTranslateArgs {
    /// Files in the source language
    #[arg(long, required = true, value_name = "FILE", num_args = 1..)]
    pub(super) source: Vec<PathBuf>,
    /// Files in the target language: as many, in the same order
    #[arg(long, required = true, value_name = "FILE", num_args = 1..)]
    pub(super) target: Vec<PathBuf>,
    /// Files in the source language for validation
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "valid_target")]
    pub(super) valid_source: Vec<PathBuf>,
    /// Files in the target language for validation; their text is kept as the references for BLEU
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "valid_source")]
    pub(super) valid_target: Vec<PathBuf>,
    /// Output directory: a new one, or one that the same command has started
    #[arg(long, short, value_name = "DIR", alias = "output")]
    pub(super) out: PathBuf,
    /// Size of the vocabulary to train
    #[arg(long, default_value_t = 8000, value_name = "N")]
    pub(super) vocab_size: usize,
    /// Type of the vocabulary to train
    #[arg(long, value_enum, default_value = "bpe")]
    pub(super) model: ModelArg,
    /// Train a vocabulary of --vocab-size tokens for each language instead of a shared one
    #[arg(long)]
    pub(super) separate: bool,
    /// Use this tokenizer.json instead of training a vocabulary
    ///
    /// In a directory: its tokenizer.json, or its source_tokenizer.json and target_tokenizer.json.
    #[arg(long, value_name = "FILE|DIR", conflicts_with_all = ["vocab_size", "model", "separate"])]
    pub(super) tokenizer: Option<PathBuf>,
    /// Name of the source language, stored with the tokenizer
    #[arg(long, value_name = "NAME")]
    pub(super) source_lang: Option<String>,
    /// Name of the target language
    #[arg(long, value_name = "NAME")]
    pub(super) target_lang: Option<String>,
    /// Drop pairs with more tokens than this on a side
    #[arg(long, value_name = "N", default_value_t = 250)]
    pub(super) max_length: usize,
    /// Drop training pairs with one side this many times as long as the other; 0 keeps all
    #[arg(long, value_name = "RATIO", default_value_t = 1.5)]
    pub(super) max_ratio: f64,
    /// Drop training pairs with fewer tokens than this on a side
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) min_length: usize,
    /// MiB of text per shard
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub(super) shard_mb: u64,
    /// Print one JSON object
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ModelArg {
    /// Byte pair encoding: merges the most frequent neighbours
    Bpe,
    /// Unigram language model: the pieces that make the text most likely
    Unigram,
}
