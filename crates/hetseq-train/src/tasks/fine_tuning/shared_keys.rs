//! The keys that the configs of all fine-tuning tasks share, and the model they define.

use std::path::Path;

use hetseq_data::finetune::LabelSet;
use hetseq_data::tokenize::Tokenizer;
use hetseq_models::bert::{BertConfig, BertSize};

use crate::task::TaskError;
use crate::tasks::bert::ModelKeys;
use crate::tasks::initial_weights::missing_weights;

/// Defines the config of a fine-tuning task: its own keys, followed by those that all of them
/// share. A macro and not a flattened struct, because serde does not report the position and the
/// nearest names of an unknown key in flattened structs.
macro_rules! fine_tuning_config {
    ($(#[$about:meta])* pub struct $name:ident { $($own_keys:tt)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($own_keys)*
            /// As `train`, for validation.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub valid: Option<std::path::PathBuf>,
            /// All labels, in the order of the model's outputs. By default those of the training
            /// data.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub labels: Option<Vec<String>>,
            /// Initial weights: a Hugging Face directory, or a checkpoint.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub init: Option<std::path::PathBuf>,
            /// Start with a new classifier, also if `init` has one.
            #[serde(default)]
            pub new_head: bool,
            /// A published size (`tiny`, ...) or a `config.json`, instead of the model of `init`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub model: Option<hetseq_models::bert::BertSize>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub config: Option<std::path::PathBuf>,
            /// A directory, a `tokenizer.json` or a `vocab.txt`. By default that of `init`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub tokenizer: Option<std::path::PathBuf>,
            /// Replaces both dropout rates of the model's config.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub dropout: Option<f64>,
            /// Maximum tokens of a sample, including special tokens.
            #[serde(default = "crate::tasks::fine_tuning::shared_keys::default_length")]
            pub max_seq_length: usize,
            /// Micro-batches are padded to a multiple of this.
            #[serde(default = "crate::tasks::fine_tuning::shared_keys::default_multiple")]
            pub pad_to_multiple: usize,
            /// Recompute the layers in the backward pass: less memory, about a third more time.
            #[serde(default)]
            pub recompute: bool,
        }

        impl crate::tasks::fine_tuning::shared_keys::FineTuningConfig for $name {
            fn shared(&self) -> crate::tasks::fine_tuning::shared_keys::SharedKeys<'_> {
                crate::tasks::fine_tuning::shared_keys::SharedKeys {
                    train: &self.train,
                    valid: self.valid.as_deref(),
                    labels: self.labels.as_deref(),
                    init: self.init.as_deref(),
                    new_head: self.new_head,
                    size: self.model,
                    config: self.config.as_deref(),
                    tokenizer: self.tokenizer.as_deref(),
                    dropout: self.dropout,
                    max_seq_length: self.max_seq_length,
                    recompute: self.recompute,
                }
            }
        }
    };
}
pub(super) use fine_tuning_config;

/// A config made by `fine_tuning_config!`.
pub trait FineTuningConfig {
    fn shared(&self) -> SharedKeys<'_>;
}

/// What all fine-tuning tasks are told: see the keys in `fine_tuning_config!`.
pub struct SharedKeys<'a> {
    pub(super) train: &'a Path,
    pub(super) valid: Option<&'a Path>,
    pub(super) labels: Option<&'a [String]>,
    pub(super) init: Option<&'a Path>,
    pub(super) new_head: bool,
    pub(super) size: Option<BertSize>,
    pub(super) config: Option<&'a Path>,
    pub(super) tokenizer: Option<&'a Path>,
    pub(super) dropout: Option<f64>,
    pub(super) max_seq_length: usize,
    pub(super) recompute: bool,
}

/// Those of the shared keys that hold paths.
pub(super) const PATH_KEYS: &[&str] = &["train", "valid", "init", "config", "tokenizer"];

impl SharedKeys<'_> {
    /// The given labels, else those found in the training data.
    pub(super) fn label_set<S: AsRef<str>>(&self, found: impl IntoIterator<Item = S>) -> Result<LabelSet, TaskError> {
        Ok(match self.labels {
            Some(names) => LabelSet::given(names.to_vec())?,
            None => LabelSet::found(found),
        })
    }
}

/// The model and tokenizer that a task starts from.
pub struct Pretrained {
    pub(super) model: BertConfig,
    pub(super) tokenizer: Tokenizer,
}

impl Pretrained {
    /// Reads the model's config and the tokenizer, by default that of the initial weights.
    pub(super) fn open(keys: &SharedKeys<'_>) -> Result<Self, TaskError> {
        let SharedKeys { size, config, init, dropout, max_seq_length, .. } = *keys;
        let Some(path) = keys.tokenizer.or(init) else {
            return Err("set task.init to a Hugging Face directory, or task.tokenizer to a tokenizer.json or a \
                        vocab.txt: words must be split as the model expects"
                .into());
        };
        if keys.tokenizer.is_none() && !path.exists() {
            return Err(missing_weights(path).into());
        }
        let tokenizer = Tokenizer::read(path)?;
        let words = tokenizer.vocabulary().size();
        let (model, _) = ModelKeys { size, config, init, dropout }.model(Some(words))?;
        if words > model.vocab_size {
            let size = model.vocab_size;
            return Err(format!("the tokenizer has {words} tokens, but the model's vocab_size = {size}").into());
        }
        let positions = model.max_position_embeddings;
        if max_seq_length > positions {
            return Err(
                format!("task.max_seq_length = {max_seq_length}, but the model has {positions} positions").into()
            );
        }
        Ok(Pretrained { model, tokenizer })
    }
}

pub(super) fn default_length() -> usize {
    128
}
pub(super) fn default_multiple() -> usize {
    8
}
