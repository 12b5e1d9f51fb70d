//! The padded arrays that both kinds of samples share. A row does not depend on the other rows.

use crate::arrays::Batch;

/// Rows of tokens, padded to one width.
pub(super) struct PaddedRows {
    width: usize,
    pad: i32,
    input_ids: Vec<i32>,
    segment_ids: Vec<i32>,
    lengths: Vec<i32>,
}

impl PaddedRows {
    pub(super) fn new(rows: usize, width: usize, pad: u32) -> Self {
        let ids = || Vec::with_capacity(rows * width);
        PaddedRows { width, pad: pad as i32, input_ids: ids(), segment_ids: ids(), lengths: Vec::with_capacity(rows) }
    }

    /// Adds a row. The first `first_segment` tokens are segment 0, the others segment 1.
    pub(super) fn push(&mut self, ids: impl Iterator<Item = u32>, first_segment: usize) {
        let start = self.input_ids.len();
        self.input_ids.extend(ids.map(|id| id as i32));
        let tokens = self.input_ids.len() - start;
        self.segment_ids.extend((0..tokens).map(|token| i32::from(token >= first_segment)));
        self.lengths.push(tokens as i32);
        self.input_ids.resize(start + self.width, self.pad);
        self.segment_ids.resize(start + self.width, 0);
    }

    /// The batch with the arrays `input_ids`, `segment_ids` and `lengths`.
    pub(super) fn into_batch(self, count: u64) -> Batch {
        let rows = self.lengths.len();
        Batch::new([count])
            .with_i32("input_ids", [rows, self.width], self.input_ids)
            .with_i32("segment_ids", [rows, self.width], self.segment_ids)
            .with_i32("lengths", [rows], self.lengths)
    }
}
