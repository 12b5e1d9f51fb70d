//! Answers from a trained model, without training data. Optional for a task: implement
//! [`Inference`] and register it beside the task ([`Tasks::with_inference`](super::Tasks)). Used by
//! `hetseq generate`.

use std::path::Path;

use burn::tensor::Device;
use hetseq_data::Batch;
use hetseq_models::Network;

use super::{ForwardContext, HuggingFace, TaskError};
use crate::inference::GenerateOptions;

/// How a trained model of a task answers lines of text.
///
/// Lines are encoded on the host and batched by length. Device threads call `predict`, all at the
/// same time.
pub trait Inference: Sized + Send + Sync + 'static {
    /// The [`Task::NAME`](super::Task::NAME) of the task whose checkpoints it opens.
    const TASK: &'static str;

    /// The model, a Burn module.
    type Model: Network + 'static;

    /// Opens the files of a checkpoint besides its weights.
    fn open(checkpoint: &Path, options: &GenerateOptions) -> Result<Self, TaskError>;

    /// Builds the model on `device`. Its values do not matter: they are loaded afterwards.
    fn model(&self, device: &Device) -> Self::Model;

    /// The names of the weights. [`HuggingFace::allow_missing`] says which may be missing.
    fn hugging_face(&self) -> &dyn HuggingFace {
        &super::hugging_face::NoInterop
    }

    /// Encodes a line that is not empty.
    fn encode(&self, line: &str) -> Result<EncodedInput, TaskError>;

    /// Collates lines of similar length.
    fn collate(&self, lines: &[&EncodedInput]) -> Result<Batch, TaskError>;

    /// Answers a batch: one prediction per row.
    fn predict(&self, model: &Self::Model, batch: &Batch, ctx: &ForwardContext) -> Result<Vec<Answer>, TaskError>;
}

/// A line as token ids.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EncodedInput {
    pub tokens: Vec<u32>,
    /// Set if the line had more tokens than the model has positions and was truncated: how many it
    /// had.
    pub tokens_before_cut: Option<usize>,
}

/// The answer to one line.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    /// Texts and scores, best first.
    pub candidates: Vec<(String, f64)>,
    /// Tokens of the best candidate.
    pub tokens: usize,
}
