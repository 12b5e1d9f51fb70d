//! BERT's input embeddings: the sum of word, segment and position embeddings.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use hetseq_kernels::dropout;
use hetseq_random::Key;

use super::{BertConfig, BertInput, site};
use crate::layers::{Embedding, LayerNorm};

#[derive(Module, Debug)]
pub(super) struct Embeddings {
    pub(super) word_embeddings: Embedding,
    position_embeddings: Embedding,
    token_type_embeddings: Embedding,
    LayerNorm: LayerNorm,
    #[module(skip)]
    dropout: f32,
}

impl Embeddings {
    pub(super) fn new(config: &BertConfig, device: &Device) -> Self {
        let width = config.hidden_size;
        Embeddings {
            word_embeddings: Embedding::new(config.vocab_size, width, device),
            position_embeddings: Embedding::new(config.max_position_embeddings, width, device),
            token_type_embeddings: Embedding::new(config.type_vocab_size, width, device),
            LayerNorm: LayerNorm::new(width, config.layer_norm_eps, device),
            dropout: config.hidden_dropout_prob as f32,
        }
    }

    pub(super) fn forward(&self, input: &BertInput, keys: &[Key]) -> Tensor<3> {
        let [_, positions] = input.tokens.dims();
        let words = self.word_embeddings.forward(input.tokens.clone());
        let segments = self.token_type_embeddings.forward(input.segments.clone());
        let positions = self.position_embeddings.weight.val().narrow(0, 0, positions);
        let sum = words + segments + positions.unsqueeze();
        dropout(self.LayerNorm.forward(sum), self.dropout, &site(keys, "embeddings"))
    }
}
