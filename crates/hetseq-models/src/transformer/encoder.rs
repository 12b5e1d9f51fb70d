//! The encoder: each source position attends to all others.

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor};
use hetseq_kernels::dropout;
use hetseq_random::Key;

use super::layer::{AttentionBlock, EPSILON, LayerSettings};
use super::stack::Stack;
use super::{TransformerConfig, site};
use crate::layers::{Embedding, LayerNorm, Linear};

pub(super) type TransformerEncoder = Stack<EncoderLayer>;

impl TransformerEncoder {
    pub(super) fn new(config: &TransformerConfig, device: &Device) -> Self {
        let layers = (0..config.encoder_layers).map(|_| EncoderLayer::new(config, device)).collect();
        Stack::of_layers(layers, config.vocab_size, config, device)
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
        let mut x = dropout(self.embed(words, ids, 0, scale), self.settings.dropout, &site(keys, "embeddings"));
        for (layer, i) in self.layers.iter().zip(0..) {
            let keys: Vec<Key> = keys.iter().map(|key| key.index(i)).collect();
            x = layer.forward(x, self.settings, bias, &keys);
        }
        self.finish(x)
    }
}

#[derive(Module, Debug)]
pub(super) struct EncoderLayer {
    self_attn: AttentionBlock,
    self_attn_layer_norm: LayerNorm,
    fc1: Linear,
    fc2: Linear,
    final_layer_norm: LayerNorm,
}

impl EncoderLayer {
    fn new(config: &TransformerConfig, device: &Device) -> Self {
        let (width, inner) = (config.d_model, config.encoder_ffn_dim);
        EncoderLayer {
            self_attn: AttentionBlock::new(config, config.encoder_attention_heads, device),
            self_attn_layer_norm: LayerNorm::new(width, EPSILON, device),
            fc1: Linear::new(width, inner, device),
            fc2: Linear::new(inner, width, device),
            final_layer_norm: LayerNorm::new(width, EPSILON, device),
        }
    }

    fn forward(&self, x: Tensor<3>, settings: LayerSettings, bias: Option<&Tensor<4>>, keys: &[Key]) -> Tensor<3> {
        let x = settings.residual(x, &self.self_attn_layer_norm, &site(keys, "attention output"), |x| {
            let key_value = self.self_attn.project(x.clone());
            self.self_attn.forward(x, key_value, bias, &site(keys, "attention"))
        });
        settings.feed_forward(x, [&self.fc1, &self.fc2], &self.final_layer_norm, keys)
    }
}
