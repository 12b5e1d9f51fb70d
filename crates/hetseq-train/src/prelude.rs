//! Imports for a custom task: `use hetseq_train::prelude::*`.

pub use hetseq_data::{Augment, DataError, SampleLengths};
pub use hetseq_kernels::dropout;
pub use hetseq_models::layers::{Conv2d, GroupNorm, Linear};
pub use hetseq_models::{Init, Network};
pub use hetseq_random::Key;

pub use crate::task::{ForwardContext, Metric, Samples, Split, StepOutput, Task, TaskError, Tasks, Term, Totals};
