//! Samples for fine-tuning BERT: a label for each word, also with the entities of mentions, or a
//! label for each text.
//!
//! A task reads a [`ConllFile`] or a [`SequenceFile`], makes a [`LabelSet`] from the training data,
//! and builds [`TokenSamples`], [`EntitySamples`] or [`SequenceSamples`]. As [`LabelledSamples`], all
//! collate into a [`Batch`](crate::arrays::Batch). All samples are tokenized in memory when a run starts: labelled
//! text is small. Nothing here is random, and nothing depends on the number of cores.
//!
//! Words and texts get the ids of `BertTokenizerFast`, with one exception: special tokens are never
//! read from text (see [`tokenize`](crate::tokenize)).
//!
//! ```no_run
//! # use std::path::Path;
//! # use hetseq_data::finetune::{LabelSet, LabelledSamples, TagReport, TokenSampleConfig, TokenSamples};
//! # use hetseq_data::source::conll::{ConllColumns, ConllFile, ConllLabels};
//! # use hetseq_data::tokenize::Tokenizer;
//! let (path, columns) = (Path::new("train.conll"), ConllColumns::default());
//! let file = ConllFile::read(path, &columns, ConllLabels::Required)?;
//! let labels = LabelSet::found(file.label_names());
//! println!("{}", TagReport::new(&file, None));
//! let tokenizer = Tokenizer::read(Path::new("model"))?;
//! let config = TokenSampleConfig::default();
//! let samples = TokenSamples::new(&file, Some(&labels), &tokenizer, &config)?;
//! let batch = samples.collate(&[17, 4, 99])?;
//! assert_eq!(batch.counts(), [batch.i32s("labels").unwrap().len() as u64]);
//! # Ok::<(), hetseq_data::DataError>(())
//! ```

mod batch;
mod config;
mod encoded_texts;
mod entity_samples;
mod label_set;
mod labelled_samples;
mod mentions;
mod sequence_file;
mod sequence_samples;
mod tags;
mod token_samples;
mod windows;

pub use crate::source::conll::{ConllColumns, ConllFile, ConllLabels};
pub use crate::source::entity_table::EntityTable;
pub use crate::source::table::{TableColumn, TableFile, TableFormat, TableOptions};
pub use config::{LongSentences, SequenceSampleConfig, TokenSampleConfig};
pub use entity_samples::EntitySamples;
pub use label_set::LabelSet;
pub use labelled_samples::LabelledSamples;
pub use mentions::MentionCounts;
pub use sequence_file::{SequenceColumns, SequenceFile};
pub use sequence_samples::{SequenceSampleCounts, SequenceSamples, SequenceTarget};
pub use tags::{TagPrefixes, TagReport};
pub use token_samples::{TokenSampleCounts, TokenSamples, TokenWindow};

/// The label of positions that have no loss, as in PyTorch and Hugging Face.
pub const IGNORED_LABEL: i32 = -100;
