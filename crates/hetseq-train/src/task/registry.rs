//! The tasks of a program. Registration is explicit: `Tasks::builtin().with::<MyTask>()`.
//! `run.task` selects one. The whole file is then parsed as its `Config<T::Config>`, so that the
//! error for an unknown key in any table has a line number.

use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use crate::bench::{self, StepReport, StepRequest};
use crate::config::ConfigSource;
use crate::error::TrainError;
use crate::run::{self, RunOptions};
use crate::task::Task;
use crate::tasks::bert::BertTask;
use crate::tasks::images::ImageTask;
use crate::tasks::synthetic_bert::SyntheticBert;
use crate::tasks::translation::TranslationTask;
use crate::trainer::RunOutcome;
use crate::trainer::evaluate::Evaluation;

/// The registered tasks.
#[derive(Default)]
pub struct Tasks {
    registered: Vec<Box<dyn ErasedTask>>,
}

impl Tasks {
    /// The tasks that are part of HetSeq.
    pub fn builtin() -> Self {
        Tasks::default().with::<ImageTask>().with::<BertTask>().with::<TranslationTask>().with::<SyntheticBert>()
    }

    /// Adds a task. It replaces an earlier task of the same name.
    #[must_use]
    pub fn with<T: Task>(mut self) -> Self {
        self.registered.retain(|task| task.name() != T::NAME);
        self.registered.push(Box::new(TypedTask::<T>(PhantomData)));
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
        self.find(source)?.train(source, options)
    }

    /// Evaluates `checkpoint` (by default the best of the run, else the newest). On rank 0, also
    /// returns the path of the checkpoint.
    pub fn eval(
        &self,
        source: &ConfigSource,
        options: &RunOptions,
        checkpoint: Option<&Path>,
    ) -> Result<(Option<PathBuf>, Evaluation), TrainError> {
        self.find(source)?.eval(source, options, checkpoint)
    }

    /// Measures training steps of the configured task.
    pub fn bench_step(&self, source: &ConfigSource, request: &StepRequest) -> Result<StepReport, TrainError> {
        self.find(source)?.bench_step(source, request)
    }

    fn find(&self, source: &ConfigSource) -> Result<&dyn ErasedTask, TrainError> {
        let name = source.task()?;
        match self.registered.iter().find(|task| task.name() == name) {
            Some(task) => Ok(&**task),
            None => {
                let names = self.names().join(", ");
                Err(TrainError::Config(format!("run.task = \"{name}\" is unknown; available tasks: {names}")))
            }
        }
    }
}

/// A task without its type parameters.
trait ErasedTask {
    fn name(&self) -> &'static str;
    fn check(&self, source: &ConfigSource) -> Result<(), TrainError>;
    fn train(&self, source: &ConfigSource, options: &RunOptions) -> Result<RunOutcome, TrainError>;
    fn eval(
        &self,
        source: &ConfigSource,
        options: &RunOptions,
        checkpoint: Option<&Path>,
    ) -> Result<(Option<PathBuf>, Evaluation), TrainError>;
    fn bench_step(&self, source: &ConfigSource, request: &StepRequest) -> Result<StepReport, TrainError>;
}

struct TypedTask<T>(PhantomData<T>);

impl<T: Task> ErasedTask for TypedTask<T> {
    fn name(&self) -> &'static str {
        T::NAME
    }

    fn check(&self, source: &ConfigSource) -> Result<(), TrainError> {
        source.parse_for::<T>().map(drop)
    }

    fn train(&self, source: &ConfigSource, options: &RunOptions) -> Result<RunOutcome, TrainError> {
        run::train::<T>(source.parse_for::<T>()?, options)
    }

    fn eval(
        &self,
        source: &ConfigSource,
        options: &RunOptions,
        checkpoint: Option<&Path>,
    ) -> Result<(Option<PathBuf>, Evaluation), TrainError> {
        run::eval::<T>(source.parse_for::<T>()?, options, checkpoint)
    }

    fn bench_step(&self, source: &ConfigSource, request: &StepRequest) -> Result<StepReport, TrainError> {
        bench::step::<T>(source.parse_for::<T>()?, request)
    }
}
