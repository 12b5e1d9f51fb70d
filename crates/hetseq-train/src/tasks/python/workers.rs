//! Processes that read and collate samples for the loader: as many as its threads ask at the same
//! time. A worker that dies is replaced once per request.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hetseq_engine::{CollatedReply, Engine, EngineError, EngineHello, EngineWelcome, Python, SharedFile, TaskInfo};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::devices::engine;

pub(super) struct Workers {
    python: Python,
    hello: EngineHello,
    /// The `[task]` table.
    config: Value,
    timeout: Duration,
    idle: Mutex<Vec<Engine>>,
}

/// What the first worker says of the task.
pub(super) struct OpenedInWorker {
    pub(super) welcome: EngineWelcome,
    pub(super) info: TaskInfo,
    pub(super) lengths: Option<SharedFile>,
}

impl Workers {
    /// Starts the first worker, which describes the task.
    pub(super) fn start(
        python: Python,
        hello: EngineHello,
        config: Value,
        timeout: Duration,
    ) -> Result<(Self, OpenedInWorker), EngineError> {
        let workers = Workers { python, hello, config, timeout, idle: Mutex::default() };
        let (mut engine, welcome) = workers.start_process()?;
        let (info, files) = engine.request::<TaskInfo>(&workers.open_request(true), &[])?;
        workers.put_back(engine);
        let lengths = files.into_iter().next().map(SharedFile::received);
        Ok((workers, OpenedInWorker { welcome, info, lengths }))
    }

    /// Collates a micro-batch.
    pub(super) fn collate(&self, request: &Value) -> Result<(CollatedReply, SharedFile), EngineError> {
        let (collated, files) = self.request(request, &[])?;
        let file = match files.into_iter().next() {
            Some(descriptor) => SharedFile::received(descriptor),
            None => SharedFile::create(0).map_err(EngineError::Memory)?,
        };
        Ok((collated, file))
    }

    /// Asks a worker that is idle, or starts another one.
    pub(super) fn request<R: DeserializeOwned>(
        &self,
        request: &Value,
        files: &[&SharedFile],
    ) -> Result<(R, Vec<std::os::fd::OwnedFd>), EngineError> {
        let mut has_failed = false;
        loop {
            let mut engine = match self.take_idle() {
                Some(engine) => engine,
                None => self.start_another()?,
            };
            match engine.request(request, files) {
                Err(EngineError::Ended { status, output }) if !has_failed => {
                    has_failed = true;
                    tracing::warn!("a process that reads samples ended{status}{output}; starting another one");
                }
                Err(error @ EngineError::Task(_)) => {
                    self.put_back(engine);
                    return Err(error);
                }
                Err(error) => return Err(error),
                Ok(answer) => {
                    self.put_back(engine);
                    return Ok(answer);
                }
            }
        }
    }

    fn start_another(&self) -> Result<Engine, EngineError> {
        let (mut engine, _) = self.start_process()?;
        engine.request::<Value>(&self.open_request(false), &[])?;
        Ok(engine)
    }

    fn start_process(&self) -> Result<(Engine, EngineWelcome), EngineError> {
        engine::start(&self.python.launch("python", 1, &[]), &self.hello, self.timeout)
    }

    /// Only the first worker describes the task: that needs the model.
    fn open_request(&self, describe: bool) -> Value {
        json!({"do": "open", "task": super::NAME, "config": self.config, "describe": describe})
    }

    fn take_idle(&self) -> Option<Engine> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn put_back(&self, engine: Engine) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(engine);
    }
}
