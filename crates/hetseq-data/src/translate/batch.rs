//! One micro-batch of sentence pairs on the host. Built by `ParallelData::collate`.

use crate::arrays::Batch;

/// A padded batch of pairs: each side is padded to its longest sentence. A row does not depend on
/// the other rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TranslateBatch {
    /// `[pair, position]`, row by row: the source with `</s>`, padded with the source's pad token.
    pub source: Vec<i32>,
    /// The number of tokens in each source row without padding, `</s>` included.
    pub source_lengths: Vec<u32>,
    /// The decoder's input: a start token (the pad token, as in Marian models), then the target
    /// without `</s>`; padded with the target's pad token.
    pub target_in: Vec<i32>,
    /// The labels: the target with `</s>`; padded with the target's pad token.
    pub target_out: Vec<i32>,
    /// The number of tokens in each row of `target_in` and of `target_out` without padding.
    pub target_lengths: Vec<u32>,
}

impl TranslateBatch {
    /// The number of rows.
    pub fn pairs(&self) -> usize {
        self.source_lengths.len()
    }

    /// The padded length of source rows.
    pub fn source_width(&self) -> usize {
        self.source.len() / self.pairs().max(1)
    }

    /// The padded length of target rows.
    pub fn target_width(&self) -> usize {
        self.target_out.len() / self.pairs().max(1)
    }

    /// The tokens of both sides without padding, `</s>` included.
    pub fn tokens(&self) -> u64 {
        self.source_lengths.iter().chain(&self.target_lengths).map(|&length| u64::from(length)).sum()
    }
}

/// The arrays under the names of the fields. The count is target tokens.
impl From<TranslateBatch> for Batch {
    fn from(from: TranslateBatch) -> Batch {
        let (pairs, source, target) = (from.pairs(), from.source_width(), from.target_width());
        let lengths = |lengths: Vec<u32>| lengths.into_iter().map(|length| length as i32).collect();
        Batch::new([from.target_lengths.iter().map(|&length| u64::from(length)).sum()])
            .with_i32("source", [pairs, source], from.source)
            .with_i32("source_lengths", [pairs], lengths(from.source_lengths))
            .with_i32("target_in", [pairs, target], from.target_in)
            .with_i32("target_out", [pairs, target], from.target_out)
            .with_i32("target_lengths", [pairs], lengths(from.target_lengths))
    }
}
