//! The encoder-decoder transformer (Vaswani et al., 2017) for translation. Parameters have the
//! names and layout of Hugging Face's Marian models. With post-norm and sinusoidal positions it
//! computes the same as Marian, so checkpoints can be exchanged.
//!
//! [`encoder`] and [`decoder`] are the two halves, [`decoding`] generates step by step, and
//! [`beam`](crate::beam) searches with it.

mod config;
mod decoder;
mod decoding;
mod encoder;
mod layer;
mod names;
mod positions;
mod stack;

use burn::module::{Module, Param};
use burn::tensor::{Device, Int, Tensor, TensorData};
use hetseq_random::Key;

use crate::attention::padding_mask;
use crate::layers::{Embedding, zeros};
use crate::{Init, Network};
pub use config::{TransformerConfig, TransformerSize};
use decoder::Decoder;
pub use decoding::Decoding;
use encoder::TransformerEncoder;
pub use names::parameter_name;

/// Token sequences on the device, padded to one length.
#[derive(Debug, Clone)]
pub struct TransformerInput {
    /// [sample, position]
    tokens: Tensor<2, Int>,
    /// Masks the padding. `None` without padding.
    padding: Option<Tensor<4>>,
}

impl TransformerInput {
    /// `tokens` holds one row per length. The caller must have checked that all ids are in the
    /// vocabulary and that rows are not longer than [`TransformerConfig::max_position_embeddings`].
    pub fn new(tokens: &[i32], lengths: &[usize], device: &Device) -> Self {
        let positions = tokens.len() / lengths.len().max(1);
        let ids = TensorData::new(tokens.to_vec(), [lengths.len(), positions]);
        // A constant, not tracked by autodiff.
        let padding = padding_mask(lengths, positions, &device.clone().inner());
        TransformerInput { tokens: Tensor::from_data(ids, device), padding }
    }
}

/// The model.
#[derive(Module, Debug)]
pub struct Transformer {
    model: Trunk,
    /// Bias of the output layer, whose weight is the decoder's embedding table.
    final_logits_bias: Param<Tensor<2>>,
    #[module(skip)]
    scale: f64,
    #[module(skip)]
    pad: usize,
}

#[derive(Module, Debug)]
struct Trunk {
    shared: Option<Embedding>,
    encoder: TransformerEncoder,
    decoder: Decoder,
}

impl Network for Transformer {
    /// Linear layers as in Glorot and Bengio (2010). Token embeddings have variance one after
    /// scaling; that of padding is zero.
    fn init(&self, name: &str, shape: &[usize]) -> Init {
        match *shape {
            [_, width] if name.ends_with("embed_tokens.weight") || name.ends_with("shared.weight") => {
                Init::NormalExceptRow { std: (width as f64).powf(-0.5), width, row: self.pad }
            }
            [_, width] if name.ends_with("embed_positions.weight") => Init::Normal { std: (width as f64).powf(-0.5) },
            _ if name.ends_with("bias") => Init::Constant(0.0),
            [outputs, inputs] => Init::Uniform { bound: (6.0 / (inputs + outputs) as f64).sqrt() as f32 },
            _ => Init::Constant(1.0),
        }
    }
}

impl Transformer {
    /// The config must be valid, see [`TransformerConfig::validate`].
    pub fn new(config: &TransformerConfig, device: &Device) -> Self {
        let shared = config.share_encoder_decoder_embeddings;
        let model = Trunk {
            shared: shared.then(|| Embedding::new(config.vocab_size, config.d_model, device)),
            encoder: TransformerEncoder::new(config, device),
            decoder: Decoder::new(config, device),
        };
        let scale = if config.scale_embedding { (config.d_model as f64).sqrt() } else { 1.0 };
        let final_logits_bias = zeros([1, config.target_vocabulary()], device);
        Transformer { model, final_logits_bias, scale, pad: config.pad_token_id }
    }

    /// The encoder's output [sample, position, feature]. `keys` as in [`hetseq_kernels::dropout`].
    fn encode(&self, source: &TransformerInput, keys: &[Key]) -> Tensor<3> {
        let Trunk { shared, encoder, .. } = &self.model;
        let words =
            shared.as_ref().or(encoder.embed_tokens.as_ref()).unwrap_or_else(|| unreachable!("one of them is set"));
        encoder.forward(words, source.tokens.clone(), self.scale, source.padding.as_ref(), &site(keys, "encoder"))
    }

    /// The embeddings of target words.
    fn target_words(&self) -> &Embedding {
        let Trunk { shared, decoder, .. } = &self.model;
        shared.as_ref().or(decoder.embed_tokens.as_ref()).unwrap_or_else(|| unreachable!("one of them is set"))
    }

    /// The decoder's hidden states [sample, position, feature] for known targets. `target` begins
    /// with the start token. Its padding needs no mask, because it comes last. `keys`: one per
    /// sample, none when evaluating.
    pub fn hidden(&self, source: &TransformerInput, target: &TransformerInput, keys: &[Key]) -> Tensor<3> {
        let memory = self.encode(source, keys);
        let (ids, bias, keys) = (target.tokens.clone(), source.padding.as_ref(), site(keys, "decoder"));
        self.model.decoder.forward(self.target_words(), ids, self.scale, &memory, bias, &keys)
    }

    /// Logits [position, word] of the next word at the positions `at` (`row * positions + column`).
    pub fn logits_at(&self, hidden: Tensor<3>, at: Tensor<1, Int>) -> Tensor<2> {
        let [samples, positions, width] = hidden.dims();
        self.logits(hidden.reshape([samples * positions, width]).select(0, at))
    }

    fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        let [_, words] = self.final_logits_bias.dims();
        hetseq_kernels::linear(hidden, self.target_words().weight.val(), self.final_logits_bias.val().reshape([words]))
    }
}

/// The samples' keys for one dropout site in the network.
fn site(keys: &[Key], name: &str) -> Vec<Key> {
    keys.iter().map(|key| key.name(name)).collect()
}
