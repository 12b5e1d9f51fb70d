//! Gradient sums of a device over several micro-batches. In host memory they are added to the flat
//! buffer while the backward pass runs; on a GPU they are tensors, joined and downloaded once. Used
//! by replicas.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Tensor};
use hetseq_kernels::{GradientBuffer, add_gradient, is_host};
use hetseq_models::recompute::Tape;
use hetseq_optim::Layout;

use super::params::{PIECE, pieces};
use crate::task::ComputeError;

/// Sums of the trainable parameters, in the order of the layout, which is their order in the model.
pub(crate) enum Accumulator {
    Host(GradientBuffer),
    Device(Vec<Option<Tensor<1>>>),
}

impl Accumulator {
    /// No sums yet. `tail_len` values will follow them, see [`Accumulator::download`].
    pub(crate) fn new<M: Module>(model: &M, tail_len: usize, device: &Device) -> Self {
        if !is_host(device) {
            return Accumulator::Device(Vec::new());
        }
        let mut visitor = Slots(GradientBuffer::new(tail_len));
        model.visit(&mut visitor);
        Accumulator::Host(visitor.0)
    }

    /// Runs the backward pass of a micro-batch.
    pub(crate) fn backward<M: Module>(&mut self, model: &M, tape: Tape, objective: &Tensor<1>) {
        match self {
            Accumulator::Host(buffer) => {
                let add = |slot, gradient| add_gradient(slot, gradient);
                buffer.during(|| tape.backward(objective, |gradients| Rest::visit(model, gradients, add)));
            }
            Accumulator::Device(sums) => {
                tape.backward(objective, |gradients| {
                    Rest::visit(model, gradients, |at, gradient| {
                        sums.resize(sums.len().max(at + 1), None);
                        sums[at] = Some(match sums[at].take() {
                            Some(sum) => sum + gradient,
                            None => gradient,
                        });
                    })
                });
            }
        }
    }

    /// Returns the sums in the flat layout, followed by the `tail_len` values of `tail`. A parameter
    /// without a gradient contributes zeros. Without `tail`, nothing was computed and all are zeros.
    pub(crate) fn download(
        self,
        layout: &Layout,
        tail: Option<Tensor<1>>,
        tail_len: usize,
        device: &Device,
    ) -> Result<Vec<f32>, ComputeError> {
        let Some(tail) = tail else {
            return Ok(vec![0.0; layout.trainable_len() + tail_len]);
        };
        let sums = match self {
            Accumulator::Host(buffer) => {
                let mut values = Vec::with_capacity(tail_len);
                append(tail, tail_len, &mut values)?;
                return Ok(buffer.finish(&values));
            }
            Accumulator::Device(sums) => sums,
        };
        let trainable = layout.trainable_entries();
        let mut flat = Vec::with_capacity(layout.trainable_len() + tail_len);
        let mut sums = sums.into_iter().chain(std::iter::repeat_with(|| None));
        let (device, mut entries, mut tail) = (device.clone().inner(), trainable.iter().peekable(), Some(tail));
        for piece in pieces(trainable, PIECE) {
            let mut parts = Vec::new();
            while let Some(entry) = entries.next_if(|entry| entry.range.end <= piece.end) {
                let sum = sums.next().flatten();
                parts.push(sum.unwrap_or_else(|| Tensor::zeros([entry.range.len()], &device)));
            }
            let mut count = piece.len();
            if entries.peek().is_none() {
                parts.extend(tail.take());
                count += tail_len;
            }
            append(Tensor::cat(parts, 0), count, &mut flat)?;
        }
        Ok(flat)
    }
}

/// Appends a tensor's `count` values as `f32`.
pub(crate) fn append(tensor: Tensor<1>, count: usize, out: &mut Vec<f32>) -> Result<(), ComputeError> {
    let failed = |error: &dyn std::fmt::Display| ComputeError::from_message(error.to_string());
    let data = tensor.try_into_data_as::<f32>().map_err(|error| failed(&error))?;
    let values = data.as_slice::<f32>().map_err(|error| failed(&format!("{error:?}")))?;
    if values.len() != count {
        let reason = format!("it returned a tensor of {} values where {count} are expected", values.len());
        return Err(ComputeError::Task(reason.into()));
    }
    out.extend_from_slice(values);
    Ok(())
}

/// Makes a slot for each trainable parameter.
struct Slots(GradientBuffer);

impl ModuleVisitor for Slots {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.is_require_grad() {
            self.0.push(&param.val());
        }
    }
}

/// Takes the gradients that fused operations have not added to a buffer.
struct Rest<'a, F> {
    at: usize,
    gradients: &'a mut Gradients,
    add: F,
}

impl<'a, F: FnMut(usize, Tensor<1>)> Rest<'a, F> {
    fn visit<M: Module>(model: &M, gradients: &'a mut Gradients, add: F) {
        model.visit(&mut Rest { at: 0, gradients, add });
    }
}

impl<F: FnMut(usize, Tensor<1>)> ModuleVisitor for Rest<'_, F> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.is_require_grad() {
            return;
        }
        if let Some(gradient) = param.val().grad_remove(self.gradients) {
            let elements = gradient.shape().num_elements();
            (self.add)(self.at, gradient.reshape([elements]));
        }
        self.at += 1;
    }
}
