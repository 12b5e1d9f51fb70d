//! The exact GELU (Hendrycks and Gimpel, 2016): x times the cumulative normal distribution at x.

use burn::tensor::Tensor;
use rayon::prelude::*;

use crate::host::{BackwardRule, CHUNK, Values, attach, input};
use crate::math::{erf, exp};

/// Applies the GELU to each element.
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    match input(&x) {
        Some(input) => {
            let output = map(input.values.get(), |x| x * normal_cdf(x));
            let output = Values::from_vec(output, input.values.shape());
            attach([input.node], output, Gelu { x: input.values })
        }
        None => burn::tensor::activation::gelu(x),
    }
}

/// The cumulative distribution function of the standard normal distribution.
#[inline(always)]
fn normal_cdf(x: f32) -> f32 {
    0.5 + 0.5 * erf(x * std::f32::consts::FRAC_1_SQRT_2)
}

/// 1 / sqrt(2 pi)
const DENSITY_AT_ZERO: f32 = 0.398_942_3;

#[inline(always)]
fn derivative(x: f32) -> f32 {
    normal_cdf(x) + x * DENSITY_AT_ZERO * exp(-0.5 * x * x)
}

#[derive(Debug, Clone)]
struct Gelu {
    x: Values,
}

impl BackwardRule<1> for Gelu {
    fn gradients(self, mut upstream: Values, _: [bool; 1]) -> [Option<Values>; 1] {
        let chunks = upstream.get_mut().par_chunks_mut(CHUNK).zip(self.x.get().par_chunks(CHUNK));
        chunks.for_each(|(gradient, x)| {
            for (gradient, &x) in gradient.iter_mut().zip(x) {
                *gradient *= derivative(x);
            }
        });
        [Some(upstream)]
    }
}

/// Maps a slice. With one thread, new memory is not cleared first.
fn map(values: &[f32], function: impl Fn(f32) -> f32 + Sync) -> Vec<f32> {
    if rayon::current_num_threads() == 1 {
        return values.iter().map(|&x| function(x)).collect();
    }
    let mut output = vec![0.0; values.len()];
    output.par_chunks_mut(CHUNK).zip(values.par_chunks(CHUNK)).for_each(|(output, values)| {
        for (y, &x) in output.iter_mut().zip(values) {
            *y = function(x);
        }
    });
    output
}
