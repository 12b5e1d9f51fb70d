//! BERT with linear heads, for fine-tuning: labels of tokens (`BertForTokenClassification`, without a
//! pooler), of whole samples (`BertForSequenceClassification`), or of tokens with the entities they
//! mention. Parameters have the names of these classes; the head of entities is `entity_classifier`.

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor};
use hetseq_kernels::dropout;
use hetseq_random::Key;

use super::trunk::{Trunk, positions_at};
use super::{BertConfig, BertInput, site};
use crate::layers::Linear;
use crate::recompute::Tape;
use crate::{Init, Network};

/// The class of `transformers` with the same parameters, if the head of entities is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassifierArchitecture {
    Tokens,
    Sequences,
}

impl ClassifierArchitecture {
    pub const fn name(self) -> &'static str {
        match self {
            ClassifierArchitecture::Tokens => "BertForTokenClassification",
            ClassifierArchitecture::Sequences => "BertForSequenceClassification",
        }
    }

    pub fn has_pooler(self) -> bool {
        self == ClassifierArchitecture::Sequences
    }
}

#[derive(Module, Debug)]
pub struct BertClassifier {
    bert: Trunk,
    classifier: Linear,
    /// Maps tokens to the space of entity embeddings.
    entity_classifier: Option<Linear>,
    #[module(skip)]
    dropout: f32,
}

impl Network for BertClassifier {
    fn init(&self, name: &str, shape: &[usize]) -> Init {
        self.bert.init(name, shape)
    }
}

impl BertClassifier {
    /// Labels tokens.
    pub fn of_tokens(config: &BertConfig, classes: usize, device: &Device) -> Self {
        BertClassifier::new(config, classes, ClassifierArchitecture::Tokens, None, device)
    }

    /// Labels tokens, and maps them to entity embeddings of `dim` values.
    pub fn of_mentions(config: &BertConfig, classes: usize, dim: usize, device: &Device) -> Self {
        BertClassifier::new(config, classes, ClassifierArchitecture::Tokens, Some(dim), device)
    }

    /// Labels samples. For regression, `classes` is 1.
    pub fn of_samples(config: &BertConfig, classes: usize, device: &Device) -> Self {
        BertClassifier::new(config, classes, ClassifierArchitecture::Sequences, None, device)
    }

    fn new(
        config: &BertConfig,
        classes: usize,
        architecture: ClassifierArchitecture,
        entity_dim: Option<usize>,
        device: &Device,
    ) -> Self {
        let linear = |outputs| Linear::new(config.hidden_size, outputs, device);
        BertClassifier {
            bert: Trunk::new(config, architecture.has_pooler(), device),
            classifier: linear(classes),
            entity_classifier: entity_dim.map(linear),
            dropout: config.classifier_dropout.unwrap_or(config.hidden_dropout_prob) as f32,
        }
    }

    /// What the heads of tokens get: the hidden states [sample, position, feature] after dropout.
    /// `keys` and `tape` as in [`super::Bert::hidden`].
    pub fn hidden(&self, input: &BertInput, keys: &[Key], tape: Option<&Tape>) -> Tensor<3> {
        // Dropout before positions are selected: its masks belong to samples.
        dropout(self.bert.hidden(input, keys, tape), self.dropout, &site(keys, "classifier"))
    }

    /// Logits [position, class] at the positions `at` (`row * positions + column`), of which there
    /// must be some.
    pub fn token_logits(&self, hidden: Tensor<3>, at: Tensor<1, Int>) -> Tensor<2> {
        self.classifier.forward(positions_at(hidden, at))
    }

    /// Vectors [position, dim] in the space of entity embeddings, at the positions `at`, of which
    /// there must be some. `None` without that head.
    pub fn entity_vectors(&self, hidden: Tensor<3>, at: Tensor<1, Int>) -> Option<Tensor<2>> {
        Some(self.entity_classifier.as_ref()?.forward(positions_at(hidden, at)).tanh())
    }

    /// Logits [sample, class].
    pub fn sample_logits(&self, input: &BertInput, keys: &[Key], tape: Option<&Tape>) -> Tensor<2> {
        let pooled = self.bert.pooled(self.bert.hidden(input, keys, tape));
        self.classifier.forward(dropout(pooled, self.dropout, &site(keys, "classifier")))
    }
}
