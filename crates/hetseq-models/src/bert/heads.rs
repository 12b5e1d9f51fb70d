//! BERT's pre-training heads: masked-word and next-sentence prediction.

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

/// Masked-word prediction. Its output weight is that of the word embeddings, so it is not a
/// parameter here.
#[derive(Module, Debug)]
pub(super) struct Predictions {
    bias: Param<Tensor<1>>,
    transform: Transform,
}

impl Predictions {
    /// Returns logits [token, word]. `hidden` is [token, feature]; `words` are the word embeddings
    /// [word, feature].
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

/// Positions at which a head predicts, and their labels.
#[derive(Debug, Clone)]
pub struct Labelled {
    /// For masked words `row * positions + column`, for sentences the row. Other positions have no
    /// loss.
    pub at: Tensor<1, Int>,
    pub labels: Tensor<1, Int>,
}

impl Labelled {
    /// `at` and `labels` have the same length, which may be zero.
    pub fn new(at: &[i32], labels: &[i32], device: &Device) -> Self {
        Labelled { at: Tensor::from_data(at, device), labels: Tensor::from_data(labels, device) }
    }

    pub fn is_empty(&self) -> bool {
        self.at.dims() == [0]
    }
}

/// A head's prediction for its [`Labelled`] positions.
#[derive(Debug)]
pub struct HeadOutput {
    /// The *sum* of the cross entropies.
    pub loss: Tensor<1>,
    /// [position, class]. `None` if there are no positions.
    pub logits: Option<Tensor<2>>,
}

impl HeadOutput {
    /// `logits` is called only if there are positions: not every backend supports empty tensors.
    pub(super) fn new(labels: &Labelled, device: &Device, logits: impl FnOnce(Tensor<1, Int>) -> Tensor<2>) -> Self {
        if labels.is_empty() {
            return HeadOutput { loss: Tensor::zeros([1], device), logits: None };
        }
        let logits = logits(labels.at.clone());
        HeadOutput { loss: cross_entropy_sum(logits.clone(), labels.labels.clone()), logits: Some(logits) }
    }

    /// Number of correct predictions.
    pub fn correct(&self, labels: &Labelled) -> Tensor<1> {
        match &self.logits {
            Some(logits) => logits.clone().argmax(1).equal(labels.labels.clone().unsqueeze_dim(1)).float().sum(),
            None => self.loss.zeros_like(),
        }
    }
}
