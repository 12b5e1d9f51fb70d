//! Converts between a module's tensors and the flat buffer that the network and the optimizer use.
//! Only this module knows how parameters are ordered, named and differentiated. Called by replicas
//! and wherever a model is loaded.
//!
//! In host memory each tensor is copied separately. To and from a GPU the buffer is transferred in
//! a few large pieces, because each transfer waits for the device; it is split and joined on the
//! GPU.

use std::ops::Range;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Shape, Tensor, TensorData};
use hetseq_kernels::is_host;
use hetseq_models::{Network, ParameterPath};
use hetseq_optim::{Layout, OptimError};
use hetseq_random::Key;

use crate::task::ComputeError;

/// Names, shapes and ranges of the parameters that require a gradient, in module order.
pub(crate) fn layout_of<M: Module>(model: &M) -> Result<Layout, OptimError> {
    let mut visitor = LayoutVisitor::default();
    model.visit(&mut visitor);
    Layout::new(visitor.entries)
}

#[derive(Default)]
struct LayoutVisitor {
    path: ParameterPath,
    entries: Vec<(String, Vec<usize>)>,
}

impl ModuleVisitor for LayoutVisitor {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, container: &str) {
        self.path.exit(container);
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.is_require_grad() {
            self.entries.push((self.path.name(), param.lazy_shape().to_vec()));
        }
    }
}

/// The initial parameters. Drawn on the host and keyed by name, so that they do not depend on the
/// device or on the order.
pub(crate) fn initial<M: Network>(model: &M, layout: &Layout, seed: u64) -> Vec<f32> {
    let mut flat = vec![0.0; layout.len()];
    let root = Key::root(seed).name("init");
    for entry in layout.entries() {
        model.init(&entry.name, &entry.shape).fill(root.name(&entry.name), &mut flat[entry.range.clone()]);
    }
    flat
}

/// Returns the model with `flat` as its parameters. Each is a new autodiff leaf: cloned leaves
/// share an id, which would join the graphs of replicas on several threads.
pub(crate) fn load<M: Module>(model: M, flat: &[f32], layout: &Layout, device: &Device) -> M {
    let mut pieces = if is_host(device) { Vec::new() } else { pieces(layout, PIECE) };
    pieces.reverse();
    model.map(&mut LoadMapper { flat, at: 0, device, pieces, uploaded: None })
}

/// Elements per transfer: enough to saturate the bus, and small enough for one buffer of every
/// driver (64 of 128 MiB).
const PIECE: usize = 16 << 20;

/// Splits the layout between parameters into pieces of at most `most` elements. A larger parameter
/// is one piece.
fn pieces(layout: &Layout, most: usize) -> Vec<Range<usize>> {
    let mut pieces: Vec<Range<usize>> = Vec::new();
    for range in layout.entries().iter().map(|entry| &entry.range) {
        match pieces.last_mut() {
            Some(piece) if range.end - piece.start <= most => piece.end = range.end,
            _ => pieces.push(range.clone()),
        }
    }
    pieces
}

struct LoadMapper<'a> {
    flat: &'a [f32],
    at: usize,
    device: &'a Device,
    /// Remaining pieces, the next one last. Empty in host memory.
    pieces: Vec<Range<usize>>,
    /// The current piece on the device, and its start in `flat`.
    uploaded: Option<(usize, Tensor<1>)>,
}

impl LoadMapper<'_> {
    fn tensor<const D: usize>(&mut self, range: Range<usize>, shape: Shape) -> Tensor<D> {
        if self.pieces.last().is_some_and(|piece| piece.start == range.start)
            && let Some(piece) = self.pieces.pop()
        {
            let data = TensorData::new(self.flat[piece.clone()].to_vec(), [piece.len()]);
            self.uploaded = Some((piece.start, Tensor::from_data(data, &self.device.clone().inner())));
        }
        match &self.uploaded {
            Some((start, piece)) => {
                let part = piece.clone().narrow(0, range.start - start, range.len()).reshape(shape);
                if self.device.is_autodiff() { part.autodiff() } else { part }
            }
            None => Tensor::from_data(TensorData::new(self.flat[range].to_vec(), shape), self.device),
        }
    }
}

impl ModuleMapper for LoadMapper<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !param.is_require_grad() {
            return param;
        }
        let shape = param.lazy_shape();
        let range = self.at..self.at + shape.num_elements();
        self.at = range.end;
        Param::from_tensor(self.tensor(range, shape))
    }
}

/// Gradient sums of several micro-batches, kept on the device until they are downloaded once.
#[derive(Default)]
pub(crate) struct Accumulator {
    sums: Vec<Option<Tensor<1>>>,
}

impl Accumulator {
    pub(crate) fn add<M: Module>(&mut self, model: &M, gradients: &mut Gradients) {
        let mut visitor = AddVisitor { sums: &mut self.sums, at: 0, gradients };
        model.visit(&mut visitor);
    }

    /// Downloads the sums in the flat layout, followed by the `tail_len` values of `tail`. A
    /// parameter without a gradient contributes zeros. Without `tail`, nothing was computed and all
    /// are zeros. Layout entries have no gaps, so the buffer need not be cleared first.
    pub(crate) fn download(
        self,
        layout: &Layout,
        tail: Option<Tensor<1>>,
        tail_len: usize,
        device: &Device,
    ) -> Result<Vec<f32>, ComputeError> {
        let mut flat = Vec::with_capacity(layout.len() + tail_len);
        let Some(tail) = tail else {
            flat.resize(layout.len() + tail_len, 0.0);
            return Ok(flat);
        };
        let mut sums = self.sums.into_iter().chain(std::iter::repeat_with(|| None));
        if is_host(device) {
            for (entry, sum) in layout.entries().iter().zip(sums) {
                match sum {
                    Some(sum) => append(sum, entry.range.len(), &mut flat)?,
                    None => flat.resize(entry.range.end, 0.0),
                }
            }
            append(tail, tail_len, &mut flat)?;
            return Ok(flat);
        }
        let (device, mut entries, mut tail) = (device.clone().inner(), layout.entries().iter().peekable(), Some(tail));
        for piece in pieces(layout, PIECE) {
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

struct AddVisitor<'a> {
    sums: &'a mut Vec<Option<Tensor<1>>>,
    at: usize,
    gradients: &'a mut Gradients,
}

impl ModuleVisitor for AddVisitor<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.is_require_grad() {
            return;
        }
        if self.sums.len() <= self.at {
            self.sums.push(None);
        }
        if let Some(gradient) = param.val().grad_remove(self.gradients) {
            let elements = gradient.shape().num_elements();
            let gradient = gradient.reshape([elements]);
            let slot = &mut self.sums[self.at];
            *slot = Some(match slot.take() {
                Some(sum) => sum + gradient,
                None => gradient,
            });
        }
        self.at += 1;
    }
}

#[cfg(test)]
mod tests {
    use hetseq_models::convnet::ConvNet;

    use super::*;

    #[test]
    fn names_and_shapes_are_those_of_pytorch() {
        let model = ConvNet::new(1, 28, 28, 10, &Device::flex().autodiff());
        let layout = layout_of(&model).unwrap();
        let names: Vec<(&str, &[usize])> = layout.entries().iter().map(|e| (e.name.as_str(), &e.shape[..])).collect();
        assert_eq!(names[0], ("conv1.weight", &[16, 1, 3, 3][..]));
        assert_eq!(names[4], ("fc1.weight", &[128, 1568][..]));
        assert_eq!(names.len(), 8);
    }

    #[test]
    fn pieces_end_between_parameters() {
        let entries = [3, 4, 20, 1, 2, 3].into_iter().enumerate();
        let layout = Layout::new(entries.map(|(i, size)| (format!("p{i}"), vec![size]))).unwrap();
        assert_eq!(pieces(&layout, 8), [0..7, 7..27, 27..33]);
        assert_eq!(pieces(&layout, 1000).len(), 1);
        assert_eq!(pieces(&layout, 1).len(), 6);
    }

    #[test]
    fn gradients_are_taken_at_the_loaded_parameters() {
        let device = Device::flex().autodiff();
        let model = ConvNet::new(1, 8, 8, 3, &device);
        let layout = layout_of(&model).unwrap();
        let flat = initial(&model, &layout, 3);
        let model = load(model, &flat, &layout, &device);
        let mut seen = Vec::new();
        struct Values<'a>(&'a mut Vec<f32>);
        impl ModuleVisitor for Values<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                self.0.extend(param.val().into_data().try_to_vec::<f32>().unwrap());
            }
        }
        model.visit(&mut Values(&mut seen));
        assert_eq!(seen, flat);

        // The bias of the last layer: the gradient of a sum of outputs is the number of samples.
        let images = Tensor::<4>::ones([5, 1, 8, 8], &device);
        let mut sums = Accumulator::default();
        for _ in 0..2 {
            let mut gradients = model.forward(images.clone(), 0.0, &[]).sum().backward();
            sums.add(&model, &mut gradients);
        }
        let tail = Tensor::from_data([7.0f32], &Device::flex());
        let mut out = sums.download(&layout, Some(tail), 1, &device).unwrap();
        assert_eq!((out.len(), out.pop()), (layout.len() + 1, Some(7.0)));
        assert_eq!(out[layout.get("fc2.bias").unwrap().range.clone()], [10.0; 3]);
        assert!(out.iter().all(|x| x.is_finite()));
    }
}
