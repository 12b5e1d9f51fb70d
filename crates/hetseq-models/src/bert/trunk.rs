//! What all BERT models share: embeddings, encoder, and for most of them the pooler. The field
//! `bert` of each model.

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor};
use hetseq_random::Key;

use super::embeddings::Embeddings;
use super::encoder::BertEncoder;
use super::{BertConfig, BertInput};
use crate::Init;
use crate::layers::Linear;
use crate::recompute::Tape;

#[derive(Module, Debug)]
pub(super) struct Trunk {
    embeddings: Embeddings,
    encoder: BertEncoder,
    /// Models that only label tokens have none.
    pooler: Option<Pooler>,
    #[module(skip)]
    init: TrunkInit,
}

#[derive(Debug, Clone, Copy)]
struct TrunkInit {
    std: f64,
    pad_token_id: Option<usize>,
}

#[derive(Module, Debug)]
struct Pooler {
    dense: Linear,
}

impl Trunk {
    pub(super) fn new(config: &BertConfig, has_pooler: bool, device: &Device) -> Self {
        let pooler = || Pooler { dense: Linear::new(config.hidden_size, config.hidden_size, device) };
        Trunk {
            embeddings: Embeddings::new(config, device),
            encoder: BertEncoder::new(config, device),
            pooler: has_pooler.then(pooler),
            init: TrunkInit { std: config.initializer_range, pad_token_id: config.pad_token_id },
        }
    }

    /// The last hidden states [sample, position, feature].
    pub(super) fn hidden(&self, input: &BertInput, keys: &[Key], tape: Option<&Tape>) -> Tensor<3> {
        let x = self.embeddings.forward(input, keys);
        self.encoder.forward(x, input.padding.as_ref(), keys, tape)
    }

    /// One vector per sample, computed from its first position. Without a pooler, that position.
    pub(super) fn pooled(&self, hidden: Tensor<3>) -> Tensor<2> {
        let [samples, _, width] = hidden.dims();
        let first = hidden.narrow(1, 0, 1).reshape([samples, width]);
        match &self.pooler {
            Some(pooler) => pooler.dense.forward(first).tanh(),
            None => first,
        }
    }

    /// Initial values of a model's parameters, also of its heads, as in transformers: weights normal
    /// (not truncated), the embedding of padding zero, biases zero, norms the identity.
    pub(super) fn init(&self, name: &str, shape: &[usize]) -> Init {
        let TrunkInit { std, pad_token_id } = self.init;
        match (shape, pad_token_id) {
            (&[_, width], Some(row)) if name == "bert.embeddings.word_embeddings.weight" => {
                Init::NormalExceptRow { std, width, row }
            }
            ([_, _], _) => Init::Normal { std },
            _ if name.ends_with("bias") => Init::Constant(0.0),
            _ => Init::Constant(1.0),
        }
    }

    /// [word, feature]
    pub(super) fn word_embeddings(&self) -> Tensor<2> {
        self.embeddings.word_embeddings.weight.val()
    }
}

/// The hidden states [position, feature] at the positions `at` (`row * positions + column`).
pub(super) fn positions_at(hidden: Tensor<3>, at: Tensor<1, Int>) -> Tensor<2> {
    let [samples, positions, width] = hidden.dims();
    hidden.reshape([samples * positions, width]).select(0, at)
}
