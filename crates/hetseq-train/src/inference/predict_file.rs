//! Predicts the samples of a file with a trained model. Called by `hetseq predict`, through the
//! task registry.
//!
//! Batches of samples of similar length go to the next free device, the longest first. While the
//! devices compute, a thread collates the next batches. Results are in the order of the samples.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use hetseq_data::{Batch, SampleLengths};
use rayon::prelude::*;
use serde::de::DeserializeOwned;

use super::trained_model::TrainedModel;
use crate::config::ConfigSource;
use crate::data::loader::{Job, MicroBatch};
use crate::devices::DeviceSpec;
use crate::error::TrainError;
use crate::task::{Answer, FileInference, TaskError};

/// Settings of a [`Predictor`].
#[derive(Debug, Clone)]
pub struct PredictOptions {
    pub devices: Vec<DeviceSpec>,
    /// The file to predict, or a directory of files.
    pub input: PathBuf,
    /// Tokens in one batch, including padding.
    pub batch_tokens: usize,
    /// The most samples in one batch.
    pub batch_samples: usize,
    /// `section.key=value` settings that replace those of training, such as the columns of a table.
    pub sets: Vec<String>,
    /// The config of the training run, set when the checkpoint is opened.
    source: Option<ConfigSource>,
}

/// How predictions are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PredictionFormat {
    /// The usual text format of the task: CoNLL columns, or a table separated by tabs.
    Text,
    /// One JSON object per sentence, text or image.
    JsonLines,
}

impl PredictOptions {
    pub fn new(devices: Vec<DeviceSpec>, input: PathBuf) -> Self {
        PredictOptions { devices, input, batch_tokens: 4096, batch_samples: 64, sets: Vec::new(), source: None }
    }

    /// The `[task]` table that the model was trained with, with the user's settings. A directory of
    /// another program has none: then defaults, and an empty string for each of the `required`
    /// keys.
    pub fn task_config<C: DeserializeOwned>(&self, required: &[&str]) -> Result<C, TaskError> {
        let source = match &self.source {
            Some(source) => source.clone(),
            None => {
                let keys: String = required.iter().map(|key| format!("{key} = \"\"\n")).collect();
                // The sections that every config must have.
                let text = format!(
                    "[run]\ntask = \"\"\nmax_updates = 1\n[batch]\nglobal = 1\n[optim]\nname = \"sgd\"\nlr = 1\n[task]\n{keys}"
                );
                ConfigSource::from_text("--set", text, &self.sets)
            }
        };
        Ok(source.parse::<C>().map_err(|error| error.to_string())?.task)
    }

    fn with_config_of(mut self, checkpoint: &Path) -> Result<Self, TrainError> {
        let path = checkpoint.join("config.toml");
        if path.exists() {
            self.source = Some(ConfigSource::read(&path, &self.sets)?);
        }
        Ok(self)
    }
}

/// A trained model, and the file to predict.
pub struct Predictor {
    model: TrainedModel,
    file: Arc<dyn PredictedFile>,
    options: PredictOptions,
}

/// The host's part of a [`FileInference`], without its type.
trait PredictedFile: Send + Sync {
    fn lengths(&self) -> SampleLengths;
    fn collate(&self, samples: &[u32]) -> Result<Batch, TaskError>;
    fn write(&self, answers: &[Answer], format: PredictionFormat, out: &mut dyn io::Write) -> io::Result<()>;
}

impl<I: FileInference> PredictedFile for I {
    fn lengths(&self) -> SampleLengths {
        FileInference::lengths(self)
    }

    fn collate(&self, samples: &[u32]) -> Result<Batch, TaskError> {
        FileInference::collate(self, samples)
    }

    fn write(&self, answers: &[Answer], format: PredictionFormat, out: &mut dyn io::Write) -> io::Result<()> {
        FileInference::write(self, answers, format, out)
    }
}

impl Predictor {
    /// Loads the model of a `checkpoint` that has been verified, and reads the input.
    pub(crate) fn open<I: FileInference>(checkpoint: PathBuf, options: PredictOptions) -> Result<Self, TrainError> {
        let failed = |reason: TaskError| TrainError::Task { task: I::TASK.to_owned(), reason: reason.into() };
        let options = options.with_config_of(&checkpoint)?;
        let inference = Arc::new(I::open(&checkpoint, &options).map_err(failed)?);
        let model = TrainedModel::open(checkpoint, &inference, &options.devices)?;
        Ok(Predictor { model, file: inference, options })
    }

    /// Path of the loaded checkpoint.
    pub fn checkpoint(&self) -> &Path {
        &self.model.checkpoint
    }

    /// The number of samples in the input.
    pub fn samples(&self) -> usize {
        self.file.lengths().samples()
    }

    /// Answers all samples, in their order. `done` is called with the number of samples just
    /// completed and returns whether to continue; `None` if it said no.
    pub fn predict(&mut self, done: &dyn Fn(usize) -> bool) -> Result<Option<Vec<Answer>>, TrainError> {
        let lengths = self.file.lengths();
        let batches = batches(&lengths, self.options.batch_tokens, self.options.batch_samples);
        // Enough for the devices not to wait for each other, and few enough for memory.
        let portion = 8 * self.options.devices.len().max(1);
        let (file, mut answers) = (self.file.clone(), vec![Answer::default(); lengths.samples()]);
        let (mut continues, mut not_finite) = (true, None);
        std::thread::scope(|scope| {
            let (collated, portions) = sync_channel(1);
            scope.spawn(move || collate(&*file, batches, portion, &collated));
            for jobs in portions {
                let jobs = jobs.map_err(|reason| self.model.failed(reason))?;
                self.model.devices.predict(jobs, &mut |job, predicted| {
                    for (&sample, answer) in job.micro.samples.iter().zip(predicted) {
                        if answer.texts.iter().any(|(_, score)| !score.is_finite()) {
                            not_finite.get_or_insert(sample);
                        }
                        answers[sample as usize] = answer;
                    }
                    continues &= done(job.micro.samples.len());
                    continues && not_finite.is_none()
                })?;
                if !continues || not_finite.is_some() {
                    break;
                }
            }
            Ok::<(), TrainError>(())
        })?;
        match not_finite {
            Some(sample) => Err(self.model.score_not_finite(&format!("sample {sample}"))),
            None => Ok(continues.then_some(answers)),
        }
    }

    /// Writes the answers of [`Predictor::predict`].
    pub fn write(&self, answers: &[Answer], format: PredictionFormat, out: &mut dyn io::Write) -> io::Result<()> {
        self.file.write(answers, format, out)
    }
}

type Collated = Result<Vec<Arc<Job>>, TaskError>;

/// Collates the batches, a portion at a time, until all are sent or none is received.
fn collate(file: &dyn PredictedFile, batches: Vec<MicroBatch>, portion: usize, collated: &SyncSender<Collated>) {
    for portion in batches.chunks(portion) {
        let job = |micro: &MicroBatch| {
            let batch = file.collate(&micro.samples)?;
            Ok(Arc::new(Job { micro: micro.clone(), batch }))
        };
        let jobs: Collated = portion.par_iter().map(job).collect();
        if collated.send(jobs).is_err() {
            return;
        }
    }
}

/// Groups samples into batches, the longest first, so that the last batches are short.
fn batches(lengths: &SampleLengths, max_tokens: usize, max_samples: usize) -> Vec<MicroBatch> {
    let mut order: Vec<u32> = (0..lengths.samples() as u32).collect();
    order.sort_by_key(|&sample| (std::cmp::Reverse(lengths.padded(sample)), sample));
    let mut batches: Vec<MicroBatch> = Vec::new();
    for sample in order {
        match batches.last_mut() {
            Some(MicroBatch { samples, longest })
                if samples.len() < max_samples && (samples.len() + 1) * *longest as usize <= max_tokens =>
            {
                samples.push(sample);
            }
            _ => batches.push(MicroBatch { samples: vec![sample], longest: lengths.padded(sample) }),
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_hold_each_sample_once_and_respect_the_limits() {
        let lengths = SampleLengths::PerSample(vec![3, 9, 1, 40, 9, 8, 2, 7, 7, 7]);
        let batches = batches(&lengths, 20, 3);
        assert_eq!((&batches[0].samples[..], batches[0].longest), (&[3][..], 40), "too long for the limit, so alone");
        for MicroBatch { samples, longest } in &batches[1..] {
            assert!(samples.len() <= 3 && samples.len() * *longest as usize <= 20, "{batches:?}");
        }
        let mut samples: Vec<u32> = batches.into_iter().flat_map(|batch| batch.samples).collect();
        samples.sort_unstable();
        assert_eq!(samples, (0..10).collect::<Vec<_>>());
    }
}
