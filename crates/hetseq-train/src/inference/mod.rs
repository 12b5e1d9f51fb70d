//! Inference with a trained model: translation of text files on all devices of this machine.

pub mod generate;
mod work_queue;
