//! Adafactor: second moments as row and column means, a step clipped by its root mean square, a rate
//! that follows the parameter's.
//!
//! Three passes, because each needs what the one before has summed over whole parameters: squares by row
//! and column (`factors.rs`); the size of the step and of the parameter; the step itself. They read the
//! gradient three times and the parameters twice and write those once, less than Adam moves. Called by
//! the optimizer's step only.
//!
//! The algebra is that of `transformers.optimization.Adafactor`. The second moments of parameters with
//! fewer than two dimensions are whole, as Adam's are.

mod factors;

use std::ops::Range;

use rayon::prelude::*;

use super::OptimizerConfig;
use super::pieces::{ChunkSums, Piece, Pieces, Tensor, chunks, cut, scratch, squares};
use crate::flat::are_finite;
use crate::norm::sum_of_squares;
use factors::{Factoring, Factors};

/// What is remembered of past gradients, parameter after parameter.
#[derive(Debug)]
pub(super) struct Moments {
    /// Running mean of steps, as long as the layout; empty without `beta1`.
    pub(super) exp_avg: Vec<f32>,
    /// Of each row, and of each column, of parameters with two or more dimensions.
    pub(super) exp_avg_sq_row: Vec<f32>,
    pub(super) exp_avg_sq_col: Vec<f32>,
    /// Of the other parameters.
    pub(super) exp_avg_sq: Vec<f32>,
    /// How each parameter is factored, if it is.
    factorings: Vec<Option<Factoring>>,
}

impl Moments {
    pub(super) fn new(config: &OptimizerConfig, tensors: &[Tensor]) -> Moments {
        let factorings: Vec<_> = tensors.iter().map(|tensor| Factoring::of(&tensor.shape)).collect();
        let factored = |size: fn(&Factoring) -> usize| factorings.iter().flatten().map(size).sum();
        let whole = tensors.iter().zip(&factorings).filter(|(_, factoring)| factoring.is_none());
        let len = tensors.last().map_or(0, |tensor| tensor.range.end);
        Moments {
            exp_avg: vec![0.0; if config.beta1.is_some() { len } else { 0 }],
            exp_avg_sq_row: vec![0.0; factored(Factoring::rows)],
            exp_avg_sq_col: vec![0.0; factored(Factoring::cols)],
            exp_avg_sq: vec![0.0; whole.map(|(tensor, _)| tensor.range.len()).sum()],
            factorings,
        }
    }

    /// Whether no second moment is infinite or NaN. There are few: of matrices one for each row and column.
    pub(super) fn are_finite(&self) -> bool {
        [&self.exp_avg_sq_row, &self.exp_avg_sq_col, &self.exp_avg_sq].into_iter().all(|moments| are_finite(moments))
    }
}

pub(super) struct Scalars {
    scale: f32,
    /// The part of the second moments that is kept.
    beta2: f64,
    eps: f64,
    least_scale: f64,
    clip_threshold: f64,
    beta1: Option<f64>,
    scale_parameter: bool,
    weight_decay: f64,
    lr: f64,
}

/// What the last pass does to a parameter.
#[derive(Clone, Copy)]
struct Rate {
    /// Factor of the step.
    step: f32,
    /// Factor of the parameter: its decay.
    keep: f32,
}

impl Scalars {
    pub(super) fn new(config: &OptimizerConfig, steps: u64, scale: f32, lr: f32) -> Scalars {
        Scalars {
            scale,
            // `libm`: the platform's power may differ in the last bit.
            beta2: 1.0 - libm::pow(steps as f64, config.decay_rate()),
            eps: config.eps(),
            least_scale: config.least_scale(),
            clip_threshold: config.clip_threshold(),
            beta1: config.beta1,
            scale_parameter: config.scale_parameter(),
            weight_decay: config.weight_decay,
            lr: f64::from(lr),
        }
    }

    /// `steps` and `weights` are the sums of squares of the parameter's unscaled step and of itself.
    fn rate(&self, tensor: &Tensor, steps: f64, weights: f64) -> Rate {
        let rms = |sum: f64| (sum / tensor.range.len() as f64).sqrt();
        let scale = if self.scale_parameter { rms(weights).max(self.least_scale) } else { 1.0 };
        let (lr, excess) = (self.lr * scale, rms(steps) / self.clip_threshold);
        let decay = if tensor.decays { self.weight_decay * lr } else { 0.0 };
        Rate { step: (lr / excess.max(1.0)) as f32, keep: (1.0 - decay) as f32 }
    }
}

/// The rate that `relative_step` makes of the number of the step, counted from 1.
pub(super) fn relative_rate(config: &OptimizerConfig, step: u64) -> f64 {
    let step = step as f64;
    let most = if config.warmup_init() { 1e-6 * step } else { 1e-2 };
    most.min(1.0 / step.sqrt())
}

/// One step of the parameters in `range`, whose elements the first two buffers hold; the moments are whole. Returns whether
/// the parameters are finite afterwards, and with them the running means; for the second moments see [`Moments::are_finite`].
pub(super) fn step(
    all: &Pieces,
    range: &Range<usize>,
    parameters: &mut [f32],
    gradients: &[f32],
    moments: &mut Moments,
    scalars: &Scalars,
) -> bool {
    let factors = factors::update(all, range, gradients, moments, scalars);
    let pass = Pass { all, pieces: all.within(range), start: range.start, gradients, factors, scalars };

    let wholes = pass.cut_wholes(&moments.factorings, &mut moments.exp_avg_sq);
    let rates = pass.rates(parameters, wholes);

    let wholes = pass.cut_wholes(&moments.factorings, &mut moments.exp_avg_sq);
    let averages = match scalars.beta1 {
        Some(_) => cut(&mut moments.exp_avg[range.clone()], pass.lengths()),
        None => cut(&mut [], pass.pieces.iter().map(|_| 0)),
    };
    let descended = (pass.pieces, cut(parameters, pass.lengths()), wholes, averages).into_par_iter().map(
        |(piece, p, whole, average): (&Piece, &mut [f32], &mut [f32], &mut [f32])| {
            let (rate, mut scratch, mut is_finite) = (rates[piece.tensor], scratch(), true);
            for at in chunks(p.len()) {
                let (p, step) = (&mut p[at.clone()], &mut scratch[..at.len()]);
                pass.direct(piece, &at, whole, step);
                match scalars.beta1 {
                    Some(beta1) => descend_averaged(p, step, &mut average[at], beta1, rate),
                    None => descend(p, step, rate),
                }
                is_finite &= are_finite(p);
            }
            is_finite
        },
    );
    descended.reduce(|| true, |all, one| all & one)
}

/// What the second and the third pass share.
struct Pass<'a> {
    all: &'a Pieces,
    pieces: &'a [Piece],
    /// The element of the layout that the gradients begin with.
    start: usize,
    gradients: &'a [f32],
    /// Of the factored parameters.
    factors: Vec<Option<Factors>>,
    scalars: &'a Scalars,
}

impl Pass<'_> {
    fn lengths(&self) -> impl Iterator<Item = usize> {
        self.pieces.iter().map(|piece| piece.range.len())
    }

    /// The whole second moments of each piece; nothing for those of factored parameters.
    fn cut_wholes<'m>(&self, factorings: &[Option<Factoring>], exp_avg_sq: &'m mut [f32]) -> Vec<&'m mut [f32]> {
        let first = self.pieces.first().map_or(0, |piece| piece.tensor);
        let tensors = self.all.tensors[..first].iter().zip(factorings);
        let before = tensors.filter(|(_, factoring)| factoring.is_none()).map(|(tensor, _)| tensor.range.len()).sum();
        let length = |piece: &Piece| if factorings[piece.tensor].is_none() { piece.range.len() } else { 0 };
        cut(&mut exp_avg_sq[before..], self.pieces.iter().map(length))
    }

    /// The second pass: moves the whole second moments, and from the size of the unscaled steps and of the
    /// parameters follow the rates.
    fn rates(&self, parameters: &[f32], wholes: Vec<&mut [f32]>) -> Vec<Rate> {
        let measure = |(piece, whole): (&Piece, &mut [f32])| {
            let g = piece.of(self.gradients, self.start);
            if !whole.is_empty() {
                average_squares(g, whole, self.scalars);
            }
            let (mut steps, mut scratch) = (ChunkSums::default(), scratch());
            for (sum, at) in steps.iter_mut().zip(chunks(g.len())) {
                let step = &mut scratch[..at.len()];
                self.direct(piece, &at, whole, step);
                *sum = sum_of_squares(step);
            }
            let weights = match self.scalars.scale_parameter {
                true => squares(piece.of(parameters, self.start)),
                false => ChunkSums::default(),
            };
            (steps, weights)
        };
        let sums: Vec<(ChunkSums, ChunkSums)> = (self.pieces, wholes).into_par_iter().map(measure).collect();
        let steps = self.all.totals(self.pieces, sums.iter().map(|(steps, _)| *steps));
        let weights = self.all.totals(self.pieces, sums.iter().map(|(_, weights)| *weights));
        let tensors = self.all.tensors.iter().zip(steps.into_iter().zip(weights));
        tensors.map(|(tensor, (steps, weights))| self.scalars.rate(tensor, steps, weights)).collect()
    }

    /// The unscaled step of the elements `at` of a piece: the gradient over the root of its mean square.
    fn direct(&self, piece: &Piece, at: &Range<usize>, whole: &[f32], step: &mut [f32]) {
        let (g, scale) = (&piece.of(self.gradients, self.start)[at.clone()], self.scalars.scale);
        match &self.factors[piece.tensor] {
            Some(factors) => {
                let first = piece.range.start - self.all.tensors[piece.tensor].range.start + at.start;
                factors.direct(first, g, scale, step);
            }
            None => divide(g, &whole[at.clone()], scale, step),
        }
    }
}

// `inline(never)` for the reason given in `kernel.rs`.

#[inline(never)]
fn average_squares(g: &[f32], v: &mut [f32], s: &Scalars) {
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
fn descend(p: &mut [f32], step: &[f32], rate: Rate) {
    for (p, step) in p.iter_mut().zip(step) {
        *p = *p * rate.keep - *step * rate.step;
    }
}

#[inline(never)]
fn descend_averaged(p: &mut [f32], step: &[f32], average: &mut [f32], beta1: f64, rate: Rate) {
    let (keep, add) = (beta1 as f32, (1.0 - beta1) as f32);
    for ((p, step), average) in p.iter_mut().zip(step).zip(average) {
        *average = *average * keep + *step * rate.step * add;
        *p = *p * rate.keep - *average;
    }
}
