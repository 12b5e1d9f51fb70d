//! A trained model on the devices of this machine. Opened by `generate.rs` and `predict_file.rs`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hetseq_data::{Batch, SampleLengths};

use crate::checkpoint::weights;
use crate::config::current_task_name;
use crate::devices::{DeviceSpec, Devices, PrecisionPolicy, burn_compute};
use crate::error::TrainError;
use crate::task::compute::TaskKeys;
use crate::task::{Inference, OpenedTask, Samples, Split, TaskData, TaskError};

/// How long a device may take for one batch.
const HANG_TIMEOUT: Duration = Duration::from_secs(600);

pub(super) struct TrainedModel {
    pub(super) checkpoint: PathBuf,
    pub(super) devices: Devices,
    task: &'static str,
    /// Kept for a device that replaces a failed one.
    _parameters: Arc<Vec<f32>>,
}

impl TrainedModel {
    /// Loads the weights of a `checkpoint` that has been verified.
    pub(super) fn open<I: Inference>(
        checkpoint: PathBuf,
        inference: &Arc<I>,
        devices: &[DeviceSpec],
    ) -> Result<Self, TrainError> {
        let task = OpenedTask {
            name: I::TASK.into(),
            data: Arc::new(NoData),
            compute: Arc::new(burn_compute::predicting(inference.clone())),
            keys: TaskKeys::default(),
            config: "".into(),
        };
        let layout = Arc::new(task.layout()?);
        let names = inference.hugging_face();
        let mut parameters = task.compute.initial(&layout, 0).map_err(|reason| task.error(reason))?;
        let found = weights::read(&checkpoint, &layout, &|name: &str| names.parameter_name(name), &mut parameters)
            .map_err(TrainError::checkpoint(&checkpoint))?;
        if let Some(missing) = found.missing.iter().find(|name| !names.allow_missing(name)) {
            let reason = format!("the tensor {missing} is missing, which the model of its config.json has");
            return Err(TrainError::Checkpoint { path: checkpoint, reason });
        }
        let mut devices = Devices::start(&task, &layout, devices, PrecisionPolicy::default(), HANG_TIMEOUT)?;
        let parameters = Arc::new(parameters);
        devices.load(&parameters)?;
        Ok(TrainedModel { checkpoint, devices, task: I::TASK, _parameters: parameters })
    }

    /// The error for an input that the task cannot use.
    pub(super) fn failed(&self, reason: TaskError) -> TrainError {
        TrainError::Task { task: self.task.to_owned(), reason: reason.into() }
    }

    /// The weights are finite, but the scores of `what` are not.
    pub(super) fn score_not_finite(&self, what: &str) -> TrainError {
        let reason = format!("its scores for {what} are not finite. Use an earlier checkpoint");
        TrainError::Checkpoint { path: self.checkpoint.clone(), reason }
    }
}

/// The data of a model that is opened without any.
struct NoData;

impl TaskData for NoData {
    fn fingerprint(&self) -> String {
        String::new()
    }

    fn lengths(&self, _split: Split) -> SampleLengths {
        SampleLengths::Uniform { samples: 0, tokens: 0 }
    }

    fn collate(&self, _samples: &Samples<'_>) -> Result<Batch, TaskError> {
        Err("a model opened for inference has no samples".into())
    }
}

/// What a checkpoint says about its task.
pub(crate) enum TrainedTask {
    /// The task of its `config.toml`.
    Named(String),
    /// The class in the `config.json` of another program.
    Architecture(String),
    Unknown,
}

impl TrainedTask {
    /// Whether `I` opens the checkpoint, so far as can be known.
    pub(crate) fn fits(&self, task: &str, architecture: Option<&str>) -> bool {
        match self {
            TrainedTask::Named(name) => name == task,
            TrainedTask::Architecture(class) => architecture == Some(class),
            TrainedTask::Unknown => false,
        }
    }
}

/// The task that a checkpoint was trained with. A directory of another program has no
/// `config.toml`.
pub(crate) fn trained_task(checkpoint: &Path) -> TrainedTask {
    let read = |name: &str| fs_err::read_to_string(checkpoint.join(name)).ok();
    let of_run = || {
        let config: toml::Table = read("config.toml")?.parse().ok()?;
        let task = config.get("run")?.get("task")?.as_str()?;
        Some(TrainedTask::Named(current_task_name(task).to_owned()))
    };
    let of_model = || {
        let config: serde_json::Value = serde_json::from_str(&read("config.json")?).ok()?;
        let class = config.get("architectures")?.get(0)?.as_str()?;
        Some(TrainedTask::Architecture(class.to_owned()))
    };
    of_run().or_else(of_model).unwrap_or(TrainedTask::Unknown)
}
