//! What the encoder and the decoder have in common: layers between embeddings and a last norm.

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor};

use super::TransformerConfig;
use super::layer::{EPSILON, LayerSettings};
use super::positions::{Positions, embed};
use crate::layers::{Embedding, LayerNorm};

#[derive(Module, Debug)]
pub(super) struct Stack<L: Module> {
    /// `None` if encoder and decoder share them.
    pub(super) embed_tokens: Option<Embedding>,
    embed_positions: Positions,
    pub(super) layers: Vec<L>,
    /// After the last layer, with pre-norm only.
    layer_norm: Option<LayerNorm>,
    #[module(skip)]
    pub(super) settings: LayerSettings,
}

impl<L: Module> Stack<L> {
    pub(super) fn of_layers(layers: Vec<L>, vocabulary: usize, config: &TransformerConfig, device: &Device) -> Self {
        let is_separate = !config.share_encoder_decoder_embeddings;
        Stack {
            embed_tokens: is_separate.then(|| Embedding::new(vocabulary, config.d_model, device)),
            embed_positions: Positions::new(config, device),
            layers,
            layer_norm: config.normalize_before.then(|| LayerNorm::new(config.d_model, EPSILON, device)),
            settings: LayerSettings::of(config),
        }
    }

    /// The input of the first layer: `words` times `scale`, and positions from `first` on.
    pub(super) fn embed(&self, words: &Embedding, ids: Tensor<2, Int>, first: usize, scale: f64) -> Tensor<3> {
        embed(words, &self.embed_positions, ids, first, scale)
    }

    /// The output of the last layer, after the norm if there is one.
    pub(super) fn finish(&self, x: Tensor<3>) -> Tensor<3> {
        match &self.layer_norm {
            Some(norm) => norm.forward(x),
            None => x,
        }
    }
}
