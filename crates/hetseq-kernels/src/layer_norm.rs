//! Layer norm (Ba et al., 2016) over the last dimension.

use burn::tensor::Tensor;
use hetseq_simd::vectorised;
use rayon::prelude::*;

use crate::host::{BackwardRule, Target, Values, attach, chunk_of_rows, layer, sum_of_chunks};
use crate::math::{sum_of, sum_of_pairs};

/// Normalises each row, then scales by `weight` and shifts by `bias`.
///
/// # Panics
/// Like Burn's layer norm, if `weight` or `bias` differ in length from the last dimension.
pub fn layer_norm<const D: usize>(x: Tensor<D>, weight: Tensor<1>, bias: Tensor<1>, epsilon: f64) -> Tensor<D> {
    let Some([input, scale, shift]) = layer(&x, &weight, &bias) else {
        return burn::tensor::module::layer_norm(x, weight, Some(bias), epsilon);
    };
    let (x, weight, bias) = (input.values, scale.values, shift.values);
    let width = x.width();
    assert_eq!([weight.get().len(), bias.get().len()], [width; 2], "the widths of a layer norm's parameters");
    let mut output = vec![0.0; x.get().len()];
    let rows = output.par_chunks_exact_mut(width).zip(x.get().par_chunks_exact(width));
    let rows = rows.with_min_len(chunk_of_rows(width) / width);
    let statistics = rows.map(|(output, x)| normalise(output, x, [weight.get(), bias.get()], epsilon as f32)).collect();
    let output = Values::from_vec(output, x.shape());
    attach([input.node, scale.node, shift.node], output, LayerNorm { x, weight, statistics })
}

/// Statistics of one row.
#[derive(Debug, Clone, Copy)]
struct Statistics {
    mean: f32,
    /// Inverse of the standard deviation.
    inverse: f32,
}

impl Statistics {
    #[inline(always)]
    fn of(row: &[f32], epsilon: f32) -> Self {
        let count = row.len() as f32;
        let mean = sum_of(row, |x| x) / count;
        let variance = sum_of(row, |x| (x - mean) * (x - mean)) / count;
        Statistics { mean, inverse: 1.0 / (variance + epsilon).sqrt() }
    }
}

#[derive(Debug, Clone)]
struct LayerNorm {
    x: Values,
    weight: Values,
    statistics: Vec<Statistics>,
}

impl BackwardRule<3> for LayerNorm {
    fn gradients(self, mut upstream: Values, _: [Target; 3]) -> [Option<Values>; 3] {
        let (width, weight) = (self.x.width(), self.weight.get());
        let chunk = chunk_of_rows(width);
        let gradients = upstream.get_mut().par_chunks_mut(chunk).zip(self.x.get().par_chunks(chunk));
        let partial: Vec<Vec<f32>> = gradients
            .zip(self.statistics.par_chunks(chunk / width))
            .map(|((gradients, x), statistics)| {
                // Gradient of the weight, then of the bias.
                let mut sums = vec![0.0; 2 * width];
                backward(gradients, x, weight, statistics, &mut sums);
                sums
            })
            .collect();
        let mut of_weight = sum_of_chunks(partial, 2 * width);
        let of_bias = of_weight.split_off(width);
        [Some(upstream), Some(Values::from_vec(of_weight, vec![width])), Some(Values::from_vec(of_bias, vec![width]))]
    }
}

vectorised! {
    /// Writes the row's output.
    fn normalise(output: &mut [f32], x: &[f32], weight_and_bias: [&[f32]; 2], epsilon: f32) -> Statistics {
        let statistics = Statistics::of(x, epsilon);
        let Statistics { mean, inverse } = statistics;
        let [weight, bias] = weight_and_bias;
        for (((y, &x), &weight), &bias) in output.iter_mut().zip(x).zip(weight).zip(bias) {
            *y = (x - mean) * inverse * weight + bias;
        }
        statistics
    }

    /// Overwrites the gradients of rows, and adds to the sums for the weight and for the bias.
    fn backward(gradients: &mut [f32], x: &[f32], weight: &[f32], statistics: &[Statistics], sums: &mut [f32]) {
        let width = weight.len();
        let (of_weight, of_bias) = sums.split_at_mut(width);
        let rows = gradients.chunks_exact_mut(width).zip(x.chunks_exact(width)).zip(statistics);
        for ((gradient, x), statistics) in rows {
            backward_of_row(gradient, x, weight, statistics, of_weight, of_bias);
        }
    }
}

/// Overwrites the gradient g with that of x: `inverse (h - mean of h - n mean of h n)`, where
/// n = (x - mean) inverse and h = g weight.
#[inline(always)]
fn backward_of_row(
    gradient: &mut [f32],
    x: &[f32],
    weight: &[f32],
    &Statistics { mean, inverse }: &Statistics,
    of_weight: &mut [f32],
    of_bias: &mut [f32],
) {
    let count = x.len() as f32;
    for ((((g, &x), &weight), of_weight), of_bias) in
        gradient.iter_mut().zip(x).zip(weight).zip(of_weight.iter_mut()).zip(of_bias.iter_mut())
    {
        *of_weight += *g * ((x - mean) * inverse);
        *of_bias += *g;
        *g *= weight;
    }
    let mean_h = sum_of(gradient, |h| h) / count;
    let mean_hn = sum_of_pairs(gradient, x, |h, x| h * ((x - mean) * inverse)) / count;
    for (h, &x) in gradient.iter_mut().zip(x) {
        *h = inverse * (*h - mean_h - (x - mean) * inverse * mean_hn);
    }
}
