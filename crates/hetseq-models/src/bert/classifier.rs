//! BERT with a linear classifier, for fine-tuning: of tokens (`BertForTokenClassification`, without
//! a pooler) or of whole samples (`BertForSequenceClassification`). Parameters have the names of
//! these classes.

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor};
use hetseq_kernels::dropout;
use hetseq_random::Key;

use super::trunk::{Trunk, TrunkInit, positions_at};
use super::{BertConfig, BertInput, site};
use crate::layers::Linear;
use crate::recompute::Tape;
use crate::{Init, Network};

#[derive(Module, Debug)]
pub struct BertClassifier {
    bert: Trunk,
    classifier: Linear,
    #[module(skip)]
    dropout: f32,
    #[module(skip)]
    init: TrunkInit,
}

impl Network for BertClassifier {
    fn init(&self, name: &str, shape: &[usize]) -> Init {
        self.init.of(name, shape)
    }
}

impl BertClassifier {
    /// Labels tokens.
    pub fn of_tokens(config: &BertConfig, classes: usize, device: &Device) -> Self {
        BertClassifier::new(config, classes, false, device)
    }

    /// Labels samples. For regression, `classes` is 1.
    pub fn of_samples(config: &BertConfig, classes: usize, device: &Device) -> Self {
        BertClassifier::new(config, classes, true, device)
    }

    fn new(config: &BertConfig, classes: usize, has_pooler: bool, device: &Device) -> Self {
        BertClassifier {
            bert: Trunk::new(config, has_pooler, device),
            classifier: Linear::new(config.hidden_size, classes, device),
            dropout: config.classifier_dropout.unwrap_or(config.hidden_dropout_prob) as f32,
            init: TrunkInit::new(config),
        }
    }

    /// Logits [position, class] at the positions `at` (`row * positions + column`), of which there
    /// must be some. `keys` and `tape` as in [`super::Bert::hidden`].
    pub fn token_logits(&self, input: &BertInput, at: Tensor<1, Int>, keys: &[Key], tape: Option<&Tape>) -> Tensor<2> {
        // Dropout before the selection: its masks belong to samples, of which a position is a part.
        let hidden = dropout(self.bert.hidden(input, keys, tape), self.dropout, &site(keys, "classifier"));
        self.classifier.forward(positions_at(hidden, at))
    }

    /// Logits [sample, class].
    pub fn sample_logits(&self, input: &BertInput, keys: &[Key], tape: Option<&Tape>) -> Tensor<2> {
        let pooled = self.bert.pooled(self.bert.hidden(input, keys, tape));
        self.classifier.forward(dropout(pooled, self.dropout, &site(keys, "classifier")))
    }
}
