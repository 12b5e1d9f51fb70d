//! Position embeddings: sinusoidal or learned.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};

use super::TransformerConfig;
use crate::layers::{Embedding, zeros};

/// Learned embeddings are a parameter. Sinusoidal ones are not; they are computed on demand.
#[derive(Module, Debug)]
pub(super) struct Positions {
    weight: Option<Param<Tensor<2>>>,
    #[module(skip)]
    width: usize,
}

impl Positions {
    pub(super) fn new(config: &TransformerConfig, device: &Device) -> Self {
        let is_learned = !config.static_position_embeddings;
        let weight = is_learned.then(|| zeros([config.max_position_embeddings, config.d_model], device));
        Positions { weight, width: config.d_model }
    }

    /// The embeddings [position, feature] of `count` positions, starting at `first`.
    pub(super) fn at(&self, first: usize, count: usize, device: &Device) -> Tensor<2> {
        match &self.weight {
            Some(weight) => weight.val().narrow(0, first, count),
            None => {
                let values: Vec<f32> = (first..first + count).flat_map(|at| sines(at, self.width)).collect();
                Tensor::from_data(TensorData::new(values, [count, self.width]), device)
            }
        }
    }
}

/// Sines first, then cosines: Marian's order.
fn sines(position: usize, width: usize) -> impl Iterator<Item = f32> {
    let angle = move |feature: usize| {
        let pair = feature / 2;
        position as f64 / 10_000f64.powf(2.0 * pair as f64 / width as f64)
    };
    let sines = (0..width).step_by(2).map(move |feature| angle(feature).sin());
    let cosines = (1..width).step_by(2).map(move |feature| angle(feature).cos());
    sines.chain(cosines).map(|value| value as f32)
}

/// Token embeddings [sample, position, feature] plus those of their positions, which start at
/// `first`.
pub(super) fn embed(
    tokens: &Embedding,
    positions: &Positions,
    ids: Tensor<2, burn::tensor::Int>,
    first: usize,
    scale: f64,
) -> Tensor<3> {
    let [_, count] = ids.dims();
    let vectors = tokens.forward(ids);
    let positions = positions.at(first, count, &vectors.device());
    vectors * scale + positions.unsqueeze()
}
