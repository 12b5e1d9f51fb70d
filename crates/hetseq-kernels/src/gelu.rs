//! The exact GELU (Hendrycks and Gimpel, 2016): x times the cumulative normal distribution at x.

use burn::tensor::Tensor;
use rayon::prelude::*;

use hetseq_simd::vectorised;

use crate::host::{BackwardRule, CHUNK, Target, Values, attach, input};
use crate::math::{erf, exp};

/// Applies the GELU to each element.
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    match input(&x) {
        Some(input) => {
            let output = Values::from_vec(gelu_of(input.values.get()), input.values.shape());
            attach([input.node], output, Gelu { x: input.values })
        }
        None if x.is_autodiff() => with_exact_gradient(x),
        None => burn::tensor::activation::gelu(x),
    }
}

/// For devices other than the CPU. Burn's GELU is exact, but its gradient is that of the
/// approximation by tanh, which differs in the fourth digit. So the derivative is computed here,
/// outside of the graph, as the factor of a difference that is zero.
fn with_exact_gradient<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let values = x.clone().detach();
    let cdf = (values.clone() * std::f32::consts::FRAC_1_SQRT_2).erf() * 0.5 + 0.5;
    let density = (values.clone() * values.clone() * -0.5).exp() * DENSITY_AT_ZERO;
    let output = values.clone() * cdf.clone();
    output + (cdf + values.clone() * density) * (x - values)
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
    fn gradients(self, mut upstream: Values, _: [Target; 1]) -> [Option<Values>; 1] {
        let chunks = upstream.get_mut().par_chunks_mut(CHUNK).zip(self.x.get().par_chunks(CHUNK));
        chunks.for_each(|(gradient, x)| multiply_by_derivative(gradient, x));
        [Some(upstream)]
    }
}

vectorised! {
    fn apply(values: &mut [f32]) {
        for x in values {
            *x *= normal_cdf(*x);
        }
    }

    fn multiply_by_derivative(gradient: &mut [f32], x: &[f32]) {
        for (gradient, &x) in gradient.iter_mut().zip(x) {
            *gradient *= derivative(x);
        }
    }
}

fn gelu_of(values: &[f32]) -> Vec<f32> {
    if rayon::current_num_threads() > 1 {
        let mut output = values.to_vec();
        output.par_chunks_mut(CHUNK).for_each(apply);
        return output;
    }
    // Each chunk is changed while it is in the cache.
    let mut output = Vec::with_capacity(values.len());
    for chunk in values.chunks(CHUNK / 4) {
        output.extend_from_slice(chunk);
        let start = output.len() - chunk.len();
        apply(&mut output[start..]);
    }
    output
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn other_devices_have_the_same_gradient() {
        let device = Device::flex().autodiff();
        let of = |f: fn(Tensor<1>) -> Tensor<1>| {
            let x = (Tensor::arange(-600..600, &device).float() / 100.0).require_grad();
            let output = f(x.clone() * 1.0);
            let gradients = output.clone().sum().backward();
            let values = |tensor: Tensor<1>| tensor.into_data().try_to_vec::<f32>().unwrap();
            (values(output.inner()), values(x.grad(&gradients).unwrap()))
        };
        let (host, other) = (of(gelu), of(with_exact_gradient));
        for (a, b) in host.0.iter().zip(&other.0).chain(host.1.iter().zip(&other.1)) {
            assert!((a - b).abs() < 1e-6, "{a} and {b}");
        }
    }
}
