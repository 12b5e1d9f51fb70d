//! The `[task]` table of translation, and the model configuration derived from it.

use std::path::{Path, PathBuf};

use fs_err as fs;
use hetseq_data::TranslateTokenizer;
use hetseq_models::Activation;
use hetseq_models::transformer::{TransformerConfig, TransformerSize};
use serde::{Deserialize, Serialize};

use crate::task::TaskError;
use crate::tasks::initial_weights::missing_weights;

/// The `[task]` table of `translation`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TranslationConfig {
    /// Output directory of `hetseq prep translate`.
    pub data: PathBuf,
    /// A named size: `tiny`, `small`, `iwslt`, `base`, `big`. The keys below change parts of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<TransformerSize>,
    /// The `config.json` of a Marian model, instead of a named size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<PathBuf>,
    /// Initial weights: a Hugging Face directory, or a safetensors or PyTorch file. The directory's
    /// `config.json` defines the model unless `model` or `config` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<PathBuf>,
    /// Layers of the encoder, and of the decoder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub width: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heads: Option<usize>,
    /// Width of the feed-forward blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feed_forward: Option<usize>,
    /// `gelu`, `gelu_new`, `relu`, `silu`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation: Option<Activation>,
    /// Layer norm after each block, as published (`post`), or before (`pre`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub norm: Option<Norm>,
    /// Sinusoidal (`sines`) or learned (`learnt`) position embeddings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub positions: Option<PositionKind>,
    /// Maximum tokens of either side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_positions: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropout: Option<f64>,
    /// Dropout of attention weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention_dropout: Option<f64>,
    /// Dropout inside the feed-forward blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation_dropout: Option<f64>,
    /// Fraction of each label that is spread over all words.
    #[serde(default = "tenth")]
    pub label_smoothing: f64,
    /// Translate the validation text at each validation and compute BLEU.
    #[serde(default = "yes")]
    pub bleu: bool,
    /// Beam width of that search. 1 is greedy search, the fastest.
    #[serde(default = "one")]
    pub bleu_beam: usize,
    /// Both sides of a micro-batch are padded to a multiple of this.
    #[serde(default = "one")]
    pub pad_to_multiple: usize,
}

/// Memory and time grow with the beam width, and beams wider than about ten find worse
/// translations.
const MAX_BLEU_BEAM: usize = 1000;

/// Position of the layer norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Norm {
    Post,
    Pre,
}

/// Kind of position embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PositionKind {
    Sines,
    Learnt,
}

impl TranslationConfig {
    /// The model for text of this tokenizer.
    pub(super) fn model(&self, tokenizer: &TranslateTokenizer) -> Result<TransformerConfig, TaskError> {
        if self.model.is_some() && self.config.is_some() {
            let reason = "task.model and task.config both define the model; remove one of them";
            return Err(TaskError::Other(reason.to_owned()));
        }
        let next_to_weights = || self.init.as_ref().map(|dir| dir.join(MODEL_CONFIG)).filter(|file| file.exists());
        let (model, origin) = match (self.model, self.config.clone().or_else(next_to_weights)) {
            (Some(size), _) => (with_tokenizer(size.config(), tokenizer), "task".to_owned()),
            (None, Some(file)) => (read(&file)?, file.display().to_string()),
            (None, None) => {
                if let Some(init) = self.init.as_deref().filter(|init| !init.exists()) {
                    return Err(TaskError::Other(missing_weights(init)));
                }
                let reason = "define the model: task.model = \"tiny\", \"small\", \"iwslt\", \"base\" or \"big\", \
                              or task.config = a config.json, or task.init = a Hugging Face directory";
                return Err(TaskError::Other(reason.to_owned()));
            }
        };
        let wrong = |reason: String| TaskError::Other(format!("{origin}: {reason}"));
        if !(0.0..1.0).contains(&self.label_smoothing) {
            let reason = format!("label_smoothing = {} must be at least 0 and below 1", self.label_smoothing);
            return Err(TaskError::Other(format!("task.{reason}")));
        }
        if !(1..=MAX_BLEU_BEAM).contains(&self.bleu_beam) {
            let reason = format!("bleu_beam = {} must be 1 to {MAX_BLEU_BEAM}", self.bleu_beam);
            return Err(TaskError::Other(format!("task.{reason}")));
        }
        let model = self.with_overrides(model);
        model.validate().map_err(|error| wrong(error.to_string()))?;
        fits(&model, tokenizer).map_err(wrong)?;
        Ok(model)
    }

    /// Applies the keys of the table that change parts of the model.
    fn with_overrides(&self, model: TransformerConfig) -> TransformerConfig {
        let or = |given: Option<usize>, both: [usize; 2]| both.map(|default| given.unwrap_or(default));
        let [encoder_layers, decoder_layers] = or(self.layers, [model.encoder_layers, model.decoder_layers]);
        let heads = or(self.heads, [model.encoder_attention_heads, model.decoder_attention_heads]);
        let inner = or(self.feed_forward, [model.encoder_ffn_dim, model.decoder_ffn_dim]);
        TransformerConfig {
            encoder_layers,
            decoder_layers,
            encoder_attention_heads: heads[0],
            decoder_attention_heads: heads[1],
            encoder_ffn_dim: inner[0],
            decoder_ffn_dim: inner[1],
            d_model: self.width.unwrap_or(model.d_model),
            activation_function: self.activation.unwrap_or(model.activation_function),
            normalize_before: self.norm.map_or(model.normalize_before, |norm| norm == Norm::Pre),
            static_position_embeddings: self
                .positions
                .map_or(model.static_position_embeddings, |kind| kind == PositionKind::Sines),
            max_position_embeddings: self.max_positions.unwrap_or(model.max_position_embeddings),
            dropout: self.dropout.unwrap_or(model.dropout),
            attention_dropout: self.attention_dropout.unwrap_or(model.attention_dropout),
            activation_dropout: self.activation_dropout.unwrap_or(model.activation_dropout),
            ..model
        }
    }
}

fn with_tokenizer(model: TransformerConfig, tokenizer: &TranslateTokenizer) -> TransformerConfig {
    let special = tokenizer.special();
    let is_joint = tokenizer.is_joint();
    TransformerConfig {
        vocab_size: tokenizer.source_vocabulary(),
        decoder_vocab_size: (!is_joint).then(|| tokenizer.target_vocabulary()),
        share_encoder_decoder_embeddings: is_joint,
        pad_token_id: special.pad as usize,
        eos_token_id: special.eos as usize,
        decoder_start_token_id: special.pad as usize,
        ..model
    }
}

/// Checks that the network has embeddings for all tokens of the tokenizer and the same special
/// tokens.
pub(crate) fn fits(model: &TransformerConfig, tokenizer: &TranslateTokenizer) -> Result<(), String> {
    for (key, size, needed) in [
        ("vocab_size", model.vocab_size, tokenizer.source_vocabulary()),
        ("decoder_vocab_size", model.target_vocabulary(), tokenizer.target_vocabulary()),
    ] {
        if needed > size {
            return Err(format!("{key} = {size}, but the tokenizer has {needed} tokens"));
        }
    }
    if model.share_encoder_decoder_embeddings && !tokenizer.is_joint() {
        let reason = "but each side has its own vocabulary (prep translate --separate)";
        return Err(format!("share_encoder_decoder_embeddings = true, {reason}"));
    }
    let special = tokenizer.special();
    for (key, theirs, ours) in [
        ("eos_token_id", model.eos_token_id, special.eos),
        ("pad_token_id", model.pad_token_id, special.pad),
        ("decoder_start_token_id", model.decoder_start_token_id, special.pad),
    ] {
        if theirs != ours as usize {
            return Err(format!(
                "{key} = {theirs}, but in the tokenizer it is {ours}; use the tokenizer of this model"
            ));
        }
    }
    Ok(())
}

pub(super) const MODEL_CONFIG: &str = "config.json";

/// Reads a model config. A directory means the file in it.
pub(crate) fn read(file: &Path) -> Result<TransformerConfig, TaskError> {
    let file = if file.is_dir() { file.join(MODEL_CONFIG) } else { file.to_owned() };
    let text = fs::read_to_string(&file).map_err(|error| TaskError::Other(error.to_string()))?;
    TransformerConfig::from_json(&text).map_err(|error| TaskError::Other(format!("{}: {error}", file.display())))
}

fn yes() -> bool {
    true
}
fn one() -> usize {
    1
}
fn tenth() -> f64 {
    0.1
}
