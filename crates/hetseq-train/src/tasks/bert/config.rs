//! The `[task]` table of BERT pre-training.

use std::path::PathBuf;

use hetseq_data::{Masking, PretrainConfig};
use hetseq_models::bert::BertSize;
use serde::{Deserialize, Serialize};

use super::ModelKeys;

/// The `[task]` table of `bert-pretrain`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BertTaskConfig {
    /// Output directory of `hetseq prep bert`, or a directory of HDF5 shards in NVIDIA's format.
    pub data: PathBuf,
    /// A published size: `tiny`, `mini`, `small`, `medium`, `base`, `large`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<BertSize>,
    /// A Hugging Face `config.json` or a Google `bert_config.json`, instead of a published size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<PathBuf>,
    /// Initial weights: a Hugging Face directory, or a safetensors or PyTorch file. The directory's
    /// `config.json` defines the model unless `model` or `config` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<PathBuf>,
    /// The tokenizer to store in checkpoints: a directory, a `tokenizer.json` or a `vocab.txt`. By
    /// default that of the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<PathBuf>,
    /// Replaces both dropout rates of the model's config.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropout: Option<f64>,
    /// Keep only the input of each encoder layer and recompute the layer in the backward pass: less
    /// memory, about a third more time.
    #[serde(default)]
    pub recompute: bool,
    /// Also predict whether the second sentence follows the first. If false, only masked words.
    #[serde(default = "yes")]
    pub next_sentence: bool,
    /// Maximum tokens of a sample, including special tokens. Shards in NVIDIA's format keep their
    /// own length.
    #[serde(default = "default_length")]
    pub max_seq_length: usize,
    /// Fraction of the tokens that is masked.
    #[serde(default = "fifteen_percent")]
    pub mask_probability: f64,
    /// Maximum number of masked tokens of a sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_predictions_per_seq: Option<u32>,
    /// Mask all pieces of a word or none.
    #[serde(default)]
    pub whole_word: bool,
    /// Fraction of the samples that are shortened on purpose.
    #[serde(default = "ten_percent")]
    pub short_seq_prob: f64,
    /// Seed for the positions at which the text is cut into samples.
    #[serde(default = "one")]
    pub cut_seed: u64,
    /// Micro-batches are padded to a multiple of this.
    #[serde(default = "eight")]
    pub pad_to_multiple: usize,
    /// Shards: memory limit for both splits. Beyond it, they are unpacked into files and mapped.
    #[serde(default = "gibibyte")]
    pub memory_mib: usize,
    /// Shards: directory of these files. By default `.unpacked` next to the shards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unpack_dir: Option<PathBuf>,
}

impl BertTaskConfig {
    /// Settings for making samples. `vocabulary` is the model's number of tokens.
    pub(super) fn samples(&self, vocabulary: usize) -> PretrainConfig {
        PretrainConfig {
            max_seq_length: self.max_seq_length,
            next_sentence: self.next_sentence,
            short_seq_prob: self.short_seq_prob,
            cut_seed: self.cut_seed,
            masking: Masking {
                probability: self.mask_probability,
                max_predictions: self.max_predictions_per_seq,
                whole_word: self.whole_word,
            },
            pad_to_multiple: self.pad_to_multiple,
            memory_mib: self.memory_mib,
            unpack_dir: self.unpack_dir.clone(),
            vocabulary: Some(vocabulary),
        }
    }

    /// The keys that define the model.
    pub(super) fn model_keys(&self) -> ModelKeys<'_> {
        let (config, init) = (self.config.as_deref(), self.init.as_deref());
        ModelKeys { size: self.model, config, init, dropout: self.dropout }
    }
}

fn yes() -> bool {
    true
}
fn one() -> u64 {
    1
}
fn eight() -> usize {
    8
}
fn default_length() -> usize {
    128
}
fn gibibyte() -> usize {
    1024
}
fn ten_percent() -> f64 {
    0.1
}
fn fifteen_percent() -> f64 {
    0.15
}
