//! Blocks of encoder and decoder layers: attention with its projections, feed-forward, and the
//! residual connection with its norm.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use hetseq_kernels::dropout;
use hetseq_random::Key;

use super::{TransformerConfig, site};
use crate::activation::Activation;
use crate::attention;
use crate::layers::{LayerNorm, Linear};

/// PyTorch's default.
pub(super) const EPSILON: f64 = 1e-5;

#[derive(Module, Debug)]
pub(super) struct AttentionBlock {
    k_proj: Linear,
    v_proj: Linear,
    q_proj: Linear,
    out_proj: Linear,
    #[module(skip)]
    heads: usize,
    #[module(skip)]
    dropout: f32,
}

/// Projected keys and values: [sample, position, feature].
#[derive(Debug, Clone)]
pub(super) struct KeyValue {
    pub(super) key: Tensor<3>,
    pub(super) value: Tensor<3>,
}

impl AttentionBlock {
    pub(super) fn new(config: &TransformerConfig, heads: usize, device: &Device) -> Self {
        let linear = || Linear::new(config.d_model, config.d_model, device);
        let dropout = config.attention_dropout as f32;
        AttentionBlock { k_proj: linear(), v_proj: linear(), q_proj: linear(), out_proj: linear(), heads, dropout }
    }

    /// Projects `x` to keys and values.
    pub(super) fn project(&self, x: Tensor<3>) -> KeyValue {
        KeyValue { key: self.k_proj.forward(x.clone()), value: self.v_proj.forward(x) }
    }

    pub(super) fn forward(
        &self,
        x: Tensor<3>,
        key_value: KeyValue,
        bias: Option<&Tensor<4>>,
        keys: &[Key],
    ) -> Tensor<3> {
        let attention = attention::Attention { heads: self.heads, bias, dropout: self.dropout, keys };
        self.out_proj.forward(attention.forward(self.q_proj.forward(x), key_value.key, key_value.value))
    }
}

/// What all layers of a model compute alike, apart from their parameters.
#[derive(Debug, Clone, Copy)]
pub(super) struct LayerSettings {
    pub(super) dropout: f32,
    norm_before: bool,
    activation: Activation,
    activation_dropout: f32,
}

impl LayerSettings {
    pub(super) fn of(config: &TransformerConfig) -> Self {
        LayerSettings {
            dropout: config.dropout as f32,
            norm_before: config.normalize_before,
            activation: config.activation_function,
            activation_dropout: config.activation_dropout as f32,
        }
    }

    /// The residual connection around a block: x + block(norm(x)), or norm(x + block(x)), with
    /// dropout on the block's output.
    pub(super) fn residual(
        self,
        x: Tensor<3>,
        norm: &LayerNorm,
        keys: &[Key],
        block: impl FnOnce(Tensor<3>) -> Tensor<3>,
    ) -> Tensor<3> {
        let input = if self.norm_before { norm.forward(x.clone()) } else { x.clone() };
        let sum = x + dropout(block(input), self.dropout, keys);
        if self.norm_before { sum } else { norm.forward(sum) }
    }

    /// The feed-forward block at the end of every layer, with its residual connection.
    pub(super) fn feed_forward(
        self,
        x: Tensor<3>,
        [fc1, fc2]: [&Linear; 2],
        norm: &LayerNorm,
        keys: &[Key],
    ) -> Tensor<3> {
        self.residual(x, norm, &site(keys, "output"), |x| {
            let inner = self.activation.apply(fc1.forward(x));
            fc2.forward(dropout(inner, self.activation_dropout, &site(keys, "activation")))
        })
    }
}
