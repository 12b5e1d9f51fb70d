//! A small convolutional network for small images: two convolutions that halve the image, then two
//! linear layers with dropout before each. No batch norm, which mixes samples.
//!
//! It uses strides and SiLU instead of max pooling and ReLU. Those have kinks, where a difference
//! in the last bit selects another branch: after some tens of updates, two splits of the same batch
//! would no longer agree to 1e-4.

use burn::module::Module;
use burn::tensor::activation::silu;
use burn::tensor::{Device, Tensor};
use hetseq_kernels::dropout;
use hetseq_random::Key;

use crate::layers::{Conv2d, Linear};
use crate::{Init, Network};

/// The network. See the module documentation.
#[derive(Module, Debug)]
pub struct ConvNet {
    conv1: Conv2d,
    conv2: Conv2d,
    fc1: Linear,
    fc2: Linear,
}

impl Network for ConvNet {
    /// The last layer starts small: all classes are about equally likely, so the initial loss is
    /// that of guessing.
    fn init(&self, name: &str, shape: &[usize]) -> Init {
        match name {
            "fc2.weight" => Init::Normal { std: 0.01 },
            _ => Init::kaiming(name, shape),
        }
    }
}

impl ConvNet {
    /// `channels` is 1 for grey images and 3 for coloured ones.
    pub fn new(channels: usize, height: usize, width: usize, classes: usize, device: &Device) -> Self {
        ConvNet {
            conv1: Conv2d::new(channels, 16, 3, 2, device),
            conv2: Conv2d::new(16, 32, 3, 2, device),
            fc1: Linear::new(32 * height.div_ceil(4) * width.div_ceil(4), 128, device),
            fc2: Linear::new(128, classes, device),
        }
    }

    /// Returns logits [sample, class] for `images` [sample, channel, height, width]. `keys` as in
    /// [`dropout`]: one per sample, none when evaluating.
    pub fn forward(&self, images: Tensor<4>, rate: f32, keys: &[Key]) -> Tensor<2> {
        let site = |site: u64| -> Vec<Key> { keys.iter().map(|key| key.index(site)).collect() };
        let x = silu(self.conv1.forward(images));
        let x = silu(self.conv2.forward(x));
        let x: Tensor<2> = dropout(x.flatten(1, 3), rate, &site(0));
        let x = dropout(silu(self.fc1.forward(x)), rate, &site(1));
        self.fc2.forward(x)
    }
}
