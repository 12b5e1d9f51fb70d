//! One micro-batch on the host.

/// Pairs side by side, each side padded to its longest. A row is a pair's own: it does not depend on its neighbours.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TranslateBatch {
    /// `[pair, position]`, row by row: the source with `</s>`, padded with the source's pad.
    pub source: Vec<i32>,
    /// How many tokens of a source row are no padding, `</s>` counted.
    pub source_lengths: Vec<u32>,
    /// What the decoder reads: a start token (the pad, as Marian models have it), then the target without its `</s>`;
    /// padded with the target's pad.
    pub target_in: Vec<i32>,
    /// What it is to say: the target with `</s>`; padded with the target's pad.
    pub target_out: Vec<i32>,
    /// How many tokens of a target row are no padding: of `target_in` as of `target_out`.
    pub target_lengths: Vec<u32>,
    /// The raw target lines; of validation only, else empty.
    pub references: Vec<String>,
}

impl TranslateBatch {
    /// Number of rows.
    pub fn pairs(&self) -> usize {
        self.source_lengths.len()
    }

    /// What source rows are padded to.
    pub fn source_width(&self) -> usize {
        self.source.len() / self.pairs().max(1)
    }

    /// What target rows are padded to.
    pub fn target_width(&self) -> usize {
        self.target_out.len() / self.pairs().max(1)
    }

    /// Real tokens of both sides, `</s>` counted.
    pub fn tokens(&self) -> u64 {
        self.source_lengths.iter().chain(&self.target_lengths).map(|&length| u64::from(length)).sum()
    }
}
