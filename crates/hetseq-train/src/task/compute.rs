//! The compute half of a task, as the trainer and the device pool see it: without the model's type.
//! `devices/burn_compute.rs` implements it for Burn models. Nothing here knows tensors.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use hetseq_kernels::Dtype;
use hetseq_optim::{Layout, OptimError, ParameterGroups};
use thiserror::Error;

use super::{Answer, HuggingFace, Metric, Task, TaskData, TaskError, Totals};
use crate::data::loader::Job;
use crate::devices::{DeviceSpec, PrecisionPolicy, StepParams};
use crate::error::TrainError;

/// A task whose type is no longer visible. Cheap to clone.
#[derive(Clone)]
pub(crate) struct OpenedTask {
    pub(crate) name: Arc<str>,
    pub(crate) data: Arc<dyn TaskData>,
    pub(crate) compute: Arc<dyn Compute>,
    pub(crate) keys: TaskKeys,
    /// The resolved config, as written to `config.toml`.
    pub(crate) config: Arc<str>,
}

/// Keys of the `[task]` table that may differ between ranks: `Task::PATH_KEYS`,
/// `Task::LOCAL_KEYS`.
#[derive(Debug, Clone, Default)]
pub(crate) struct TaskKeys {
    pub(crate) paths: Vec<String>,
    pub(crate) local: Vec<String>,
}

impl TaskKeys {
    pub(crate) fn of<T: Task>() -> Self {
        let owned = |keys: &[&str]| keys.iter().map(|&key| key.to_owned()).collect();
        TaskKeys { paths: owned(T::PATH_KEYS), local: owned(T::LOCAL_KEYS) }
    }
}

impl OpenedTask {
    /// Names, shapes and order of the parameters, all of them trainable.
    pub(crate) fn layout(&self) -> Result<Layout, TrainError> {
        self.compute.layout().map_err(|reason| self.error(reason))
    }

    /// The error for a task that cannot be used as it is configured.
    pub(crate) fn error(&self, reason: impl Into<TaskError>) -> TrainError {
        TrainError::Task { task: self.name.to_string(), reason: Box::new(reason.into()) }
    }

    /// The error for samples that cannot be collated.
    pub(crate) fn collate_error(&self, reason: impl Into<TaskError>) -> TrainError {
        TrainError::Collate { task: self.name.to_string(), reason: Box::new(reason.into()) }
    }
}

/// What computes on batches. One per process.
pub(crate) trait Compute: Send + Sync {
    /// Names, shapes and order of the parameters, all of them trainable.
    fn layout(&self) -> Result<Layout, TaskError>;

    /// The parameters of a new run: a function of the seed and the parameters' names.
    fn initial(&self, layout: &Layout, seed: u64) -> Result<Vec<f32>, TaskError>;

    /// Learning-rate scales and weight decay per parameter, if the task sets them.
    fn groups(&self, _layout: &Layout) -> Option<Result<ParameterGroups, OptimError>> {
        None
    }

    /// A fingerprint of code that is not part of this program. Ranks must have the same, but a resume
    /// may have changed it.
    fn code(&self) -> Option<String> {
        None
    }

    /// The devices for `run.devices = "all"`, if they are not those of Burn.
    fn all_devices(&self) -> Option<String> {
        None
    }

    /// Whether it computes on CPU devices of this process, so that they can replace a failed device.
    fn runs_on_cpu(&self) -> bool {
        true
    }

    /// Opens a device and builds a replica of the model on it. Called on the device's thread, which
    /// the replica never leaves.
    fn open(&self, spec: &DeviceSpec, setup: &ReplicaSetup) -> Result<Box<dyn Replica>, ComputeError>;

    /// Metrics of an evaluation, as in `Task::metrics`.
    fn metrics(&self, totals: &Totals) -> Result<Vec<Metric>, TaskError>;

    fn hugging_face(&self) -> &dyn HuggingFace;
}

/// What a replica is built with, besides its device.
#[derive(Clone)]
pub(crate) struct ReplicaSetup {
    pub(crate) layout: Arc<Layout>,
    pub(crate) policy: PrecisionPolicy,
    /// The replica counts finished micro-batches here. Shows the process that it is not stuck.
    pub(crate) steps: Arc<AtomicU64>,
    /// How long it may take for one micro-batch.
    pub(crate) hang_timeout: Duration,
}

/// One device's copy of the model.
pub(crate) trait Replica {
    /// The dtype of its products.
    fn precision(&self) -> Dtype;

    /// The size of the device's own memory, if the replica knows it.
    fn memory_bytes(&self) -> Option<u64> {
        None
    }

    /// Loads the first `count` parameters: all, or the trainable ones, which come first; the others
    /// have not changed. A replica in host memory shares them.
    fn load(&mut self, parameters: &Arc<Vec<f32>>, count: usize) -> Result<(), ComputeError>;

    /// Drops parameters that it shares. It computes nothing before the next load.
    fn release(&mut self) {}

    /// Computes the gradients of `sum over terms of scales[t] * loss sum t`, added up over the
    /// micro-batches. Without micro-batches they are zeros.
    fn gradients(&mut self, jobs: &[Arc<Job>], params: &StepParams) -> Result<GradientSums, ComputeError>;

    /// Computes sums of losses and scores without dropout, and the time that took.
    fn evaluate(&mut self, jobs: &[Arc<Job>]) -> Result<(Totals, Duration), ComputeError>;

    /// Answers the rows of all micro-batches, in their order.
    fn predict(&mut self, jobs: &[Arc<Job>]) -> Result<Vec<Answer>, ComputeError>;
}

/// A device's result for one update.
pub(crate) struct GradientSums {
    /// The flat gradient sum of the trainable parameters, then the loss sum of each term.
    pub(crate) flat: Vec<f32>,
    /// Whether gradients overflowed in `f16`.
    pub(crate) has_overflowed: bool,
    /// Time for the micro-batches.
    pub(crate) compute: Duration,
    /// Time after them, to download the gradients.
    pub(crate) after: Duration,
    /// GPU memory, not host memory. The backend keeps freed memory, so this is the peak.
    pub(crate) held_bytes: Option<u64>,
}

/// Why a device did not compute. The kind decides what happens next.
#[derive(Debug, Error)]
pub(crate) enum ComputeError {
    /// The device cuts its micro-batches and tries again.
    #[error("{0}")]
    OutOfMemory(String),
    #[error(
        "{reason}; not even one sample of {tokens} tokens fits: use a device with more memory, a smaller model or shorter \
         samples"
    )]
    SampleTooLarge { reason: String, tokens: u32 },
    /// The device failed: it is dropped, and others compute its samples.
    #[error("{0}")]
    Device(String),
    #[error("it hangs: it completed nothing for {} s (a third of comm.progress_s)", .0.as_secs_f64())]
    Hung(Duration),
    #[error("its thread has ended")]
    ThreadEnded,
    #[error("it replied to another command than the last one")]
    UnexpectedReply,
    /// Samples could not be collated again, for smaller micro-batches. Not the device's fault: the
    /// run ends.
    #[error("{0}")]
    Collate(TaskError),
    /// The task's own code returned an error. It would on every device: the run ends.
    #[error("{0}")]
    Task(TaskError),
}

impl ComputeError {
    /// The error for a message of a backend or allocator, which is all that they give.
    pub(crate) fn from_message(message: String) -> Self {
        const PHRASES: [&str; 6] = [
            "out of memory",
            "outofmemory",
            "memory allocation",
            "out of device memory",
            "can't allocate",
            "buffertoobig",
        ];
        let lower = message.to_lowercase();
        match PHRASES.iter().any(|phrase| lower.contains(phrase)) {
            true => ComputeError::OutOfMemory(message),
            false => ComputeError::Device(message),
        }
    }
}

impl From<TaskError> for ComputeError {
    fn from(error: TaskError) -> Self {
        ComputeError::Task(error)
    }
}

impl From<String> for TaskError {
    fn from(message: String) -> Self {
        TaskError::Other(message)
    }
}

impl From<&str> for TaskError {
    fn from(message: &str) -> Self {
        TaskError::Other(message.to_owned())
    }
}
