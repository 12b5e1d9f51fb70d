//! Activation functions, by their names in `config.json`.

use burn::tensor::Tensor;
use burn::tensor::activation::{gelu_approximate, relu, silu};
use hetseq_kernels::gelu;
use serde::{Deserialize, Serialize};

/// An activation function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// Exact, with the error function.
    Gelu,
    /// Approximated with the hyperbolic tangent.
    #[serde(alias = "gelu_pytorch_tanh")]
    GeluNew,
    Relu,
    #[serde(alias = "swish")]
    Silu,
}

impl Activation {
    pub(crate) fn apply<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        match self {
            Activation::Gelu => gelu(x),
            Activation::GeluNew => gelu_approximate(x),
            Activation::Relu => relu(x),
            Activation::Silu => silu(x),
        }
    }
}
