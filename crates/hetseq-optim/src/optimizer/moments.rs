//! The moments of each optimizer and their names in checkpoints. All are zero before the first
//! step.

use super::{OptimizerConfig, OptimizerName, adafactor, pieces::Pieces};

/// The moments of one optimizer.
#[derive(Debug)]
pub(super) enum Moments {
    None,
    Momentum { buffer: Vec<f32> },
    Adam { exp_avg: Vec<f32>, exp_avg_sq: Vec<f32> },
    Adadelta { square_avg: Vec<f32>, acc_delta: Vec<f32> },
    Lamb { pieces: Pieces, exp_avg: Vec<f32>, exp_avg_sq: Vec<f32> },
    Adafactor { pieces: Pieces, moments: adafactor::AdafactorMoments },
}

impl Moments {
    pub(super) fn new(config: &OptimizerConfig, pieces: impl FnOnce() -> Pieces, length: usize) -> Moments {
        let zeros = || vec![0f32; length];
        match config.name {
            OptimizerName::Sgd if config.momentum == 0.0 => Moments::None,
            OptimizerName::Sgd => Moments::Momentum { buffer: zeros() },
            OptimizerName::Adam | OptimizerName::AdamW => Moments::Adam { exp_avg: zeros(), exp_avg_sq: zeros() },
            OptimizerName::Adadelta => Moments::Adadelta { square_avg: zeros(), acc_delta: zeros() },
            OptimizerName::Lamb => Moments::Lamb { pieces: pieces(), exp_avg: zeros(), exp_avg_sq: zeros() },
            OptimizerName::Adafactor => {
                let pieces = pieces();
                Moments::Adafactor { moments: adafactor::AdafactorMoments::new(config, &pieces.tensors), pieces }
            }
        }
    }
}

// The names are PyTorch's.
const MOMENTUM: &str = "momentum_buffer";
const FIRST: &str = "exp_avg";
const SECOND: &str = "exp_avg_sq";
const SECOND_ROWS: &str = "exp_avg_sq_row";
const SECOND_COLS: &str = "exp_avg_sq_col";
const SQUARES: &str = "square_avg";
const STEPS: &str = "acc_delta";

/// The named buffers of `$moments`, borrowed by `$borrow`: `&` or `&mut`.
macro_rules! slots {
    ($moments:expr, $($borrow:tt)+) => {
        match $moments {
            Moments::None => Vec::new(),
            Moments::Momentum { buffer } => vec![(MOMENTUM, buffer)],
            Moments::Adam { exp_avg, exp_avg_sq } | Moments::Lamb { exp_avg, exp_avg_sq, .. } => {
                vec![(FIRST, exp_avg), (SECOND, exp_avg_sq)]
            }
            Moments::Adadelta { square_avg, acc_delta } => vec![(SQUARES, square_avg), (STEPS, acc_delta)],
            Moments::Adafactor { moments, .. } => {
                let slots = [
                    (FIRST, $($borrow)+ moments.exp_avg),
                    (SECOND_ROWS, $($borrow)+ moments.exp_avg_sq_row),
                    (SECOND_COLS, $($borrow)+ moments.exp_avg_sq_col),
                    (SECOND, $($borrow)+ moments.exp_avg_sq),
                ];
                // The settings and the model determine which of these exist.
                slots.into_iter().filter(|(_, values)| !values.is_empty()).collect()
            }
        }
    };
}

impl Moments {
    /// The named buffers that a checkpoint must hold.
    pub(super) fn slots(&self) -> Vec<(&'static str, &Vec<f32>)> {
        slots!(self, &)
    }

    /// The same, mutable; lengths must not change.
    pub(super) fn slots_mut(&mut self) -> Vec<(&'static str, &mut Vec<f32>)> {
        slots!(self, &mut)
    }
}
