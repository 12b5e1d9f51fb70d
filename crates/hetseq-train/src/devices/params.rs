//! Converts between a module's tensors and the flat buffer that the network and the optimizer use.
//! Only this module knows how parameters are ordered, named and differentiated. Called by replicas
//! and wherever a model is loaded.
//!
//! In host memory each tensor is copied separately. To and from a GPU the buffer is transferred in
//! a few large pieces, because each transfer waits for the device; it is split and joined on the
//! GPU.

use std::ops::Range;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Device, Gradients, Shape, Tensor, TensorData};
use hetseq_kernels::is_host;
use hetseq_models::{Network, ParameterPath};
use hetseq_optim::{Layout, LayoutEntry, OptimError};
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

/// Returns the model with the values `flat` of the layout's first parameters: of all, of the
/// trainable ones, or of none. The values of the others stay.
///
/// Each loaded trainable parameter is a new autodiff leaf: cloned leaves share an id, which would
/// join the graphs of replicas on several threads. Frozen parameters are untracked, whether loaded
/// or not, so the backward pass ends above them.
pub(crate) fn load<M: Module>(model: M, flat: &[f32], layout: &Layout, device: &Device) -> M {
    load_in_pieces(model, flat, layout, device, (!is_host(device)).then_some(PIECE))
}

/// Does the same in transfers of at most `most` elements; one for each parameter if `None`.
fn load_in_pieces<M: Module>(model: M, flat: &[f32], layout: &Layout, device: &Device, most: Option<usize>) -> M {
    let upload = |entries| Upload { pieces: most.map_or_else(Vec::new, |most| pieces(entries, most)), latest: None };
    let uploads = [layout.trainable_entries(), layout.frozen_entries()].map(upload);
    model.map(&mut LoadMapper { path: ParameterPath::default(), flat, layout, device, uploads })
}

/// Elements per transfer: enough to saturate the bus, and small enough for one buffer of every
/// driver (64 of 128 MiB).
const PIECE: usize = 16 << 20;

/// Splits a part of the layout between parameters into pieces of at most `most` elements. A larger
/// parameter is one piece.
fn pieces(entries: &[LayoutEntry], most: usize) -> Vec<Range<usize>> {
    let mut pieces: Vec<Range<usize>> = Vec::new();
    for range in entries.iter().map(|entry| &entry.range) {
        match pieces.last_mut() {
            Some(piece) if range.end - piece.start <= most => piece.end = range.end,
            _ => pieces.push(range.clone()),
        }
    }
    pieces
}

/// The pieces of trainable or of frozen parameters. A module's parameters have the order of the
/// layout within each of the two, so each piece is uploaded once.
struct Upload {
    /// Empty in host memory.
    pieces: Vec<Range<usize>>,
    /// The last piece that was uploaded.
    latest: Option<(Range<usize>, Tensor<1>)>,
}

impl Upload {
    /// The piece on the device with the elements `range` of `flat`, and its start. `None` in host
    /// memory.
    fn piece(&mut self, range: &Range<usize>, flat: &[f32], device: &Device) -> Option<(usize, Tensor<1>)> {
        let is_in = |piece: &Range<usize>| piece.start <= range.start && range.end <= piece.end;
        if self.latest.as_ref().is_none_or(|(piece, _)| !is_in(piece)) {
            let piece = self.pieces.iter().find(|piece| is_in(piece))?.clone();
            let data = TensorData::new(flat[piece.clone()].to_vec(), [piece.len()]);
            self.latest = Some((piece, Tensor::from_data(data, &device.clone().inner())));
        }
        self.latest.as_ref().map(|(piece, tensor)| (piece.start, tensor.clone()))
    }
}

struct LoadMapper<'a> {
    path: ParameterPath,
    flat: &'a [f32],
    layout: &'a Layout,
    device: &'a Device,
    /// Of trainable and of frozen parameters.
    uploads: [Upload; 2],
}

impl LoadMapper<'_> {
    fn tensor<const D: usize>(&mut self, entry: &LayoutEntry, is_frozen: bool) -> Tensor<D> {
        let (range, shape) = (entry.range.clone(), Shape::from(entry.shape.clone()));
        match self.uploads[usize::from(is_frozen)].piece(&range, self.flat, self.device) {
            Some((start, piece)) => {
                let part = piece.narrow(0, range.start - start, range.len()).reshape(shape);
                if self.device.is_autodiff() { part.autodiff() } else { part }
            }
            None => Tensor::from_data(TensorData::new(self.flat[range].to_vec(), shape), self.device),
        }
    }
}

impl ModuleMapper for LoadMapper<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, container: &str) {
        self.path.exit(container);
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (name, layout) = (self.path.name(), self.layout);
        let is_frozen = layout.is_frozen(&name);
        let needed = if is_frozen { layout.len() } else { layout.trainable_len() };
        match (layout.get(&name).filter(|_| self.flat.len() >= needed), is_frozen) {
            (Some(entry), true) => Param::initialized(ParamId::new(), self.tensor(entry, true)),
            (Some(entry), false) => Param::from_tensor(self.tensor(entry, false)),
            (None, true) => param.set_require_grad(false),
            (None, false) => param,
        }
    }
}

/// Gradient sums of several micro-batches, kept on the device until they are downloaded once.
#[derive(Default)]
pub(crate) struct Accumulator {
    /// In the order of the layout's trainable parameters, which is their order in the model.
    sums: Vec<Option<Tensor<1>>>,
}

impl Accumulator {
    pub(crate) fn add<M: Module>(&mut self, model: &M, gradients: &mut Gradients) {
        let mut visitor = AddVisitor { sums: &mut self.sums, at: 0, gradients };
        model.visit(&mut visitor);
    }

    /// Downloads the sums of the trainable parameters in the flat layout, followed by the
    /// `tail_len` values of `tail`. A parameter without a gradient contributes zeros. Without
    /// `tail`, nothing was computed and all are zeros. Layout entries have no gaps, so the buffer
    /// need not be cleared first.
    pub(crate) fn download(
        self,
        layout: &Layout,
        tail: Option<Tensor<1>>,
        tail_len: usize,
        device: &Device,
    ) -> Result<Vec<f32>, ComputeError> {
        let (trainable, len) = (layout.trainable_entries(), layout.trainable_len() + tail_len);
        let mut flat = Vec::with_capacity(len);
        let Some(tail) = tail else {
            flat.resize(len, 0.0);
            return Ok(flat);
        };
        let mut sums = self.sums.into_iter().chain(std::iter::repeat_with(|| None));
        if is_host(device) {
            for (entry, sum) in trainable.iter().zip(sums) {
                match sum {
                    Some(sum) => append(sum, entry.range.len(), &mut flat)?,
                    None => flat.resize(entry.range.end, 0.0),
                }
            }
            append(tail, tail_len, &mut flat)?;
            return Ok(flat);
        }
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
        assert_eq!(pieces(layout.entries(), 8), [0..7, 7..27, 27..33]);
        assert_eq!(pieces(layout.entries(), 1000).len(), 1);
        assert_eq!(pieces(layout.entries(), 1).len(), 6);
    }

    /// All values in module order.
    fn values_of<M: Module>(model: &M) -> Vec<f32> {
        struct Values(Vec<f32>);
        impl ModuleVisitor for Values {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                self.0.extend(param.val().into_data().try_to_vec::<f32>().unwrap());
            }
        }
        let mut values = Values(Vec::new());
        model.visit(&mut values);
        values.0
    }

    #[test]
    fn parameters_are_loaded_by_name_in_pieces_of_any_size() {
        let device = Device::flex().autodiff();
        let model = || ConvNet::new(1, 8, 8, 3, &device);
        let all = layout_of(&model()).unwrap();
        let expected = initial(&model(), &all, 3);
        let layout = all.freeze(|entry| ["conv1.weight", "conv2.bias", "fc1.weight"].contains(&entry.name.as_str()));
        let flat = initial(&model(), &layout, 3);
        for most in [None, Some(1), Some(200), Some(1 << 20)] {
            let loaded = load_in_pieces(model(), &flat, &layout, &device, most);
            assert_eq!(values_of(&loaded), expected, "{most:?}");
            // Without frozen values, those of the model stay.
            let zeros = vec![0.0; layout.trainable_len()];
            let loaded = load_in_pieces(loaded, &zeros, &layout, &device, most);
            let loaded = load_in_pieces(loaded, &flat[..zeros.len()], &layout, &device, most);
            assert_eq!(values_of(&loaded), expected, "{most:?}");
        }
    }

    #[test]
    fn gradients_are_taken_at_the_loaded_parameters() {
        let device = Device::flex().autodiff();
        let model = ConvNet::new(1, 8, 8, 3, &device);
        let layout = layout_of(&model).unwrap();
        let flat = initial(&model, &layout, 3);
        let model = load(model, &flat, &layout, &device);
        assert_eq!(values_of(&model), flat);

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
