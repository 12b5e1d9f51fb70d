//! The tasks of a program. Registration is explicit: `Tasks::builtin().with::<MyTask>()`.
//! `run.task` selects one. The whole file is then parsed as its `Config<T::Config>`, so that the
//! error for an unknown key in any table has a line number. From here on the task's type is no
//! longer visible ([`OpenedTask`]).

use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hetseq_engine::Python;

use super::compute::{OpenedTask, TaskKeys};
use super::{FileInference, Split, Task, TaskData, TaskError, TextInference};
use crate::bench::{self, StepReport, StepRequest, Trial, TrialRequest};
use crate::checkpoint::Checkpoints;
use crate::config::names::did_you_mean_task;
use crate::config::{Config, ConfigSource, RunConfig};
use crate::devices::burn_compute;
use crate::devices::engine::{EngineSetup, WithEngines};
use crate::error::TrainError;
use crate::inference::{GenerateOptions, Generator, PredictOptions, Predictor, TrainedTask, trained_task};
use crate::run::{self, RunOptions};
use crate::tasks::bert::BertTask;
use crate::tasks::fine_tuning::{
    EntityHead, EntityLinking, FineTuned, SequenceClassification, SequenceHead, TokenClassification, TokenHead,
};
use crate::tasks::images::{ImageClassifier, ImageTask};
use crate::tasks::python::{self, PythonConfig};
use crate::tasks::synthetic_bert::SyntheticBert;
use crate::tasks::translation::{TranslationTask, Translator};
use crate::trainer::RunOutcome;
use crate::trainer::evaluate::Evaluation;

/// The registered tasks.
#[derive(Default)]
pub struct Tasks {
    registered: Vec<Box<dyn ErasedTask>>,
    generators: Vec<Opens<Generator, GenerateOptions>>,
    predictors: Vec<Opens<Predictor, PredictOptions>>,
}

/// How checkpoints of one task are opened for inference.
struct Opens<M, O> {
    task: &'static str,
    architecture: Option<&'static str>,
    open: fn(PathBuf, O) -> Result<M, TrainError>,
}

impl Tasks {
    /// The tasks that are part of HetSeq.
    pub fn builtin() -> Self {
        Tasks::default()
            .with::<ImageTask>()
            .with_predictor::<ImageClassifier>()
            .with::<BertTask>()
            .with::<TokenClassification>()
            .with_predictor::<FineTuned<TokenHead>>()
            .with::<EntityLinking>()
            .with_predictor::<FineTuned<EntityHead>>()
            .with::<SequenceClassification>()
            .with_predictor::<FineTuned<SequenceHead>>()
            .with::<TranslationTask>()
            .with_generator::<Translator>()
            .with::<SyntheticBert>()
            .with_erased(Box::new(PythonTasks))
    }

    /// Adds a task. It replaces an earlier task of the same name.
    #[must_use]
    pub fn with<T: Task>(mut self) -> Self {
        self.registered.retain(|task| task.name() != T::NAME);
        self.registered.push(Box::new(TypedTask::<T>(PhantomData)));
        self
    }

    fn with_erased(mut self, task: Box<dyn ErasedTask>) -> Self {
        self.registered.push(task);
        self
    }

    /// Adds what `hetseq generate` uses for checkpoints of a task. It replaces an earlier one of the
    /// same task.
    #[must_use]
    pub fn with_generator<I: TextInference>(mut self) -> Self {
        self.generators.retain(|known| known.task != I::TASK);
        self.generators.push(Opens { task: I::TASK, architecture: I::ARCHITECTURE, open: Generator::open::<I> });
        self
    }

    /// Adds what `hetseq predict` uses for checkpoints of a task. It replaces an earlier one of the
    /// same task.
    #[must_use]
    pub fn with_predictor<I: FileInference>(mut self) -> Self {
        self.predictors.retain(|known| known.task != I::TASK);
        self.predictors.push(Opens { task: I::TASK, architecture: I::ARCHITECTURE, open: Predictor::open::<I> });
        self
    }

    /// The possible values of `run.task`.
    pub fn names(&self) -> Vec<&'static str> {
        self.registered.iter().map(|task| task.name()).collect()
    }

    /// Checks the config without opening any data. The `[task]` table of an unknown task is not
    /// checked.
    pub fn check(&self, source: &ConfigSource) -> Result<(), TrainError> {
        match self.find(source) {
            Ok(task) => task.check(source),
            Err(_) => source.parse::<toml::Table>().map(drop),
        }
    }

    /// Trains the configured task.
    pub fn train(&self, source: &ConfigSource, options: &RunOptions) -> Result<RunOutcome, TrainError> {
        let (task, config) = self.find(source)?.open(source)?;
        run::train(&task, config, options)
    }

    /// Evaluates `checkpoint` (by default the best of the run, else the newest). On rank 0, also
    /// returns the path of the checkpoint.
    pub fn eval(
        &self,
        source: &ConfigSource,
        options: &RunOptions,
        checkpoint: Option<&Path>,
    ) -> Result<(Option<PathBuf>, Evaluation), TrainError> {
        let (task, config) = self.find(source)?.open(source)?;
        run::eval(&task, &config, options, checkpoint)
    }

    /// Measures training steps of the configured task.
    pub fn bench_step(&self, source: &ConfigSource, request: &StepRequest) -> Result<StepReport, TrainError> {
        let (task, config) = self.find(source)?.open(source)?;
        bench::step(&task, &config, request)
    }

    /// Trains the configured task for some updates in memory, without a run directory.
    pub fn trial(&self, source: &ConfigSource, request: &TrialRequest) -> Result<Trial, TrainError> {
        let (task, config) = self.find(source)?.open(source)?;
        bench::trial(&task, &config, request)
    }

    /// Opens a trained model that answers lines of text. `path` is a run (its best checkpoint is
    /// used, else the newest), a checkpoint, or a model directory of another program.
    pub fn generator(&self, path: &Path, options: GenerateOptions) -> Result<Generator, TrainError> {
        let instead = self.predictors.iter().map(|opens| opens.task).collect();
        open_trained(&self.generators, path, options, "generates no text", ("hetseq predict", instead))
    }

    /// Opens a trained model that predicts the samples of a file. `path` as for
    /// [`Tasks::generator`].
    pub fn predictor(&self, path: &Path, options: PredictOptions) -> Result<Predictor, TrainError> {
        let instead = self.generators.iter().map(|opens| opens.task).collect();
        open_trained(&self.predictors, path, options, "cannot predict files", ("hetseq generate", instead))
    }

    fn find(&self, source: &ConfigSource) -> Result<&dyn ErasedTask, TrainError> {
        let name = source.task()?;
        match self.registered.iter().find(|task| task.name() == name) {
            Some(task) => Ok(&**task),
            None => {
                let hint = did_you_mean_task(&name, self.names().into_iter());
                let names = self.names().join(", ");
                Err(TrainError::Config(format!("run.task = \"{name}\" is unknown.{hint} Available tasks: {names}")))
            }
        }
    }
}

/// Opens the checkpoint of `path` with the inference of its task. `refusal` is what a task without
/// one does, `instead` the other command with its tasks.
fn open_trained<M, O>(
    known: &[Opens<M, O>],
    path: &Path,
    options: O,
    refusal: &str,
    instead: (&str, Vec<&str>),
) -> Result<M, TrainError> {
    let checkpoint = Checkpoints::resolve(path)?;
    let trained = trained_task(&checkpoint);
    // A directory of another program need not name a class that we know. If there is only one
    // inference, its files show whether it fits.
    let only = || if matches!(trained, TrainedTask::Named(_)) || known.len() > 1 { None } else { known.first() };
    if let Some(opens) = known.iter().find(|opens| trained.fits(opens.task, opens.architecture)).or_else(only) {
        return (opens.open)(checkpoint, options);
    }
    let is_of = |tasks: &[&str]| matches!(&trained, TrainedTask::Named(task) if tasks.contains(&task.as_str()));
    let advice = if is_of(&instead.1) { format!("; use `{}`", instead.0) } else { String::new() };
    let model = match trained {
        TrainedTask::Named(task) => format!("a model of the task {task}, which {refusal}"),
        TrainedTask::Architecture(class) => format!("a {class}, which {refusal}"),
        TrainedTask::Unknown => "no model directory: there is neither a config.toml nor a config.json in it".to_owned(),
    };
    let tasks: Vec<&str> = known.iter().map(|opens| opens.task).collect();
    let (path, tasks) = (checkpoint.display(), tasks.join(", "));
    Err(TrainError::Config(format!("{path} is {model}{advice}; tasks that can be used: {tasks}")))
}

/// A task without its type parameters.
trait ErasedTask {
    fn name(&self) -> &'static str;
    fn check(&self, source: &ConfigSource) -> Result<(), TrainError>;
    fn open(&self, source: &ConfigSource) -> Result<(OpenedTask, RunConfig), TrainError>;
}

struct TypedTask<T>(PhantomData<T>);

impl<T: Task> ErasedTask for TypedTask<T> {
    fn name(&self) -> &'static str {
        T::NAME
    }

    fn check(&self, source: &ConfigSource) -> Result<(), TrainError> {
        source.parse_for::<T>().map(drop)
    }

    fn open(&self, source: &ConfigSource) -> Result<(OpenedTask, RunConfig), TrainError> {
        let config = source.parse_for::<T>()?;
        let unwritable = |error: &dyn std::fmt::Display| {
            TrainError::Config(format!("the config cannot be written as TOML: {error}"))
        };
        let text = toml::to_string(&config).map_err(|error| unwritable(&error))?;
        let task = OpenedTask::new(open::<T>(&config)?, text);
        let table = toml::Table::try_from(&config.task).map_err(|error| unwritable(&error))?;
        let setup = EngineSetup {
            python: Python::new(config.run.python.as_deref()),
            task: T::NAME.to_owned(),
            config: serde_json::to_value(&table).map_err(|error| unwritable(&error))?,
            terms: task.data.terms(),
            seed: config.run.seed,
        };
        let compute = Arc::new(WithEngines { inner: task.compute.clone(), setup });
        Ok((OpenedTask { compute, ..task }, config.with_task(table)))
    }
}

/// Tasks of users, in Python.
struct PythonTasks;

impl ErasedTask for PythonTasks {
    fn name(&self) -> &'static str {
        python::NAME
    }

    fn check(&self, source: &ConfigSource) -> Result<(), TrainError> {
        source.parse_with::<PythonConfig>(&python::PATH_KEYS).map(drop)
    }

    fn open(&self, source: &ConfigSource) -> Result<(OpenedTask, RunConfig), TrainError> {
        python::open(source.parse_with(&python::PATH_KEYS)?)
    }
}

fn open<T: Task>(config: &Config<T::Config>) -> Result<T, TrainError> {
    let failed = |reason: TaskError| TrainError::Task { task: T::NAME.to_owned(), reason: reason.into() };
    let task = T::open(&config.task).map_err(failed)?;
    if task.lengths(Split::Train).samples() == 0 {
        return Err(failed("there are no training samples".into()));
    }
    Ok(task)
}

impl OpenedTask {
    /// Hides the type of `task`. `config` is the resolved config.
    pub(crate) fn new<T: Task>(task: T, config: String) -> Self {
        let task = Arc::new(task);
        OpenedTask {
            name: T::NAME.into(),
            data: task.clone() as Arc<dyn TaskData>,
            compute: Arc::new(burn_compute::training(task)),
            keys: TaskKeys::of::<T>(),
            config: config.into(),
        }
    }
}
