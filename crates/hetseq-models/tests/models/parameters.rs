//! A model's parameters and gradients by name, as the trainer sees them.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use hetseq_models::ParameterPath;

/// Names and shapes, in the model's order.
pub(crate) fn names(model: &impl Module) -> Vec<(String, Vec<usize>)> {
    let mut names = Vec::new();
    visit(model, |name, shape, _| names.push((name, shape)), None);
    names
}

/// Adds the gradients to `sums`; what has none stays as it is.
pub(crate) fn add_gradients(model: &impl Module, gradients: &Gradients, sums: &mut BTreeMap<String, Vec<f32>>) {
    let add = |name: String, shape: Vec<usize>, values: Option<Vec<f32>>| {
        let sum = sums.entry(name).or_insert_with(|| vec![0.0; shape.iter().product()]);
        sum.iter_mut().zip(values.into_iter().flatten()).for_each(|(sum, value)| *sum += value);
    };
    visit(model, add, Some(gradients));
}

fn visit(model: &impl Module, each: impl FnMut(String, Vec<usize>, Option<Vec<f32>>), gradients: Option<&Gradients>) {
    struct Visitor<'a, F> {
        path: ParameterPath,
        each: F,
        gradients: Option<&'a Gradients>,
    }
    impl<F: FnMut(String, Vec<usize>, Option<Vec<f32>>)> ModuleVisitor for Visitor<'_, F> {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.path.enter(name, container);
        }

        fn exit_module(&mut self, _name: &str, container: &str) {
            self.path.exit(container);
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let gradient = self.gradients.and_then(|gradients| param.val().grad(gradients));
            let values = gradient.map(|tensor| tensor.into_data().try_to_vec().unwrap());
            (self.each)(self.path.name(), param.lazy_shape().to_vec(), values);
        }
    }
    model.visit(&mut Visitor { path: ParameterPath::default(), each, gradients });
}

/// The model with `values` as its parameters, which are asked for in its order.
pub(crate) fn fill<M: Module>(model: M, device: &Device, values: impl FnMut(&str, &[usize]) -> Vec<f32>) -> M {
    struct Mapper<'a, F> {
        path: ParameterPath,
        values: F,
        device: &'a Device,
    }
    impl<F: FnMut(&str, &[usize]) -> Vec<f32>> ModuleMapper for Mapper<'_, F> {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.path.enter(name, container);
        }

        fn exit_module(&mut self, _name: &str, container: &str) {
            self.path.exit(container);
        }

        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let shape = param.lazy_shape().to_vec();
            let data = TensorData::new((self.values)(&self.path.name(), &shape), shape);
            Param::from_tensor(Tensor::from_data(data, self.device))
        }
    }
    model.map(&mut Mapper { path: ParameterPath::default(), values, device })
}
