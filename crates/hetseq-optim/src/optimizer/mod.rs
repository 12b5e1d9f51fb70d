//! The optimizer: one step over ranges of the flat buffers, and its state for checkpoints.
//!
//! It owns the moments, not the parameters or gradients. It does not clip, schedule or reduce: the
//! trainer passes the clip factor and the learning rate of the update. The element-wise rules are
//! loops in `kernel.rs`. LAMB and Adafactor need norms of whole parameters and have separate files.

mod adafactor;
mod config;
mod kernel;
mod lamb;
mod moments;
mod pieces;
mod runs;
mod state;
mod sweep;

use std::ops::Range;

pub use config::{Eps, OptimizerConfig, OptimizerName};

use crate::{Layout, OptimError, ParameterGroups};
use kernel::{AdadeltaScalars, AdamScalars, SgdScalars};
use moments::Moments;
use pieces::Pieces;
use runs::GroupRuns;
use sweep::Sweep;

/// An update rule with its moments, over the trainable part of a [`Layout`]. Frozen parameters have
/// no gradient and no moments, and do not change.
///
/// Steps are bit-identical for any number of threads, any allowed split into ranges and any
/// instruction set. It uses the rayon pool of the caller.
#[derive(Debug)]
pub struct Optimizer {
    config: OptimizerConfig,
    runs: GroupRuns,
    moments: Moments,
    /// The number of elements of the layout, with frozen ones.
    len: usize,
    steps: u64,
    /// `beta^steps`, updated by one multiplication per step: `powf` may differ between platforms,
    /// and replicas with different last bits would drift apart.
    beta_powers: [f64; 2],
    /// Whether all values written since `begin_step` are finite.
    is_finite: bool,
}

impl Optimizer {
    /// An optimizer before its first step, with the default groups: one learning rate for all
    /// parameters, and weight decay for weights only. Refuses hyper-parameters that are out of
    /// range.
    pub fn new(config: &OptimizerConfig, layout: &Layout) -> Result<Optimizer, OptimError> {
        Optimizer::with_groups(config, layout, &ParameterGroups::by_shape(layout))
    }

    /// The same with other groups, which must be built from `layout`.
    ///
    /// A group's learning rate is the step's `lr` times its scale, as a group's `lr` in PyTorch.
    /// This includes Adafactor's own rate ([`Optimizer::relative_rate`]): transformers ignores the
    /// `lr` of a group there, but a scale without effect would be a trap.
    pub fn with_groups(
        config: &OptimizerConfig,
        layout: &Layout,
        groups: &ParameterGroups,
    ) -> Result<Optimizer, OptimError> {
        config.validate()?;
        groups.check_layout(layout)?;
        let moments = Moments::new(config, || Pieces::new(layout, groups), layout.trainable_len());
        Ok(Optimizer {
            config: config.clone(),
            runs: GroupRuns::new(layout, groups),
            moments,
            len: layout.len(),
            steps: 0,
            beta_powers: [1.0; 2],
            is_finite: true,
        })
    }

    /// One update: applies `gradients * scale` to `parameters` with rate `lr`. `parameters` are those
    /// of the whole layout, `gradients` those of its trainable part.
    ///
    /// # Panics
    /// If a buffer has another length.
    pub fn step(&mut self, parameters: &mut [f32], gradients: &[f32], scale: f32, lr: f32) {
        assert_eq!(parameters.len(), self.len, "parameters of the layout");
        self.begin_step();
        let trainable = self.runs.len();
        self.step_range(0..trainable, &mut parameters[..trainable], gradients, scale, lr);
    }

    /// Begins an update: advances the step count and the bias corrections. Call it once per update,
    /// before its ranges, on every rank, also on ranks without a range.
    pub fn begin_step(&mut self) {
        self.steps += 1;
        self.is_finite = true;
        for (power, beta) in self.beta_powers.iter_mut().zip(self.config.betas) {
            *power *= beta;
        }
    }

    /// Updates the elements `range` of the layout's trainable part; the buffers hold those elements
    /// only.
    ///
    /// The ranges of one update may come in any order, but must not overlap, and all take the same
    /// `scale` and `lr`. They may cut parameters anywhere, except for LAMB and Adafactor, which
    /// need whole parameters: there a range must begin and end at parameter boundaries.
    ///
    /// # Panics
    /// If the range exceeds the trainable part or cuts a parameter that must be whole, a buffer is
    /// not as long as the range, or `begin_step` was never called.
    pub fn step_range(&mut self, range: Range<usize>, parameters: &mut [f32], gradients: &[f32], scale: f32, lr: f32) {
        assert!(self.steps > 0, "step_range before the first begin_step");
        let len = self.runs.len();
        assert!(range.start <= range.end && range.end <= len, "range {range:?} leaves the {len} trainable elements");
        assert_eq!(parameters.len(), range.len(), "parameters for {range:?}");
        assert_eq!(gradients.len(), range.len(), "gradients for {range:?}");

        let config = &self.config;
        let (runs, start) = (&self.runs, range.start);
        let sweep = Sweep { runs, start };
        self.is_finite &= match &mut self.moments {
            Moments::None => {
                let sgd = runs.scalars(|group| SgdScalars::new(config, group, scale, lr));
                sweep.run(parameters, gradients, [], &sgd, |p, g, [], s| kernel::sgd(p, g, s))
            }
            Moments::Momentum { buffer } => {
                let sgd = runs.scalars(|group| SgdScalars::new(config, group, scale, lr));
                let buffers = [&mut buffer[range]];
                sweep.run(parameters, gradients, buffers, &sgd, |p, g, [b], s| kernel::momentum(p, g, b, s))
            }
            Moments::Adam { exp_avg, exp_avg_sq } => {
                let adam = runs.scalars(|group| AdamScalars::new(config, group, self.beta_powers, scale, lr));
                let moments = [&mut exp_avg[range.clone()], &mut exp_avg_sq[range]];
                sweep.run(parameters, gradients, moments, &adam, |p, g, [m, v], s| kernel::adam(p, g, m, v, s))
            }
            Moments::Adadelta { square_avg, acc_delta } => {
                let adadelta = runs.scalars(|group| AdadeltaScalars::new(config, group, scale, lr));
                let moments = [&mut square_avg[range.clone()], &mut acc_delta[range]];
                sweep.run(parameters, gradients, moments, &adadelta, |p, g, [square, step], s| {
                    kernel::adadelta(p, g, square, step, s)
                })
            }
            Moments::Lamb { pieces, exp_avg, exp_avg_sq } => {
                let lamb = lamb::LambScalars::new(config, self.beta_powers, scale, lr);
                pieces.parts(&range).into_iter().fold(true, |is_finite, part| {
                    let (p, g) = part_of(&part, range.start, parameters, gradients);
                    is_finite & lamb::step(pieces, &part, p, g, [exp_avg, exp_avg_sq], &lamb)
                })
            }
            Moments::Adafactor { pieces, moments } => {
                let adafactor = adafactor::AdafactorScalars::new(config, self.steps, scale, lr);
                let is_finite = pieces.parts(&range).into_iter().fold(true, |is_finite, part| {
                    let (p, g) = part_of(&part, range.start, parameters, gradients);
                    is_finite & adafactor::step(pieces, &part, p, g, moments, &adafactor)
                });
                is_finite & moments.are_finite()
            }
        };
    }

    /// Whether all parameters and moments that the last update wrote are finite. Checked in the
    /// same pass; true before the first update.
    pub fn is_finite(&self) -> bool {
        self.is_finite
    }

    /// The learning rate of the `step`-th update, counted from 1, if the optimizer computes its
    /// own: Adafactor with `relative_step`. The caller passes it to the step instead of a
    /// schedule's rate.
    pub fn relative_rate(&self, step: u64) -> Option<f64> {
        self.config.relative_step().then(|| adafactor::relative_rate(&self.config, step))
    }

    /// The number of updates since the start of training, including those before a resume.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The hyper-parameters.
    pub fn config(&self) -> &OptimizerConfig {
        &self.config
    }
}

/// The elements `part` of the layout, in buffers that begin at element `start`.
fn part_of<'a>(
    part: &Range<usize>,
    start: usize,
    parameters: &'a mut [f32],
    gradients: &'a [f32],
) -> (&'a mut [f32], &'a [f32]) {
    let here = part.start - start..part.end - start;
    (&mut parameters[here.clone()], &gradients[here])
}

#[cfg(test)]
mod tests;
