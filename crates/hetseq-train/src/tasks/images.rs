//! Image classification: MNIST's idx files or class folders of PNG and JPEG, with a small convolutional network or a
//! ResNet. Here is the task itself; `config` is what can be set, `dataset` where images come from, `model` what learns.

mod config;
mod dataset;
mod model;
#[cfg(test)]
mod tests;

use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Int, Tensor, TensorData};
use hetseq_data::Costs;
use rayon::prelude::*;

use crate::task::{Metric, Outcome, Pass, Samples, Task, TaskError, Totals, Which};

pub use config::{ImageConfig, ModelName, OnError, PerColour, StemName};
use dataset::Dataset;
pub use model::ImageModel;

pub struct ImageTask {
    config: ImageConfig,
    dataset: Dataset,
}

/// One micro-batch on the host.
pub struct ImageBatch {
    /// Normalised, [sample, channel, height, width].
    pixels: TensorData,
    labels: TensorData,
    /// Zero for samples that could not be read; none if all could.
    weights: Option<TensorData>,
    /// Those that could be read.
    count: u64,
}

/// Right is also who has the answer among this many.
const TOP: usize = 5;

impl Task for ImageTask {
    const NAME: &'static str = "images";
    const PATH_KEYS: &'static [&'static str] = &["data"];
    type Config = ImageConfig;
    type Model = ImageModel;
    type Batch = ImageBatch;

    fn open(config: &ImageConfig) -> Result<Self, TaskError> {
        config.check().map_err(TaskError::Other)?;
        let dataset = Dataset::open(config)?;
        model::check(config, dataset.shape())?;
        Ok(ImageTask { config: config.clone(), dataset })
    }

    fn fingerprint(&self) -> String {
        self.dataset.fingerprint()
    }

    fn costs(&self, which: Which) -> Costs {
        Costs::Uniform { samples: self.dataset.len(which), tokens: 1 }
    }

    fn model(&self, device: &Device) -> ImageModel {
        ImageModel::new(&self.config, self.dataset.shape(), self.dataset.classes(), device)
    }

    fn collate(&self, samples: &Samples<'_>) -> Result<ImageBatch, TaskError> {
        let [channels, height, width] = self.dataset.shape();
        let count = samples.ids.len();
        let mut pixels = vec![0.0f32; count * channels * height * width];
        // Reading and unpacking is most of the work: every image by itself, on whatever thread is free.
        let read: Vec<_> = samples
            .ids
            .par_iter()
            .zip(pixels.par_chunks_exact_mut(channels * height * width))
            .map(|(&id, out)| self.dataset.read(samples.which, id, samples.key(id), out))
            .collect();
        let (mut labels, mut weights) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for (&id, read) in samples.ids.iter().zip(read) {
            let weight = match read {
                Ok(()) => 1.0f32,
                Err(error) if self.config.on_error == OnError::Skip => {
                    samples.skip(id, &error);
                    0.0
                }
                Err(error) => {
                    let hint = "task.on_error = \"skip\" would go on without such files";
                    return Err(TaskError::Other(format!("{error}. {hint}")));
                }
            };
            weights.push(weight);
            labels.push(self.dataset.label(samples.which, id) as i32);
        }
        let readable = weights.iter().filter(|&&weight| weight > 0.0).count();
        Ok(ImageBatch {
            pixels: TensorData::new(pixels, [count, channels, height, width]),
            labels: TensorData::new(labels, [count, 1]),
            weights: (readable < count).then(|| TensorData::new(weights, [count, 1])),
            count: readable as u64,
        })
    }

    fn counts(&self, batch: &ImageBatch) -> Vec<u64> {
        vec![batch.count]
    }

    fn forward(&self, model: &ImageModel, batch: &ImageBatch, pass: &Pass) -> Outcome {
        let images = Tensor::<4>::from_data(batch.pixels.clone(), &pass.device);
        let labels = Tensor::<2, Int>::from_data(batch.labels.clone(), &pass.device);
        let weigh = |values: Tensor<2>| match &batch.weights {
            Some(weights) => values * Tensor::from_data(weights.clone(), &pass.device),
            None => values,
        };
        let logits = model.forward(images, self.config.dropout, &pass.keys);
        let loss = weigh(log_softmax(logits.clone(), 1).gather(1, labels.clone())).sum().neg();
        let mut scores = Vec::new();
        if !pass.is_training() {
            scores.push(weigh(logits.clone().argmax(1).equal(labels.clone()).float()).sum());
            let classes = self.dataset.classes();
            if classes > TOP {
                // By how many it beats, not by how many beat it: what is not a number beats nobody.
                let beaten = logits.clone().lower(logits.gather(1, labels)).float().sum_dim(1);
                scores.push(weigh(beaten.greater_equal_elem((classes - TOP) as f32).float()).sum());
            }
        }
        Outcome { losses: vec![loss], scores }
    }

    fn metrics(&self) -> Vec<Metric> {
        let mut metrics = vec![Metric::higher("accuracy")];
        if self.dataset.classes() > TOP {
            metrics.push(Metric::higher("top5_accuracy"));
        }
        metrics
    }

    /// Of the images that could be read.
    fn measure(&self, totals: &Totals) -> Vec<f64> {
        let count = totals.counts.first().copied().unwrap_or(0).max(1) as f64;
        (0..self.metrics().len()).map(|i| totals.scores.get(i).copied().unwrap_or(0.0) / count).collect()
    }
}
