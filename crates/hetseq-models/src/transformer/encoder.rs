//! The encoder: each source position attends to all others.

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor};
use hetseq_kernels::dropout;
use hetseq_random::Key;

use super::layer::{AttentionBlock, EPSILON, FeedForward, Residual};
use super::positions::{Positions, embed};
use super::{TransformerConfig, site};
use crate::activation::Activation;
use crate::layers::{Embedding, LayerNorm, Linear};

#[derive(Module, Debug)]
pub(super) struct TransformerEncoder {
    /// `None` if shared with the decoder.
    pub(super) embed_tokens: Option<Embedding>,
    embed_positions: Positions,
    layers: Vec<Layer>,
    /// After the last layer, with pre-norm only.
    layer_norm: Option<LayerNorm>,
    #[module(skip)]
    residual: Residual,
}

impl TransformerEncoder {
    pub(super) fn new(config: &TransformerConfig, device: &Device) -> Self {
        let is_separate = !config.share_encoder_decoder_embeddings;
        TransformerEncoder {
            embed_tokens: is_separate.then(|| Embedding::new(config.vocab_size, config.d_model, device)),
            embed_positions: Positions::new(config, device),
            layers: (0..config.encoder_layers).map(|_| Layer::new(config, device)).collect(),
            layer_norm: config.normalize_before.then(|| LayerNorm::new(config.d_model, EPSILON, device)),
            residual: Residual::of(config),
        }
    }

    /// `bias` masks the padding.
    pub(super) fn forward(
        &self,
        words: &Embedding,
        ids: Tensor<2, Int>,
        scale: f64,
        bias: Option<&Tensor<4>>,
        keys: &[Key],
    ) -> Tensor<3> {
        let x = embed(words, &self.embed_positions, ids, 0, scale);
        let mut x = dropout(x, self.residual.dropout, &site(keys, "embeddings"));
        for (layer, i) in self.layers.iter().zip(0..) {
            let keys: Vec<Key> = keys.iter().map(|key| key.index(i)).collect();
            x = layer.forward(x, self.residual, bias, &keys);
        }
        match &self.layer_norm {
            Some(norm) => norm.forward(x),
            None => x,
        }
    }
}

#[derive(Module, Debug)]
struct Layer {
    self_attn: AttentionBlock,
    self_attn_layer_norm: LayerNorm,
    fc1: Linear,
    fc2: Linear,
    final_layer_norm: LayerNorm,
    #[module(skip)]
    activation: Activation,
    #[module(skip)]
    activation_dropout: f32,
}

impl Layer {
    fn new(config: &TransformerConfig, device: &Device) -> Self {
        let (width, inner) = (config.d_model, config.encoder_ffn_dim);
        Layer {
            self_attn: AttentionBlock::new(config, config.encoder_attention_heads, device),
            self_attn_layer_norm: LayerNorm::new(width, EPSILON, device),
            fc1: Linear::new(width, inner, device),
            fc2: Linear::new(inner, width, device),
            final_layer_norm: LayerNorm::new(width, EPSILON, device),
            activation: config.activation_function,
            activation_dropout: config.activation_dropout as f32,
        }
    }

    fn forward(&self, x: Tensor<3>, residual: Residual, bias: Option<&Tensor<4>>, keys: &[Key]) -> Tensor<3> {
        let x = residual.apply(x, &self.self_attn_layer_norm, &site(keys, "attention output"), |x| {
            let key_value = self.self_attn.project(x.clone());
            self.self_attn.forward(x, key_value, bias, &site(keys, "attention"))
        });
        let Layer { fc1, fc2, activation, activation_dropout: dropout, .. } = self;
        let feed_forward = FeedForward { fc1, fc2, activation: *activation, dropout: *dropout };
        residual.apply(x, &self.final_layer_norm, &site(keys, "output"), |x| feed_forward.forward(x, keys))
    }
}
