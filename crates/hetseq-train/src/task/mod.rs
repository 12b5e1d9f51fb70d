//! The [`Task`] trait: implement it to train a new model or on new data. A task provides the
//! samples, the model and the loss; the trainer does everything else.
//!
//! Two rules make any mix of machines train like one device:
//!
//! - **Sums, never means.** A task returns the *sum* of each loss term over a micro-batch, and the
//!   count by which that term is divided. The trainer adds both over all machines and divides once.
//! - **Samples are independent.** No operation may mix samples (no batch norm, no in-batch
//!   negatives), because micro-batches are cut to fit each device.
//!
//! `examples/custom-task` is a complete task in one file.

pub(crate) mod registry;
pub(crate) mod skipped_samples;

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use burn::tensor::{Device, Tensor};
use hetseq_data::{ChecksummedFile, DataError, SampleLengths};
use hetseq_models::Network;
use hetseq_models::recompute::Tape;
use hetseq_random::Key;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

pub use registry::Tasks;
use skipped_samples::SkippedSample;

/// A training task: data, model and loss.
///
/// Required: [`open`](Task::open), [`fingerprint`](Task::fingerprint), [`lengths`](Task::lengths),
/// [`model`](Task::model), [`collate`](Task::collate), [`counts`](Task::counts) and
/// [`forward`](Task::forward). The other items have defaults. Register the task with
/// [`Tasks::with`].
///
/// Every rank opens its own task. Loader threads call `collate` and device threads call `forward`,
/// all on the same task and at the same time.
pub trait Task: Sized + Send + Sync + 'static {
    /// The value of `run.task` that selects this task.
    const NAME: &'static str;

    /// Keys of the `[task]` table that hold paths.
    ///
    /// Ranks may have different paths. A relative path is made absolute from the current directory,
    /// so that the resolved config can be read from elsewhere. The content at a path must be part
    /// of [`Task::fingerprint`] or [`Task::files`]. Keys that are neither here nor in
    /// [`Task::LOCAL_KEYS`] stay as the user wrote them and must be equal on all ranks.
    const PATH_KEYS: &'static [&'static str] = &[];

    /// Other keys that may differ between ranks, because they do not change the result.
    const LOCAL_KEYS: &'static [&'static str] = &[];

    /// The `[task]` table of the config. Use `#[serde(deny_unknown_fields)]`, so that the error for
    /// a misspelt key names it.
    type Config: Serialize + DeserializeOwned + Clone + Send + Sync + 'static;

    /// The model, a Burn module.
    type Model: Network + 'static;

    /// One collated micro-batch in host memory.
    type Batch: Send + Sync + 'static;

    /// Opens the data and checks the settings.
    fn open(config: &Self::Config) -> Result<Self, TaskError>;

    /// Identifies the data. Ranks whose fingerprint differs from rank 0's are refused, and so is a
    /// resume with a different fingerprint.
    fn fingerprint(&self) -> String;

    /// Data files that have stored checksums. Each rank compares its files with them, and no
    /// checkpoint is saved before all match.
    fn checksummed_files(&self) -> Vec<ChecksummedFile> {
        Vec::new()
    }

    /// The number of samples of a split, and the length of each in tokens. Use a uniform length if
    /// all samples cost the same, such as images.
    fn lengths(&self, split: Split) -> SampleLengths;

    /// The loss terms, in the order of [`StepOutput::losses`] and [`Task::counts`]. By default one
    /// term, `loss`, of weight 1.
    fn terms(&self) -> Vec<Term> {
        vec![Term { name: "loss".to_owned(), weight: 1.0 }]
    }

    /// Builds the model on `device`. Its values do not matter: the trainer sets all parameters (see
    /// [`Network::init`]).
    fn model(&self, device: &Device) -> Self::Model;

    /// Collates samples into a micro-batch.
    ///
    /// Runs on the loader's threads ahead of the device, several micro-batches at once. Rayon calls
    /// in here use the same threads. Use [`Samples::key`] for all randomness, so that the result
    /// does not depend on the worker. A sample that cannot be read may be skipped, see
    /// [`Samples::skip`].
    fn collate(&self, samples: &Samples<'_>) -> Result<Self::Batch, TaskError>;

    /// The count by which each term's loss sum is divided, summed over this micro-batch: samples,
    /// masked tokens, ... One value per term.
    fn counts(&self, batch: &Self::Batch) -> Vec<u64>;

    /// Runs one forward pass. Returns the loss *sums*, one scalar per term. When evaluating
    /// ([`ForwardContext::is_training`] is false), also returns the sums from which
    /// [`Task::measure`] computes the metrics.
    fn forward(&self, model: &Self::Model, batch: &Self::Batch, ctx: &ForwardContext) -> StepOutput;

    /// Names and contents of files to store next to `model.safetensors` in every checkpoint, so
    /// that other programs can load it: a `config.json`, a tokenizer. They must be equal on all
    /// ranks.
    fn files(&self) -> Vec<(String, Vec<u8>)> {
        Vec::new()
    }

    /// Initial weights, instead of random ones: a Hugging Face directory, or a safetensors or
    /// PyTorch file.
    fn init_from(&self) -> Option<&Path> {
        None
    }

    /// Maps the name of a tensor in the files of [`Task::init_from`] to its name in this model.
    /// With `None` the tensor is ignored.
    fn parameter_name(&self, theirs: &str) -> Option<String> {
        Some(theirs.to_owned())
    }

    /// Whether this parameter may be missing in [`Task::init_from`]. It then starts with random
    /// values.
    fn allow_missing(&self, _name: &str) -> bool {
        false
    }

    /// The metrics of an evaluation besides the loss. `checkpoint.best` may name one of them.
    fn metrics(&self) -> Vec<Metric> {
        Vec::new()
    }

    /// Computes the values of [`Task::metrics`], in that order, from sums over all ranks.
    fn measure(&self, _totals: &Totals) -> Vec<f64> {
        Vec::new()
    }
}

/// A metric's name and direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    pub name: &'static str,
    pub better: Better,
}

/// Which values of a metric are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    Lower,
    Higher,
}

impl Metric {
    /// A metric of which lower values are better.
    pub const fn lower(name: &'static str) -> Self {
        Metric { name, better: Better::Lower }
    }

    /// A metric of which higher values are better.
    pub const fn higher(name: &'static str) -> Self {
        Metric { name, better: Better::Higher }
    }
}

/// A part of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Split {
    Train,
    Valid,
}

/// A loss term. Training minimises the sum over terms of `weight * sum of losses / count`.
#[derive(Debug, Clone, PartialEq)]
pub struct Term {
    pub name: String,
    pub weight: f64,
}

/// The samples of one micro-batch, to be collated.
#[derive(Debug)]
pub struct Samples<'a> {
    pub split: Split,
    /// Indices into [`Task::lengths`] of this split.
    pub ids: &'a [u32],
    epoch_key: Key,
    skipped: Mutex<Vec<SkippedSample>>,
}

impl<'a> Samples<'a> {
    pub(crate) fn new(split: Split, ids: &'a [u32], epoch_key: Key) -> Self {
        Samples { split, ids, epoch_key, skipped: Mutex::default() }
    }

    /// The random key of sample `id` in this epoch, for augmentation or masking. It is the same on
    /// every worker.
    pub fn key(&self, id: u32) -> Key {
        self.epoch_key.index(u64::from(id))
    }

    /// Skips the sample `id`. `reason` must name the file.
    ///
    /// The samples of an update are fixed, so a skipped sample keeps its place in the micro-batch.
    /// The task must give it a weight of zero: no loss, no score, and nothing in [`Task::counts`].
    /// The reason is logged once, and the end of the run reports how many samples were skipped.
    pub fn skip(&self, id: u32, reason: impl std::fmt::Display) {
        let mut skipped = self.skipped.lock().unwrap_or_else(PoisonError::into_inner);
        skipped.push(SkippedSample { sample: id, reason: reason.to_string() });
    }

    /// The skipped samples, sorted by id, so that the order does not depend on threads.
    pub(crate) fn into_skipped(self) -> Vec<SkippedSample> {
        let mut skipped = self.skipped.into_inner().unwrap_or_else(PoisonError::into_inner);
        skipped.sort_by_key(|skipped| skipped.sample);
        skipped
    }
}

/// The device, dropout keys and tape of a forward pass.
pub struct ForwardContext {
    /// Create all tensors on this device.
    pub device: Device,
    /// One dropout key per sample of the micro-batch. Empty when evaluating, which disables
    /// dropout.
    pub keys: Vec<Key>,
    /// Runs parts of the model whose inner values are recomputed in the backward pass instead of
    /// kept.
    pub tape: Tape,
}

impl ForwardContext {
    pub(crate) fn new(device: &Device, keys: Vec<Key>) -> Self {
        ForwardContext { device: device.clone(), keys, tape: Tape::default() }
    }

    /// Whether this pass trains. False when evaluating.
    pub fn is_training(&self) -> bool {
        !self.keys.is_empty()
    }
}

/// The result of a forward pass.
#[derive(Debug)]
pub struct StepOutput {
    /// The loss sum of each term.
    pub losses: Vec<Tensor<1>>,
    /// Sums for the metrics, such as the number of correct answers. Only used when evaluating.
    pub scores: Vec<Tensor<1>>,
}

/// Sums of a whole evaluation over all ranks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Totals {
    /// Number of samples, including skipped ones.
    pub samples: u64,
    /// Sums of [`Task::counts`], per term.
    pub counts: Vec<u64>,
    /// Sums of [`StepOutput::losses`], per term.
    pub losses: Vec<f64>,
    /// Sums of [`StepOutput::scores`].
    pub scores: Vec<f64>,
}

/// An error of a task's own code.
#[derive(Debug, Error)]
pub enum TaskError {
    #[error(transparent)]
    Data(#[from] DataError),
    /// A message for the user: what is wrong, where, and what to do.
    #[error("{0}")]
    Other(String),
}
