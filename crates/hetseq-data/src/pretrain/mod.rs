//! Samples for BERT pre-training: masked language modelling, with or without next-sentence
//! prediction.
//!
//! A task opens [`PretrainData`]: either [`TextSamples`], with new masks and sentence pairs in
//! every epoch, or [`StoredSamples`], whose masks are stored with the data. Both return
//! [`PretrainBatch`]es and the length of every sample, which the plan needs. All randomness comes
//! from the keys that the trainer passes.
//!
//! ```no_run
//! # use std::path::Path;
//! # use hetseq_data::pretrain::{PretrainConfig, PretrainData};
//! # use hetseq_data::source::corpus::CorpusSplit;
//! # use hetseq_random::Key;
//! let data = PretrainData::open(Path::new("data/wiki"), CorpusSplit::Train, &PretrainConfig::default())?;
//! let lengths = data.lengths();
//! let epoch = Key::root(1).name("sample").index(0);
//! let batch = data.collate(&[17, 4, 99], &|id| epoch.index(u64::from(id)))?;
//! assert_eq!(batch.input_ids.len(), batch.batch * batch.seq);
//! # Ok::<(), hetseq_data::DataError>(())
//! ```

mod batch;
mod config;
mod data;
mod segment_pairs;
mod segments;
mod stored_samples;
mod text_samples;

pub use batch::PretrainBatch;
pub use config::PretrainConfig;
pub use data::PretrainData;
pub use stored_samples::StoredSamples;
pub use text_samples::TextSamples;
