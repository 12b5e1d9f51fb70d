//! What a task of one's own needs: `use hetseq_train::prelude::*`.

pub use hetseq_data::{Augment, Costs, DataError};
pub use hetseq_kernels::dropout;
pub use hetseq_models::layers::{Conv2d, GroupNorm, Linear};
pub use hetseq_models::{Init, Network};
pub use hetseq_random::Key;

pub use crate::registry::Tasks;
pub use crate::task::{Metric, Outcome, Pass, Samples, Task, TaskError, Term, Totals, Which};
