//! Precision of matrix products and convolutions, which take most of the time.
//!
//! Parameters stay `f32`, as do sums, norms, softmaxes and losses. The operands of a product are
//! cast down and its result is cast up again. Both casts have gradients, so the backward pass
//! computes its products in the same precision and returns `f32` gradients. The precision is a
//! property of the thread, like the device, so that models need not pass it around: a device thread
//! sets it around all its work.

use std::cell::Cell;

use burn::tensor::ops::ConvOptions;
use burn::tensor::{FloatDType, Tensor};

use crate::dtype::Dtype;

thread_local! {
    static PRECISION: Cell<Dtype> = const { Cell::new(Dtype::F32) };
}

/// Runs `work` with this thread's products in `precision`.
pub fn with_precision<R>(precision: Dtype, work: impl FnOnce() -> R) -> R {
    struct Restore(Dtype);
    impl Drop for Restore {
        fn drop(&mut self) {
            PRECISION.set(self.0);
        }
    }
    let _restore = Restore(PRECISION.replace(precision));
    work()
}

/// The type to which this thread's products are cast now. `None` for `f32`.
pub(crate) fn low_precision() -> Option<FloatDType> {
    PRECISION.get().cast_to()
}

/// Matrix products of the last two dimensions, in the thread's precision.
pub fn matmul<const D: usize>(a: Tensor<D>, b: Tensor<D>) -> Tensor<D> {
    match low_precision() {
        None => a.matmul(b),
        Some(low) => a.cast(low).matmul(b.cast(low)).cast(FloatDType::F32),
    }
}

/// A two-dimensional convolution, in the thread's precision.
pub fn conv2d(x: Tensor<4>, weight: Tensor<4>, bias: Option<Tensor<1>>, options: ConvOptions<2>) -> Tensor<4> {
    use burn::tensor::module::conv2d;
    match low_precision() {
        None => conv2d(x, weight, bias, options),
        Some(low) => {
            let output = conv2d(x.cast(low), weight.cast(low), None, options).cast(FloatDType::F32);
            match bias {
                Some(bias) => {
                    let channels = bias.dims()[0];
                    output + bias.reshape([1, channels, 1, 1])
                }
                None => output,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, Device};

    use super::*;

    #[test]
    fn names_parse() {
        for precision in Dtype::ALL {
            assert_eq!(precision.to_string().parse(), Ok(precision));
        }
        assert!("f64".parse::<Dtype>().is_err());
    }

    #[test]
    fn the_precision_is_nested_and_restored_after_a_panic() {
        with_precision(Dtype::F16, || {
            with_precision(Dtype::Bf16, || assert_eq!(PRECISION.get(), Dtype::Bf16));
            assert_eq!(PRECISION.get(), Dtype::F16);
            _ = std::panic::catch_unwind(|| with_precision(Dtype::Bf16, || panic!("inside")));
            assert_eq!(PRECISION.get(), Dtype::F16);
        });
        assert_eq!(PRECISION.get(), Dtype::F32);
    }

    /// Products and their gradients are rounded to the lower precision; all tensors stay `f32`.
    #[test]
    fn only_products_are_rounded() {
        let device = Device::flex().autodiff();
        let fine = 1.0 + 1.0 / 4096.0;
        for (precision, expected) in [(Dtype::F32, fine), (Dtype::F16, 1.0), (Dtype::Bf16, 1.0)] {
            let a = Tensor::<2>::from_data([[fine]], &device).require_grad();
            let b = Tensor::<2>::from_data([[1.0f32]], &device).require_grad();
            let (product, gradients) = with_precision(precision, || {
                let product = matmul(a.clone(), b.clone());
                (product.clone(), product.sum().backward())
            });
            assert_eq!(product.dtype(), DType::F32);
            assert_eq!(product.into_data().try_to_vec::<f32>().unwrap(), [expected]);
            let gradient = b.grad(&gradients).unwrap();
            assert_eq!(gradient.dtype(), DType::F32);
            assert_eq!(gradient.into_data().try_to_vec::<f32>().unwrap(), [expected]);
        }
    }

    #[test]
    fn layers_are_close_to_full_precision() {
        let device = Device::flex();
        let numbers = |count: usize, seed: u64| -> Vec<f32> {
            (0..count).map(|i| hetseq_random::Key::root(seed).normal(i as u64) * 0.2).collect()
        };
        let tensor = |seed, count| Tensor::<1>::from_data(&numbers(count, seed)[..], &device);
        let linear = || {
            let (x, weight) = (tensor(1, 2 * 3 * 16).reshape([2, 3, 16]), tensor(2, 8 * 16).reshape([8, 16]));
            crate::linear::<3>(x, weight, tensor(3, 8))
        };
        let conv = || {
            let (x, weight) = (tensor(4, 2 * 3 * 36).reshape([2, 3, 6, 6]), tensor(5, 4 * 27).reshape([4, 3, 3, 3]));
            conv2d(x, weight, Some(tensor(6, 4)), ConvOptions::new([1, 1], [1, 1], [1, 1], 1))
        };
        let exact = [values(linear()), values(conv())];
        for precision in [Dtype::F16, Dtype::Bf16] {
            let rounded = with_precision(precision, || [values(linear()), values(conv())]);
            for (exact, rounded) in exact.iter().flatten().zip(rounded.iter().flatten()) {
                assert!((exact - rounded).abs() < 0.01, "{precision}: {exact} and {rounded}");
            }
            assert_ne!(exact, rounded);
        }
    }

    fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        tensor.into_data().try_to_vec().unwrap()
    }
}
