//! The inner loops of the element-wise optimizers, one pass each, and their scalars.
//!
//! Scalars are computed in `f64` and rounded once. The loops use + - * / and square root in `f32`,
//! which IEEE 754 rounds correctly on every machine. They never use `mul_add`: machines with and
//! without fused operations would differ. Called by the optimizer's step only. LAMB and Adafactor
//! need sums over whole parameters between their passes and have separate files.
//!
//! The formulas are those of `torch.optim`, weight decay included. A parameter without decay uses
//! the same loop with a decay of 0 (or a factor of 1), which does not change finite values; the
//! loops are limited by memory, not by that multiplication.

use hetseq_simd::vectorised;

use super::{OptimizerConfig, OptimizerName};
use crate::ParameterGroup;
use crate::flat::{flag, is_clear};

// Each struct holds the scalars of one step for one parameter group.

pub(super) struct SgdScalars {
    scale: f32,
    l2: f32,
    momentum: f32,
    nesterov: bool,
    lr: f32,
}

impl SgdScalars {
    pub(super) fn new(config: &OptimizerConfig, group: &ParameterGroup, scale: f32, lr: f32) -> SgdScalars {
        SgdScalars {
            scale,
            l2: group.weight_decay(config.weight_decay) as f32,
            momentum: config.momentum,
            nesterov: config.nesterov,
            lr: group.rate(lr),
        }
    }
}

pub(super) struct AdamScalars {
    scale: f32,
    /// Coupled weight decay, part of the gradient (Adam).
    l2: f32,
    /// Decoupled weight decay, a factor of the parameter (AdamW).
    keep: f32,
    beta1: f32,
    one_minus_beta1: f32,
    beta2: f32,
    one_minus_beta2: f32,
    bias2_sqrt: f32,
    eps: f32,
    step_size: f32,
}

impl AdamScalars {
    pub(super) fn new(
        config: &OptimizerConfig,
        group: &ParameterGroup,
        beta_powers: [f64; 2],
        scale: f32,
        lr: f32,
    ) -> AdamScalars {
        let (lr, weight_decay) = (f64::from(group.rate(lr)), group.weight_decay(config.weight_decay));
        let [beta1, beta2] = config.betas;
        let [bias1, bias2] = beta_powers.map(|power| 1.0 - power);
        let (l2, keep) = match config.name {
            OptimizerName::AdamW => (0.0, 1.0 - lr * weight_decay),
            _ => (weight_decay, 1.0),
        };
        AdamScalars {
            scale,
            l2: l2 as f32,
            keep: keep as f32,
            beta1: beta1 as f32,
            one_minus_beta1: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            one_minus_beta2: (1.0 - beta2) as f32,
            bias2_sqrt: bias2.sqrt() as f32,
            eps: config.eps() as f32,
            step_size: (lr / bias1) as f32,
        }
    }
}

pub(super) struct AdadeltaScalars {
    scale: f32,
    l2: f32,
    rho: f32,
    one_minus_rho: f32,
    eps: f32,
    lr: f32,
}

impl AdadeltaScalars {
    pub(super) fn new(config: &OptimizerConfig, group: &ParameterGroup, scale: f32, lr: f32) -> AdadeltaScalars {
        let rho = config.rho();
        AdadeltaScalars {
            scale,
            l2: group.weight_decay(config.weight_decay) as f32,
            rho: rho as f32,
            one_minus_rho: (1.0 - rho) as f32,
            eps: config.eps() as f32,
            lr: group.rate(lr),
        }
    }
}

// Each function returns whether all values that it wrote are finite. A moment that is not finite
// makes its parameter not finite, except for the moment in the denominator. So only that moment and
// the parameter are checked.
//
// There is one call per range of thousands of elements.

vectorised! {
    pub(super) fn sgd(p: &mut [f32], g: &[f32], s: &SgdScalars) -> bool {
        let mut flags = 0;
        for (p, g) in p.iter_mut().zip(g) {
            let grad = *g * s.scale + *p * s.l2;
            *p -= s.lr * grad;
            flags |= flag(*p);
        }
        is_clear(flags)
    }

    /// SGD with momentum. The buffer starts at 0, so the first step sets it to the gradient, as PyTorch
    /// does with a copy.
    pub(super) fn momentum(p: &mut [f32], g: &[f32], buffer: &mut [f32], s: &SgdScalars) -> bool {
        let mut flags = 0;
        if s.nesterov {
            for ((p, g), b) in p.iter_mut().zip(g).zip(buffer) {
                let grad = *g * s.scale + *p * s.l2;
                *b = *b * s.momentum + grad;
                *p -= s.lr * (grad + *b * s.momentum);
                flags |= flag(*p);
            }
        } else {
            for ((p, g), b) in p.iter_mut().zip(g).zip(buffer) {
                let grad = *g * s.scale + *p * s.l2;
                *b = *b * s.momentum + grad;
                *p -= s.lr * *b;
                flags |= flag(*p);
            }
        }
        is_clear(flags)
    }

    /// Adam and AdamW.
    ///
    /// The first moment is `beta1 m + (1 - beta1) g`; PyTorch computes `m + (1 - beta1)(g - m)`. Both
    /// are equal except for rounding, and exactly `g` for `beta1 = 0`.
    pub(super) fn adam(p: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32], s: &AdamScalars) -> bool {
        let mut flags = 0;
        for (((p, g), m), v) in p.iter_mut().zip(g).zip(m).zip(v) {
            let grad = *g * s.scale + *p * s.l2;
            *m = *m * s.beta1 + grad * s.one_minus_beta1;
            *v = *v * s.beta2 + grad * grad * s.one_minus_beta2;
            let denominator = v.sqrt() / s.bias2_sqrt + s.eps;
            *p = *p * s.keep - s.step_size * *m / denominator;
            flags |= flag(*p) | flag(*v);
        }
        is_clear(flags)
    }

    /// Adadelta. `square` is the running mean of squared gradients; `step` is the running mean of
    /// squared steps, before the learning rate.
    pub(super) fn adadelta(p: &mut [f32], g: &[f32], square: &mut [f32], step: &mut [f32], s: &AdadeltaScalars) -> bool {
        let mut flags = 0;
        for (((p, g), square), step) in p.iter_mut().zip(g).zip(square).zip(step) {
            let grad = *g * s.scale + *p * s.l2;
            *square = *square * s.rho + grad * grad * s.one_minus_rho;
            let delta = (*step + s.eps).sqrt() / (*square + s.eps).sqrt() * grad;
            *step = *step * s.rho + delta * delta * s.one_minus_rho;
            *p -= s.lr * delta;
            flags |= flag(*p) | flag(*square);
        }
        is_clear(flags)
    }
}
