//! BERT's encoder: layers of self-attention and a feed-forward block. Norms come after the residual
//! sum (post-norm), as published.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use hetseq_kernels::dropout;
use hetseq_random::Key;

use super::{BertConfig, site};
use crate::activation::Activation;
use crate::attention;
use crate::layers::{LayerNorm, Linear};
use crate::recompute::Tape;

#[derive(Module, Debug)]
pub(super) struct BertEncoder {
    layer: Vec<Layer>,
}

impl BertEncoder {
    pub(super) fn new(config: &BertConfig, device: &Device) -> Self {
        BertEncoder { layer: (0..config.num_hidden_layers).map(|_| Layer::new(config, device)).collect() }
    }

    /// `bias` masks the padding, see [`attention::padding_mask`].
    pub(super) fn forward(
        &self,
        mut x: Tensor<3>,
        bias: Option<&Tensor<4>>,
        keys: &[Key],
        tape: Option<&Tape>,
    ) -> Tensor<3> {
        for (layer, i) in self.layer.iter().zip(0..) {
            let keys: Vec<Key> = keys.iter().map(|key| key.index(i)).collect();
            x = match tape {
                None => layer.forward(x, bias, &keys),
                Some(tape) => {
                    let bias = bias.cloned();
                    tape.run(layer, x, move |layer: &Layer, x| layer.forward(x, bias.as_ref(), &keys))
                }
            };
        }
        x
    }
}

#[derive(Module, Debug)]
struct Layer {
    attention: Attention,
    intermediate: Intermediate,
    output: Residual,
}

impl Layer {
    fn new(config: &BertConfig, device: &Device) -> Self {
        Layer {
            attention: Attention {
                self_: SelfAttention::new(config, device),
                output: Residual::new(config.hidden_size, config, device),
            },
            intermediate: Intermediate {
                dense: Linear::new(config.hidden_size, config.intermediate_size, device),
                activation: config.hidden_act,
            },
            output: Residual::new(config.intermediate_size, config, device),
        }
    }

    fn forward(&self, x: Tensor<3>, bias: Option<&Tensor<4>>, keys: &[Key]) -> Tensor<3> {
        let attended = self.attention.self_.forward(x.clone(), bias, &site(keys, "attention"));
        let x = self.attention.output.forward(attended, x, &site(keys, "attention output"));
        let inner = self.intermediate.activation.apply(self.intermediate.dense.forward(x.clone()));
        self.output.forward(inner, x, &site(keys, "output"))
    }
}

#[derive(Module, Debug)]
struct Attention {
    self_: SelfAttention,
    output: Residual,
}

#[derive(Module, Debug)]
struct Intermediate {
    dense: Linear,
    #[module(skip)]
    activation: Activation,
}

#[derive(Module, Debug)]
struct SelfAttention {
    query: Linear,
    key: Linear,
    value: Linear,
    #[module(skip)]
    heads: usize,
    #[module(skip)]
    dropout: f32,
}

impl SelfAttention {
    fn new(config: &BertConfig, device: &Device) -> Self {
        let linear = || Linear::new(config.hidden_size, config.hidden_size, device);
        SelfAttention {
            query: linear(),
            key: linear(),
            value: linear(),
            heads: config.num_attention_heads,
            dropout: config.attention_probs_dropout_prob as f32,
        }
    }

    fn forward(&self, x: Tensor<3>, bias: Option<&Tensor<4>>, keys: &[Key]) -> Tensor<3> {
        let attention = attention::Attention { heads: self.heads, bias, dropout: self.dropout, keys };
        let (query, key) = (self.query.forward(x.clone()), self.key.forward(x.clone()));
        attention.forward(query, key, self.value.forward(x))
    }
}

/// The end of a block: a projection, added to the block's input.
#[derive(Module, Debug)]
struct Residual {
    dense: Linear,
    LayerNorm: LayerNorm,
    #[module(skip)]
    dropout: f32,
}

impl Residual {
    fn new(inputs: usize, config: &BertConfig, device: &Device) -> Self {
        Residual {
            dense: Linear::new(inputs, config.hidden_size, device),
            LayerNorm: LayerNorm::new(config.hidden_size, config.layer_norm_eps, device),
            dropout: config.hidden_dropout_prob as f32,
        }
    }

    fn forward(&self, x: Tensor<3>, shortcut: Tensor<3>, keys: &[Key]) -> Tensor<3> {
        self.LayerNorm.forward(dropout(self.dense.forward(x), self.dropout, keys) + shortcut)
    }
}
