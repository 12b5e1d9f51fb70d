//! LAMB: Adam's direction, scaled for each parameter by the ratio of its norm to the direction's.
//!
//! There are two passes, because the ratio needs the whole direction. The first updates the moments
//! and sums; the second computes the direction again and applies it. Recomputing moves no more
//! memory than storing the direction, and needs no buffer. Called by the optimizer's step only. The
//! variant is described at [`OptimizerName::Lamb`](super::OptimizerName::Lamb).

use std::ops::Range;

use rayon::prelude::*;

use super::OptimizerConfig;
use super::pieces::{ChunkSums, Piece, Pieces, Tensor, chunks, cut, scratch};
use crate::flat::are_finite;
use crate::norm::sum_of_squares;

/// The scalars of one step.
pub(super) struct LambScalars {
    scale: f32,
    beta1: f32,
    one_minus_beta1: f32,
    beta2: f32,
    one_minus_beta2: f32,
    /// Inverse bias corrections: a multiplication is several times faster than a division.
    inverse_bias1: f32,
    inverse_bias2_sqrt: f32,
    eps: f32,
    weight_decay: f64,
    always_adapt: bool,
    trust_clip: bool,
    lr: f32,
}

impl LambScalars {
    pub(super) fn new(config: &OptimizerConfig, beta_powers: [f64; 2], scale: f32, lr: f32) -> LambScalars {
        let [beta1, beta2] = config.betas;
        let [bias1, bias2] = beta_powers.map(|power| 1.0 - power);
        LambScalars {
            scale,
            beta1: beta1 as f32,
            one_minus_beta1: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            one_minus_beta2: (1.0 - beta2) as f32,
            inverse_bias1: (1.0 / bias1) as f32,
            inverse_bias2_sqrt: (1.0 / bias2.sqrt()) as f32,
            eps: config.eps() as f32,
            weight_decay: config.weight_decay,
            always_adapt: config.always_adapt.unwrap_or(false),
            trust_clip: config.trust_clip.unwrap_or(false),
            lr,
        }
    }

    fn decay_of(&self, tensor: &Tensor) -> f32 {
        tensor.group.weight_decay(self.weight_decay) as f32
    }

    /// The rate of a parameter. `weights` and `direction` are the sums of squares of the parameter
    /// and of its direction.
    fn rate(&self, tensor: &Tensor, weights: f64, direction: f64) -> f32 {
        let adapts = self.always_adapt || self.decay_of(tensor) != 0.0;
        let (weights, direction) = (weights.sqrt(), direction.sqrt());
        let trust = if adapts && weights > 0.0 && direction > 0.0 { weights / direction } else { 1.0 };
        let trust = if self.trust_clip && trust > 1.0 { 1.0 } else { trust };
        (f64::from(tensor.group.rate(self.lr)) * trust) as f32
    }
}

/// One step of the parameters in `range`. `parameters` and `gradients` hold the elements of
/// `range`; the moments cover the whole layout. Returns whether all updated values are finite.
pub(super) fn step(
    all: &Pieces,
    range: &Range<usize>,
    parameters: &mut [f32],
    gradients: &[f32],
    [first, second]: [&mut [f32]; 2],
    scalars: &LambScalars,
) -> bool {
    let pieces = all.within(range);
    let (first, second) = (&mut first[range.clone()], &mut second[range.clone()]);
    let lengths = || pieces.iter().map(|piece| piece.range.len());

    let sums: Vec<Measured> = (pieces, cut(first, lengths()), cut(second, lengths()))
        .into_par_iter()
        .map(|(piece, m, v)| {
            let (p, g) = (piece.of(parameters, range.start), piece.of(gradients, range.start));
            measure(p, g, m, v, scalars.decay_of(&all.tensors[piece.tensor]), scalars)
        })
        .collect();

    let weights = all.totals(pieces, sums.iter().map(|measured| measured.weights));
    let directions = all.totals(pieces, sums.iter().map(|measured| measured.directions));
    let moments_are_finite = sums.iter().all(|measured| measured.is_finite);
    let tensors = all.tensors.iter().zip(weights.iter().zip(&directions));
    let rates: Vec<f32> = tensors.map(|(tensor, (w, d))| scalars.rate(tensor, *w, *d)).collect();

    let (first, second) = (&*first, &*second);
    let finite = (pieces, cut(parameters, lengths())).into_par_iter().map(|(piece, p): (&Piece, &mut [f32])| {
        let tensor = &all.tensors[piece.tensor];
        if tensor.group.has_zero_rate() {
            // A moment that is not finite shows in the sum of squares: in `f64` it cannot overflow.
            return directions[piece.tensor].is_finite();
        }
        let (m, v) = (piece.of(first, range.start), piece.of(second, range.start));
        let decay = scalars.decay_of(tensor);
        let (mut direction, mut is_finite) = (scratch(), true);
        for at in chunks(p.len()) {
            let (p, direction) = (&mut p[at.clone()], &mut direction[..at.len()]);
            compute_direction(p, &m[at.clone()], &v[at], direction, decay, scalars);
            apply(p, direction, rates[piece.tensor]);
            is_finite &= are_finite(p);
        }
        is_finite
    });
    finite.reduce(|| true, |all, one| all & one) & moments_are_finite
}

/// The result of the first pass over a piece.
struct Measured {
    weights: ChunkSums,
    directions: ChunkSums,
    /// Whether the second moments are finite. A first moment that is not finite makes its parameter
    /// not finite, too.
    is_finite: bool,
}

/// Updates the moments, and sums the squares of the parameters and of the direction.
fn measure(p: &[f32], g: &[f32], m: &mut [f32], v: &mut [f32], decay: f32, s: &LambScalars) -> Measured {
    let (mut weights, mut directions, mut is_finite) = (ChunkSums::default(), ChunkSums::default(), true);
    let mut direction = scratch();
    for (index, at) in chunks(p.len()).enumerate() {
        let (p, direction) = (&p[at.clone()], &mut direction[..at.len()]);
        let (m, v) = (&mut m[at.clone()], &mut v[at.clone()]);
        update_moments(p, &g[at], m, v, direction, decay, s);
        is_finite &= are_finite(v);
        weights[index] = sum_of_squares(p);
        directions[index] = sum_of_squares(direction);
    }
    Measured { weights, directions, is_finite }
}

#[inline(never)]
fn update_moments(
    p: &[f32],
    g: &[f32],
    m: &mut [f32],
    v: &mut [f32],
    direction: &mut [f32],
    decay: f32,
    s: &LambScalars,
) {
    for ((((p, g), m), v), direction) in p.iter().zip(g).zip(m).zip(v).zip(direction) {
        let grad = *g * s.scale;
        *m = *m * s.beta1 + grad * s.one_minus_beta1;
        *v = *v * s.beta2 + grad * grad * s.one_minus_beta2;
        *direction = direction_of(*p, *m, *v, decay, s);
    }
}

#[inline(never)]
fn compute_direction(p: &[f32], m: &[f32], v: &[f32], direction: &mut [f32], decay: f32, s: &LambScalars) {
    for (((p, m), v), direction) in p.iter().zip(m).zip(v).zip(direction) {
        *direction = direction_of(*p, *m, *v, decay, s);
    }
}

#[inline(always)]
fn direction_of(p: f32, m: f32, v: f32, decay: f32, s: &LambScalars) -> f32 {
    let denominator = v.sqrt() * s.inverse_bias2_sqrt + s.eps;
    m * s.inverse_bias1 / denominator + p * decay
}

#[inline(never)]
fn apply(p: &mut [f32], direction: &[f32], rate: f32) {
    for (p, direction) in p.iter_mut().zip(direction) {
        *p -= rate * *direction;
    }
}
