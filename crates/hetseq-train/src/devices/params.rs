//! Loads a module's tensors from the flat buffer that the network and the optimizer use; the way
//! back is in `gradients.rs`. Only these two know how parameters are ordered, named and
//! differentiated. Called by replicas and wherever a model is loaded.
//!
//! In host memory tensors are parts of the flat buffer, which all devices of a process share, or
//! copies of them. To a GPU the buffer is transferred in a few large pieces, because each transfer
//! waits for the device; it is split on the GPU.

use std::ops::Range;
use std::sync::Arc;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{AllocationProperty, Bytes, DType, Device, Shape, Tensor, TensorData};
use hetseq_kernels::is_host;
use hetseq_models::{Network, ParameterPath};
use hetseq_optim::{Layout, LayoutEntry, OptimError};
use hetseq_random::Key;

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
    let source = Source { flat, shared: None, most: (!is_host(device)).then_some(PIECE) };
    load_from(model, source, layout, device)
}

/// Does the same with all parameters, which a model in host memory then shares: they must not be
/// changed before [`release`], or the change copies them.
pub(crate) fn load_shared<M: Module>(model: M, flat: &Arc<Vec<f32>>, layout: &Layout, device: &Device) -> M {
    let shared = bytes::Bytes::from_owner(SharedValues(flat.clone()));
    load_from(model, Source { flat, shared: Some(shared), most: None }, layout, device)
}

/// Replaces all parameters by empty ones, until others are loaded.
pub(crate) fn release<M: Module>(model: M, device: &Device) -> M {
    struct Release<'a>(&'a Device);
    impl ModuleMapper for Release<'_> {
        fn map_float<const D: usize>(&mut self, _: Param<Tensor<D>>) -> Param<Tensor<D>> {
            Param::initialized(ParamId::new(), Tensor::zeros([1; D], self.0))
        }
    }
    model.map(&mut Release(device))
}

/// Parameters that live as long as a tensor uses a part of them.
struct SharedValues(Arc<Vec<f32>>);

impl AsRef<[u8]> for SharedValues {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

struct Source<'a> {
    flat: &'a [f32],
    /// The same values, if tensors share them.
    shared: Option<bytes::Bytes>,
    /// The largest transfer, in elements. `None` in host memory: one for each parameter.
    most: Option<usize>,
}

fn load_from<M: Module>(model: M, source: Source<'_>, layout: &Layout, device: &Device) -> M {
    let pieces = |entries| source.most.map_or_else(Vec::new, |most| pieces(entries, most));
    let upload = |entries| Upload { pieces: pieces(entries), latest: None };
    let uploads = [layout.trainable_entries(), layout.frozen_entries()].map(upload);
    model.map(&mut LoadMapper { path: ParameterPath::default(), source, layout, device, uploads })
}

/// Elements per transfer: enough to saturate the bus, and small enough for one buffer of every
/// driver (64 of 128 MiB).
pub(super) const PIECE: usize = 16 << 20;

/// Splits a part of the layout between parameters into pieces of at most `most` elements. A larger
/// parameter is one piece.
pub(super) fn pieces(entries: &[LayoutEntry], most: usize) -> Vec<Range<usize>> {
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
    source: Source<'a>,
    layout: &'a Layout,
    device: &'a Device,
    /// Of trainable and of frozen parameters.
    uploads: [Upload; 2],
}

impl LoadMapper<'_> {
    fn tensor<const D: usize>(&mut self, entry: &LayoutEntry, is_frozen: bool) -> Tensor<D> {
        let (range, shape) = (entry.range.clone(), Shape::from(entry.shape.clone()));
        let Source { flat, shared, .. } = &self.source;
        match self.uploads[usize::from(is_frozen)].piece(&range, flat, self.device) {
            Some((start, piece)) => {
                let part = piece.narrow(0, range.start - start, range.len()).reshape(shape);
                if self.device.is_autodiff() { part.autodiff() } else { part }
            }
            None => {
                let data = match shared {
                    Some(shared) => {
                        let bytes = shared.slice(range.start * size_of::<f32>()..range.end * size_of::<f32>());
                        TensorData::from_bytes(Bytes::from_shared(bytes, AllocationProperty::Native), shape, DType::F32)
                    }
                    None => TensorData::new(flat[range].to_vec(), shape),
                };
                Tensor::from_data(data, self.device)
            }
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
        match (layout.get(&name).filter(|_| self.source.flat.len() >= needed), is_frozen) {
            (Some(entry), true) => Param::initialized(ParamId::new(), self.tensor(entry, true)),
            (Some(entry), false) => Param::from_tensor(self.tensor(entry, false)),
            (None, true) => param.set_require_grad(false),
            (None, false) => param,
        }
    }
}

#[cfg(test)]
mod tests {
    use hetseq_models::convnet::ConvNet;
    use hetseq_models::recompute::Tape;

    use super::*;
    use crate::devices::gradients::Accumulator;

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
            let load = |model, flat| load_from(model, Source { flat, shared: None, most }, &layout, &device);
            let loaded = load(model(), &flat);
            assert_eq!(values_of(&loaded), expected, "{most:?}");
            // Without frozen values, those of the model stay.
            let zeros = vec![0.0; layout.trainable_len()];
            let loaded = load(loaded, &zeros);
            let loaded = load(loaded, &flat[..zeros.len()]);
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
        let mut sums = Accumulator::new(&model, 1, &device);
        for _ in 0..2 {
            sums.backward(&model, Tape::default(), &model.forward(images.clone(), 0.0, &[]).sum());
        }
        let tail = Tensor::from_data([7.0f32], &Device::flex());
        let mut out = sums.download(&layout, Some(tail), 1, &device).unwrap();
        assert_eq!((out.len(), out.pop()), (layout.len() + 1, Some(7.0)));
        assert_eq!(out[layout.get("fc2.bias").unwrap().range.clone()], [10.0; 3]);
        assert!(out.iter().all(|x| x.is_finite()));
    }
}
