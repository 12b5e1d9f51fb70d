//! Imports for a custom task: `use hetseq_train::prelude::*`.

pub use burn;
pub use burn::module::Module;
pub use burn::tensor::{Device, Int, Tensor};
pub use hetseq_data::{Augment, Batch, DataError, SampleLengths, fingerprint};
pub use hetseq_kernels::dropout;
pub use hetseq_models::layers::{Conv2d, GroupNorm, Linear};
pub use hetseq_models::{Init, Network};
pub use hetseq_random::Key;

pub use crate::inference::{GenerateOptions, PredictOptions, PredictionFormat};
pub use crate::task::{
    Answer, Better, EncodedInput, FileInference, ForwardContext, HuggingFace, Inference, Metric, Samples, Split,
    StepOutput, Task, TaskData, TaskError, Tasks, Term, TextInference, Totals,
};
