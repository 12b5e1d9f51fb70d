//! LAMB: Adam's direction, scaled for each parameter by the ratio of its norm to the direction's.
//!
//! Two passes, because the ratio is known only when the whole direction is: the first moves the moments
//! and sums, the second computes the direction again and applies it, which moves no more memory than
//! keeping it would and needs none. Called by the optimizer's step only. The variant is described at
//! [`OptimizerName::Lamb`](super::OptimizerName::Lamb).

use std::ops::Range;

use rayon::prelude::*;

use super::OptimizerConfig;
use super::pieces::{ChunkSums, Piece, Pieces, Tensor, chunks, cut, scratch};
use crate::flat::are_finite;
use crate::norm::sum_of_squares;

pub(super) struct Scalars {
    scale: f32,
    beta1: f32,
    one_minus_beta1: f32,
    beta2: f32,
    one_minus_beta2: f32,
    /// Of the bias corrections, which are factors then: a division takes several times as long.
    inverse_bias1: f32,
    inverse_bias2_sqrt: f32,
    eps: f32,
    weight_decay: f64,
    always_adapt: bool,
    trust_clip: bool,
    lr: f64,
}

impl Scalars {
    pub(super) fn new(config: &OptimizerConfig, beta_powers: [f64; 2], scale: f32, lr: f32) -> Scalars {
        let [beta1, beta2] = config.betas;
        let [bias1, bias2] = beta_powers.map(|power| 1.0 - power);
        Scalars {
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
            lr: f64::from(lr),
        }
    }

    fn decay_of(&self, tensor: &Tensor) -> f32 {
        if tensor.decays { self.weight_decay as f32 } else { 0.0 }
    }

    /// The rate of a parameter whose squares and whose direction's squares add up to these.
    fn rate(&self, tensor: &Tensor, weights: f64, direction: f64) -> f32 {
        let adapts = self.always_adapt || self.decay_of(tensor) != 0.0;
        let (weights, direction) = (weights.sqrt(), direction.sqrt());
        let trust = if adapts && weights > 0.0 && direction > 0.0 { weights / direction } else { 1.0 };
        let trust = if self.trust_clip && trust > 1.0 { 1.0 } else { trust };
        (self.lr * trust) as f32
    }
}

/// One step of the parameters in `range`, whose elements the first two buffers hold; the moments are whole. Returns whether
/// all of them are finite afterwards.
pub(super) fn step(
    all: &Pieces,
    range: &Range<usize>,
    parameters: &mut [f32],
    gradients: &[f32],
    [first, second]: [&mut [f32]; 2],
    scalars: &Scalars,
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
    let tensors = all.tensors.iter().zip(weights.into_iter().zip(directions));
    let rates: Vec<f32> = tensors.map(|(tensor, (w, d))| scalars.rate(tensor, w, d)).collect();

    let (first, second) = (&*first, &*second);
    let descended = (pieces, cut(parameters, lengths())).into_par_iter().map(|(piece, p): (&Piece, &mut [f32])| {
        let (m, v) = (piece.of(first, range.start), piece.of(second, range.start));
        let decay = scalars.decay_of(&all.tensors[piece.tensor]);
        let (mut direction, mut is_finite) = (scratch(), true);
        for at in chunks(p.len()) {
            let (p, direction) = (&mut p[at.clone()], &mut direction[..at.len()]);
            direct(p, &m[at.clone()], &v[at], direction, decay, scalars);
            descend(p, direction, rates[piece.tensor]);
            is_finite &= are_finite(p);
        }
        is_finite
    });
    descended.reduce(|| true, |all, one| all & one) & moments_are_finite
}

/// What the first pass finds of a piece.
struct Measured {
    weights: ChunkSums,
    directions: ChunkSums,
    /// The second moments; where the first are not, the parameters are not either.
    is_finite: bool,
}

/// Moves the moments, and sums the squares of the parameters and of the direction.
fn measure(p: &[f32], g: &[f32], m: &mut [f32], v: &mut [f32], decay: f32, s: &Scalars) -> Measured {
    let (mut weights, mut directions, mut is_finite) = (ChunkSums::default(), ChunkSums::default(), true);
    let mut direction = scratch();
    for (index, at) in chunks(p.len()).enumerate() {
        let (p, direction) = (&p[at.clone()], &mut direction[..at.len()]);
        let (m, v) = (&mut m[at.clone()], &mut v[at.clone()]);
        advance(p, &g[at], m, v, direction, decay, s);
        is_finite &= are_finite(v);
        weights[index] = sum_of_squares(p);
        directions[index] = sum_of_squares(direction);
    }
    Measured { weights, directions, is_finite }
}

#[inline(never)]
fn advance(p: &[f32], g: &[f32], m: &mut [f32], v: &mut [f32], direction: &mut [f32], decay: f32, s: &Scalars) {
    for ((((p, g), m), v), direction) in p.iter().zip(g).zip(m).zip(v).zip(direction) {
        let grad = *g * s.scale;
        *m = *m * s.beta1 + grad * s.one_minus_beta1;
        *v = *v * s.beta2 + grad * grad * s.one_minus_beta2;
        *direction = directed(*p, *m, *v, decay, s);
    }
}

#[inline(never)]
fn direct(p: &[f32], m: &[f32], v: &[f32], direction: &mut [f32], decay: f32, s: &Scalars) {
    for (((p, m), v), direction) in p.iter().zip(m).zip(v).zip(direction) {
        *direction = directed(*p, *m, *v, decay, s);
    }
}

#[inline(always)]
fn directed(p: f32, m: f32, v: f32, decay: f32, s: &Scalars) -> f32 {
    let denominator = v.sqrt() * s.inverse_bias2_sqrt + s.eps;
    m * s.inverse_bias1 / denominator + p * decay
}

#[inline(never)]
fn descend(p: &mut [f32], direction: &[f32], rate: f32) {
    for (p, direction) in p.iter_mut().zip(direction) {
        *p -= rate * *direction;
    }
}
