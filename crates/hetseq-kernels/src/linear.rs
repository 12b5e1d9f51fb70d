//! `y = x Wᵀ + b` over the last dimension, with the weight in PyTorch's layout ([out, in]).
//!
//! Compared to Burn's products, this saves the passes that add the bias and transpose the weight's
//! gradient.

use burn::tensor::Tensor;
use hetseq_simd::vectorised;
use rayon::prelude::*;

use crate::gradient_buffer;
use crate::host::{BackwardRule, Target, Values, attach, chunk_of_rows, layer, sum_of_chunks};
use crate::precision::{low_precision, matmul};
use crate::product::{Matrix, add_product, product};

/// Applies a linear layer.
///
/// # Panics
/// Like Burn's linear layer, if the sizes do not match.
pub fn linear<const D: usize>(x: Tensor<D>, weight: Tensor<2>, bias: Tensor<1>) -> Tensor<D> {
    let [outputs, inputs] = weight.dims();
    let mut shape = x.dims();
    assert_eq!(shape[D - 1], inputs, "the input width of a linear layer");
    shape[D - 1] = outputs;
    if low_precision().is_some() {
        let rows = x.reshape([-1, inputs as i32]);
        return (matmul(rows, weight.transpose()) + bias.unsqueeze()).reshape(shape);
    }
    let Some([input, factor, summand]) = layer(&x, &weight, &bias) else {
        // As one matrix: with more dimensions, Burn computes the weight's gradient per sample.
        let rows = x.reshape([-1, inputs as i32]);
        return burn::tensor::module::linear(rows, weight.transpose(), Some(bias)).reshape(shape);
    };
    let (x, weight, bias) = (input.values, factor.values, summand.values);
    let rows = x.get().len() / inputs;
    let mut output = bias.get().repeat(rows);
    add_product(Matrix::new(x.get(), inputs), Matrix::new(weight.get(), inputs).transposed(), &mut output);
    let output = Values::from_vec(output, shape.to_vec());
    attach([input.node, factor.node, summand.node], output, Linear { x, weight })
}

vectorised! {
    fn add_rows(sums: &mut [f32], rows: &[f32]) {
        for row in rows.chunks_exact(sums.len()) {
            for (sum, g) in sums.iter_mut().zip(row) {
                *sum += g;
            }
        }
    }
}

#[derive(Debug, Clone)]
struct Linear {
    x: Values,
    weight: Values,
}

impl BackwardRule<3> for Linear {
    fn gradients(self, upstream: Values, [of_x, of_weight, of_bias]: [Target; 3]) -> [Option<Values>; 3] {
        let (inputs, outputs) = (self.x.width(), upstream.width());
        let gradient = Matrix::new(upstream.get(), outputs);
        let x = || product(gradient, Matrix::new(self.weight.get(), inputs));
        let weight = || {
            let (a, b) = (gradient.transposed(), Matrix::new(self.x.get(), inputs));
            match of_weight {
                Target::Nowhere => None,
                Target::Graph => Some(Values::from_vec(product(a, b), self.weight.shape())),
                Target::Slot(slot) => {
                    gradient_buffer::add_product(slot, a, b);
                    None
                }
            }
        };
        let bias = || {
            let chunks = upstream.get().par_chunks(chunk_of_rows(outputs));
            let partial = chunks.map(|rows| {
                let mut sums = vec![0.0; outputs];
                add_rows(&mut sums, rows);
                sums
            });
            sum_of_chunks(partial.collect(), outputs)
        };
        [
            of_x.is_needed().then(|| Values::from_vec(x(), self.x.shape())),
            weight(),
            of_bias.is_needed().then(|| Values::from_vec(bias(), vec![outputs])),
        ]
    }
}
