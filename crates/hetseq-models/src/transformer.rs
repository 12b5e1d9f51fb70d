//! The encoder-decoder transformer (Vaswani et al., 2017) for translation. Parameters lie and are called as in Hugging Face's
//! Marian models, whose mathematics is this one's where norms come after and positions are sines: a checkpoint is theirs too.
//!
//! Here is the whole; [`encoder`] and [`decoder`] are the two sides, [`decoding`] generates step by step, [`beam`](crate::beam)
//! searches with it.

mod config;
mod decoder;
mod decoding;
mod encoder;
mod layer;
mod names;
mod positions;

use burn::module::{Module, Param};
use burn::tensor::{Device, Int, Tensor, TensorData};
use hetseq_random::Key;

use crate::attention::hide_padding;
use crate::layers::{Embedding, zeros};
use crate::{Init, Network};
pub use config::{TransformerConfig, TransformerSize};
use decoder::Decoder;
pub use decoding::Decoding;
use encoder::Encoder;
pub use names::parameter_name;

/// Sequences padded to one length, on the device.
#[derive(Debug, Clone)]
pub struct Sequences {
    /// [sample, position]
    tokens: Tensor<2, Int>,
    /// Hides what is padding; none if nothing is.
    padding: Option<Tensor<4>>,
}

impl Sequences {
    /// `tokens` holds one row per length. All ids must be below the size of the vocabulary, and rows no longer than
    /// [`TransformerConfig::max_position_embeddings`]: whoever reads the data has checked it.
    pub fn new(tokens: &[i32], lengths: &[usize], device: &Device) -> Self {
        let positions = tokens.len() / lengths.len().max(1);
        let ids = TensorData::new(tokens.to_vec(), [lengths.len(), positions]);
        // A constant, also beside tensors that are tracked.
        let padding = hide_padding(lengths, positions, &device.clone().inner());
        Sequences { tokens: Tensor::from_data(ids, device), padding }
    }
}

#[derive(Module, Debug)]
pub struct Transformer {
    model: Trunk,
    /// Of the output layer, whose weight is that of the decoder's embeddings.
    final_logits_bias: Param<Tensor<2>>,
    #[module(skip)]
    scale: f64,
    #[module(skip)]
    pad: usize,
}

#[derive(Module, Debug)]
struct Trunk {
    shared: Option<Embedding>,
    encoder: Encoder,
    decoder: Decoder,
}

impl Network for Transformer {
    /// Linear layers as Glorot and Bengio (2010), vectors of tokens so that scaled they have variance one, and none for padding.
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
            encoder: Encoder::new(config, device),
            decoder: Decoder::new(config, device),
        };
        let scale = if config.scale_embedding { (config.d_model as f64).sqrt() } else { 1.0 };
        let final_logits_bias = zeros([1, config.target_vocabulary()], device);
        Transformer { model, final_logits_bias, scale, pad: config.pad_token_id }
    }

    /// What the source means: [sample, position, feature]. `keys` as in [`hetseq_kernels::dropout`].
    fn encode(&self, source: &Sequences, keys: &[Key]) -> Tensor<3> {
        let Trunk { shared, encoder, .. } = &self.model;
        let words = shared.as_ref().or(encoder.embed_tokens.as_ref()).unwrap_or_else(|| unreachable!("one of them is"));
        encoder.forward(words, source.tokens.clone(), self.scale, source.padding.as_ref(), &site(keys, "encoder"))
    }

    /// The vectors of the target's words.
    fn target_words(&self) -> &Embedding {
        let Trunk { shared, decoder, .. } = &self.model;
        shared.as_ref().or(decoder.embed_tokens.as_ref()).unwrap_or_else(|| unreachable!("one of them is"))
    }

    /// The decoder's last states [sample, position, feature] for targets that are known: `target` begins with the start token.
    /// What is padding there needs no hiding, since it comes last. `keys` one per sample, none when evaluating.
    pub fn hidden(&self, source: &Sequences, target: &Sequences, keys: &[Key]) -> Tensor<3> {
        let memory = self.encode(source, keys);
        let (ids, bias, keys) = (target.tokens.clone(), source.padding.as_ref(), site(keys, "decoder"));
        self.model.decoder.forward(self.target_words(), ids, self.scale, &memory, bias, &keys)
    }

    /// Which word comes next, at the places `at` (`row * positions + column`): logits [place, word].
    pub fn logits_at(&self, hidden: Tensor<3>, at: Tensor<1, Int>) -> Tensor<2> {
        let [samples, positions, width] = hidden.dims();
        self.logits(hidden.reshape([samples * positions, width]).select(0, at))
    }

    fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        let [_, words] = self.final_logits_bias.dims();
        hetseq_kernels::linear(hidden, self.target_words().weight.val(), self.final_logits_bias.val().reshape([words]))
    }
}

/// The samples' keys at one place in the network.
fn site(keys: &[Key], name: &str) -> Vec<Key> {
    keys.iter().map(|key| key.name(name)).collect()
}
