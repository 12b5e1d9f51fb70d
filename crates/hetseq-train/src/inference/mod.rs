//! Inference with a trained model on all devices of this machine: answers to lines of text
//! (`generate.rs`) and to the samples of a file (`predict_file.rs`).

mod generate;
mod predict_file;
mod trained_model;

pub use generate::{Cut, GenerateOptions, Generator, Translation};
pub use predict_file::{PredictOptions, PredictionFormat, Predictor};
pub(crate) use trained_model::{TrainedTask, trained_task};
