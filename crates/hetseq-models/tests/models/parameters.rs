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

pub(crate) fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}

fn norm(values: impl Iterator<Item = f32>) -> f64 {
    values.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt()
}

/// Fails if a gradient is off by more than `tolerance` of its norm. That of the attention keys' bias is zero but for rounding,
/// since a softmax does not see what all its inputs share: it is measured by the norm of the keys' weights, made of the same
/// terms.
pub(crate) fn assert_close(ours: &BTreeMap<String, Vec<f32>>, theirs: &BTreeMap<String, Vec<f32>>, tolerance: f64) {
    assert!(ours.keys().eq(theirs.keys()));
    let mut worst = 0f64;
    for (name, expected) in theirs {
        assert_eq!(ours[name].len(), expected.len(), "{name}");
        let distance = norm(ours[name].iter().zip(expected).map(|(a, b)| a - b));
        let measured_by = name.replace("key.bias", "key.weight").replace("k_proj.bias", "k_proj.weight");
        let relative = distance / norm(theirs[&measured_by].iter().copied());
        assert!(relative <= tolerance, "{name}: off by {relative:e}");
        worst = worst.max(relative);
    }
    eprintln!("gradients are off by {worst:.1e} at most");
}
