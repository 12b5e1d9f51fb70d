//! The decoder: each position attends to earlier positions and to the whole source. It runs on
//! whole sequences in training and on one position at a time, with a [`LayerCache`], in generation.
//! Both use the same code.

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor};
use hetseq_kernels::dropout;
use hetseq_random::Key;

use super::layer::{AttentionBlock, EPSILON, KeyValue, LayerSettings};
use super::stack::Stack;
use super::{TransformerConfig, site};
use crate::attention::causal_mask;
use crate::layers::{Embedding, LayerNorm, Linear};

pub(super) type Decoder = Stack<DecoderLayer>;

/// Keys and values that a layer need not compute again.
#[derive(Debug, Clone)]
pub(super) struct LayerCache {
    /// Of the source, one row per sentence.
    pub(super) source: KeyValue,
    /// Of past positions, one row per hypothesis. `None` before the first position.
    pub(super) past: Option<KeyValue>,
}

impl Decoder {
    pub(super) fn new(config: &TransformerConfig, device: &Device) -> Self {
        let layers = (0..config.decoder_layers).map(|_| DecoderLayer::new(config, device)).collect();
        Stack::of_layers(layers, config.target_vocabulary(), config, device)
    }

    /// Projects the source for each layer. `memory` is the encoder's output.
    pub(super) fn start_caches(&self, memory: &Tensor<3>) -> Vec<LayerCache> {
        let start =
            |layer: &DecoderLayer| LayerCache { source: layer.encoder_attn.project(memory.clone()), past: None };
        self.layers.iter().map(start).collect()
    }

    /// Runs on whole sequences `ids`. `bias` masks the padding of the source.
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
        let x = self.embed(words, ids, 0, scale);
        // A constant, not tracked by autodiff.
        let causal = (positions > 1).then(|| causal_mask(positions, &x.device().inner()));
        let mut x = dropout(x, self.settings.dropout, &site(keys, "embeddings"));
        for (layer, i) in self.layers.iter().zip(0..) {
            let keys: Vec<Key> = keys.iter().map(|key| key.index(i)).collect();
            let source = layer.encoder_attn.project(memory.clone());
            let context = LayerContext { source: &source, bias, causal: causal.as_ref() };
            x = layer.forward(x, self.settings, &context, None, &keys);
        }
        self.finish(x)
    }

    /// Runs on one further position of each hypothesis. `ids` are [hypothesis, 1], at `position`.
    /// The hypotheses of a sentence are adjacent, and each sentence has the same number of them.
    pub(super) fn step(
        &self,
        words: &Embedding,
        ids: Tensor<2, Int>,
        scale: f64,
        position: usize,
        caches: &mut [LayerCache],
        bias: Option<&Tensor<4>>,
    ) -> Tensor<3> {
        let mut x = self.embed(words, ids, position, scale);
        for (layer, cache) in self.layers.iter().zip(caches) {
            let LayerCache { source, past } = cache;
            x = layer.forward(x, self.settings, &LayerContext { source, bias, causal: None }, Some(past), &[]);
        }
        self.finish(x)
    }
}

/// Inputs of a layer besides the output of the layer below.
struct LayerContext<'a> {
    source: &'a KeyValue,
    /// Masks the padding of the source.
    bias: Option<&'a Tensor<4>>,
    causal: Option<&'a Tensor<4>>,
}

#[derive(Module, Debug)]
pub(super) struct DecoderLayer {
    self_attn: AttentionBlock,
    self_attn_layer_norm: LayerNorm,
    encoder_attn: AttentionBlock,
    encoder_attn_layer_norm: LayerNorm,
    fc1: Linear,
    fc2: Linear,
    final_layer_norm: LayerNorm,
}

impl DecoderLayer {
    fn new(config: &TransformerConfig, device: &Device) -> Self {
        let (width, inner, heads) = (config.d_model, config.decoder_ffn_dim, config.decoder_attention_heads);
        let norm = || LayerNorm::new(width, EPSILON, device);
        DecoderLayer {
            self_attn: AttentionBlock::new(config, heads, device),
            self_attn_layer_norm: norm(),
            encoder_attn: AttentionBlock::new(config, heads, device),
            encoder_attn_layer_norm: norm(),
            fc1: Linear::new(width, inner, device),
            fc2: Linear::new(inner, width, device),
            final_layer_norm: norm(),
        }
    }

    /// With `past`, `x` holds the next position, whose keys and values are appended to it.
    fn forward(
        &self,
        x: Tensor<3>,
        settings: LayerSettings,
        context: &LayerContext<'_>,
        past: Option<&mut Option<KeyValue>>,
        keys: &[Key],
    ) -> Tensor<3> {
        let x = settings.residual(x, &self.self_attn_layer_norm, &site(keys, "attention output"), |x| {
            let newest = self.self_attn.project(x.clone());
            let key_value = match past {
                Some(past) => {
                    let all = append(past.take(), newest);
                    past.insert(all).clone()
                }
                None => newest,
            };
            self.self_attn.forward(x, key_value, context.causal, &site(keys, "attention"))
        });
        let x = settings.residual(x, &self.encoder_attn_layer_norm, &site(keys, "source attention output"), |x| {
            self.encoder_attn.forward_grouped(x, context.source, context.bias, &site(keys, "source attention"))
        });
        settings.feed_forward(x, [&self.fc1, &self.fc2], &self.final_layer_norm, keys)
    }
}

impl AttentionBlock {
    /// Hypotheses of one sentence attend to the same source, so they become queries of one sample
    /// and the source is not copied for each.
    fn forward_grouped(&self, x: Tensor<3>, source: &KeyValue, bias: Option<&Tensor<4>>, keys: &[Key]) -> Tensor<3> {
        let ([rows, positions, width], sentences) = (x.dims(), source.key.dims()[0]);
        let grouped = x.reshape([sentences, rows / sentences.max(1) * positions, width]);
        self.forward(grouped, source.clone(), bias, keys).reshape([rows, positions, width])
    }
}

fn append(past: Option<KeyValue>, newest: KeyValue) -> KeyValue {
    match past {
        None => newest,
        Some(past) => KeyValue {
            key: Tensor::cat(vec![past.key, newest.key], 1),
            value: Tensor::cat(vec![past.value, newest.value], 1),
        },
    }
}
