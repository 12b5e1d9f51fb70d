//! Translation samples: pairs of a source and a target sentence as ids, and their tokenizers.
//!
//! A task opens [`ParallelData`], which returns [`TranslateBatch`]es and the length of every pair,
//! which the plan needs. [`TranslateTokenizer`] turns lines into ids and ids into lines. The
//! directories are written by `hetseq prep translate`
//! ([`prep::translate`](crate::prep::translate)). Nothing here is random.
//!
//! ```no_run
//! # use std::path::Path;
//! # use hetseq_data::translate::{ParallelData, TranslateTokenizer};
//! # use hetseq_data::source::corpus::CorpusSplit;
//! let data = ParallelData::open(Path::new("data/en-de"), CorpusSplit::Valid)?;
//! let batch = data.collate(&[17, 4, 99], 8, 512)?;
//! assert_eq!(batch.target_in.len(), batch.target_out.len());
//! let tokenizer = TranslateTokenizer::read(Path::new("data/en-de"))?;
//! let ids: Vec<u32> = data.target(17).collect();
//! assert_eq!(Some(tokenizer.decode_target(&ids)?.as_str()), data.reference(17));
//! # Ok::<(), hetseq_data::DataError>(())
//! ```

mod batch;
mod data;
mod translate_tokenizer;

pub use crate::tokenize::SubwordSpecialTokens;
pub use batch::TranslateBatch;
pub use data::{PairTotals, ParallelData};
pub use translate_tokenizer::{SOURCE_TOKENIZER_FILE, TARGET_TOKENIZER_FILE, TranslateTokenizer};
