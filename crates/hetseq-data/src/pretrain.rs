//! Samples for pre-training BERT: masked language modelling, with or without next-sentence prediction.
//!
//! [`PretrainData`] is what a task opens: either [`TextSamples`], which draws masks and sentence pairs anew in every
//! epoch, or [`StoredSamples`], which were masked when they were made. Both give [`PretrainBatch`]es and know the cost
//! of every sample beforehand, which the plan needs. Nothing here is random but by the keys that the trainer passes.
//!
//! ```no_run
//! # use std::path::Path;
//! # use hetseq_data::pretrain::{PretrainConfig, PretrainData};
//! # use hetseq_data::source::corpus::CorpusSplit;
//! # use hetseq_random::Key;
//! let data = PretrainData::open(Path::new("data/wiki"), CorpusSplit::Train, &PretrainConfig::default())?;
//! let costs = data.costs();
//! let epoch = Key::root(1).name("sample").index(0);
//! let batch = data.collate(&[17, 4, 99], &|id| epoch.index(u64::from(id)))?;
//! assert_eq!(batch.input_ids.len(), batch.batch * batch.seq);
//! # Ok::<(), hetseq_data::DataError>(())
//! ```

mod batch;
mod config;
mod data;
mod pairs;
mod segments;
mod stored;
mod text;

pub use batch::PretrainBatch;
pub use config::PretrainConfig;
pub use data::PretrainData;
pub use stored::StoredSamples;
pub use text::TextSamples;
