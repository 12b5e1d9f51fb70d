//! The configuration of an encoder-decoder transformer, with the keys of the `config.json` of
//! Hugging Face's Marian models.

use serde::{Deserialize, Serialize};

use crate::activation::Activation;
use crate::config_error::{ConfigError, check, check_positions, check_rate, check_size};

/// A transformer configuration. Missing keys have the values of Vaswani et al.'s base model, except
/// for the activation (see [`TransformerSize`]).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TransformerConfig {
    /// Source vocabulary, and target vocabulary if shared.
    pub vocab_size: usize,
    /// Target vocabulary. By default that of the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decoder_vocab_size: Option<usize>,
    /// One embedding table for encoder, decoder and output layer. If false, the output layer shares
    /// the decoder's.
    pub share_encoder_decoder_embeddings: bool,
    pub d_model: usize,
    pub encoder_layers: usize,
    pub decoder_layers: usize,
    pub encoder_attention_heads: usize,
    pub decoder_attention_heads: usize,
    pub encoder_ffn_dim: usize,
    pub decoder_ffn_dim: usize,
    pub activation_function: Activation,
    pub dropout: f64,
    pub attention_dropout: f64,
    pub activation_dropout: f64,
    /// Maximum positions of either side.
    pub max_position_embeddings: usize,
    /// Token embeddings are multiplied by the square root of their width, to balance them with
    /// position embeddings.
    pub scale_embedding: bool,
    /// Norm before each block instead of after it, and one more at the end: deep models train more
    /// easily.
    pub normalize_before: bool,
    /// Sinusoidal instead of learned position embeddings.
    pub static_position_embeddings: bool,
    pub pad_token_id: usize,
    pub eos_token_id: usize,
    /// The first input token of the decoder.
    pub decoder_start_token_id: usize,
}

impl Default for TransformerConfig {
    fn default() -> Self {
        TransformerConfig {
            vocab_size: 58_101,
            decoder_vocab_size: None,
            share_encoder_decoder_embeddings: true,
            d_model: 512,
            encoder_layers: 6,
            decoder_layers: 6,
            encoder_attention_heads: 8,
            decoder_attention_heads: 8,
            encoder_ffn_dim: 2048,
            decoder_ffn_dim: 2048,
            activation_function: Activation::Gelu,
            dropout: 0.1,
            attention_dropout: 0.0,
            activation_dropout: 0.0,
            max_position_embeddings: 512,
            scale_embedding: true,
            normalize_before: false,
            static_position_embeddings: true,
            pad_token_id: 58_100,
            eos_token_id: 0,
            decoder_start_token_id: 58_100,
        }
    }
}

/// Named sizes. They use GELU where the published ones use ReLU, without loss of quality: at a
/// kink, two splits of the same update may diverge (see ARCHITECTURE).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransformerSize {
    /// For experiments.
    Tiny,
    /// For some ten thousand sentences.
    Small,
    /// For some hundred thousand sentences: fairseq's size for IWSLT'14.
    Iwslt,
    /// From Vaswani et al. (2017), like `Big`.
    Base,
    Big,
}

impl TransformerSize {
    pub fn config(self) -> TransformerConfig {
        let (layers, width, heads, inner, dropout) = match self {
            TransformerSize::Tiny => (2, 64, 4, 128, 0.1),
            TransformerSize::Small => (3, 256, 4, 1024, 0.3),
            TransformerSize::Iwslt => (6, 512, 4, 1024, 0.3),
            TransformerSize::Base => (6, 512, 8, 2048, 0.1),
            TransformerSize::Big => (6, 1024, 16, 4096, 0.3),
        };
        TransformerConfig { dropout, ..TransformerConfig::default() }.with_size(layers, width, heads, inner)
    }
}

/// Model type if transformers' Marian computes the same.
const MARIAN: &str = "marian";
/// Model type otherwise.
const HETSEQ: &str = "hetseq-transformer";

/// Keys of a `config.json` that change the model but are not in [`TransformerConfig`].
#[derive(Deserialize)]
#[serde(default)]
struct FixedKeys {
    model_type: String,
    normalize_embedding: bool,
    tie_word_embeddings: bool,
}

impl Default for FixedKeys {
    fn default() -> Self {
        FixedKeys { model_type: MARIAN.to_owned(), normalize_embedding: false, tie_word_embeddings: true }
    }
}

impl FixedKeys {
    fn validate(&self) -> Result<(), ConfigError> {
        let FixedKeys { model_type, normalize_embedding, tie_word_embeddings } = self;
        check("model_type", model_type, [MARIAN, HETSEQ].contains(&&model_type[..]), "only \"marian\" is supported")?;
        check("normalize_embedding", normalize_embedding, !normalize_embedding, "only false is supported")?;
        let reason = "the output layer always shares the decoder's embeddings";
        check("tie_word_embeddings", tie_word_embeddings, *tie_word_embeddings, reason)
    }
}

impl TransformerConfig {
    /// Sets the size of encoder and decoder.
    #[must_use]
    pub fn with_size(self, layers: usize, width: usize, heads: usize, inner: usize) -> Self {
        TransformerConfig {
            d_model: width,
            encoder_layers: layers,
            decoder_layers: layers,
            encoder_attention_heads: heads,
            decoder_attention_heads: heads,
            encoder_ffn_dim: inner,
            decoder_ffn_dim: inner,
            ..self
        }
    }

    pub fn target_vocabulary(&self) -> usize {
        self.decoder_vocab_size.unwrap_or(self.vocab_size)
    }

    /// Whether transformers' Marian computes the same. It supports neither pre-norm nor learned
    /// positions.
    pub fn is_marian(&self) -> bool {
        !self.normalize_before && self.static_position_embeddings
    }

    /// Reads and validates. Keys that do not affect the model are ignored.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        let unreadable = |reason| ConfigError::Json { model: "translation model's", reason };
        serde_json::from_str::<FixedKeys>(text).map_err(unreadable)?.validate()?;
        let config: TransformerConfig = serde_json::from_str(text).map_err(unreadable)?;
        config.validate()?;
        Ok(config)
    }

    /// A `config.json`. Transformers can read it if [`TransformerConfig::is_marian`].
    pub fn to_json(&self) -> serde_json::Result<String> {
        #[derive(Serialize)]
        struct ConfigFile<'a> {
            #[serde(skip_serializing_if = "Option::is_none")]
            architectures: Option<[&'static str; 1]>,
            model_type: &'static str,
            is_encoder_decoder: bool,
            tie_word_embeddings: bool,
            bos_token_id: Option<usize>,
            forced_eos_token_id: Option<usize>,
            #[serde(flatten)]
            config: &'a TransformerConfig,
            num_hidden_layers: usize,
        }
        let is_marian = self.is_marian();
        let mut config = self.clone();
        config.decoder_vocab_size = Some(self.target_vocabulary());
        let file = ConfigFile {
            architectures: is_marian.then_some(["MarianMTModel"]),
            model_type: if is_marian { MARIAN } else { HETSEQ },
            is_encoder_decoder: true,
            tie_word_embeddings: true,
            bos_token_id: None,
            forced_eos_token_id: None,
            config: &config,
            num_hidden_layers: self.encoder_layers,
        };
        serde_json::to_string_pretty(&file)
    }

    /// A `generation_config.json` with which transformers' `generate` searches like
    /// `hetseq generate` does by default.
    pub fn generation_json(&self, beam: usize) -> serde_json::Result<String> {
        serde_json::to_string_pretty(&serde_json::json!({
            "bad_words_ids": [[self.pad_token_id]],
            "decoder_start_token_id": self.decoder_start_token_id,
            "eos_token_id": self.eos_token_id,
            "pad_token_id": self.pad_token_id,
            "max_length": self.max_position_embeddings,
            "num_beams": beam,
        }))
    }

    /// Checks that all values are supported.
    pub fn validate(&self) -> Result<(), ConfigError> {
        for (key, size) in [
            ("vocab_size", self.vocab_size),
            ("decoder_vocab_size", self.target_vocabulary()),
            ("d_model", self.d_model),
            ("encoder_layers", self.encoder_layers),
            ("decoder_layers", self.decoder_layers),
            ("encoder_attention_heads", self.encoder_attention_heads),
            ("decoder_attention_heads", self.decoder_attention_heads),
            ("encoder_ffn_dim", self.encoder_ffn_dim),
            ("decoder_ffn_dim", self.decoder_ffn_dim),
        ] {
            check_size(key, size)?;
        }
        for (side, heads) in [("encoder", self.encoder_attention_heads), ("decoder", self.decoder_attention_heads)] {
            let reason = format!("must be divisible by {side}_attention_heads = {heads}");
            check("d_model", self.d_model, self.d_model.is_multiple_of(heads), reason)?;
        }
        check_positions(self.max_position_embeddings)?;
        for (key, rate) in [
            ("dropout", self.dropout),
            ("attention_dropout", self.attention_dropout),
            ("activation_dropout", self.activation_dropout),
        ] {
            check_rate(key, rate)?;
        }
        let target = self.target_vocabulary();
        let is_consistent = !self.share_encoder_decoder_embeddings || target == self.vocab_size;
        let reason = format!("must be vocab_size = {}, because embeddings are shared", self.vocab_size);
        check("decoder_vocab_size", target, is_consistent, reason)?;
        for (key, id) in [
            ("pad_token_id", self.pad_token_id),
            ("eos_token_id", self.eos_token_id),
            ("decoder_start_token_id", self.decoder_start_token_id),
        ] {
            check(key, id, id < target, format!("must be below decoder_vocab_size = {target}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_survives_a_round_trip_and_has_the_right_model_type() {
        for (normalize_before, static_position_embeddings) in [(false, true), (true, true), (false, false)] {
            let config = TransformerConfig {
                normalize_before,
                static_position_embeddings,
                decoder_vocab_size: Some(58_101),
                ..TransformerSize::Iwslt.config()
            };
            let text = config.to_json().unwrap();
            assert_eq!(TransformerConfig::from_json(&text).unwrap(), config);
            let is_marian = !normalize_before && static_position_embeddings;
            assert_eq!(text.contains("\"model_type\": \"marian\""), is_marian);
            assert_eq!(text.contains("MarianMTModel"), is_marian);
        }
    }

    #[test]
    fn sizes_match_the_published_ones() {
        use TransformerSize::*;
        assert_eq!(Base.config(), TransformerConfig::default());
        for size in [Tiny, Small, Iwslt, Base, Big] {
            size.config().validate().unwrap();
        }
        let big = Big.config();
        assert_eq!((big.d_model, big.decoder_attention_heads, big.encoder_ffn_dim), (1024, 16, 4096));
    }

    #[test]
    fn errors_name_key_value_and_requirement() {
        for (text, expected) in [
            (r#"{"d_model": 100}"#, "d_model = 100: must be divisible by encoder_attention_heads = 8"),
            (r#"{"decoder_layers": 0}"#, "decoder_layers = 0: must be from 1 to 16777216"),
            (r#"{"dropout": 1}"#, "dropout = 1: must be at least 0 and below 1"),
            (r#"{"vocab_size": 9}"#, "pad_token_id = 58100: must be below decoder_vocab_size = 9"),
            (r#"{"decoder_vocab_size": 9}"#, "decoder_vocab_size = 9: must be vocab_size = 58101, because"),
            (r#"{"model_type": "t5"}"#, "model_type = t5: only \"marian\" is supported"),
            (r#"{"normalize_embedding": true}"#, "normalize_embedding = true: only false"),
            (r#"{"activation_function": "mish"}"#, "not a translation model's config: unknown variant `mish`"),
        ] {
            let error = TransformerConfig::from_json(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
