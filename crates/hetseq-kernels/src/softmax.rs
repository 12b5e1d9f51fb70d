//! Softmax over the last dimension.

use burn::tensor::Tensor;
use hetseq_simd::vectorised;
use rayon::prelude::*;

use crate::host::{BackwardRule, Target, Values, attach, chunk_of_rows, input};
use crate::math::{exp, largest, sum_of, sum_of_pairs};

/// Applies the softmax to each row.
pub fn softmax<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let Some(input) = input(&x) else {
        return burn::tensor::activation::softmax(x, D - 1);
    };
    drop(x);
    // In place if no other tensor shares the input; otherwise `get_mut` copies it.
    let mut output = input.values;
    let width = output.width();
    output.get_mut().par_chunks_mut(chunk_of_rows(width)).for_each(|rows| normalise(rows, width));
    attach([input.node], output.clone(), Softmax { output })
}

vectorised! {
    pub(crate) fn normalise(rows: &mut [f32], width: usize) {
        for row in rows.chunks_exact_mut(width) {
            let largest = largest(row);
            for x in row.iter_mut() {
                *x = exp(*x - largest);
            }
            let scale = 1.0 / sum_of(row, |x| x);
            for x in row.iter_mut() {
                *x *= scale;
            }
        }
    }

    /// Overwrites the gradients g with y (g - sum of g y).
    pub(crate) fn backward(gradients: &mut [f32], outputs: &[f32], width: usize) {
        for (gradient, output) in gradients.chunks_exact_mut(width).zip(outputs.chunks_exact(width)) {
            let shared = sum_of_pairs(gradient, output, |g, y| g * y);
            for (g, &y) in gradient.iter_mut().zip(output) {
                *g = y * (*g - shared);
            }
        }
    }
}

#[derive(Debug, Clone)]
struct Softmax {
    output: Values,
}

impl BackwardRule<1> for Softmax {
    fn gradients(self, mut upstream: Values, _: [Target; 1]) -> [Option<Values>; 1] {
        let width = self.output.width();
        let chunk = chunk_of_rows(width);
        let chunks = upstream.get_mut().par_chunks_mut(chunk).zip(self.output.get().par_chunks(chunk));
        chunks.for_each(|(gradients, outputs)| backward(gradients, outputs, width));
        [Some(upstream)]
    }
}
