//! In which precision products are computed: those of matrices and convolutions, which is where the time goes.
//!
//! Parameters stay `f32`, as do sums, norms, softmaxes and losses. What goes into a product is cast down before it and what comes
//! out is cast up again; both are operations with a gradient, so the backward pass computes its products in the same precision
//! and hands `f32` gradients to the parameters. The precision belongs to the thread, as a device does, so that models need not
//! carry it through: a device's thread sets it around all that it computes.

use std::cell::Cell;
use std::fmt;
use std::str::FromStr;

use burn::tensor::ops::ConvOptions;
use burn::tensor::{FloatDType, Tensor};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    #[default]
    F32,
    /// Eleven bits, and nothing beyond 65,504 or much below 1e-7: gradients have to be scaled.
    F16,
    /// Eight bits, over the range of `f32`.
    Bf16,
}

impl Precision {
    pub const ALL: [Precision; 3] = [Precision::F32, Precision::F16, Precision::Bf16];

    /// What products are cast to; none if that is not needed.
    pub fn lower(self) -> Option<FloatDType> {
        match self {
            Precision::F32 => None,
            Precision::F16 => Some(FloatDType::F16),
            Precision::Bf16 => Some(FloatDType::BF16),
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Precision::F32 => "f32",
            Precision::F16 => "f16",
            Precision::Bf16 => "bf16",
        })
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Precision::ALL.into_iter().find(|precision| precision.to_string() == text);
        found.ok_or_else(|| format!("`{text}` is not a precision: say f32, f16 or bf16"))
    }
}

thread_local! {
    static OF_PRODUCTS: Cell<Precision> = const { Cell::new(Precision::F32) };
}

/// Runs `work` with the products of this thread in `precision`.
pub fn with_products_in<R>(precision: Precision, work: impl FnOnce() -> R) -> R {
    struct Before(Precision);
    impl Drop for Before {
        fn drop(&mut self) {
            OF_PRODUCTS.set(self.0);
        }
    }
    let _before = Before(OF_PRODUCTS.replace(precision));
    work()
}

/// What products of this thread are cast to now.
pub(crate) fn lower() -> Option<FloatDType> {
    OF_PRODUCTS.get().lower()
}

/// The products of matrices in the last two dimensions.
pub fn matmul<const D: usize>(a: Tensor<D>, b: Tensor<D>) -> Tensor<D> {
    match lower() {
        None => a.matmul(b),
        Some(low) => a.cast(low).matmul(b.cast(low)).cast(FloatDType::F32),
    }
}

pub fn conv2d(x: Tensor<4>, weight: Tensor<4>, bias: Option<Tensor<1>>, options: ConvOptions<2>) -> Tensor<4> {
    use burn::tensor::module::conv2d;
    match lower() {
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
    fn names() {
        for precision in Precision::ALL {
            assert_eq!(precision.to_string().parse(), Ok(precision));
        }
        assert!("f64".parse::<Precision>().is_err());
    }

    #[test]
    fn it_holds_for_what_is_inside_and_ends_also_by_a_panic() {
        with_products_in(Precision::F16, || {
            with_products_in(Precision::Bf16, || assert_eq!(OF_PRODUCTS.get(), Precision::Bf16));
            assert_eq!(OF_PRODUCTS.get(), Precision::F16);
            _ = std::panic::catch_unwind(|| with_products_in(Precision::Bf16, || panic!("inside")));
            assert_eq!(OF_PRODUCTS.get(), Precision::F16);
        });
        assert_eq!(OF_PRODUCTS.get(), Precision::F32);
    }

    /// A product of numbers that the lower precision cannot hold comes out rounded, its gradients too; all tensors stay `f32`.
    #[test]
    fn products_round_and_the_rest_does_not() {
        let device = Device::flex().autodiff();
        let fine = 1.0 + 1.0 / 4096.0;
        for (precision, expected) in [(Precision::F32, fine), (Precision::F16, 1.0), (Precision::Bf16, 1.0)] {
            let a = Tensor::<2>::from_data([[fine]], &device).require_grad();
            let b = Tensor::<2>::from_data([[1.0f32]], &device).require_grad();
            let (product, gradients) = with_products_in(precision, || {
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
    fn layers_are_close_to_those_in_full_precision() {
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
        for precision in [Precision::F16, Precision::Bf16] {
            let rounded = with_products_in(precision, || [values(linear()), values(conv())]);
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
