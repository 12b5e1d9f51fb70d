//! BERT for pre-training (Devlin et al., 2019): masked words and next sentences. What it is trained on is not decided here.
//!
//! Fields are called as in Hugging Face's `BertForPreTraining`, so that parameters have its names, its shapes and its starting
//! values, and checkpoints go either way as they are.
#![allow(non_snake_case, reason = "LayerNorm is what the layer is called in every published checkpoint")]

mod config;
mod embeddings;
mod encoder;
mod heads;
mod names;

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};
use hetseq_random::Key;

use crate::attention::hide_padding;
use crate::layers::Linear;
use crate::recompute::Tape;
use crate::{Init, Network};
pub use config::{BertConfig, BertSize};
use embeddings::Embeddings;
use encoder::Encoder;
use heads::Heads;
pub use heads::{Answers, Labelled};
pub use names::parameter_name;

/// A micro-batch on the device: sequences padded to one length.
#[derive(Debug, Clone)]
pub struct Sequences {
    /// [sample, position]
    tokens: Tensor<2, Int>,
    segments: Tensor<2, Int>,
    /// Hides what is padding; none if nothing is.
    padding: Option<Tensor<4>>,
}

impl Sequences {
    /// `tokens` and `segments` hold one row per length, padded with anything that the vocabulary has (commonly
    /// [`BertConfig::pad_token_id`]). All ids must be below the sizes in the config, and rows no longer than its
    /// `max_position_embeddings`: whoever reads the data has checked it.
    pub fn new(tokens: &[i32], segments: &[i32], lengths: &[usize], device: &Device) -> Self {
        let positions = tokens.len() / lengths.len().max(1);
        let ids = |ids: &[i32]| {
            Tensor::<2, Int>::from_data(TensorData::new(ids.to_vec(), [lengths.len(), positions]), device)
        };
        // A constant, also beside tensors that are tracked.
        let padding = hide_padding(lengths, positions, &device.clone().inner());
        Sequences { tokens: ids(tokens), segments: ids(segments), padding }
    }
}

/// The whole: the encoder (`bert`) and the two heads (`cls`).
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
    encoder: Encoder,
    pooler: Pooler,
}

#[derive(Module, Debug)]
struct Pooler {
    dense: Linear,
}

impl Network for Bert {
    /// As transformers: weights normal (not truncated), the padding's embedding zero, biases zero, norms the identity.
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
            encoder: Encoder::new(config, device),
            pooler: Pooler { dense: Linear::new(config.hidden_size, config.hidden_size, device) },
        };
        let (initializer_range, pad_token_id) = (config.initializer_range, config.pad_token_id);
        Bert { bert, cls: Heads::new(config, device), initializer_range, pad_token_id }
    }

    /// The last hidden states [sample, position, feature]; those of the padding mean nothing. `keys` as in
    /// [`hetseq_kernels::dropout`]: one per sample, none when evaluating. With a tape the layers' inner values are not kept.
    pub fn hidden(&self, input: &Sequences, keys: &[Key], tape: Option<&Tape>) -> Tensor<3> {
        let x = self.bert.embeddings.forward(input, keys);
        self.bert.encoder.forward(x, input.padding.as_ref(), keys, tape)
    }

    /// One vector per sample, from its first position.
    pub fn pooled(&self, hidden: Tensor<3>) -> Tensor<2> {
        let [samples, _, width] = hidden.dims();
        let first = hidden.narrow(1, 0, 1).reshape([samples, width]);
        self.bert.pooler.dense.forward(first).tanh()
    }

    /// Which word is at each of the places `at` (`row * positions + column`): logits [place, word]. Computed there only,
    /// since the vocabulary is large and few words are masked.
    pub fn masked_logits(&self, hidden: Tensor<3>, at: Tensor<1, Int>) -> Tensor<2> {
        let [samples, positions, width] = hidden.dims();
        let chosen = hidden.reshape([samples * positions, width]).select(0, at);
        self.cls.predictions.forward(chosen, self.bert.embeddings.word_embeddings.weight.val())
    }

    /// Whether the second sentence follows the first (class 0) or not (class 1): logits [sample, class].
    pub fn next_sentence_logits(&self, pooled: Tensor<2>) -> Tensor<2> {
        self.cls.seq_relationship.forward(pooled)
    }

    /// Both losses, as sums, and the logits behind them: of the masked words and of the sentences.
    pub fn answer(
        &self,
        input: &Sequences,
        words: &Labelled,
        sentences: &Labelled,
        keys: &[Key],
        tape: Option<&Tape>,
    ) -> [Answers; 2] {
        let hidden = self.hidden(input, keys, tape);
        let device = hidden.device();
        let words = Answers::new(words, &device, |at| self.masked_logits(hidden.clone(), at));
        let of_rows = |at| self.next_sentence_logits(self.pooled(hidden.clone()).select(0, at));
        [words, Answers::new(sentences, &device, of_rows)]
    }
}

/// The samples' keys at one place in the network.
fn site(keys: &[Key], name: &str) -> Vec<Key> {
    keys.iter().map(|key| key.name(name)).collect()
}
