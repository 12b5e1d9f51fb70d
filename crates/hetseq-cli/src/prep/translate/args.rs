//! What can be typed after `hetseq prep translate`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Prepare parallel text for translation: train a vocabulary, tokenise, and write shards of pairs.
///
/// Line n of a target file is the translation of line n of the source file; both are plain UTF-8 text, packed by gzip or not.
/// Pairs that do not fit are left out, and the table at the end says how many and why; lengths are counted in tokens. The
/// same input and settings give the same bytes on any machine. If it is interrupted, the same command goes on where it
/// stopped.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  hetseq prep translate --source train.en.gz --target train.de.gz --valid-source val.en.gz --valid-target val.de.gz \\
    --source-lang en --target-lang de --out data/en-de
  hetseq prep verify data/en-de")]
pub(crate) struct PrepTranslateArgs {
    /// Files in the language to translate from
    #[arg(long, required = true, value_name = "FILE", num_args = 1..)]
    pub(super) source: Vec<PathBuf>,
    /// As many files in the language to translate to, in the same order
    #[arg(long, required = true, value_name = "FILE", num_args = 1..)]
    pub(super) target: Vec<PathBuf>,
    /// The same of pairs to validate on
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "valid_target")]
    pub(super) valid_source: Vec<PathBuf>,
    /// The same of pairs to validate on; their lines are kept, to score translations
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "valid_source")]
    pub(super) valid_target: Vec<PathBuf>,
    /// Where to write; a new directory, or one that the same command has begun
    #[arg(long, short, value_name = "DIR", visible_alias = "output")]
    pub(super) out: PathBuf,
    /// Tokens in the vocabulary that is trained
    #[arg(long, default_value_t = 8000, value_name = "N")]
    pub(super) vocab_size: usize,
    /// What kind of vocabulary is trained
    #[arg(long, value_enum, default_value = "bpe")]
    pub(super) model: ModelArg,
    /// A vocabulary for each language, of --vocab-size tokens each, instead of one for both
    #[arg(long)]
    pub(super) separate: bool,
    /// Take this tokenizer.json instead of training one, or that of a directory, or its source_tokenizer.json and
    /// target_tokenizer.json
    #[arg(long, value_name = "FILE|DIR", conflicts_with_all = ["vocab_size", "model", "separate"])]
    pub(super) tokenizer: Option<PathBuf>,
    /// What the source language is called, to be written beside the tokenizer
    #[arg(long, value_name = "NAME")]
    pub(super) source_lang: Option<String>,
    /// What the target language is called
    #[arg(long, value_name = "NAME")]
    pub(super) target_lang: Option<String>,
    /// Leave out pairs of which a side has more tokens
    #[arg(long, value_name = "N", default_value_t = 250)]
    pub(super) max_length: usize,
    /// Leave out training pairs of which one side is so many times as long as the other; 0 leaves all in
    #[arg(long, value_name = "RATIO", default_value_t = 1.5)]
    pub(super) max_ratio: f64,
    /// Leave out training pairs of which a side has fewer tokens
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
    /// Byte pair encoding: the most frequent neighbours become one
    Bpe,
    /// The pieces that make the text the most likely
    Unigram,
}
