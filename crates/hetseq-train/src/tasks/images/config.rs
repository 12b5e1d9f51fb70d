//! The `[task]` table of an image task.

use std::path::PathBuf;

use hetseq_data::{Augment, Crop};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageConfig {
    /// A directory with MNIST's idx files (`train-images-idx3-ubyte[.gz]`, `train-labels-idx1-ubyte[.gz]`, and the same for
    /// `t10k`), or with class folders (`train/<class>/*.jpg`, `valid/<class>/*.jpg`).
    pub data: PathBuf,
    #[serde(default)]
    pub model: ModelName,
    /// Channels of a ResNet's first stage.
    #[serde(default = "sixty_four")]
    pub width: usize,
    /// How images enter a ResNet; by their size if not given.
    pub stem: Option<StemName>,
    #[serde(default)]
    pub dropout: f32,
    /// Class folders: images are brought to this many pixels in both directions; 224 if not given.
    pub image_size: Option<usize>,
    /// Class folders: to validate, the shorter side becomes this long and the middle is cut out. If not given, 8/7 of
    /// `image_size` above 64 pixels, else `image_size`.
    pub resize: Option<usize>,
    /// Pixels (0 to 1) are shifted by this mean and divided by this deviation. If not given, those of the training images
    /// (idx files) or of ImageNet (class folders).
    pub mean: Option<PerColour>,
    pub std: Option<PerColour>,
    /// Idx files: random shift and rotation of training images, keyed per epoch and sample.
    #[serde(default)]
    pub augment: Augment,
    /// Class folders: random crop and flip of training images, keyed per epoch and sample.
    pub crop: Option<Crop>,
    /// What to do about an image file that cannot be read.
    #[serde(default)]
    pub on_error: OnError,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelName {
    #[default]
    ConvNet,
    ResNet18,
    ResNet34,
    ResNet50,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StemName {
    /// For images of 64 pixels and less.
    Small,
    Large,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// End the run.
    #[default]
    Fatal,
    /// Go on without it: it counts for nothing, and is named.
    Skip,
}

/// One number for all colours, or one for each of red, green and blue.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a number or [red, green, blue] is due")]
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

/// More pixels than this in a direction is a typing error.
const LARGEST_IMAGE: usize = 4096;
const DEFAULT_IMAGE: usize = 224;
/// Up to here images are small: a small stem, and nothing cut off at the edges to validate.
const SMALL_IMAGE: usize = 64;

impl ImageConfig {
    /// What can be told from the config alone.
    pub(super) fn check(&self) -> Result<(), String> {
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(format!("task.dropout = {} must be at least 0 and below 1", self.dropout));
        }
        if !(1..=2048).contains(&self.width) {
            return Err(format!("task.width = {} must be 1 to 2048 channels", self.width));
        }
        if self.model == ModelName::ConvNet && (self.stem.is_some() || self.width != sixty_four()) {
            return Err("task.stem and task.width are a ResNet's; task.model is \"convnet\"".to_owned());
        }
        let (size, resize) = (self.image_size(), self.resize());
        if !(1..=LARGEST_IMAGE).contains(&size) || !(size..=2 * LARGEST_IMAGE).contains(&resize) {
            return Err(format!(
                "task.image_size = {size} must be 1 to {LARGEST_IMAGE} pixels, and task.resize = {resize} at least that"
            ));
        }
        self.augment.check().map_err(|reason| format!("task.augment: {reason}"))?;
        self.crop.unwrap_or_default().check().map_err(|reason| format!("task.crop: {reason}"))
    }

    pub(super) fn image_size(&self) -> usize {
        self.image_size.unwrap_or(DEFAULT_IMAGE)
    }

    pub(super) fn resize(&self) -> usize {
        let size = self.image_size();
        self.resize.unwrap_or(if size > SMALL_IMAGE { size * 8 / 7 } else { size })
    }

    /// For images of `size` pixels in the longer direction.
    pub(super) fn stem(&self, size: usize) -> StemName {
        self.stem.unwrap_or(if size > SMALL_IMAGE { StemName::Large } else { StemName::Small })
    }
}

fn sixty_four() -> usize {
    64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shift_that_is_no_number_is_refused() {
        let config = |shift: &str| -> ImageConfig {
            toml::from_str(&format!("data = 'x'\n[augment]\nshift_pixels = {shift}\n")).unwrap()
        };
        assert_eq!(config("2.0").check(), Ok(()));
        assert_eq!(config("nan").check().unwrap_err(), "task.augment: shift_pixels = NaN must be a finite number");
    }
}
