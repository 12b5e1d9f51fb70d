//! BERT for pre-training (Devlin et al., 2019): masked-word and next-sentence prediction. The data
//! and the task are elsewhere.
//!
//! Fields have the names of Hugging Face's `BertForPreTraining`. So parameters have its names,
//! shapes and initial values, and checkpoints can be exchanged in both directions.
#![allow(non_snake_case, reason = "LayerNorm is the layer's name in every published checkpoint")]

mod config;
mod embeddings;
mod encoder;
mod heads;
mod names;

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};
use hetseq_random::Key;

use crate::attention::padding_mask;
use crate::layers::Linear;
use crate::recompute::Tape;
use crate::{Init, Network};
pub use config::{BertConfig, BertSize};
use embeddings::Embeddings;
use encoder::BertEncoder;
use heads::Heads;
pub use heads::{HeadOutput, Labelled};
pub use names::parameter_name;

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
    #[module(skip)]
    initializer_range: f64,
    #[module(skip)]
    pad_token_id: Option<usize>,
}

#[derive(Module, Debug)]
struct Trunk {
    embeddings: Embeddings,
    encoder: BertEncoder,
    pooler: Pooler,
}

#[derive(Module, Debug)]
struct Pooler {
    dense: Linear,
}

impl Network for Bert {
    /// As in transformers: weights normal (not truncated), the embedding of padding zero, biases
    /// zero, norms the identity.
    fn init(&self, name: &str, shape: &[usize]) -> Init {
        let std = self.initializer_range;
        match (shape, self.pad_token_id) {
            (&[_, width], Some(row)) if name == "bert.embeddings.word_embeddings.weight" => {
                Init::NormalExceptRow { std, width, row }
            }
            ([_, _], _) => Init::Normal { std },
            _ if name.ends_with("bias") => Init::Constant(0.0),
            _ => Init::Constant(1.0),
        }
    }
}

impl Bert {
    /// The config must be valid, see [`BertConfig::validate`].
    pub fn new(config: &BertConfig, device: &Device) -> Self {
        let bert = Trunk {
            embeddings: Embeddings::new(config, device),
            encoder: BertEncoder::new(config, device),
            pooler: Pooler { dense: Linear::new(config.hidden_size, config.hidden_size, device) },
        };
        let (initializer_range, pad_token_id) = (config.initializer_range, config.pad_token_id);
        Bert { bert, cls: Heads::new(config, device), initializer_range, pad_token_id }
    }

    /// The last hidden states [sample, position, feature]; those of the padding are meaningless.
    /// `keys` as in [`hetseq_kernels::dropout`]: one per sample, none when evaluating. With a tape,
    /// the inner values of the layers are recomputed in the backward pass.
    pub fn hidden(&self, input: &BertInput, keys: &[Key], tape: Option<&Tape>) -> Tensor<3> {
        let x = self.bert.embeddings.forward(input, keys);
        self.bert.encoder.forward(x, input.padding.as_ref(), keys, tape)
    }

    /// One vector per sample, computed from its first position.
    pub fn pooled(&self, hidden: Tensor<3>) -> Tensor<2> {
        let [samples, _, width] = hidden.dims();
        let first = hidden.narrow(1, 0, 1).reshape([samples, width]);
        self.bert.pooler.dense.forward(first).tanh()
    }

    /// Word logits [position, word] at the positions `at` (`row * positions + column`). Only
    /// computed there, because the vocabulary is large and few words are masked.
    pub fn masked_logits(&self, hidden: Tensor<3>, at: Tensor<1, Int>) -> Tensor<2> {
        let [samples, positions, width] = hidden.dims();
        let selected = hidden.reshape([samples * positions, width]).select(0, at);
        self.cls.predictions.forward(selected, self.bert.embeddings.word_embeddings.weight.val())
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
