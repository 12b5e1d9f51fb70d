//! One forward pass, as a task's `forward` sees it: the device, the keys of dropout, and what it
//! returns. Created by the Burn replica (`devices/replica.rs`).

use burn::tensor::{Device, Int, Tensor, TensorData};
use hetseq_data::Batch;
use hetseq_models::recompute::Tape;
use hetseq_random::Key;

use super::TaskError;

/// A loss term. Training minimises the sum over terms of `weight * sum of losses / count`.
#[derive(Debug, Clone, PartialEq)]
pub struct Term {
    pub name: String,
    pub weight: f64,
}

/// The samples, device, dropout keys and tape of a forward pass.
pub struct ForwardContext {
    /// Create all tensors on this device.
    pub device: Device,
    /// The ids of the micro-batch's samples, one per row.
    pub samples: Vec<u32>,
    /// One dropout key per sample of the micro-batch. Empty when evaluating, which disables
    /// dropout.
    pub keys: Vec<Key>,
    /// Runs parts of the model whose inner values are recomputed in the backward pass instead of
    /// kept.
    pub tape: Tape,
}

impl ForwardContext {
    /// For training: every sample has its own dropout mask in this update.
    pub(crate) fn training(device: &Device, samples: &[u32], update_key: Key) -> Self {
        let keys = samples.iter().map(|&sample| update_key.index(u64::from(sample))).collect();
        ForwardContext { keys, ..ForwardContext::evaluating(device, samples) }
    }

    pub(crate) fn evaluating(device: &Device, samples: &[u32]) -> Self {
        let (device, samples) = (device.clone(), samples.to_vec());
        ForwardContext { device, samples, keys: Vec::new(), tape: Tape::default() }
    }

    /// Whether this pass trains. False when evaluating.
    pub fn is_training(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Copies an array of floats to the device. It must have `D` dimensions.
    pub fn floats<const D: usize>(&self, batch: &Batch, name: &str) -> Result<Tensor<D>, TaskError> {
        let data = TensorData::new(batch.f32s(name)?.to_vec(), batch.shape::<D>(name)?);
        Ok(Tensor::from_data(data, &self.device))
    }

    /// Copies an array of integers to the device. It must have `D` dimensions.
    pub fn ints<const D: usize>(&self, batch: &Batch, name: &str) -> Result<Tensor<D, Int>, TaskError> {
        let data = TensorData::new(batch.i32s(name)?.to_vec(), batch.shape::<D>(name)?);
        Ok(Tensor::from_data(data, &self.device))
    }
}

/// The result of a forward pass.
#[derive(Debug, Default)]
pub struct StepOutput {
    /// The loss sum of each term.
    pub losses: Vec<Tensor<1>>,
    /// Sums for the metrics, such as the number of correct answers. Only used when evaluating.
    pub scores: Vec<Tensor<1>>,
    /// One value per sample, for metrics that are not functions of sums, such as rank correlations.
    /// Collected in [`Totals::predictions`](super::Totals). Only used when evaluating.
    pub predictions: Vec<f32>,
}
