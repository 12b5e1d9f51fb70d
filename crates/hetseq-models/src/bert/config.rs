//! The configuration of a BERT, with the keys of Hugging Face's `config.json` and Google's
//! `bert_config.json`. Reads both.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::activation::Activation;
use crate::config_error::{ConfigError, check, check_positions, check_rate, check_size};

/// A BERT configuration. Missing keys have transformers' defaults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BertConfig {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub intermediate_size: usize,
    pub hidden_act: Activation,
    pub hidden_dropout_prob: f64,
    pub attention_probs_dropout_prob: f64,
    pub max_position_embeddings: usize,
    pub type_vocab_size: usize,
    pub initializer_range: f64,
    pub layer_norm_eps: f64,
    /// Its embedding is initially zero. Null: no embedding is.
    pub pad_token_id: Option<usize>,
    /// Dropout before a classifier; by default that of the hidden states.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classifier_dropout: Option<f64>,
}

impl Default for BertConfig {
    fn default() -> Self {
        BertConfig {
            vocab_size: 30_522,
            hidden_size: 768,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            intermediate_size: 3072,
            hidden_act: Activation::Gelu,
            hidden_dropout_prob: 0.1,
            attention_probs_dropout_prob: 0.1,
            max_position_embeddings: 512,
            type_vocab_size: 2,
            initializer_range: 0.02,
            layer_norm_eps: 1e-12,
            pad_token_id: Some(0),
            classifier_dropout: None,
        }
    }
}

/// The published sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BertSize {
    Tiny,
    Mini,
    Small,
    Medium,
    Base,
    Large,
}

impl BertSize {
    /// Heads are 64 wide, and feed-forward blocks four times as wide as the model.
    pub fn config(self) -> BertConfig {
        let (layers, width) = match self {
            BertSize::Tiny => (2, 128),
            BertSize::Mini => (4, 256),
            BertSize::Small => (4, 512),
            BertSize::Medium => (8, 512),
            BertSize::Base => (12, 768),
            BertSize::Large => (24, 1024),
        };
        BertConfig {
            hidden_size: width,
            num_hidden_layers: layers,
            num_attention_heads: width / 64,
            intermediate_size: 4 * width,
            ..BertConfig::default()
        }
    }
}

/// Keys of a `config.json` that change the model but are not in [`BertConfig`]. Only one value of
/// each is supported.
#[derive(Deserialize)]
#[serde(default)]
struct FixedKeys {
    model_type: String,
    position_embedding_type: String,
    is_decoder: bool,
    tie_word_embeddings: bool,
}

impl Default for FixedKeys {
    fn default() -> Self {
        FixedKeys {
            model_type: "bert".to_owned(),
            position_embedding_type: "absolute".to_owned(),
            is_decoder: false,
            tie_word_embeddings: true,
        }
    }
}

impl FixedKeys {
    fn validate(&self) -> Result<(), ConfigError> {
        let FixedKeys { model_type, position_embedding_type, is_decoder, tie_word_embeddings } = self;
        check("model_type", model_type, model_type == "bert", "only \"bert\" is supported")?;
        let absolute = position_embedding_type == "absolute";
        check("position_embedding_type", position_embedding_type, absolute, "only \"absolute\" is supported")?;
        check("is_decoder", is_decoder, !is_decoder, "only encoders are supported")?;
        let reason = "the decoder always shares the word embeddings";
        check("tie_word_embeddings", tie_word_embeddings, *tie_word_embeddings, reason)
    }
}

impl BertConfig {
    /// Reads and validates. Keys that do not affect the model are ignored.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        let unreadable = |reason| ConfigError::Json { model: "BERT", reason };
        serde_json::from_str::<FixedKeys>(text).map_err(unreadable)?.validate()?;
        let config: BertConfig = serde_json::from_str(text).map_err(unreadable)?;
        config.validate()?;
        Ok(config)
    }

    /// A `config.json` for transformers' class `architecture`. `labels` are those of its classifier,
    /// in the order of its outputs; none for a model without one.
    pub fn to_json(&self, architecture: &str, labels: &[String]) -> serde_json::Result<String> {
        #[derive(Serialize)]
        struct ConfigFile<'a> {
            architectures: [&'a str; 1],
            model_type: &'static str,
            #[serde(flatten)]
            config: &'a BertConfig,
            #[serde(skip_serializing_if = "BTreeMap::is_empty")]
            id2label: BTreeMap<usize, &'a str>,
            #[serde(skip_serializing_if = "BTreeMap::is_empty")]
            label2id: BTreeMap<&'a str, usize>,
        }
        let numbered = || labels.iter().map(String::as_str).enumerate();
        serde_json::to_string_pretty(&ConfigFile {
            architectures: [architecture],
            model_type: "bert",
            config: self,
            id2label: numbered().collect(),
            label2id: numbered().map(|(id, label)| (label, id)).collect(),
        })
    }

    /// Checks that all values are supported.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let BertConfig { hidden_size, num_attention_heads: heads, .. } = *self;
        for (key, size) in [
            ("vocab_size", self.vocab_size),
            ("hidden_size", hidden_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", heads),
            ("intermediate_size", self.intermediate_size),
            ("type_vocab_size", self.type_vocab_size),
        ] {
            check_size(key, size)?;
        }
        let reason = format!("must be divisible by num_attention_heads = {heads}");
        check("hidden_size", hidden_size, hidden_size.is_multiple_of(heads), reason)?;
        check_positions(self.max_position_embeddings)?;
        for (key, rate) in [
            ("hidden_dropout_prob", self.hidden_dropout_prob),
            ("attention_probs_dropout_prob", self.attention_probs_dropout_prob),
            ("classifier_dropout", self.classifier_dropout.unwrap_or(0.0)),
        ] {
            check_rate(key, rate)?;
        }
        for (key, value) in [("initializer_range", self.initializer_range), ("layer_norm_eps", self.layer_norm_eps)] {
            check(key, value, value > 0.0 && value.is_finite(), "must be above 0")?;
        }
        if let Some(pad) = self.pad_token_id {
            let reason = format!("must be below vocab_size = {}, or null", self.vocab_size);
            check("pad_token_id", pad, pad < self.vocab_size, reason)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_google_config_is_read() {
        // uncased_L-2_H-128_A-2, with fewer keys than Hugging Face's.
        let text = r#"{"hidden_size": 128, "hidden_act": "gelu", "initializer_range": 0.02, "vocab_size": 30522,
            "hidden_dropout_prob": 0.1, "num_attention_heads": 2, "type_vocab_size": 2, "max_position_embeddings": 512,
            "num_hidden_layers": 2, "intermediate_size": 512, "attention_probs_dropout_prob": 0.1,
            "directionality": "bidi", "pooler_type": "first_token_transform"}"#;
        assert_eq!(BertConfig::from_json(text).unwrap(), BertSize::Tiny.config());
    }

    #[test]
    fn sizes_match_the_published_ones() {
        use BertSize::*;
        for (size, layers, width, heads) in
            [(Tiny, 2, 128, 2), (Mini, 4, 256, 4), (Small, 4, 512, 8), (Medium, 8, 512, 8), (Large, 24, 1024, 16)]
        {
            let config = size.config();
            config.validate().unwrap();
            assert_eq!(
                (config.num_hidden_layers, config.hidden_size, config.num_attention_heads),
                (layers, width, heads)
            );
        }
        assert_eq!(Base.config(), BertConfig::default());
    }

    #[test]
    fn a_config_survives_a_round_trip() {
        for hidden_act in [Activation::Gelu, Activation::GeluNew, Activation::Relu, Activation::Silu] {
            let config =
                BertConfig { hidden_act, pad_token_id: None, layer_norm_eps: 1e-12, ..BertSize::Mini.config() };
            let text = config.to_json("BertForPreTraining", &[]).unwrap();
            assert_eq!(BertConfig::from_json(&text).unwrap(), config);
        }
        let json = |labels: &[String]| -> serde_json::Value {
            serde_json::from_str(&BertConfig::default().to_json("BertForPreTraining", labels).unwrap()).unwrap()
        };
        let written = json(&[]);
        assert_eq!(written["architectures"][0], "BertForPreTraining");
        assert_eq!(written["model_type"], "bert");
        assert!(written.get("id2label").is_none() && written.get("classifier_dropout").is_none());
        let written = json(&["O".to_owned(), "B-person".to_owned()]);
        assert_eq!((&written["id2label"]["1"], &written["label2id"]["B-person"]), (&"B-person".into(), &1.into()));
    }

    #[test]
    fn aliases_of_activations_are_read() {
        for (name, activation) in [("gelu_pytorch_tanh", Activation::GeluNew), ("swish", Activation::Silu)] {
            let config = BertConfig::from_json(&format!("{{\"hidden_act\": \"{name}\"}}")).unwrap();
            assert_eq!(config.hidden_act, activation);
        }
    }

    #[test]
    fn errors_name_key_value_and_requirement() {
        for (text, expected) in [
            (r#"{"hidden_size": 100}"#, "hidden_size = 100: must be divisible by num_attention_heads = 12"),
            (r#"{"num_hidden_layers": 0}"#, "num_hidden_layers = 0: must be from 1 to 16777216"),
            (r#"{"vocab_size": 99999999999}"#, "vocab_size = 99999999999: must be from 1 to 16777216"),
            (r#"{"max_position_embeddings": 70000}"#, "max_position_embeddings = 70000: must be from 1 to 65536"),
            (r#"{"hidden_dropout_prob": 1}"#, "hidden_dropout_prob = 1: must be at least 0 and below 1"),
            (r#"{"layer_norm_eps": 0}"#, "layer_norm_eps = 0: must be above 0"),
            (r#"{"pad_token_id": 30522}"#, "pad_token_id = 30522: must be below vocab_size = 30522, or null"),
            (r#"{"model_type": "roberta"}"#, "model_type = roberta: only \"bert\" is supported"),
            (r#"{"position_embedding_type": "relative_key"}"#, "position_embedding_type = relative_key: only"),
            (r#"{"is_decoder": true}"#, "is_decoder = true: only encoders"),
            (r#"{"tie_word_embeddings": false}"#, "tie_word_embeddings = false: the decoder always"),
            (r#"{"hidden_act": "mish"}"#, "not a BERT config: unknown variant `mish`, expected one of `gelu`"),
            (r#"{"hidden_size": -1}"#, "not a BERT config: invalid value"),
            ("", "not a BERT config: EOF"),
        ] {
            let error = BertConfig::from_json(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
