//! Layers for models. They differ from Burn's in two ways. Weights have PyTorch's layout,
//! `[out, in, ...]`, so that other programs can read checkpoints. Nothing is initialised at random
//! (see [`Network::init`](crate::Network::init)).

use burn::module::{Module, Param};
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Device, Int, Tensor};
use hetseq_kernels::conv2d;

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
        hetseq_kernels::linear(input, self.weight.val(), self.bias.val())
    }
}

/// A two-dimensional convolution with a square kernel, padded so that stride one keeps the image
/// size.
#[derive(Module, Debug)]
pub struct Conv2d {
    pub weight: Param<Tensor<4>>,
    pub bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    stride: usize,
}

impl Conv2d {
    /// `kernel` must be odd.
    pub fn new(inputs: usize, outputs: usize, kernel: usize, stride: usize, device: &Device) -> Self {
        let bias = Some(zeros([outputs], device));
        Conv2d { bias, ..Conv2d::without_bias(inputs, outputs, kernel, stride, device) }
    }

    /// For a convolution before a norm, which would cancel a bias.
    pub fn without_bias(inputs: usize, outputs: usize, kernel: usize, stride: usize, device: &Device) -> Self {
        Conv2d { weight: zeros([outputs, inputs, kernel, kernel], device), bias: None, stride }
    }

    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let weight = self.weight.val();
        let pad = weight.dims()[2] / 2;
        let bias = self.bias.as_ref().map(Param::val);
        conv2d(input, weight, bias, ConvOptions::new([self.stride; 2], [pad; 2], [1, 1], 1))
    }
}

/// Group norm (Wu and He, 2018): normalises the channels of a group over all pixels of one image.
/// Replaces batch norm, which mixes samples.
#[derive(Module, Debug)]
pub struct GroupNorm {
    pub weight: Param<Tensor<1>>,
    pub bias: Param<Tensor<1>>,
    #[module(skip)]
    groups: usize,
}

impl GroupNorm {
    /// PyTorch's default.
    const EPSILON: f64 = 1e-5;
    const MAX_GROUPS: usize = 32;

    /// Uses 32 groups, or fewer if 32 does not divide the channels.
    pub fn new(channels: usize, device: &Device) -> Self {
        // Zeros instead of ones: the trainer sets all parameters (see `Network::init`).
        let (weight, bias) = (zeros([channels], device), zeros([channels], device));
        GroupNorm { weight, bias, groups: Self::groups_of(channels) }
    }

    /// The largest power of two up to 32 that divides `channels`.
    pub fn groups_of(channels: usize) -> usize {
        (1 << channels.trailing_zeros().min(31)).min(Self::MAX_GROUPS)
    }

    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let [samples, channels, height, width] = input.dims();
        let groups = self.groups;
        let grouped = input.reshape([samples, groups, channels / groups * height * width]);
        let centred = grouped.clone() - grouped.mean_dim(2);
        let variance = (centred.clone() * centred.clone()).mean_dim(2);
        // Combine both factors in one small tensor first: one pass over the pixels costs as much as
        // all this.
        let inverse = (variance + Self::EPSILON).sqrt().recip();
        let factor = inverse * self.weight.val().reshape([1, groups, channels / groups]);
        let pixels = centred.reshape([samples, channels, height * width]);
        let output = pixels * factor.reshape([samples, channels, 1]) + self.bias.val().reshape([1, channels, 1]);
        output.reshape([samples, channels, height, width])
    }
}

/// Layer norm (Ba et al., 2016) over the last dimension.
#[derive(Module, Debug)]
pub struct LayerNorm {
    pub weight: Param<Tensor<1>>,
    pub bias: Param<Tensor<1>>,
    #[module(skip)]
    epsilon: f64,
}

impl LayerNorm {
    pub fn new(features: usize, epsilon: f64, device: &Device) -> Self {
        LayerNorm { weight: zeros([features], device), bias: zeros([features], device), epsilon }
    }

    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        hetseq_kernels::layer_norm(input, self.weight.val(), self.bias.val(), self.epsilon)
    }
}

/// A lookup table of vectors.
#[derive(Module, Debug)]
pub struct Embedding {
    pub weight: Param<Tensor<2>>,
}

impl Embedding {
    pub fn new(entries: usize, features: usize, device: &Device) -> Self {
        Embedding { weight: zeros([entries, features], device) }
    }

    /// Looks up `ids` [sample, position]. Returns [sample, position, feature].
    pub fn forward(&self, ids: Tensor<2, Int>) -> Tensor<3> {
        hetseq_kernels::embedding(self.weight.val(), ids)
    }
}

pub(crate) fn zeros<const D: usize>(shape: [usize; D], device: &Device) -> Param<Tensor<D>> {
    Param::from_tensor(Tensor::zeros(shape, device))
}
