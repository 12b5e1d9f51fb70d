//! An engine as its caller sees it: one request at a time, each with a deadline. After an error that
//! is not the engine's own answer the process is killed: what it would send next cannot be trusted.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::channel::Channel;
use crate::messages::{EngineReply, ErrorMessage, PROTOCOL};
use crate::process::EngineProcess;
use crate::{EngineCommand, EngineError, EngineHello, EngineWelcome, MicroRequest, SharedFile};

/// Micro-batches sent ahead of the one that is computed: enough to keep the engine busy, and few
/// enough to fit into the socket's buffer in both directions.
const SENT_AHEAD: usize = 3;
/// Starting Python and importing PyTorch from a slow network disk takes long.
const START_TIMEOUT: Duration = Duration::from_secs(300);

/// A running engine. Dropping it ends the process.
pub struct Engine {
    // Dropped first: the process exits when the socket closes.
    channel: Channel,
    process: EngineProcess,
    timeout: Duration,
}

impl Engine {
    /// Starts a process and shakes hands. It must answer each later request, and compute each
    /// micro-batch, within `timeout`.
    pub fn start(
        launch: &EngineCommand,
        hello: &EngineHello,
        timeout: Duration,
    ) -> Result<(Self, EngineWelcome), EngineError> {
        let (process, socket) = EngineProcess::start(launch)?;
        let failed = |error: io::Error| EngineError::Start { command: launch.command(), reason: error.to_string() };
        let channel = Channel::new(socket, START_TIMEOUT).map_err(failed)?;
        let mut engine = Engine { channel, process, timeout: START_TIMEOUT };
        let mut request = serde_json::to_value(hello).unwrap_or_default();
        request["do"] = json!("hello");
        request["protocol"] = json!(PROTOCOL);
        let welcome: EngineWelcome = engine.request(&request, &[])?.0;
        if welcome.protocol != Some(PROTOCOL) {
            let theirs = welcome.protocol.map_or_else(|| "none".to_owned(), |version| version.to_string());
            return Err(EngineError::Protocol(format!(
                "it speaks version {theirs} of the protocol, but version {PROTOCOL} is needed"
            )));
        }
        engine.channel.set_timeout(timeout).map_err(failed)?;
        engine.timeout = timeout;
        Ok((engine, welcome))
    }

    /// Sends a request and waits for its answer.
    pub fn request<R: DeserializeOwned>(
        &mut self,
        request: &Value,
        files: &[&SharedFile],
    ) -> Result<(R, Vec<OwnedFd>), EngineError> {
        let name = request["do"].as_str().unwrap_or_default();
        self.send(name, request, files)?;
        loop {
            if let (Received::Ok(answer), files) = self.receive(name)? {
                return Ok((answer, files));
            }
        }
    }

    /// Sends `compute` or `evaluate` with its micro-batches, and waits for the result. Calls `done`
    /// after each micro-batch.
    pub fn run<'a, R: DeserializeOwned>(
        &mut self,
        mut request: Value,
        micro_batches: &mut dyn ExactSizeIterator<Item = Result<(MicroRequest<'a>, BatchFile<'a>), EngineError>>,
        done: &mut dyn FnMut(),
    ) -> Result<R, EngineError> {
        request["micro"] = json!(micro_batches.len());
        let name = request["do"].as_str().unwrap_or_default().to_owned();
        self.send(&name, &request, &[])?;
        let mut send_next = |engine: &mut Self| match micro_batches.next() {
            Some(next) => {
                let (micro, file) = next?;
                engine.send(&name, &micro, &[file.as_ref()])
            }
            None => Ok(()),
        };
        for _ in 0..SENT_AHEAD {
            send_next(self)?;
        }
        loop {
            match self.receive(&name)?.0 {
                Received::Ok(answer) => return Ok(answer),
                Received::Done => {
                    done();
                    send_next(self)?;
                }
            }
        }
    }

    fn send(&mut self, name: &str, message: &impl Serialize, files: &[&SharedFile]) -> Result<(), EngineError> {
        let descriptors: Vec<BorrowedFd<'_>> = files.iter().map(|file| file.as_fd()).collect();
        let sent = self.channel.send(message, &descriptors);
        sent.map_err(|error| self.failed(name, &error))
    }

    fn receive<R: DeserializeOwned>(&mut self, name: &str) -> Result<(Received<R>, Vec<OwnedFd>), EngineError> {
        let received = self.channel.receive::<EngineReply>().map_err(|error| self.failed(name, &error))?;
        let Some((answer, files)) = received else { return Err(self.ended()) };
        match answer {
            EngineReply { error: Some(ErrorMessage { kind, message }), .. } => Err(match kind.as_str() {
                "out-of-memory" => EngineError::OutOfMemory(message),
                "task" | "data" => EngineError::Task(message),
                _ => EngineError::Device(message),
            }),
            EngineReply { ok: Some(answer), .. } => match serde_json::from_value(answer) {
                Ok(answer) => Ok((Received::Ok(answer), files)),
                Err(error) => Err(self.broken(format!("its answer to `{name}` is not as expected: {error}"))),
            },
            EngineReply { done: Some(_), .. } => Ok((Received::Done, files)),
            _ => Err(self.broken(format!("its answer to `{name}` has none of `ok`, `error` and `done`"))),
        }
    }

    fn broken(&mut self, reason: String) -> EngineError {
        self.process.kill();
        EngineError::Protocol(reason)
    }

    fn failed(&mut self, request: &str, error: &io::Error) -> EngineError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                self.process.kill();
                let (request, timeout, output) = (request.to_owned(), self.timeout, self.process.output());
                EngineError::TimedOut { request, timeout, output }
            }
            io::ErrorKind::InvalidData => self.broken(error.to_string()),
            _ => self.ended(),
        }
    }

    /// The error for a process that has closed its socket. Waits a moment for its exit status.
    fn ended(&mut self) -> EngineError {
        let status = self.process.status(Duration::from_secs(1));
        self.process.kill();
        EngineError::Ended { status: status.unwrap_or_default(), output: self.process.output() }
    }
}

enum Received<R> {
    Ok(R),
    Done,
}

/// The file of a micro-batch: made for one device, or shared with the loader.
pub enum BatchFile<'a> {
    Owned(SharedFile),
    Borrowed(&'a SharedFile),
}

impl AsRef<SharedFile> for BatchFile<'_> {
    fn as_ref(&self) -> &SharedFile {
        match self {
            BatchFile::Owned(file) => file,
            BatchFile::Borrowed(file) => file,
        }
    }
}
