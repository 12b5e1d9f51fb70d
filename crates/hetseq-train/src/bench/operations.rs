//! The tensor operations that models are made of, each with its gradient, on drawn inputs: what
//! `hetseq selftest` compares between a device and one CPU core.

use burn::tensor::activation::silu;
use burn::tensor::module::max_pool2d;
use burn::tensor::ops::{ConvOptions, MaxPoolOptions};
use burn::tensor::{Device, Int, Tensor, TensorData};
use hetseq_kernels as kernels;
use hetseq_kernels::{Dtype, with_precision};
use hetseq_random::Key;

use crate::devices::backend::{self, BackendError, catch_panic};
use crate::devices::{DeviceKind, DeviceSpec};

/// An operation that can be computed on any device.
#[derive(Debug, Clone, Copy)]
pub struct Operation {
    pub name: &'static str,
    /// Contains products, so it is also computed in lower precision.
    pub has_products: bool,
    /// Must be equal to the last bit.
    pub is_exact: bool,
    /// Its gradient adds so many values that a device which adds them one after the other rounds
    /// more than others.
    pub has_long_sums: bool,
    run: fn(&Device) -> Computed,
}

/// The values that an operation computes, in row-major order.
#[derive(Debug, Clone, PartialEq)]
pub struct OperationResult {
    pub output: Vec<f32>,
    /// With respect to the first input. Empty if there is none.
    pub gradient: Vec<f32>,
}

type Computed = Result<OperationResult, BackendError>;

impl Operation {
    const fn new(name: &'static str, run: fn(&Device) -> Computed) -> Self {
        Operation { name, has_products: false, is_exact: false, has_long_sums: false, run }
    }

    const fn with_products(name: &'static str, run: fn(&Device) -> Computed) -> Self {
        Operation { has_products: true, ..Operation::new(name, run) }
    }

    /// All operations.
    pub const ALL: [Operation; 16] = [
        Operation::with_products("matrix product", |on| {
            unary([96, 160], on, |x| kernels::matmul(x, parameter([160, 64], "b", on)))
        }),
        Operation::with_products("matrix product of odd sizes", |on| {
            unary([33, 77], on, |x| kernels::matmul(x, parameter([77, 19], "b", on)))
        }),
        Operation::with_products("product over 8,192 terms", |on| {
            unary([4, 8192], on, |x| kernels::matmul(x, parameter([8192, 4], "b", on)))
        }),
        Operation::with_products("linear layer", |on| {
            unary([3, 17, 64], on, |x| {
                kernels::linear(x, parameter([48, 64], "weight", on), parameter([48], "bias", on))
            })
        }),
        Operation::with_products("attention", |on| {
            unary([3, 21, 64], on, |x| {
                let (key, value) = (parameter([3, 21, 64], "key", on), parameter([3, 21, 64], "value", on));
                kernels::Attention { heads: 4, bias: None, dropout: 0.0, keys: &[] }.forward(x, key, value)
            })
        }),
        Operation::with_products("convolution", |on| {
            unary([2, 3, 17, 17], on, |x| {
                let options = ConvOptions::new([2, 2], [1, 1], [1, 1], 1);
                kernels::conv2d(x, parameter([8, 3, 3, 3], "weight", on), Some(parameter([8], "bias", on)), options)
            })
        }),
        Operation::new("max pooling", |on| {
            let options = || MaxPoolOptions::new([3, 3]).with_stride([2, 2]).with_padding([1, 1]);
            unary([2, 4, 15, 15], on, |x| max_pool2d(x, options()))
        }),
        Operation::new("softmax of large values", |on| unary([40, 129], on, |x| kernels::softmax(x * 20.0))),
        Operation::new("layer norm", |on| {
            let weights = (parameter([96], "weight", on), parameter([96], "bias", on));
            unary([7, 13, 96], on, |x| kernels::layer_norm(x * 3.0 + 5.0, weights.0, weights.1, 1e-12))
        }),
        Operation::new("gelu", |on| unary([5000], on, |x| kernels::gelu(x * 2.0))),
        Operation::new("silu", |on| unary([5000], on, |x| silu(x * 2.0))),
        Operation::new("exp, log, sqrt, tanh", |on| {
            unary([5000], on, |x| {
                let square = x.clone() * x.clone() + 0.1;
                x.clone().exp() + square.clone().log() + square.sqrt() + x.tanh()
            })
        }),
        Operation::new("embedding with repeated tokens", |on| {
            unary([50, 32], on, |table| kernels::embedding(table, ids([6, 40], 50, on)))
        }),
        Operation {
            has_long_sums: true,
            ..Operation::new("cross entropy of 30,522 classes", |on| {
                let labels = ids([6, 1], 30_522, on).reshape([6]);
                unary([6, 30_522], on, |x| kernels::smoothed_cross_entropy_sum(x * 3.0, labels, 0.1))
            })
        },
        Operation::new("sum of 1,000,000 numbers", |on| unary([1_000_000], on, |x| (x + 1.0).sum())),
        Operation {
            is_exact: true,
            ..Operation::new("dropout mask", |on| {
                let keys: Vec<Key> = (0..5).map(|sample| Key::root(3).name("dropout").index(sample)).collect();
                let ones = Tensor::<3>::ones([5, 30, 40], on);
                Ok(OperationResult { output: values(kernels::dropout(ones, 0.3, &keys))?, gradient: Vec::new() })
            })
        },
    ];

    /// Computes it on a device, in this precision.
    pub fn run(&self, spec: &DeviceSpec, precision: Dtype) -> Result<OperationResult, BackendError> {
        let threads = if matches!(spec.kind, DeviceKind::Cpu { .. }) { spec.threads() } else { 1 };
        let failed = |error: rayon::ThreadPoolBuildError| BackendError(error.to_string());
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(failed)?;
        pool.install(|| {
            catch_panic(|| {
                let device = backend::open(&spec.kind)?.autodiff();
                with_precision(precision, || (self.run)(&device))
            })
        })
    }
}

/// Precisions in which a device computes products, by trying. A CPU computes in all.
pub fn precisions_of(spec: &DeviceSpec) -> Result<Vec<Dtype>, BackendError> {
    let device = catch_panic(|| backend::open(&spec.kind))?;
    Ok(Dtype::ALL.into_iter().filter(|&precision| backend::try_product(&device, precision).is_ok()).collect())
}

/// Computes `f` of drawn values, and the gradient for a drawn upstream gradient.
fn unary<const D: usize, const R: usize>(
    shape: [usize; D],
    device: &Device,
    f: impl FnOnce(Tensor<D>) -> Tensor<R>,
) -> Computed {
    let input = drawn(shape, "input", device).require_grad();
    let output = f(input.clone());
    let upstream = drawn(output.dims(), "upstream", device);
    let gradients = (output.clone() * upstream).sum().backward();
    let gradient = input.grad(&gradients).ok_or_else(|| BackendError("it has no gradient".to_owned()))?;
    Ok(OperationResult { output: values(output.inner())?, gradient: values(gradient)? })
}

/// Values that have a gradient too: the CPU's own operations need either all inputs or none under
/// autodiff.
fn parameter<const D: usize>(shape: [usize; D], name: &str, device: &Device) -> Tensor<D> {
    drawn(shape, name, device).require_grad()
}

/// Normally distributed values, the same on every device.
fn drawn<const D: usize>(shape: [usize; D], name: &str, device: &Device) -> Tensor<D> {
    let key = Key::root(5).name(name);
    let count: usize = shape.iter().product();
    let values: Vec<f32> = (0..count as u64).map(|i| key.normal(i)).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

fn ids<const D: usize>(shape: [usize; D], below: u64, device: &Device) -> Tensor<D, Int> {
    let key = Key::root(5).name("ids");
    let count: usize = shape.iter().product();
    let values: Vec<i32> = (0..count as u64).map(|i| key.below(i, below) as i32).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

fn values<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f32>, BackendError> {
    tensor.try_into_vec_as::<f32>().map_err(|error| BackendError(error.to_string()))
}
