//! Answers from a trained model, without training data. Optional for a task: implement
//! [`Inference`], and with it [`TextInference`] for `hetseq generate` or [`FileInference`] for
//! `hetseq predict`, and register that beside the task (see [`Tasks`](super::Tasks)).

use std::io;
use std::path::Path;

use burn::tensor::Device;
use hetseq_data::{Batch, SampleLengths};
use hetseq_models::Network;

use super::{ForwardContext, HuggingFace, TaskError};
use crate::inference::{GenerateOptions, PredictOptions, PredictionFormat};

/// A trained model of a task.
pub trait Inference: Sized + Send + Sync + 'static {
    /// The [`Task::NAME`](super::Task::NAME) of the task whose checkpoints it opens.
    const TASK: &'static str;

    /// The class of `transformers` whose directories it opens too, as in their `config.json`.
    const ARCHITECTURE: Option<&'static str> = None;

    /// The model, a Burn module.
    type Model: Network + 'static;

    /// Builds the model on `device`. Its values do not matter: they are loaded afterwards.
    fn model(&self, device: &Device) -> Self::Model;

    /// The names of the weights. [`HuggingFace::allow_missing`] says which may be missing.
    fn hugging_face(&self) -> &dyn HuggingFace {
        &super::hugging_face::NoInterop
    }

    /// Answers a batch: one answer per row. Device threads call it, all at the same time.
    fn predict(&self, model: &Self::Model, batch: &Batch, ctx: &ForwardContext) -> Result<Vec<Answer>, TaskError>;
}

/// A model that answers lines of text with text. Lines are batched by length.
pub trait TextInference: Inference {
    /// Opens the files of a checkpoint besides its weights.
    fn open(checkpoint: &Path, options: &GenerateOptions) -> Result<Self, TaskError>;

    /// Encodes a line that is not empty.
    fn encode(&self, line: &str) -> Result<EncodedInput, TaskError>;

    /// Collates lines of similar length.
    fn collate(&self, lines: &[&EncodedInput]) -> Result<Batch, TaskError>;
}

/// A model that answers the samples of a file, such as sentences or images, and writes the answers
/// as a file.
pub trait FileInference: Inference {
    /// Opens the files of a checkpoint besides its weights, and reads the input.
    fn open(checkpoint: &Path, options: &PredictOptions) -> Result<Self, TaskError>;

    /// The number of samples in the input, and their lengths.
    fn lengths(&self) -> SampleLengths;

    /// Collates samples of similar length. Called on several threads at the same time.
    fn collate(&self, samples: &[u32]) -> Result<Batch, TaskError>;

    /// Writes the answers to all samples, in their order.
    fn write(&self, answers: &[Answer], format: PredictionFormat, out: &mut dyn io::Write) -> io::Result<()>;
}

/// A line as token ids.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EncodedInput {
    pub tokens: Vec<u32>,
    /// Set if the line had more tokens than the model has positions and was truncated: how many it
    /// had.
    pub tokens_before_cut: Option<usize>,
}

/// The answer to one line or sample.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    /// Texts with scores: candidates, the best first; or one per part of the sample, such as the
    /// labels of its words.
    pub texts: Vec<(String, f64)>,
    /// The number of tokens that were generated or labelled.
    pub tokens: usize,
}
