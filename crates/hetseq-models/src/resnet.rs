//! Residual networks (He et al., 2016) with 18, 34 and 50 layers. Group norm replaces batch norm,
//! which mixes samples.
//!
//! Parameters have the names, shapes and initial values of torchvision's
//! `resnet18(norm_layer=lambda c: GroupNorm(32, c))` and its variants, so that weights can be
//! exchanged in both directions. The norms keep the names `bn1`, `bn2`.

use burn::module::Module;
use burn::tensor::activation::relu;
use burn::tensor::module::max_pool2d;
use burn::tensor::ops::MaxPoolOptions;
use burn::tensor::{Device, Tensor};
use hetseq_kernels::dropout;
use hetseq_random::Key;

use crate::layers::{Conv2d, GroupNorm, Linear};
use crate::{Init, Network};

/// Number of layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    Eighteen,
    ThirtyFour,
    Fifty,
}

impl Depth {
    /// Blocks per stage.
    fn blocks(self) -> [usize; 4] {
        match self {
            Depth::Eighteen => [2, 2, 2, 2],
            Depth::ThirtyFour | Depth::Fifty => [3, 4, 6, 3],
        }
    }

    /// Ratio of a block's output channels to its inner channels.
    fn expansion(self) -> usize {
        if self == Depth::Fifty { 4 } else { 1 }
    }
}

/// The first layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stem {
    /// A 7 x 7 convolution and max pooling, each of which halves the image: for photographs.
    Large,
    /// A 3 x 3 convolution that keeps the size: for images of up to 64 pixels.
    Small,
}

/// The size of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub depth: Depth,
    pub stem: Stem,
    /// 1 for grey images, 3 for coloured ones.
    pub channels: usize,
    /// Channels of the first stage; 64 in the paper.
    pub width: usize,
    pub classes: usize,
}

/// A residual network.
#[derive(Module, Debug)]
pub struct ResNet {
    conv1: Conv2d,
    bn1: GroupNorm,
    layer1: Vec<Block>,
    layer2: Vec<Block>,
    layer3: Vec<Block>,
    layer4: Vec<Block>,
    fc: Linear,
    #[module(skip)]
    has_pooling: bool,
}

impl Network for ResNet {
    /// As in torchvision: convolutions normal with variance 2 / fan-out, norms the identity, the
    /// last layer and its bias uniform within 1 / sqrt(fan-in).
    fn init(&self, name: &str, shape: &[usize]) -> Init {
        let last_layer = Init::Uniform { bound: (1.0 / (self.fc.weight.dims()[1] as f64).sqrt()) as f32 };
        match shape {
            _ if name.starts_with("fc.") => last_layer,
            [out, _, rows, columns] => Init::Normal { std: (2.0 / (out * rows * columns) as f64).sqrt() },
            _ => Init::kaiming(name, shape),
        }
    }
}

impl ResNet {
    pub fn new(shape: &Shape, device: &Device) -> Self {
        let Shape { depth, stem, channels, width, classes } = *shape;
        let (kernel, stride) = if stem == Stem::Large { (7, 2) } else { (3, 1) };
        let mut inputs = width;
        let mut stage = |index: usize| -> Vec<Block> {
            let (inner, first_stride) = (width << index, if index == 0 { 1 } else { 2 });
            let block = |i: usize| {
                let block = Block::new(depth, inputs, inner, if i == 0 { first_stride } else { 1 }, device);
                inputs = inner * depth.expansion();
                block
            };
            (0..depth.blocks()[index]).map(block).collect()
        };
        ResNet {
            conv1: Conv2d::without_bias(channels, width, kernel, stride, device),
            bn1: GroupNorm::new(width, device),
            layer1: stage(0),
            layer2: stage(1),
            layer3: stage(2),
            layer4: stage(3),
            fc: Linear::new((width << 3) * depth.expansion(), classes, device),
            has_pooling: stem == Stem::Large,
        }
    }

    /// Returns logits [sample, class] for `images` [sample, channel, height, width]. Dropout, if
    /// any, is before the last layer. `keys` as in [`dropout`].
    pub fn forward(&self, images: Tensor<4>, rate: f32, keys: &[Key]) -> Tensor<2> {
        let mut x = relu(self.bn1.forward(self.conv1.forward(images)));
        if self.has_pooling {
            x = max_pool2d(x, MaxPoolOptions::new([3, 3]).with_stride([2, 2]).with_padding([1, 1]));
        }
        for block in [&self.layer1, &self.layer2, &self.layer3, &self.layer4].into_iter().flatten() {
            x = block.forward(x);
        }
        let [samples, channels, height, width] = x.dims();
        // The mean over all pixels as a reduction: the gradient of global pooling is slow.
        let x = x.reshape([samples, channels, height * width]).mean_dim(2).reshape([samples, channels]);
        self.fc.forward(dropout(x, rate, keys))
    }
}

/// A residual block: two 3 x 3 convolutions, or (50 layers) a 3 x 3 between two 1 x 1 convolutions.
#[derive(Module, Debug)]
struct Block {
    conv1: Conv2d,
    bn1: GroupNorm,
    conv2: Conv2d,
    bn2: GroupNorm,
    conv3: Option<Conv2d>,
    bn3: Option<GroupNorm>,
    /// Adapts the shortcut to the size of the output if they differ.
    downsample: Option<(Conv2d, GroupNorm)>,
}

impl Block {
    fn new(depth: Depth, inputs: usize, inner: usize, stride: usize, device: &Device) -> Self {
        let outputs = inner * depth.expansion();
        let is_bottleneck = depth == Depth::Fifty;
        // The stride is in the 3 x 3 convolution, also in a bottleneck, as in torchvision.
        let (kernel1, stride1, stride2) = if is_bottleneck { (1, 1, stride) } else { (3, stride, 1) };
        let changes = stride != 1 || inputs != outputs;
        let shortcut = || (Conv2d::without_bias(inputs, outputs, 1, stride, device), GroupNorm::new(outputs, device));
        Block {
            conv1: Conv2d::without_bias(inputs, inner, kernel1, stride1, device),
            bn1: GroupNorm::new(inner, device),
            conv2: Conv2d::without_bias(inner, inner, 3, stride2, device),
            bn2: GroupNorm::new(inner, device),
            conv3: is_bottleneck.then(|| Conv2d::without_bias(inner, outputs, 1, 1, device)),
            bn3: is_bottleneck.then(|| GroupNorm::new(outputs, device)),
            downsample: changes.then(shortcut),
        }
    }

    fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let shortcut = match &self.downsample {
            Some((conv, norm)) => norm.forward(conv.forward(input.clone())),
            None => input.clone(),
        };
        let mut x = relu(self.bn1.forward(self.conv1.forward(input)));
        x = self.bn2.forward(self.conv2.forward(x));
        if let (Some(conv3), Some(bn3)) = (&self.conv3, &self.bn3) {
            x = bn3.forward(conv3.forward(relu(x)));
        }
        relu(x + shortcut)
    }
}
