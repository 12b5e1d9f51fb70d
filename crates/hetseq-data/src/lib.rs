//! From files to updates: sources, the batch plan and the cursor.
//!
//! The modules follow the data. A [`source`] holds samples; a [`plan`] says which of them form update `k`; [`augment`]
//! varies a sample on its way to the device; a [`cursor`] is all that resuming needs. Which device computes which of an
//! update's samples is the business of `hetseq-balance`.
//!
//! Text takes a longer way: [`prep`] reads it, [`tokenize`] makes tokens of it, [`source`] keeps them in shards, and
//! [`pretrain`] makes samples of those, which [`mask`] hides parts of, or [`translate`] pairs.
//!
//! Nothing here knows what a tensor, a network or a peer is. `plan` does no I/O, reads no clock and draws no unkeyed
//! random number: every rank calls it with the same arguments and gets the same bits, so that the ranks never have to
//! tell each other which samples come next.
//!
//! ```
//! use hetseq_data::{Costs, EpochPlan, GlobalBatch, PlanSpec};
//!
//! let costs = Costs::PerSample(vec![12, 80, 31, 64, 7, 90, 55, 40]);
//! let spec = PlanSpec { seed: 1, batch: GlobalBatch::Sequences(4), curriculum_epochs: 0, shuffle: true };
//! let plan = EpochPlan::new(&costs, &spec, 0);
//!
//! let mut seen = Vec::new();
//! for k in 0..plan.updates() {
//!     seen.extend_from_slice(&plan.update(k).samples);
//! }
//! seen.sort_unstable();
//! assert_eq!(seen, [0, 1, 2, 3, 4, 5, 6, 7]);
//! ```

pub mod augment;
pub mod cursor;
pub mod error;
pub mod mask;
pub mod plan;
pub mod prep;
pub mod pretrain;
pub mod source;
pub mod tokenize;
pub mod translate;

pub use augment::Augment;
pub use augment::resample::{Normal, resample};
pub use augment::view::{Crop, View};
pub use cursor::Cursor;
pub use error::DataError;
pub use mask::Masking;
pub use plan::{Costs, EpochPlan, GlobalBatch, Padding, PlanSpec, Update};
pub use pretrain::{PretrainBatch, PretrainConfig, PretrainData};
pub use source::checksum::{Sealed, Status, Verification};
pub use source::corpus::CorpusSplit;
pub use source::picture::Picture;
pub use source::{Images, LabelledImages};
pub use translate::{ParallelData, Special, TranslateBatch, TranslateTokenizer};
