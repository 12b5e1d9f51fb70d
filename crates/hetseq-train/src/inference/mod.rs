//! Inference with a trained model: answers to lines of text, on all devices of this machine.

mod generate;

pub(crate) use generate::task_of;
pub use generate::{Cut, GenerateOptions, Generator, Translation};
