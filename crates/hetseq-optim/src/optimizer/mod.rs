//! The optimizer: one step over ranges of the flat buffers, and its state for checkpoints.
//!
//! It owns the moments, never the parameters or gradients. It does not clip, schedule or reduce: the
//! trainer passes the clip factor and the learning rate of the update. The loops over elements
//! are in `kernel.rs`, the hyper-parameters in `config.rs`.

mod config;
mod decay;
mod kernel;
mod state;

use std::ops::Range;

use rayon::prelude::*;

pub use config::{OptimizerConfig, OptimizerName};

use crate::{Layout, OptimError};
use decay::DecayMap;
use kernel::{AdamScalars, SgdScalars};

/// Elements given to a thread at a time: 128 KiB of each stream, four of which fit a 1 MiB
/// second-level cache. It has no influence on the result, which is element by element.
const CHUNK: usize = 32 * 1024;

/// SGD, Adam or AdamW with its moments, over a whole [`Layout`].
///
/// Steps are bit-identical for any number of threads, any split into ranges and any instruction set.
/// Threads are those of the rayon pool the caller is in.
#[derive(Debug)]
pub struct Optimizer {
    config: OptimizerConfig,
    decay: DecayMap,
    moments: Moments,
    steps: u64,
    /// `beta^steps`, multiplied up step by step: `powf` may differ between platforms, and replicas
    /// with different last bits drift apart.
    beta_powers: [f64; 2],
}

/// What an optimizer remembers of past gradients, zero before the first step.
#[derive(Debug)]
enum Moments {
    None,
    Momentum { buffer: Vec<f32> },
    Adam { exp_avg: Vec<f32>, exp_avg_sq: Vec<f32> },
}

impl Optimizer {
    /// An optimizer before its first step; hyper-parameters out of range are refused.
    pub fn new(config: &OptimizerConfig, layout: &Layout) -> Result<Optimizer, OptimError> {
        config.validate()?;
        let zeros = || vec![0f32; layout.len()];
        let moments = match config.name {
            OptimizerName::Sgd if config.momentum == 0.0 => Moments::None,
            OptimizerName::Sgd => Moments::Momentum { buffer: zeros() },
            OptimizerName::Adam | OptimizerName::AdamW => Moments::Adam { exp_avg: zeros(), exp_avg_sq: zeros() },
        };
        Ok(Optimizer { config: config.clone(), decay: DecayMap::new(layout), moments, steps: 0, beta_powers: [1.0; 2] })
    }

    /// One update of the whole layout: `gradients * scale` is applied to `parameters` at rate `lr`.
    ///
    /// # Panics
    /// If a buffer is not as long as the layout.
    pub fn step(&mut self, parameters: &mut [f32], gradients: &[f32], scale: f32, lr: f32) {
        self.begin_step();
        self.step_range(0..self.decay.len(), parameters, gradients, scale, lr);
    }

    /// Opens an update: advances the step count and the bias corrections. Once per update, before its
    /// ranges, on every rank, also on one that owns no range.
    pub fn begin_step(&mut self) {
        self.steps += 1;
        for (power, beta) in self.beta_powers.iter_mut().zip(self.config.betas) {
            *power *= beta;
        }
    }

    /// Updates the elements `range` of the layout; the buffers hold those elements only.
    ///
    /// The ranges of one update may come in any order and cut parameters anywhere, but must not
    /// overlap, and all take the same `scale` and `lr`.
    ///
    /// # Panics
    /// If the range leaves the layout, a buffer is not as long as it, or no update was begun.
    pub fn step_range(&mut self, range: Range<usize>, parameters: &mut [f32], gradients: &[f32], scale: f32, lr: f32) {
        assert!(self.steps > 0, "step_range before the first begin_step");
        let len = self.decay.len();
        assert!(range.start <= range.end && range.end <= len, "range {range:?} leaves the layout of {len} elements");
        assert_eq!(parameters.len(), range.len(), "parameters for {range:?}");
        assert_eq!(gradients.len(), range.len(), "gradients for {range:?}");

        let decay = &self.decay;
        let chunks = parameters
            .par_chunks_mut(CHUNK)
            .zip(gradients.par_chunks(CHUNK))
            .enumerate()
            .map(|(index, (p, g))| (range.start + index * CHUNK, p, g));
        match &mut self.moments {
            Moments::None => {
                let sgd = SgdScalars::pair(&self.config, scale, lr);
                chunks.for_each(|(start, p, g)| {
                    for (at, decays) in decay.within(start, p.len()) {
                        kernel::sgd(&mut p[at.clone()], &g[at], sgd.of(decays));
                    }
                });
            }
            Moments::Momentum { buffer } => {
                let sgd = SgdScalars::pair(&self.config, scale, lr);
                let buffers = buffer[range.clone()].par_chunks_mut(CHUNK);
                chunks.zip(buffers).for_each(|((start, p, g), b)| {
                    for (at, decays) in decay.within(start, p.len()) {
                        let (p, g, b) = (&mut p[at.clone()], &g[at.clone()], &mut b[at]);
                        kernel::momentum(p, g, b, sgd.of(decays));
                    }
                });
            }
            Moments::Adam { exp_avg, exp_avg_sq } => {
                let adam = AdamScalars::pair(&self.config, self.beta_powers, scale, lr);
                let firsts = exp_avg[range.clone()].par_chunks_mut(CHUNK);
                let seconds = exp_avg_sq[range.clone()].par_chunks_mut(CHUNK);
                let chunks = chunks.zip(firsts.zip(seconds));
                chunks.for_each(|((start, p, g), (m, v))| {
                    for (at, decays) in decay.within(start, p.len()) {
                        let (p, g) = (&mut p[at.clone()], &g[at.clone()]);
                        let (m, v) = (&mut m[at.clone()], &mut v[at]);
                        kernel::adam(p, g, m, v, adam.of(decays));
                    }
                });
            }
        }
    }

    /// Updates applied since the start of training, resumed ones counted.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The hyper-parameters in use.
    pub fn config(&self) -> &OptimizerConfig {
        &self.config
    }
}

#[cfg(test)]
mod tests;
