//! Why an engine did not answer as it should. The kind decides what happens next: see the table in
//! `docs/engine-protocol.md`.

use std::time::Duration;

use thiserror::Error;

#[derive(Debug, Error)]
pub enum EngineError {
    /// The micro-batch is too large.
    #[error("{0}")]
    OutOfMemory(String),
    /// The engine says that its device failed.
    #[error("{0}")]
    Device(String),
    /// The user's code or data is wrong.
    #[error("{0}")]
    Task(String),
    #[error("cannot start `{command}`: {reason}")]
    Start { command: String, reason: String },
    #[error("its process ended{status}{output}")]
    Ended { status: String, output: String },
    #[error("it did not answer `{request}` within {} s{output}", .timeout.as_secs())]
    TimedOut { request: String, timeout: Duration, output: String },
    /// It is not an engine of this version.
    #[error("{0}; see docs/engine-protocol.md")]
    Protocol(String),
    #[error("shared memory: {0}")]
    Memory(std::io::Error),
}
