//! The tasks that come with HetSeq, one file each.

pub mod bert;
pub mod images;
pub mod masked_words;
pub mod translation;
