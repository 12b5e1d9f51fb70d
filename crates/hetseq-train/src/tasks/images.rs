//! Image classification on idx files (the layout of MNIST) with a small convolutional network.

#[cfg(test)]
mod tests;

use std::path::PathBuf;

use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Int, Tensor, TensorData};
use hetseq_data::source::{LabelledImages, idx};
use hetseq_data::{Augment, Costs};
use hetseq_models::convnet::ConvNet;
use serde::{Deserialize, Serialize};

use crate::task::{Metric, Outcome, Pass, Samples, Task, TaskError, Totals, Which};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageConfig {
    /// A directory with `train-images-idx3-ubyte[.gz]`, `train-labels-idx1-ubyte[.gz]`, and the same for `t10k`.
    pub data: PathBuf,
    #[serde(default)]
    pub dropout: f32,
    /// Pixels (0 to 1) are shifted by this mean and divided by this deviation; those of the training images if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean: Option<f32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub std: Option<f32>,
    /// Random shift and rotation of training images, keyed per epoch and sample.
    #[serde(default)]
    pub augment: Augment,
}

pub struct ImageTask {
    config: ImageConfig,
    train: LabelledImages,
    valid: LabelledImages,
    classes: usize,
    mean: f32,
    std: f32,
}

/// One micro-batch on the host.
pub struct ImageBatch {
    /// Normalised, [sample, 1, height, width].
    pixels: TensorData,
    labels: TensorData,
    samples: u64,
}

impl Task for ImageTask {
    const NAME: &'static str = "images";
    type Config = ImageConfig;
    type Model = ConvNet;
    type Batch = ImageBatch;

    fn open(config: &ImageConfig) -> Result<Self, TaskError> {
        if !(0.0..1.0).contains(&config.dropout) {
            return Err(TaskError::Other(format!("task.dropout = {} must be at least 0 and below 1", config.dropout)));
        }
        if !config.data.is_dir() {
            return Err(TaskError::Other(format!(
                "there is no data directory {0}; set task.data to one with MNIST's four idx files, or draw some to try \
                 with: hetseq prep digits {0}",
                config.data.display()
            )));
        }
        let train = idx::open_pair(&config.data, "train")?;
        let valid = idx::open_pair(&config.data, "t10k")?;
        let size = |images: &LabelledImages| (images.images.height, images.images.width);
        if size(&train) != size(&valid) {
            return Err(TaskError::Other(format!(
                "{}: training images are {:?} pixels, test images {:?}",
                config.data.display(),
                size(&train),
                size(&valid)
            )));
        }
        if size(&train).0 < 4 || size(&train).1 < 4 {
            return Err(TaskError::Other(format!(
                "images of {:?} pixels are too small for this network",
                size(&train)
            )));
        }
        let classes = usize::from(train.labels.iter().copied().max().unwrap_or(0)) + 1;
        if let Some(label) = valid.labels.iter().find(|&&label| usize::from(label) >= classes) {
            return Err(TaskError::Other(format!(
                "{}: a test image has the label {label}, but the training labels end at {}",
                config.data.display(),
                classes - 1
            )));
        }
        let (mean, std) = moments(&train.images.pixels);
        let (mean, std) = (config.mean.unwrap_or(mean), config.std.unwrap_or(std));
        if !(std.is_finite() && std > 0.0 && mean.is_finite()) {
            return Err(TaskError::Other(format!("pixels cannot be normalised with mean {mean} and deviation {std}")));
        }
        Ok(ImageTask { config: config.clone(), train, valid, classes, mean, std })
    }

    fn fingerprint(&self) -> String {
        format!("{}+{}", self.train.fingerprint(), self.valid.fingerprint())
    }

    fn costs(&self, which: Which) -> Costs {
        Costs::Uniform { samples: self.images(which).len(), tokens: 1 }
    }

    fn model(&self, device: &Device) -> ConvNet {
        ConvNet::new(1, self.train.images.height, self.train.images.width, self.classes, device)
    }

    fn collate(&self, samples: &Samples<'_>) -> Result<ImageBatch, TaskError> {
        let data = self.images(samples.which);
        let (height, width) = (data.images.height, data.images.width);
        let mut pixels = vec![0.0f32; samples.ids.len() * height * width];
        let mut labels = Vec::with_capacity(samples.ids.len());
        let augment = match samples.which {
            Which::Train => self.config.augment,
            Which::Valid => Augment::default(),
        };
        for (&id, out) in samples.ids.iter().zip(pixels.chunks_exact_mut(height * width)) {
            let image = data.images.image(id as usize).ok_or_else(|| TaskError::Other(format!("no image {id}")))?;
            augment.apply(samples.key(id), image, height, width, out);
            for pixel in out {
                *pixel = (*pixel / 255.0 - self.mean) / self.std;
            }
            labels.push(i32::from(data.labels[id as usize]));
        }
        let samples = labels.len();
        Ok(ImageBatch {
            pixels: TensorData::new(pixels, [samples, 1, height, width]),
            labels: TensorData::new(labels, [samples, 1]),
            samples: samples as u64,
        })
    }

    fn counts(&self, batch: &ImageBatch) -> Vec<u64> {
        vec![batch.samples]
    }

    fn forward(&self, model: &ConvNet, batch: &ImageBatch, pass: &Pass) -> Outcome {
        let images = Tensor::<4>::from_data(batch.pixels.clone(), &pass.device);
        let labels = Tensor::<2, Int>::from_data(batch.labels.clone(), &pass.device);
        let logits = model.forward(images, self.config.dropout, &pass.keys);
        let loss = log_softmax(logits.clone(), 1).gather(1, labels.clone()).sum().neg();
        let scores = if pass.is_training() { Vec::new() } else { vec![logits.argmax(1).equal(labels).float().sum()] };
        Outcome { losses: vec![loss], scores }
    }

    fn metrics(&self) -> Vec<Metric> {
        vec![Metric::higher("accuracy")]
    }

    fn measure(&self, totals: &Totals) -> Vec<f64> {
        let right = totals.scores.first().copied().unwrap_or(0.0);
        vec![right / totals.samples.max(1) as f64]
    }
}

impl ImageTask {
    fn images(&self, which: Which) -> &LabelledImages {
        match which {
            Which::Train => &self.train,
            Which::Valid => &self.valid,
        }
    }
}

/// Mean and standard deviation of pixels scaled to 0..1, from exact integer sums.
fn moments(pixels: &[u8]) -> (f32, f32) {
    let count = pixels.len().max(1) as f64;
    let sum: u64 = pixels.iter().map(|&pixel| u64::from(pixel)).sum();
    let squares: u64 = pixels.iter().map(|&pixel| u64::from(pixel).pow(2)).sum();
    let mean = sum as f64 / count;
    let variance = squares as f64 / count - mean * mean;
    ((mean / 255.0) as f32, (variance.max(0.0).sqrt() / 255.0) as f32)
}
