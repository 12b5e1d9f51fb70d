//! What pre-training puts on top: which word was masked, and whether the second sentence follows the first.

use burn::module::{Module, Param};
use burn::tensor::{Device, Int, Tensor};

use super::BertConfig;
use crate::activation::Activation;
use crate::layers::{LayerNorm, Linear, zeros};
use crate::loss::cross_entropy_sum;

#[derive(Module, Debug)]
pub(super) struct Heads {
    pub(super) predictions: Predictions,
    pub(super) seq_relationship: Linear,
}

impl Heads {
    pub(super) fn new(config: &BertConfig, device: &Device) -> Self {
        let width = config.hidden_size;
        let transform = Transform {
            dense: Linear::new(width, width, device),
            LayerNorm: LayerNorm::new(width, config.layer_norm_eps, device),
            activation: config.hidden_act,
        };
        Heads {
            predictions: Predictions { bias: zeros([config.vocab_size], device), transform },
            seq_relationship: Linear::new(width, 2, device),
        }
    }
}

/// The decoder's weight is that of the word embeddings, hence not a parameter here.
#[derive(Module, Debug)]
pub(super) struct Predictions {
    bias: Param<Tensor<1>>,
    transform: Transform,
}

impl Predictions {
    /// `hidden` is [token, feature], `words` the word embeddings [word, feature]; the answer [token, word] are logits.
    pub(super) fn forward(&self, hidden: Tensor<2>, words: Tensor<2>) -> Tensor<2> {
        let Transform { dense, LayerNorm, activation } = &self.transform;
        let x = LayerNorm.forward(activation.apply(dense.forward(hidden)));
        hetseq_kernels::linear(x, words, self.bias.val())
    }
}

#[derive(Module, Debug)]
struct Transform {
    dense: Linear,
    LayerNorm: LayerNorm,
    #[module(skip)]
    activation: Activation,
}

/// Where a head is to answer, and what is right.
#[derive(Debug, Clone)]
pub struct Labelled {
    /// For masked words `row * positions + column`, for sentences the row. What is not listed has no loss.
    pub at: Tensor<1, Int>,
    pub labels: Tensor<1, Int>,
}

impl Labelled {
    /// Both of the same length. May be empty.
    pub fn new(at: &[i32], labels: &[i32], device: &Device) -> Self {
        Labelled { at: Tensor::from_data(at, device), labels: Tensor::from_data(labels, device) }
    }

    pub fn is_empty(&self) -> bool {
        self.at.dims() == [0]
    }
}

/// What a head says to its [`Labelled`].
#[derive(Debug)]
pub struct Answers {
    /// The *sum* of the cross entropies.
    pub loss: Tensor<1>,
    /// [answer, class]; none if nothing was asked.
    pub logits: Option<Tensor<2>>,
}

impl Answers {
    /// `logits` is called only if something is asked: not every backend computes with empty tensors.
    pub(super) fn new(asked: &Labelled, device: &Device, logits: impl FnOnce(Tensor<1, Int>) -> Tensor<2>) -> Self {
        if asked.is_empty() {
            return Answers { loss: Tensor::zeros([1], device), logits: None };
        }
        let logits = logits(asked.at.clone());
        Answers { loss: cross_entropy_sum(logits.clone(), asked.labels.clone()), logits: Some(logits) }
    }

    /// How many answers are right.
    pub fn right(&self, asked: &Labelled) -> Tensor<1> {
        match &self.logits {
            Some(logits) => logits.clone().argmax(1).equal(asked.labels.clone().unsqueeze_dim(1)).float().sum(),
            None => self.loss.zeros_like(),
        }
    }
}
