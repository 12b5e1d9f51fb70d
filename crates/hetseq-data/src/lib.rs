//! From files to updates: sources, the batch plan and the cursor.
//!
//! The modules follow the data. A [`source`] holds samples. A [`plan`] decides which samples form
//! update `k`. [`augment`] transforms a sample on its way to the device. A micro-batch becomes
//! named [`arrays`]. A [`cursor`] is all that resuming needs. `hetseq-balance` decides which device
//! computes which samples of an update.
//!
//! Text takes more steps: [`prep`] reads it, [`tokenize`] turns it into tokens, [`source`] stores
//! the tokens in shards, and [`pretrain`] or [`translate`] makes samples from the shards. [`mask`]
//! masks tokens for pre-training. Labelled text is small: [`finetune`] reads and tokenizes it when
//! a run starts.
//!
//! Nothing here depends on tensors, networks or peers. `plan` does no I/O, reads no clock and uses
//! only keyed random numbers. Every rank calls it with the same arguments and gets the same bits,
//! so ranks never have to send each other the next samples.
//!
//! ```
//! use hetseq_data::{EpochPlan, GlobalBatch, PlanSpec, SampleLengths};
//!
//! let lengths = SampleLengths::PerSample(vec![12, 80, 31, 64, 7, 90, 55, 40]);
//! let spec = PlanSpec { seed: 1, batch: GlobalBatch::Sequences(4), curriculum_epochs: 0, shuffle: true };
//! let plan = EpochPlan::new(&lengths, &spec, 0);
//!
//! let mut seen = Vec::new();
//! for k in 0..plan.updates() {
//!     seen.extend_from_slice(&plan.update(k).samples);
//! }
//! seen.sort_unstable();
//! assert_eq!(seen, [0, 1, 2, 3, 4, 5, 6, 7]);
//! ```

pub mod arrays;
pub mod augment;
pub mod cursor;
pub mod error;
pub mod finetune;
mod fingerprint;
pub mod mask;
pub mod plan;
pub mod prep;
pub mod pretrain;
pub mod source;
pub mod tokenize;
pub mod translate;

pub use arrays::{Array, ArrayError, ArrayValues, Batch};
pub use augment::Augment;
pub use augment::resample::{Normalize, resample};
pub use augment::view::{Crop, View};
pub use cursor::Cursor;
pub use error::DataError;
pub use finetune::{EntitySamples, EntityTable, LabelSet, LabelledSamples, SequenceSamples, TokenSamples};
pub use fingerprint::fingerprint;
pub use mask::Masking;
pub use plan::{EpochPlan, GlobalBatch, Padding, PlanSpec, SampleLengths, Update};
pub use pretrain::{PretrainBatch, PretrainConfig, PretrainData};
pub use source::checksum::{ChecksummedFile, Status, Verification};
pub use source::corpus::CorpusSplit;
pub use source::decoded_image::DecodedImage;
pub use source::{Images, LabelledImages};
pub use translate::{ParallelData, SubwordSpecialTokens, TranslateBatch, TranslateTokenizer};
