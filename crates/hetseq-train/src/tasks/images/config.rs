//! The `[task]` table of the image task.

use std::path::PathBuf;

use hetseq_data::{Augment, Crop};
use serde::{Deserialize, Serialize};

/// The `[task]` table of `images`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageConfig {
    /// A directory with MNIST's idx files (`train-images-idx3-ubyte[.gz]`,
    /// `train-labels-idx1-ubyte[.gz]`, and the same for `t10k`), or with class folders
    /// (`train/<class>/*.jpg`, `valid/<class>/*.jpg`).
    pub data: PathBuf,
    #[serde(default)]
    pub model: ModelName,
    /// Channels of a ResNet's first stage.
    #[serde(default = "sixty_four")]
    pub width: usize,
    /// First layers of a ResNet. By default chosen by image size.
    pub stem: Option<StemName>,
    #[serde(default)]
    pub dropout: f32,
    /// Class folders: width and height of the images, in pixels. By default 224.
    pub image_size: Option<usize>,
    /// Class folders: for validation, the shorter side is resized to this and the centre is
    /// cropped. By default 8/7 of `image_size` above 64 pixels, else `image_size`.
    pub resize: Option<usize>,
    /// Mean and standard deviation for normalising pixels (0 to 1). By default those of the
    /// training images (idx files) or of ImageNet (class folders).
    pub mean: Option<PerColour>,
    pub std: Option<PerColour>,
    /// Idx files: random shift and rotation of training images, keyed per epoch and sample.
    #[serde(default)]
    pub augment: Augment,
    /// Class folders: random crop and flip of training images, keyed per epoch and sample.
    pub crop: Option<Crop>,
    /// What to do with an image file that cannot be read.
    #[serde(default)]
    pub on_error: OnReadError,
}

/// The available networks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelName {
    #[default]
    ConvNet,
    ResNet18,
    ResNet34,
    ResNet50,
}

/// The first layers of a ResNet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StemName {
    /// For images of up to 64 pixels.
    Small,
    Large,
}

/// What to do with an image file that cannot be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnReadError {
    /// End the run.
    #[default]
    Fatal,
    /// Continue without it. A warning names it, and it has no effect on losses and scores.
    Skip,
}

/// One value for all colours, or one each for red, green and blue.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number or [red, green, blue]")]
pub enum PerColour {
    One(f32),
    Three([f32; 3]),
}

impl PerColour {
    pub(super) fn three(self) -> [f32; 3] {
        match self {
            PerColour::One(value) => [value; 3],
            PerColour::Three(values) => values,
        }
    }
}

/// A larger image size, in pixels, is a typing error.
const MAX_IMAGE_SIZE: usize = 4096;
const DEFAULT_IMAGE_SIZE: usize = 224;
/// Up to this size, in pixels, images use the small stem and validation crops nothing.
const SMALL_IMAGE_SIZE: usize = 64;

impl ImageConfig {
    /// Checks everything that does not depend on the data.
    pub(super) fn check(&self) -> Result<(), String> {
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(format!("task.dropout = {} must be at least 0 and below 1", self.dropout));
        }
        if !(1..=2048).contains(&self.width) {
            return Err(format!("task.width = {} must be 1 to 2048 channels", self.width));
        }
        if self.model == ModelName::ConvNet && (self.stem.is_some() || self.width != sixty_four()) {
            return Err("task.stem and task.width apply to ResNets only; task.model is \"convnet\"".to_owned());
        }
        let (size, resize) = (self.image_size(), self.resize());
        if !(1..=MAX_IMAGE_SIZE).contains(&size) || !(size..=2 * MAX_IMAGE_SIZE).contains(&resize) {
            return Err(format!(
                "task.image_size = {size} must be 1 to {MAX_IMAGE_SIZE} pixels, and task.resize = {resize} at least that"
            ));
        }
        self.augment.check().map_err(|reason| format!("task.augment: {reason}"))?;
        self.crop.unwrap_or_default().check().map_err(|reason| format!("task.crop: {reason}"))
    }

    pub(super) fn image_size(&self) -> usize {
        self.image_size.unwrap_or(DEFAULT_IMAGE_SIZE)
    }

    pub(super) fn resize(&self) -> usize {
        let size = self.image_size();
        self.resize.unwrap_or(if size > SMALL_IMAGE_SIZE { size * 8 / 7 } else { size })
    }

    /// The stem for images whose longer side has `size` pixels.
    pub(super) fn stem(&self, size: usize) -> StemName {
        self.stem.unwrap_or(if size > SMALL_IMAGE_SIZE { StemName::Large } else { StemName::Small })
    }
}

fn sixty_four() -> usize {
    64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shift_of_nan_is_refused() {
        let config = |shift: &str| -> ImageConfig {
            toml::from_str(&format!("data = 'x'\n[augment]\nshift_pixels = {shift}\n")).unwrap()
        };
        assert_eq!(config("2.0").check(), Ok(()));
        assert_eq!(config("nan").check().unwrap_err(), "task.augment: shift_pixels = NaN must be a finite number");
    }
}
