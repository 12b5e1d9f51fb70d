//! The layers that models are made of. They differ from Burn's in two ways: weights lie as PyTorch lays them out
//! (`[out, in, ...]`), so that checkpoints are read by others as they are, and nothing is initialised at random here.

use burn::module::{Module, Param};
use burn::tensor::module::conv2d;
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Device, Tensor};

/// `y = x Wᵀ + b` over the last dimension.
#[derive(Module, Debug)]
pub struct Linear {
    pub weight: Param<Tensor<2>>,
    pub bias: Param<Tensor<1>>,
}

impl Linear {
    pub fn new(inputs: usize, outputs: usize, device: &Device) -> Self {
        Linear { weight: zeros([outputs, inputs], device), bias: zeros([outputs], device) }
    }

    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        burn::tensor::module::linear(input, self.weight.val().transpose(), Some(self.bias.val()))
    }
}

/// A square two-dimensional convolution, padded so that with stride one the image keeps its size.
#[derive(Module, Debug)]
pub struct Conv2d {
    pub weight: Param<Tensor<4>>,
    pub bias: Param<Tensor<1>>,
    #[module(skip)]
    stride: usize,
}

impl Conv2d {
    /// `kernel` is odd.
    pub fn new(inputs: usize, outputs: usize, kernel: usize, stride: usize, device: &Device) -> Self {
        Conv2d { weight: zeros([outputs, inputs, kernel, kernel], device), bias: zeros([outputs], device), stride }
    }

    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let weight = self.weight.val();
        let pad = weight.dims()[2] / 2;
        conv2d(input, weight, Some(self.bias.val()), ConvOptions::new([self.stride; 2], [pad; 2], [1, 1], 1))
    }
}

fn zeros<const D: usize>(shape: [usize; D], device: &Device) -> Param<Tensor<D>> {
    Param::from_tensor(Tensor::zeros(shape, device))
}
