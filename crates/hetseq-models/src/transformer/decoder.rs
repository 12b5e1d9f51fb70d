//! The side that speaks: each position sees those before it and the whole source. Whole sequences when training, one position
//! at a time with a [`Cache`] when generating; one code path for both.

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor};
use hetseq_kernels::dropout;
use hetseq_random::Key;

use super::layer::{Attended, Attention, EPSILON, FeedForward, Joint};
use super::positions::{Positions, embed};
use super::{TransformerConfig, site};
use crate::activation::Activation;
use crate::attention::hide_future;
use crate::layers::{Embedding, LayerNorm, Linear};

#[derive(Module, Debug)]
pub(super) struct Decoder {
    /// None if both sides share one.
    pub(super) embed_tokens: Option<Embedding>,
    embed_positions: Positions,
    layers: Vec<Layer>,
    /// Behind the last layer, where norms come first.
    layer_norm: Option<LayerNorm>,
    #[module(skip)]
    joint: Joint,
}

/// What one layer need not compute again: the source as it sees it, and the positions it has seen.
#[derive(Debug, Clone)]
pub(super) struct Cache {
    /// One row per sentence.
    pub(super) source: Attended,
    /// One row per hypothesis; none before the first position.
    pub(super) seen: Option<Attended>,
}

impl Decoder {
    pub(super) fn new(config: &TransformerConfig, device: &Device) -> Self {
        let own = !config.share_encoder_decoder_embeddings;
        Decoder {
            embed_tokens: own.then(|| Embedding::new(config.target_vocabulary(), config.d_model, device)),
            embed_positions: Positions::new(config, device),
            layers: (0..config.decoder_layers).map(|_| Layer::new(config, device)).collect(),
            layer_norm: config.normalize_before.then(|| LayerNorm::new(config.d_model, EPSILON, device)),
            joint: Joint::of(config),
        }
    }

    /// The source as each layer sees it.
    pub(super) fn look_at(&self, memory: &Tensor<3>) -> Vec<Cache> {
        let look = |layer: &Layer| Cache { source: layer.encoder_attn.look_at(memory.clone()), seen: None };
        self.layers.iter().map(look).collect()
    }

    /// Whole sequences: of each sample as far as `ids` go. `bias` hides the padding of the source.
    pub(super) fn forward(
        &self,
        words: &Embedding,
        ids: Tensor<2, Int>,
        scale: f64,
        memory: &Tensor<3>,
        bias: Option<&Tensor<4>>,
        keys: &[Key],
    ) -> Tensor<3> {
        let [_, positions] = ids.dims();
        let x = embed(words, &self.embed_positions, ids, 0, scale);
        // A constant, also beside tensors that are tracked.
        let future = (positions > 1).then(|| hide_future(positions, &x.device().inner()));
        let mut x = dropout(x, self.joint.dropout, &site(keys, "embeddings"));
        for (layer, i) in self.layers.iter().zip(0..) {
            let keys: Vec<Key> = keys.iter().map(|key| key.index(i)).collect();
            let source = layer.encoder_attn.look_at(memory.clone());
            x = layer.forward(x, self.joint, &Views { source: &source, bias, future: future.as_ref() }, None, &keys);
        }
        self.finish(x)
    }

    /// One further position of each hypothesis; `ids` are [hypothesis, 1], `position` is where they stand. Hypotheses of one
    /// sentence follow each other, as many of each.
    pub(super) fn step(
        &self,
        words: &Embedding,
        ids: Tensor<2, Int>,
        scale: f64,
        position: usize,
        caches: &mut [Cache],
        bias: Option<&Tensor<4>>,
    ) -> Tensor<3> {
        let mut x = embed(words, &self.embed_positions, ids, position, scale);
        for (layer, cache) in self.layers.iter().zip(caches) {
            let Cache { source, seen } = cache;
            x = layer.forward(x, self.joint, &Views { source, bias, future: None }, Some(seen), &[]);
        }
        self.finish(x)
    }

    fn finish(&self, x: Tensor<3>) -> Tensor<3> {
        match &self.layer_norm {
            Some(norm) => norm.forward(x),
            None => x,
        }
    }
}

/// What a layer may look at beside what comes from the layer below.
struct Views<'a> {
    source: &'a Attended,
    bias: Option<&'a Tensor<4>>,
    future: Option<&'a Tensor<4>>,
}

#[derive(Module, Debug)]
struct Layer {
    self_attn: Attention,
    self_attn_layer_norm: LayerNorm,
    encoder_attn: Attention,
    encoder_attn_layer_norm: LayerNorm,
    fc1: Linear,
    fc2: Linear,
    final_layer_norm: LayerNorm,
    #[module(skip)]
    activation: Activation,
    #[module(skip)]
    activation_dropout: f32,
}

impl Layer {
    fn new(config: &TransformerConfig, device: &Device) -> Self {
        let (width, inner, heads) = (config.d_model, config.decoder_ffn_dim, config.decoder_attention_heads);
        let norm = || LayerNorm::new(width, EPSILON, device);
        Layer {
            self_attn: Attention::new(config, heads, device),
            self_attn_layer_norm: norm(),
            encoder_attn: Attention::new(config, heads, device),
            encoder_attn_layer_norm: norm(),
            fc1: Linear::new(width, inner, device),
            fc2: Linear::new(inner, width, device),
            final_layer_norm: norm(),
            activation: config.activation_function,
            activation_dropout: config.activation_dropout as f32,
        }
    }

    /// With `seen`, `x` is what follows on it, and is added to it.
    fn forward(
        &self,
        x: Tensor<3>,
        joint: Joint,
        views: &Views<'_>,
        seen: Option<&mut Option<Attended>>,
        keys: &[Key],
    ) -> Tensor<3> {
        let x = joint.around(x, &self.self_attn_layer_norm, &site(keys, "attention output"), |x| {
            let newest = self.self_attn.look_at(x.clone());
            let attended = match seen {
                Some(seen) => {
                    let all = extended(seen.take(), newest);
                    seen.insert(all).clone()
                }
                None => newest,
            };
            self.self_attn.forward(x, attended, views.future, &site(keys, "attention"))
        });
        let x = joint.around(x, &self.encoder_attn_layer_norm, &site(keys, "source attention output"), |x| {
            self.encoder_attn.forward_grouped(x, views.source, views.bias, &site(keys, "source attention"))
        });
        let Layer { fc1, fc2, activation, activation_dropout: dropout, .. } = self;
        let feed_forward = FeedForward { fc1, fc2, activation: *activation, dropout: *dropout };
        joint.around(x, &self.final_layer_norm, &site(keys, "output"), |x| feed_forward.forward(x, keys))
    }
}

impl Attention {
    /// Hypotheses of one sentence look at the same source: they are so many queries to it, and it is not copied for each.
    fn forward_grouped(&self, x: Tensor<3>, source: &Attended, bias: Option<&Tensor<4>>, keys: &[Key]) -> Tensor<3> {
        let ([rows, positions, width], sentences) = (x.dims(), source.key.dims()[0]);
        let grouped = x.reshape([sentences, rows / sentences.max(1) * positions, width]);
        self.forward(grouped, source.clone(), bias, keys).reshape([rows, positions, width])
    }
}

fn extended(seen: Option<Attended>, newest: Attended) -> Attended {
    match seen {
        None => newest,
        Some(seen) => Attended {
            key: Tensor::cat(vec![seen.key, newest.key], 1),
            value: Tensor::cat(vec![seen.value, newest.value], 1),
        },
    }
}
