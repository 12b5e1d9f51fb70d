//! BERT (Devlin et al., 2019): for pre-training here, with masked-word and next-sentence
//! prediction; for fine-tuning in `classifier.rs`. The data and the tasks are elsewhere.
//!
//! Fields have the names of Hugging Face's `BertForPreTraining`. So parameters have its names,
//! shapes and initial values, and checkpoints can be exchanged in both directions.
#![allow(non_snake_case, reason = "LayerNorm is the layer's name in every published checkpoint")]

mod classifier;
mod config;
mod embeddings;
mod encoder;
mod heads;
mod names;
mod trunk;

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};
use hetseq_random::Key;

use crate::attention::padding_mask;
use crate::recompute::Tape;
use crate::{Init, Network};
pub use classifier::{BertClassifier, ClassifierArchitecture};
pub use config::{BertConfig, BertSize};
use heads::Heads;
pub use heads::{HeadOutput, Labelled};
pub use names::parameter_name;
use trunk::Trunk;

/// A micro-batch on the device: sequences padded to one length.
#[derive(Debug, Clone)]
pub struct BertInput {
    /// [sample, position]
    tokens: Tensor<2, Int>,
    segments: Tensor<2, Int>,
    /// Masks the padding. `None` without padding.
    padding: Option<Tensor<4>>,
}

impl BertInput {
    /// `tokens` and `segments` hold one row per length, padded with any valid id (commonly
    /// [`BertConfig::pad_token_id`]). The caller must have checked that all ids are below the sizes
    /// in the config and that rows are not longer than its `max_position_embeddings`.
    pub fn new(tokens: &[i32], segments: &[i32], lengths: &[usize], device: &Device) -> Self {
        let positions = tokens.len() / lengths.len().max(1);
        let ids = |ids: &[i32]| {
            Tensor::<2, Int>::from_data(TensorData::new(ids.to_vec(), [lengths.len(), positions]), device)
        };
        // A constant, not tracked by autodiff.
        let padding = padding_mask(lengths, positions, &device.clone().inner());
        BertInput { tokens: ids(tokens), segments: ids(segments), padding }
    }
}

/// The model: the encoder (`bert`) and the two heads (`cls`).
#[derive(Module, Debug)]
pub struct Bert {
    bert: Trunk,
    cls: Heads,
}

impl Network for Bert {
    fn init(&self, name: &str, shape: &[usize]) -> Init {
        self.bert.init(name, shape)
    }
}

impl Bert {
    /// The config must be valid, see [`BertConfig::validate`].
    pub fn new(config: &BertConfig, device: &Device) -> Self {
        Bert { bert: Trunk::new(config, true, device), cls: Heads::new(config, device) }
    }

    /// The last hidden states [sample, position, feature]; those of the padding are meaningless.
    /// `keys` as in [`hetseq_kernels::dropout`]: one per sample, none when evaluating. With a tape,
    /// the inner values of the layers are recomputed in the backward pass.
    pub fn hidden(&self, input: &BertInput, keys: &[Key], tape: Option<&Tape>) -> Tensor<3> {
        self.bert.hidden(input, keys, tape)
    }

    /// One vector per sample, computed from its first position.
    pub fn pooled(&self, hidden: Tensor<3>) -> Tensor<2> {
        self.bert.pooled(hidden)
    }

    /// Word logits [position, word] at the positions `at` (`row * positions + column`). Only
    /// computed there, because the vocabulary is large and few words are masked.
    pub fn masked_logits(&self, hidden: Tensor<3>, at: Tensor<1, Int>) -> Tensor<2> {
        self.cls.predictions.forward(trunk::positions_at(hidden, at), self.bert.word_embeddings())
    }

    /// Logits [sample, class]: class 0 if the second sentence follows the first, else class 1.
    pub fn next_sentence_logits(&self, pooled: Tensor<2>) -> Tensor<2> {
        self.cls.seq_relationship.forward(pooled)
    }

    /// Loss sums and logits of both heads: masked words, then sentences.
    pub fn predict(
        &self,
        input: &BertInput,
        words: &Labelled,
        sentences: &Labelled,
        keys: &[Key],
        tape: Option<&Tape>,
    ) -> [HeadOutput; 2] {
        let hidden = self.hidden(input, keys, tape);
        let device = hidden.device();
        let words = HeadOutput::new(words, &device, |at| self.masked_logits(hidden.clone(), at));
        let sentence_logits = |at| self.next_sentence_logits(self.pooled(hidden.clone()).select(0, at));
        [words, HeadOutput::new(sentences, &device, sentence_logits)]
    }
}

/// The samples' keys for one dropout site in the network.
fn site(keys: &[Key], name: &str) -> Vec<Key> {
    keys.iter().map(|key| key.name(name)).collect()
}
