//! Adafactor: second moments as row and column means, steps clipped by their root mean square, and
//! a rate relative to the root mean square of the parameter.
//!
//! There are three passes, because each needs sums over whole parameters from the one before:
//! squares by row and column (`factors.rs`); the size of the step and of the parameter; the step
//! itself. They read the gradient three times and the parameters twice, and write the parameters
//! once: less memory traffic than Adam. Called by the optimizer's step only.
//!
//! The formulas are those of `transformers.optimization.Adafactor`. Parameters with fewer than two
//! dimensions have one second moment per element, as in Adam.

mod factors;

use std::ops::Range;

use rayon::prelude::*;

use super::OptimizerConfig;
use super::pieces::{ChunkSums, Piece, Pieces, Tensor, chunks, cut, scratch, squares};
use crate::flat::are_finite;
use crate::norm::sum_of_squares;
use factors::{Factoring, Factors};

/// The moments of all parameters, one parameter after the other.
#[derive(Debug)]
pub(super) struct AdafactorMoments {
    /// The running mean of steps, as long as the layout; empty without `beta1`.
    pub(super) exp_avg: Vec<f32>,
    /// One value per row, and one per column, of the parameters with two or more dimensions.
    pub(super) exp_avg_sq_row: Vec<f32>,
    pub(super) exp_avg_sq_col: Vec<f32>,
    /// One value per element of the other parameters.
    pub(super) exp_avg_sq: Vec<f32>,
    /// The factoring of each parameter, if it has one.
    factorings: Vec<Option<Factoring>>,
}

impl AdafactorMoments {
    pub(super) fn new(config: &OptimizerConfig, tensors: &[Tensor]) -> AdafactorMoments {
        let factorings: Vec<_> = tensors.iter().map(|tensor| Factoring::of(&tensor.shape)).collect();
        let factored = |size: fn(&Factoring) -> usize| factorings.iter().flatten().map(size).sum();
        let whole = tensors.iter().zip(&factorings).filter(|(_, factoring)| factoring.is_none());
        let len = tensors.last().map_or(0, |tensor| tensor.range.end);
        AdafactorMoments {
            exp_avg: vec![0.0; if config.beta1.is_some() { len } else { 0 }],
            exp_avg_sq_row: vec![0.0; factored(Factoring::rows)],
            exp_avg_sq_col: vec![0.0; factored(Factoring::cols)],
            exp_avg_sq: vec![0.0; whole.map(|(tensor, _)| tensor.range.len()).sum()],
            factorings,
        }
    }

    /// Whether no second moment is infinite or NaN. There are few: a matrix has one per row and
    /// column.
    pub(super) fn are_finite(&self) -> bool {
        [&self.exp_avg_sq_row, &self.exp_avg_sq_col, &self.exp_avg_sq].into_iter().all(|moments| are_finite(moments))
    }
}

/// The scalars of one step.
pub(super) struct AdafactorScalars {
    scale: f32,
    /// The fraction of the second moments that is kept.
    beta2: f64,
    eps: f64,
    min_scale: f64,
    clip_threshold: f64,
    beta1: Option<f64>,
    scale_parameter: bool,
    weight_decay: f64,
    lr: f32,
}

/// The factors of the last pass for one parameter.
#[derive(Clone, Copy)]
struct Rate {
    /// The factor of the step.
    step: f32,
    /// The factor of the parameter: weight decay.
    keep: f32,
}

impl AdafactorScalars {
    pub(super) fn new(config: &OptimizerConfig, steps: u64, scale: f32, lr: f32) -> AdafactorScalars {
        AdafactorScalars {
            scale,
            // `libm`: the platform's power may differ in the last bit.
            beta2: 1.0 - libm::pow(steps as f64, config.decay_rate()),
            eps: config.eps(),
            min_scale: config.min_scale(),
            clip_threshold: config.clip_threshold(),
            beta1: config.beta1,
            scale_parameter: config.scale_parameter(),
            weight_decay: config.weight_decay,
            lr,
        }
    }

    /// `steps` and `weights` are the sums of squares of the parameter's unscaled step and of the
    /// parameter itself.
    fn rate(&self, tensor: &Tensor, steps: f64, weights: f64) -> Rate {
        let rms = |sum: f64| (sum / tensor.range.len() as f64).sqrt();
        let scale = if self.scale_parameter { rms(weights).max(self.min_scale) } else { 1.0 };
        let lr = f64::from(tensor.group.rate(self.lr)) * scale;
        let excess = rms(steps) / self.clip_threshold;
        let decay = tensor.group.weight_decay(self.weight_decay) * lr;
        Rate { step: (lr / excess.max(1.0)) as f32, keep: (1.0 - decay) as f32 }
    }
}

/// The rate of `relative_step` for a step, counted from 1.
pub(super) fn relative_rate(config: &OptimizerConfig, step: u64) -> f64 {
    let step = step as f64;
    let max = if config.warmup_init() { 1e-6 * step } else { 1e-2 };
    max.min(1.0 / step.sqrt())
}

/// One step of the parameters in `range`. `parameters` and `gradients` hold the elements of
/// `range`; `moments` covers the whole layout. Returns whether the updated parameters are finite,
/// and with them the running means; for the second moments see [`AdafactorMoments::are_finite`].
pub(super) fn step(
    all: &Pieces,
    range: &Range<usize>,
    parameters: &mut [f32],
    gradients: &[f32],
    moments: &mut AdafactorMoments,
    scalars: &AdafactorScalars,
) -> bool {
    let factors = factors::update(all, range, gradients, moments, scalars);
    let pass = PassContext { all, pieces: all.within(range), start: range.start, gradients, factors, scalars };

    let full_moments = pass.cut_full_moments(&moments.factorings, &mut moments.exp_avg_sq);
    let rates = pass.rates(parameters, full_moments);

    let full_moments = pass.cut_full_moments(&moments.factorings, &mut moments.exp_avg_sq);
    let averages = match scalars.beta1 {
        Some(_) => cut(&mut moments.exp_avg[range.clone()], pass.lengths()),
        None => cut(&mut [], pass.pieces.iter().map(|_| 0)),
    };
    let finite = (pass.pieces, cut(parameters, pass.lengths()), full_moments, averages).into_par_iter().map(
        |(piece, p, v, average): (&Piece, &mut [f32], &mut [f32], &mut [f32])| {
            // As in `sweep.rs`: a parameter with a learning-rate scale of 0 must keep its bits.
            let mut copy = all.tensors[piece.tensor].group.has_zero_rate().then(|| p.to_vec());
            let p = copy.as_deref_mut().unwrap_or(p);
            let (rate, mut scratch, mut is_finite) = (rates[piece.tensor], scratch(), true);
            for at in chunks(p.len()) {
                let (p, step) = (&mut p[at.clone()], &mut scratch[..at.len()]);
                pass.unscaled_step(piece, &at, v, step);
                match scalars.beta1 {
                    Some(beta1) => apply_averaged(p, step, &mut average[at], beta1, rate),
                    None => apply(p, step, rate),
                }
                is_finite &= are_finite(p);
            }
            is_finite
        },
    );
    finite.reduce(|| true, |all, one| all & one)
}

/// The common inputs of the second and the third pass.
struct PassContext<'a> {
    all: &'a Pieces,
    pieces: &'a [Piece],
    /// The element of the layout at which `gradients` begins.
    start: usize,
    gradients: &'a [f32],
    /// The factors of each factored parameter.
    factors: Vec<Option<Factors>>,
    scalars: &'a AdafactorScalars,
}

impl PassContext<'_> {
    fn lengths(&self) -> impl Iterator<Item = usize> {
        self.pieces.iter().map(|piece| piece.range.len())
    }

    /// The second moments per element of each piece; empty for pieces of factored parameters.
    fn cut_full_moments<'m>(&self, factorings: &[Option<Factoring>], exp_avg_sq: &'m mut [f32]) -> Vec<&'m mut [f32]> {
        let first = self.pieces.first().map_or(0, |piece| piece.tensor);
        let tensors = self.all.tensors[..first].iter().zip(factorings);
        let before = tensors.filter(|(_, factoring)| factoring.is_none()).map(|(tensor, _)| tensor.range.len()).sum();
        let length = |piece: &Piece| if factorings[piece.tensor].is_none() { piece.range.len() } else { 0 };
        cut(&mut exp_avg_sq[before..], self.pieces.iter().map(length))
    }

    /// The second pass: updates the second moments per element, and computes the rates from the
    /// sizes of the unscaled steps and of the parameters.
    fn rates(&self, parameters: &[f32], full_moments: Vec<&mut [f32]>) -> Vec<Rate> {
        let measure = |(piece, v): (&Piece, &mut [f32])| {
            let g = piece.of(self.gradients, self.start);
            if !v.is_empty() {
                average_squares(g, v, self.scalars);
            }
            let (mut steps, mut scratch) = (ChunkSums::default(), scratch());
            for (sum, at) in steps.iter_mut().zip(chunks(g.len())) {
                let step = &mut scratch[..at.len()];
                self.unscaled_step(piece, &at, v, step);
                *sum = sum_of_squares(step);
            }
            let weights = match self.scalars.scale_parameter {
                true => squares(piece.of(parameters, self.start)),
                false => ChunkSums::default(),
            };
            (steps, weights)
        };
        let sums: Vec<(ChunkSums, ChunkSums)> = (self.pieces, full_moments).into_par_iter().map(measure).collect();
        let steps = self.all.totals(self.pieces, sums.iter().map(|(steps, _)| *steps));
        let weights = self.all.totals(self.pieces, sums.iter().map(|(_, weights)| *weights));
        let tensors = self.all.tensors.iter().zip(steps.into_iter().zip(weights));
        tensors.map(|(tensor, (steps, weights))| self.scalars.rate(tensor, steps, weights)).collect()
    }

    /// The unscaled step of the elements `at` of a piece: the gradient divided by the root of its
    /// mean square.
    fn unscaled_step(&self, piece: &Piece, at: &Range<usize>, v: &[f32], step: &mut [f32]) {
        let (g, scale) = (&piece.of(self.gradients, self.start)[at.clone()], self.scalars.scale);
        match &self.factors[piece.tensor] {
            Some(factors) => {
                let first = piece.range.start - self.all.tensors[piece.tensor].range.start + at.start;
                factors.unscaled_step(first, g, scale, step);
            }
            None => divide(g, &v[at.clone()], scale, step),
        }
    }
}

// `inline(never)` for the reason given in `kernel.rs`.

#[inline(never)]
fn average_squares(g: &[f32], v: &mut [f32], s: &AdafactorScalars) {
    let (keep, add, eps) = (s.beta2 as f32, (1.0 - s.beta2) as f32, s.eps as f32);
    for (g, v) in g.iter().zip(v) {
        let grad = *g * s.scale;
        *v = *v * keep + (grad * grad + eps) * add;
    }
}

#[inline(never)]
fn divide(g: &[f32], v: &[f32], scale: f32, step: &mut [f32]) {
    for ((g, v), step) in g.iter().zip(v).zip(step) {
        *step = *g * scale / v.sqrt();
    }
}

#[inline(never)]
fn apply(p: &mut [f32], step: &[f32], rate: Rate) {
    for (p, step) in p.iter_mut().zip(step) {
        *p = *p * rate.keep - *step * rate.step;
    }
}

#[inline(never)]
fn apply_averaged(p: &mut [f32], step: &[f32], average: &mut [f32], beta1: f64, rate: Rate) {
    let (keep, add) = (beta1 as f32, (1.0 - beta1) as f32);
    for ((p, step), average) in p.iter_mut().zip(step).zip(average) {
        *average = *average * keep + *step * rate.step * add;
        *p = *p * rate.keep - *average;
    }
}
