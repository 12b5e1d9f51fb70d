//! The task `python`: the user's own PyTorch model and data, in one Python file
//! (docs/pytorch.md). Both halves run in other processes: `workers` read and collate samples, and
//! devices such as `torch:cuda:0` compute (`devices/engine.rs`). Opened by the task registry.

mod python_compute;
mod sum_check;
mod workers;

use std::path::PathBuf;
use std::sync::Arc;

use hetseq_data::{Batch, SampleLengths};
use hetseq_engine::{EngineError, EngineHello, EngineRole, Python, SharedFile, TaskInfo};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::config::{Config, RunConfig};
use crate::devices::engine::{CollatedBatch, EngineSetup, WithEngines};
use crate::error::TrainError;
use crate::task::compute::{OpenedTask, TaskKeys};
use crate::task::{Samples, Split, TaskData, TaskError, Term};

use self::python_compute::PythonCompute;
use self::workers::Workers;

pub(crate) use sum_check::check_sums;

/// The value of `run.task`.
pub(crate) const NAME: &str = "python";
/// Keys of the `[task]` table that are paths, besides those that the class names.
pub(crate) const PATH_KEYS: [&str; 1] = ["file"];

/// The `[task]` table.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PythonConfig {
    /// The file with the class.
    file: PathBuf,
    /// The class; by default `Task`.
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<String>,
    /// All other keys, for the class.
    #[serde(flatten)]
    rest: toml::Table,
}

/// Starts the first worker and opens the task in it.
pub(crate) fn open(config: Config<PythonConfig>) -> Result<(OpenedTask, RunConfig), TrainError> {
    let failed = |reason: TaskError| TrainError::Task { task: NAME.to_owned(), reason: Box::new(reason) };
    let file = &config.task.file;
    if !file.is_file() {
        return Err(TrainError::Config(format!("task.file: there is no file {}", file.display())));
    }
    let python = Python::new(config.run.python.as_deref());
    let hello = EngineHello {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        role: EngineRole::Data,
        device: String::new(),
        threads: 1,
        precision: "f32".to_owned(),
        seed: config.run.seed,
    };
    let table = serde_json::to_value(&config.task).map_err(|error| failed(error.to_string().into()))?;
    let (workers, opened) = Workers::start(python.clone(), hello, table, config.comm.device_timeout())
        .map_err(|error| failed(TaskError::Engine(explain(error, config.run.python.as_deref()))))?;
    for note in &opened.info.notes {
        tracing::info!("{note}");
    }
    let task = PythonTask::new(workers, &opened.info, opened.lengths).map_err(failed)?;
    if task.lengths(Split::Train).samples() == 0 {
        return Err(failed("there are no training samples".into()));
    }
    let devices = opened.welcome.devices.iter().map(|device| format!("torch:{device}")).collect::<Vec<_>>().join(",");
    let task = Arc::new(task);
    let compute = PythonCompute::new(task.clone(), opened.info.clone(), devices).map_err(failed)?;
    let resolved: toml::Table = toml::Table::try_from(&opened.info.config)
        .map_err(|error| failed(format!("its config cannot be written as TOML: {error}").into()))?;
    let seed = config.run.seed;
    let config = config.with_task(resolved);
    let text = toml::to_string(&config)
        .map_err(|error| TrainError::Config(format!("the config cannot be written as TOML: {error}")))?;
    let setup =
        EngineSetup { python, task: NAME.to_owned(), config: opened.info.config.clone(), terms: task.terms(), seed };
    let paths = PATH_KEYS.iter().map(|&key| key.to_owned()).chain(opened.info.path_keys.iter().cloned()).collect();
    let opened_task = OpenedTask {
        name: NAME.into(),
        data: task,
        compute: Arc::new(WithEngines { inner: Arc::new(compute), setup }),
        keys: TaskKeys { paths, local: Vec::new() },
        config: text.into(),
    };
    Ok((opened_task, config))
}

/// Adds what to do if Python or its packages are missing.
fn explain(error: EngineError, python: Option<&str>) -> EngineError {
    match error {
        EngineError::Start { command, reason } => {
            let interpreter = python.unwrap_or("python3");
            let reason = format!("{reason}. Install Python 3.9 or newer, or set run.python (now `{interpreter}`)");
            EngineError::Start { command, reason }
        }
        EngineError::Ended { status, output } if output.contains("No module named 'hetseq") => {
            let output = format!(
                "{output}. Install the wheel hetseq-rs in this Python (docs/pytorch.md), or set run.python to one that has it"
            );
            EngineError::Ended { status, output }
        }
        error => error,
    }
}

/// The data half.
pub(super) struct PythonTask {
    workers: Workers,
    fingerprint: String,
    terms: Vec<Term>,
    train: SampleLengths,
    valid: SampleLengths,
}

impl PythonTask {
    fn new(workers: Workers, info: &TaskInfo, lengths: Option<SharedFile>) -> Result<Self, TaskError> {
        let splits = [&info.splits.train, &info.splits.valid];
        if let Some(split) = splits.iter().find(|split| u32::try_from(split.samples).is_err()) {
            return Err(format!("it has {} samples, but at most {} can be used", split.samples, u32::MAX).into());
        }
        let total = splits.iter().filter(|split| split.has_lengths).map(|split| split.samples).sum();
        let mut all = vec![0u32; total];
        if let Some(file) = lengths {
            file.read(&mut all).map_err(EngineError::Memory)?;
        } else if total > 0 {
            return Err("its engine announced lengths but sent none".into());
        }
        let mut rest = &all[..];
        let mut lengths = |split: &hetseq_engine::SplitInfo| {
            if !split.has_lengths {
                return SampleLengths::Uniform { samples: split.samples, tokens: 1 };
            }
            let (of_split, others) = rest.split_at(split.samples);
            rest = others;
            SampleLengths::PerSample(of_split.to_vec())
        };
        let (train, valid) = (lengths(splits[0]), lengths(splits[1]));
        let term = |term: &hetseq_engine::TermMessage| Term { name: term.name.clone(), weight: term.weight };
        let terms = info.terms.iter().map(term).collect();
        Ok(PythonTask { workers, fingerprint: info.fingerprint.clone(), terms, train, valid })
    }
}

impl TaskData for PythonTask {
    fn fingerprint(&self) -> String {
        self.fingerprint.clone()
    }

    fn lengths(&self, split: Split) -> SampleLengths {
        match split {
            Split::Train => self.train.clone(),
            Split::Valid => self.valid.clone(),
        }
    }

    fn collate(&self, samples: &Samples<'_>) -> Result<Batch, TaskError> {
        let split = match samples.split {
            Split::Train => "train",
            Split::Valid => "valid",
        };
        let request: Value = json!({
            "do": "collate", "split": split, "samples": samples.ids, "epoch_key": samples.epoch_key().number(),
        });
        let (collated, file) = self.workers.collate(&request)?;
        Ok(Batch::new(collated.counts.clone()).with_opaque(Arc::new(CollatedBatch { collated, file })))
    }

    fn terms(&self) -> Vec<Term> {
        self.terms.clone()
    }
}
