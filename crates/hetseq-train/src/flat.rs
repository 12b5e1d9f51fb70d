//! Between a module's tensors and the one flat buffer that the wire and the optimizer see. The only place that knows how
//! parameters are ordered, named and differentiated; devices call it, nothing else does.

use std::sync::Arc;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use hetseq_models::{Network, ParameterPath};
use hetseq_optim::{Layout, OptimError};
use hetseq_random::Key;

/// Names, shapes and ranges of the parameters that require a gradient, in the module's own order.
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

/// The starting parameters: drawn on the host, keyed by name, so that they do not depend on device or order.
pub(crate) fn initial<M: Network>(model: &M, layout: &Layout, seed: u64) -> Vec<f32> {
    let mut flat = vec![0.0; layout.len()];
    let root = Key::root(seed).name("init");
    for entry in layout.entries() {
        model.init(&entry.name, &entry.shape).fill(root.name(&entry.name), &mut flat[entry.range.clone()]);
    }
    flat
}

/// The model with `flat` as its parameters, each a fresh autodiff leaf: cloned leaves share an id, and replicas on
/// several threads would then grow into one graph.
pub(crate) fn load<M: Module>(model: M, flat: &Arc<Vec<f32>>, device: &Device) -> M {
    model.map(&mut LoadMapper { flat, at: 0, device })
}

struct LoadMapper<'a> {
    flat: &'a [f32],
    at: usize,
    device: &'a Device,
}

impl ModuleMapper for LoadMapper<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !param.is_require_grad() {
            return param;
        }
        let shape = param.lazy_shape();
        let range = self.at..self.at + shape.num_elements();
        self.at = range.end;
        let data = TensorData::new(self.flat[range].to_vec(), shape);
        Param::from_tensor(Tensor::from_data(data, self.device))
    }
}

/// Gradient sums of several micro-batches, kept on the device until they are asked for once.
#[derive(Default)]
pub(crate) struct Accumulator {
    sums: Vec<Option<Tensor<1>>>,
}

impl Accumulator {
    pub(crate) fn add<M: Module>(&mut self, model: &M, gradients: &mut Gradients) {
        let mut visitor = AddVisitor { sums: &mut self.sums, at: 0, gradients };
        model.visit(&mut visitor);
    }

    /// The sums in the flat layout, with room for `more` numbers behind them; a parameter without a gradient contributes
    /// zeros. Entries of a layout follow each other without gaps, so nothing has to be cleared first.
    pub(crate) fn download(self, layout: &Layout, more: usize) -> Result<Vec<f32>, String> {
        let mut flat = Vec::with_capacity(layout.len() + more);
        let sums = self.sums.into_iter().chain(std::iter::repeat_with(|| None));
        for (entry, sum) in layout.entries().iter().zip(sums) {
            match sum {
                Some(sum) => append(sum, entry.range.len(), &mut flat)?,
                None => flat.resize(entry.range.end, 0.0),
            }
        }
        Ok(flat)
    }
}

/// Appends a tensor's `count` values as `f32`.
pub(crate) fn append(tensor: Tensor<1>, count: usize, out: &mut Vec<f32>) -> Result<(), String> {
    let data = tensor.try_into_data_as::<f32>().map_err(|error| error.to_string())?;
    let values = data.as_slice::<f32>().map_err(|error| format!("{error:?}"))?;
    if values.len() != count {
        return Err(format!("a tensor of {} values where {count} were expected", values.len()));
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
    fn what_is_loaded_is_what_the_gradient_is_taken_at() {
        let device = Device::flex().autodiff();
        let model = ConvNet::new(1, 8, 8, 3, &device);
        let layout = layout_of(&model).unwrap();
        let flat = Arc::new(initial(&model, &layout, 3));
        let model = load(model, &flat, &device);
        let mut seen = Vec::new();
        struct Values<'a>(&'a mut Vec<f32>);
        impl ModuleVisitor for Values<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                self.0.extend(param.val().into_data().try_to_vec::<f32>().unwrap());
            }
        }
        model.visit(&mut Values(&mut seen));
        assert_eq!(seen, *flat);

        // The bias of the last layer: the gradient of a sum of outputs is the number of samples.
        let images = Tensor::<4>::ones([5, 1, 8, 8], &device);
        let mut sums = Accumulator::default();
        for _ in 0..2 {
            let mut gradients = model.forward(images.clone(), 0.0, &[]).sum().backward();
            sums.add(&model, &mut gradients);
        }
        let out = sums.download(&layout, 0).unwrap();
        assert_eq!(out.len(), layout.len());
        assert_eq!(out[layout.get("fc2.bias").unwrap().range.clone()], [10.0; 3]);
        assert!(out.iter().all(|x| x.is_finite()));
    }
}
