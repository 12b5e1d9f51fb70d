//! Engines: programs such as PyTorch that compute gradients, or read samples, in child processes.
//!
//! The protocol is in `docs/engine-protocol.md`. `process` starts and ends a program, `channel` moves
//! messages and file descriptors, `shared_file` holds arrays that both sides see, `messages` are the
//! types of the protocol, and [`Engine`] makes requests. Nothing here knows the trainer or tensors;
//! `hetseq-train` makes devices (`devices/engine.rs`) and a task (`tasks/python`) of engines.

mod channel;
mod engine;
mod error;
mod messages;
mod process;
mod python;
mod shared_file;

pub use engine::{BatchFile, Engine};
pub use error::EngineError;
pub use messages::{
    ArrayMessage, CollatedReply, ComputeReply, EngineHello, EngineRole, EngineWelcome, EvaluateReply,
    LayoutEntryMessage, MetricMessage, MicroRequest, ParameterInfo, SplitInfo, SplitInfos, TaskInfo, TermMessage, bits,
    from_bits,
};
pub use process::EngineCommand;
pub use python::Python;
pub use shared_file::{SharedFile, batch_file};
