//! `images`: image classification on MNIST's idx files or class folders of PNG and JPEG, with a
//! small convolutional network or a ResNet. `config` holds the settings, `dataset` reads images,
//! `model` is the network, `predict_images` classifies other files with a trained one.

mod config;
mod dataset;
mod model;
mod predict_images;
#[cfg(test)]
mod tests;

use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Tensor};
use hetseq_data::{Batch, SampleLengths};
use rayon::prelude::*;

use crate::task::{ForwardContext, HuggingFace, Metric, Samples, Split, StepOutput, Task, TaskData, TaskError, Totals};

pub use config::{ImageConfig, ModelName, OnReadError, PerColour, StemName};
use dataset::Dataset;
pub use model::ImageModel;
pub use predict_images::ImageClassifier;
use predict_images::SavedClassifier;

/// The task.
pub struct ImageTask {
    config: ImageConfig,
    dataset: Dataset,
    saved: SavedClassifier,
}

impl ImageTask {
    fn new(config: ImageConfig, dataset: Dataset) -> Self {
        let saved = SavedClassifier::new(&config, &dataset);
        ImageTask { config, dataset, saved }
    }
}

/// The k of top-k accuracy.
const TOP: usize = 5;

impl TaskData for ImageTask {
    fn fingerprint(&self) -> String {
        self.dataset.fingerprint()
    }

    fn lengths(&self, split: Split) -> SampleLengths {
        SampleLengths::Uniform { samples: self.dataset.len(split), tokens: 1 }
    }

    /// Arrays: normalised `pixels` [sample, channel, height, width], `labels` and, if some samples
    /// could not be read, their `weights`: zero for those. The count is the others.
    fn collate(&self, samples: &Samples<'_>) -> Result<Batch, TaskError> {
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
        let batch = Batch::new([readable as u64])
            .with_f32("pixels", [count, channels, height, width], pixels)
            .with_i32("labels", [count, 1], labels);
        Ok(if readable < count { batch.with_f32("weights", [count, 1], weights) } else { batch })
    }
}

impl Task for ImageTask {
    const NAME: &'static str = "images";
    const PATH_KEYS: &'static [&'static str] = &["data"];
    type Config = ImageConfig;
    type Model = ImageModel;

    fn open(config: &ImageConfig) -> Result<Self, TaskError> {
        config.check().map_err(TaskError::Other)?;
        let dataset = Dataset::open(config)?;
        model::check(config, dataset.shape())?;
        Ok(ImageTask::new(config.clone(), dataset))
    }

    fn model(&self, device: &Device) -> ImageModel {
        self.saved.model(device)
    }

    fn forward(&self, model: &ImageModel, batch: &Batch, ctx: &ForwardContext) -> Result<StepOutput, TaskError> {
        let images = ctx.floats::<4>(batch, "pixels")?;
        let labels = ctx.ints::<2>(batch, "labels")?;
        let weights = if batch.contains("weights") { Some(ctx.floats::<2>(batch, "weights")?) } else { None };
        let weigh = |values: Tensor<2>| match &weights {
            Some(weights) => values * weights.clone(),
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
        Ok(StepOutput { losses: vec![loss], scores, ..StepOutput::default() })
    }

    /// Accuracies over the images that could be read.
    fn metrics(&self, totals: &Totals) -> Vec<Metric> {
        let mut metrics = vec![Metric::higher("accuracy", totals.mean_score(0, 0))];
        if self.dataset.classes() > TOP {
            metrics.push(Metric::higher("top5_accuracy", totals.mean_score(1, 0)));
        }
        metrics
    }

    fn hugging_face(&self) -> &dyn HuggingFace {
        &self.saved
    }
}
