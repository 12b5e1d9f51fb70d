//! Access to a model's parameters and gradients by name.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use hetseq_models::ParameterPath;

/// Names and shapes, in module order.
pub(crate) fn names(model: &impl Module) -> Vec<(String, Vec<usize>)> {
    let mut names = Vec::new();
    visit(model, |name, shape, _| names.push((name, shape)), None);
    names
}

/// Adds the gradients to `sums`. A parameter without a gradient is unchanged.
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

/// Sets the parameters of a model. `values` is called in module order.
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

/// Fails if the relative error of a gradient exceeds `tolerance`. The gradient of the attention
/// keys' bias is zero except for rounding, because a softmax ignores what all its inputs share. Its
/// error is relative to the norm of the keys' weights, which consist of the same terms.
pub(crate) fn assert_close(ours: &BTreeMap<String, Vec<f32>>, theirs: &BTreeMap<String, Vec<f32>>, tolerance: f64) {
    assert!(ours.keys().eq(theirs.keys()));
    let mut worst = 0f64;
    for (name, expected) in theirs {
        assert_eq!(ours[name].len(), expected.len(), "{name}");
        let distance = norm(ours[name].iter().zip(expected).map(|(a, b)| a - b));
        let reference = name.replace("key.bias", "key.weight").replace("k_proj.bias", "k_proj.weight");
        let relative = distance / norm(theirs[&reference].iter().copied());
        assert!(relative <= tolerance, "{name}: relative error {relative:e}");
        worst = worst.max(relative);
    }
    eprintln!("largest relative gradient error: {worst:.1e}");
}
