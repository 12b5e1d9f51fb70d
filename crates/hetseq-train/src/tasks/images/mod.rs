//! `images`: image classification on MNIST's idx files or class folders of PNG and JPEG, with a
//! small convolutional network or a ResNet. `config` holds the settings, `dataset` reads images,
//! `model` is the network.

mod config;
mod dataset;
mod model;
#[cfg(test)]
mod tests;

use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Int, Tensor, TensorData};
use hetseq_data::SampleLengths;
use rayon::prelude::*;

use crate::task::{ForwardContext, Metric, Samples, Split, StepOutput, Task, TaskError, Totals};

pub use config::{ImageConfig, ModelName, OnReadError, PerColour, StemName};
use dataset::Dataset;
pub use model::ImageModel;

/// The task.
pub struct ImageTask {
    config: ImageConfig,
    dataset: Dataset,
}

/// One micro-batch on the host.
pub struct ImageBatch {
    /// Normalised, [sample, channel, height, width].
    pixels: TensorData,
    labels: TensorData,
    /// Zero for samples that could not be read. `None` if all could.
    weights: Option<TensorData>,
    /// Number of samples that could be read.
    count: u64,
}

/// The k of top-k accuracy.
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

    fn lengths(&self, split: Split) -> SampleLengths {
        SampleLengths::Uniform { samples: self.dataset.len(split), tokens: 1 }
    }

    fn model(&self, device: &Device) -> ImageModel {
        ImageModel::new(&self.config, self.dataset.shape(), self.dataset.classes(), device)
    }

    fn collate(&self, samples: &Samples<'_>) -> Result<ImageBatch, TaskError> {
        let [channels, height, width] = self.dataset.shape();
        let count = samples.ids.len();
        let mut pixels = vec![0.0f32; count * channels * height * width];
        // Reading and decoding is most of the work, so images are read in parallel.
        let read: Vec<_> = samples
            .ids
            .par_iter()
            .zip(pixels.par_chunks_exact_mut(channels * height * width))
            .map(|(&id, out)| self.dataset.read(samples.split, id, samples.key(id), out))
            .collect();
        let (mut labels, mut weights) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for (&id, read) in samples.ids.iter().zip(read) {
            let weight = match read {
                Ok(()) => 1.0f32,
                Err(error) if self.config.on_error == OnReadError::Skip => {
                    samples.skip(id, &error);
                    0.0
                }
                Err(error) => {
                    let hint = "task.on_error = \"skip\" continues without such files";
                    return Err(TaskError::Other(format!("{error}. {hint}")));
                }
            };
            weights.push(weight);
            labels.push(self.dataset.label(samples.split, id) as i32);
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

    fn forward(&self, model: &ImageModel, batch: &ImageBatch, ctx: &ForwardContext) -> StepOutput {
        let images = Tensor::<4>::from_data(batch.pixels.clone(), &ctx.device);
        let labels = Tensor::<2, Int>::from_data(batch.labels.clone(), &ctx.device);
        let weigh = |values: Tensor<2>| match &batch.weights {
            Some(weights) => values * Tensor::from_data(weights.clone(), &ctx.device),
            None => values,
        };
        let logits = model.forward(images, self.config.dropout, &ctx.keys);
        let loss = weigh(log_softmax(logits.clone(), 1).gather(1, labels.clone())).sum().neg();
        let mut scores = Vec::new();
        if !ctx.is_training() {
            scores.push(weigh(logits.clone().argmax(1).equal(labels.clone()).float()).sum());
            let classes = self.dataset.classes();
            if classes > TOP {
                // Counts the classes below the label, not those above it: a NaN is above nothing.
                let below = logits.clone().lower(logits.gather(1, labels)).float().sum_dim(1);
                scores.push(weigh(below.greater_equal_elem((classes - TOP) as f32).float()).sum());
            }
        }
        StepOutput { losses: vec![loss], scores }
    }

    fn metrics(&self) -> Vec<Metric> {
        let mut metrics = vec![Metric::higher("accuracy")];
        if self.dataset.classes() > TOP {
            metrics.push(Metric::higher("top5_accuracy"));
        }
        metrics
    }

    /// Accuracies over the images that could be read.
    fn measure(&self, totals: &Totals) -> Vec<f64> {
        let count = totals.counts.first().copied().unwrap_or(0).max(1) as f64;
        (0..self.metrics().len()).map(|i| totals.scores.get(i).copied().unwrap_or(0.0) / count).collect()
    }
}
