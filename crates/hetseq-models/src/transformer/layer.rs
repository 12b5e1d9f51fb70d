//! What layers of encoder and decoder are made of: attention with its projections, a feed-forward part, and how the norms stand
//! around them.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use hetseq_kernels::dropout;
use hetseq_random::Key;

use super::{TransformerConfig, site};
use crate::activation::Activation;
use crate::attention;
use crate::layers::{LayerNorm, Linear};

/// As PyTorch's.
pub(super) const EPSILON: f64 = 1e-5;

#[derive(Module, Debug)]
pub(super) struct Attention {
    k_proj: Linear,
    v_proj: Linear,
    q_proj: Linear,
    out_proj: Linear,
    #[module(skip)]
    heads: usize,
    #[module(skip)]
    dropout: f32,
}

/// What is attended to: [sample, position, feature].
#[derive(Debug, Clone)]
pub(super) struct Attended {
    pub(super) key: Tensor<3>,
    pub(super) value: Tensor<3>,
}

impl Attention {
    pub(super) fn new(config: &TransformerConfig, heads: usize, device: &Device) -> Self {
        let linear = || Linear::new(config.d_model, config.d_model, device);
        let dropout = config.attention_dropout as f32;
        Attention { k_proj: linear(), v_proj: linear(), q_proj: linear(), out_proj: linear(), heads, dropout }
    }

    pub(super) fn look_at(&self, x: Tensor<3>) -> Attended {
        Attended { key: self.k_proj.forward(x.clone()), value: self.v_proj.forward(x) }
    }

    pub(super) fn forward(
        &self,
        x: Tensor<3>,
        attended: Attended,
        bias: Option<&Tensor<4>>,
        keys: &[Key],
    ) -> Tensor<3> {
        let attention = attention::Attention { heads: self.heads, bias, dropout: self.dropout, keys };
        self.out_proj.forward(attention.forward(self.q_proj.forward(x), attended.key, attended.value))
    }
}

/// How the result of a part is joined to what went into it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Joint {
    pub(super) dropout: f32,
    pub(super) norm_before: bool,
}

impl Joint {
    pub(super) fn of(config: &TransformerConfig) -> Self {
        Joint { dropout: config.dropout as f32, norm_before: config.normalize_before }
    }

    /// x + part(norm(x)), or norm(x + part(x)); dropout on what the part gives.
    pub(super) fn around(
        self,
        x: Tensor<3>,
        norm: &LayerNorm,
        keys: &[Key],
        part: impl FnOnce(Tensor<3>) -> Tensor<3>,
    ) -> Tensor<3> {
        let input = if self.norm_before { norm.forward(x.clone()) } else { x.clone() };
        let sum = x + dropout(part(input), self.dropout, keys);
        if self.norm_before { sum } else { norm.forward(sum) }
    }
}

/// The two linear layers that every layer ends with.
pub(super) struct FeedForward<'a> {
    pub(super) fc1: &'a Linear,
    pub(super) fc2: &'a Linear,
    pub(super) activation: Activation,
    pub(super) dropout: f32,
}

impl FeedForward<'_> {
    pub(super) fn forward(&self, x: Tensor<3>, keys: &[Key]) -> Tensor<3> {
        let inner = self.activation.apply(self.fc1.forward(x));
        self.fc2.forward(dropout(inner, self.dropout, &site(keys, "activation")))
    }
}
