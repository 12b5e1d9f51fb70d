//! The task API: implement [`TaskData`] and [`Task`] to train a new model or on new data. The
//! trainer does everything else. `examples/custom-task` is a complete task in one file.
//!
//! A task has two halves. The *data* half ([`TaskData`]) says which samples there are and collates
//! them into a [`Batch`] of named arrays. The *compute* half turns a batch into loss sums: a Burn
//! model and its `forward` ([`Task`]). The trainer sees the second half only through `Compute`
//! (`compute.rs`), so a program other than Burn can be one too.
//!
//! Two rules make any mix of machines train like one device:
//!
//! - **Sums, never means.** A task returns the *sum* of each loss term over a micro-batch, and the
//!   count by which that term is divided. The trainer adds both over all machines and divides once.
//! - **Samples are independent.** No operation may mix samples (no batch norm, no in-batch
//!   negatives), because micro-batches are cut to fit each device.

pub(crate) mod compute;
mod forward;
mod hugging_face;
mod inference;
pub(crate) mod registry;
mod samples;
pub(crate) mod skipped_samples;
pub(crate) mod totals;

use burn::tensor::Device;
use hetseq_data::{ArrayError, Batch, ChecksummedFile, DataError, SampleLengths};
use hetseq_engine::EngineError;
use hetseq_models::Network;
use hetseq_optim::OptimError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

pub(crate) use compute::{Compute, ComputeError, OpenedTask, Replica};
pub use forward::{ForwardContext, StepOutput, Term};
pub use hugging_face::HuggingFace;
pub use inference::{Answer, EncodedInput, FileInference, Inference, TextInference};
pub use registry::Tasks;
pub use samples::{Samples, Split};
pub use totals::{Better, Metric, Totals};

/// The data half of a task.
///
/// Every rank opens its own data. The loader's threads call `collate`, several at the same time.
pub trait TaskData: Send + Sync + 'static {
    /// Identifies the data. Ranks whose fingerprint differs from rank 0's are refused, and so is a
    /// resume with a different fingerprint.
    fn fingerprint(&self) -> String;

    /// The number of samples of a split, and the length of each in tokens. Use a uniform length if
    /// all samples cost the same, such as images.
    fn lengths(&self, split: Split) -> SampleLengths;

    /// Collates samples into a micro-batch: its arrays, and one count per loss term.
    ///
    /// Runs on the loader's threads ahead of the device, several micro-batches at once. Rayon calls
    /// in here use the same threads. Use [`Samples::key`] for all randomness, so that the result
    /// does not depend on the worker. A sample that cannot be read may be skipped, see
    /// [`Samples::skip`].
    fn collate(&self, samples: &Samples<'_>) -> Result<Batch, TaskError>;

    /// The loss terms, in the order of [`Batch::counts`] and [`StepOutput::losses`]. By default one
    /// term, `loss`, of weight 1.
    fn terms(&self) -> Vec<Term> {
        vec![Term { name: "loss".to_owned(), weight: 1.0 }]
    }

    /// Data files that have stored checksums. Each rank compares its files with them, and no
    /// checkpoint is saved before all match.
    fn checksummed_files(&self) -> Vec<ChecksummedFile> {
        Vec::new()
    }
}

/// A task: its data ([`TaskData`]), and a Burn model that computes on it. Register it with
/// [`Tasks::with`].
///
/// Device threads call `forward`, all on the same task and at the same time.
pub trait Task: TaskData + Sized {
    /// The value of `run.task` that selects this task.
    const NAME: &'static str;

    /// Keys of the `[task]` table that hold paths.
    ///
    /// Ranks may have different paths. A relative path is made absolute from the current directory,
    /// so that the resolved config can be read from elsewhere. The content at a path must be part
    /// of [`TaskData::fingerprint`] or [`HuggingFace::files`]. Keys that are neither here nor in
    /// [`Task::LOCAL_KEYS`] stay as the user wrote them and must be equal on all ranks.
    const PATH_KEYS: &'static [&'static str] = &[];

    /// Other keys that may differ between ranks, because they do not change the result.
    const LOCAL_KEYS: &'static [&'static str] = &[];

    /// The `[task]` table of the config. Use `#[serde(deny_unknown_fields)]`, so that the error for
    /// a misspelt key names it.
    type Config: Serialize + DeserializeOwned;

    /// The model, a Burn module.
    type Model: Network + 'static;

    /// Opens the data and checks the settings.
    fn open(config: &Self::Config) -> Result<Self, TaskError>;

    /// Builds the model on `device`. Its values do not matter: the trainer sets all parameters (see
    /// [`Network::init`]).
    fn model(&self, device: &Device) -> Self::Model;

    /// Runs one forward pass. Returns the loss *sums*, one scalar per term. When evaluating
    /// ([`ForwardContext::is_training`] is false), also returns the sums from which
    /// [`Task::metrics`] computes.
    fn forward(&self, model: &Self::Model, batch: &Batch, ctx: &ForwardContext) -> Result<StepOutput, TaskError>;

    /// The metrics of an evaluation besides the loss, computed from sums over all ranks.
    /// `checkpoint.best` may name one of them. Called with empty totals first, to check that name
    /// before the run starts: return the same names always.
    fn metrics(&self, _totals: &Totals) -> Vec<Metric> {
        Vec::new()
    }

    /// The exchange of weights with other programs: a pre-trained start, and files that make a
    /// checkpoint loadable elsewhere. By default neither.
    fn hugging_face(&self) -> &dyn HuggingFace {
        &hugging_face::NoInterop
    }
}

/// An error of a task's own code.
#[derive(Debug, Error)]
pub enum TaskError {
    #[error(transparent)]
    Data(#[from] DataError),
    /// A batch lacks an array that the model needs, or has a wrong one.
    #[error(transparent)]
    Array(#[from] ArrayError),
    /// The model's parameters have no usable layout.
    #[error(transparent)]
    Layout(#[from] OptimError),
    /// The task runs in another program.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A message for the user: what is wrong, where, and what to do.
    #[error("{0}")]
    Other(String),
}
