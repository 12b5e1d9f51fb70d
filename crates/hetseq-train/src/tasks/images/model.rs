//! The networks that `task.model` selects.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use hetseq_models::convnet::ConvNet;
use hetseq_models::resnet::{Depth, ResNet, Shape, Stem};
use hetseq_models::{Init, Network};
use hetseq_random::Key;

use super::config::{ImageConfig, ModelName, StemName};
use crate::task::TaskError;

/// The selected network. The enum adds nothing to parameter names.
#[derive(Module, Debug)]
pub enum ImageModel {
    ConvNet(ConvNet),
    ResNet(ResNet),
}

impl Network for ImageModel {
    fn init(&self, name: &str, shape: &[usize]) -> Init {
        match self {
            ImageModel::ConvNet(model) => model.init(name, shape),
            ImageModel::ResNet(model) => model.init(name, shape),
        }
    }
}

impl ImageModel {
    /// `width` is that of a ResNet's first stage.
    pub(super) fn new(
        model: ModelName,
        stem: StemName,
        width: usize,
        image: [usize; 3],
        classes: usize,
        device: &Device,
    ) -> Self {
        let [channels, rows, columns] = image;
        let Some(depth) = depth(model) else {
            return ImageModel::ConvNet(ConvNet::new(channels, rows, columns, classes, device));
        };
        let stem = match stem {
            StemName::Small => Stem::Small,
            StemName::Large => Stem::Large,
        };
        ImageModel::ResNet(ResNet::new(&Shape { depth, stem, channels, width, classes }, device))
    }

    pub(super) fn forward(&self, images: Tensor<4>, rate: f32, keys: &[Key]) -> Tensor<2> {
        match self {
            ImageModel::ConvNet(model) => model.forward(images, rate, keys),
            ImageModel::ResNet(model) => model.forward(images, rate, keys),
        }
    }
}

fn depth(model: ModelName) -> Option<Depth> {
    match model {
        ModelName::ConvNet => None,
        ModelName::ResNet18 => Some(Depth::Eighteen),
        ModelName::ResNet34 => Some(Depth::ThirtyFour),
        ModelName::ResNet50 => Some(Depth::Fifty),
    }
}

/// Checks that images are large enough for the network.
pub(super) fn check(config: &ImageConfig, [_, height, width]: [usize; 3]) -> Result<(), TaskError> {
    let min = match config.model {
        ModelName::ConvNet => 4,
        _ => 8,
    };
    if height >= min && width >= min {
        return Ok(());
    }
    Err(TaskError::Other(format!(
        "images of {height} x {width} pixels are too small for this network: the minimum is {min} x {min}"
    )))
}
