//! The tasks that a binary knows. Registration is explicit: `Tasks::builtin().with::<MyTask>()`. `run.task` selects one, and
//! the whole file is then typed at once as its `Config<T::Config>`, so that an unknown key in any table has a line number.

use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use crate::bench::{self, StepReport, StepRequest};
use crate::error::TrainError;
use crate::evaluate::Evaluation;
use crate::run::{self, RunOptions};
use crate::source::ConfigSource;
use crate::task::Task;
use crate::tasks::bert::BertTask;
use crate::tasks::images::ImageTask;
use crate::tasks::masked_words::MaskedWords;
use crate::tasks::translation::TranslationTask;
use crate::trainer::End;

/// Names and what to do for each.
#[derive(Default)]
pub struct Tasks {
    known: Vec<Box<dyn Runner>>,
}

impl Tasks {
    /// What comes with HetSeq.
    pub fn builtin() -> Self {
        Tasks::default().with::<ImageTask>().with::<BertTask>().with::<TranslationTask>().with::<MaskedWords>()
    }

    /// Add a task of your own; the same name again replaces the earlier one.
    #[must_use]
    pub fn with<T: Task>(mut self) -> Self {
        self.known.retain(|runner| runner.name() != T::NAME);
        self.known.push(Box::new(Of::<T>(PhantomData)));
        self
    }

    /// Names for `run.task`.
    pub fn names(&self) -> Vec<&'static str> {
        self.known.iter().map(|runner| runner.name()).collect()
    }

    /// Whether a run could begin with this config, as far as it tells by itself. The table of a task that is not known here
    /// is left unread.
    pub fn check(&self, source: &ConfigSource) -> Result<(), TrainError> {
        match self.find(source) {
            Ok(runner) => runner.check(source),
            Err(_) => source.parse::<toml::Table>().map(drop),
        }
    }

    pub fn train(&self, source: &ConfigSource, options: &RunOptions) -> Result<End, TrainError> {
        self.find(source)?.train(source, options)
    }

    /// Score `checkpoint` (by default the best, else the newest of the run). Rank 0 also gets which one it was.
    pub fn eval(
        &self,
        source: &ConfigSource,
        options: &RunOptions,
        checkpoint: Option<&Path>,
    ) -> Result<(Option<PathBuf>, Evaluation), TrainError> {
        self.find(source)?.eval(source, options, checkpoint)
    }

    /// Time training steps of the configured task.
    pub fn bench_step(&self, source: &ConfigSource, request: &StepRequest) -> Result<StepReport, TrainError> {
        self.find(source)?.bench_step(source, request)
    }

    fn find(&self, source: &ConfigSource) -> Result<&dyn Runner, TrainError> {
        let name = source.task()?;
        match self.known.iter().find(|runner| runner.name() == name) {
            Some(runner) => Ok(&**runner),
            None => {
                let known = self.names().join(", ");
                Err(TrainError::Config(format!("run.task = \"{name}\": this program knows {known}")))
            }
        }
    }
}

/// A task with its types erased.
trait Runner {
    fn name(&self) -> &'static str;
    fn check(&self, source: &ConfigSource) -> Result<(), TrainError>;
    fn train(&self, source: &ConfigSource, options: &RunOptions) -> Result<End, TrainError>;
    fn eval(
        &self,
        source: &ConfigSource,
        options: &RunOptions,
        checkpoint: Option<&Path>,
    ) -> Result<(Option<PathBuf>, Evaluation), TrainError>;
    fn bench_step(&self, source: &ConfigSource, request: &StepRequest) -> Result<StepReport, TrainError>;
}

struct Of<T>(PhantomData<T>);

impl<T: Task> Runner for Of<T> {
    fn name(&self) -> &'static str {
        T::NAME
    }

    fn check(&self, source: &ConfigSource) -> Result<(), TrainError> {
        source.parse_for::<T>().map(drop)
    }

    fn train(&self, source: &ConfigSource, options: &RunOptions) -> Result<End, TrainError> {
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
