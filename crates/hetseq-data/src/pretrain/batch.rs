//! One micro-batch of pre-training samples on the host, the same for text and stored samples.

use super::config::PretrainConfig;
use crate::arrays::Batch;
use crate::source::rows::Row;

/// A padded batch of samples. A row does not depend on the other rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PretrainBatch {
    /// The number of samples.
    pub batch: usize,
    /// The padded length of the samples.
    pub seq: usize,
    /// `batch * seq`, row by row; padding is the pad token.
    pub input_ids: Vec<i32>,
    /// `batch * seq`: 0 in the first segment and in padding, 1 in the second.
    pub segment_ids: Vec<i32>,
    /// `batch`: the number of tokens in a row without padding. The attention mask is
    /// `column < length`.
    pub lengths: Vec<i32>,
    /// The masked tokens, as indices into the flattened batch (`row * seq + column`), ascending.
    pub masked_positions: Vec<i32>,
    /// The original ids of the masked tokens, in the same order.
    pub masked_ids: Vec<i32>,
    /// `batch`, with next-sentence prediction only: 0 if the second segment follows the first, else
    /// 1.
    pub next_sentence: Option<Vec<i32>>,
}

impl PretrainBatch {
    pub(super) fn new(rows: &[Row], pad: u32, config: &PretrainConfig) -> Self {
        let longest = rows.iter().map(|row| row.ids.len()).max().unwrap_or(0);
        let seq = config.padded(longest);
        let mut batch = PretrainBatch {
            batch: rows.len(),
            seq,
            input_ids: Vec::with_capacity(rows.len() * seq),
            segment_ids: Vec::with_capacity(rows.len() * seq),
            lengths: Vec::with_capacity(rows.len()),
            masked_positions: Vec::new(),
            masked_ids: Vec::new(),
            next_sentence: config.next_sentence.then(|| Vec::with_capacity(rows.len())),
        };
        for (at, row) in rows.iter().enumerate() {
            let end = (at + 1) * seq;
            batch.input_ids.extend(row.ids.iter().map(|&id| id as i32));
            batch.input_ids.resize(end, pad as i32);
            batch.segment_ids.extend((0..row.ids.len()).map(|token| i32::from(token >= row.first_segment)));
            batch.segment_ids.resize(end, 0);
            batch.lengths.push(row.ids.len() as i32);
            batch.masked_ids.extend(row.masked_ids.iter().map(|&id| id as i32));
            batch.masked_positions.extend(row.masked_positions.iter().map(|&column| (at * seq) as i32 + column as i32));
            if let Some(labels) = &mut batch.next_sentence {
                labels.push(i32::from(row.is_random_next));
            }
        }
        batch
    }

    /// The number of tokens without padding, special tokens included.
    pub fn tokens(&self) -> u64 {
        self.lengths.iter().map(|&length| length as u64).sum()
    }
}

/// The arrays under the names of the fields. Counts are masked tokens and, with next-sentence
/// prediction, samples.
impl From<PretrainBatch> for Batch {
    fn from(from: PretrainBatch) -> Batch {
        let PretrainBatch { batch: rows, seq, masked_ids, next_sentence, .. } = from;
        let counts = [Some(masked_ids.len()), next_sentence.as_ref().map(Vec::len)].into_iter().flatten();
        let batch = Batch::new(counts.map(|count| count as u64).collect::<Vec<_>>())
            .with_i32("input_ids", [rows, seq], from.input_ids)
            .with_i32("segment_ids", [rows, seq], from.segment_ids)
            .with_i32("lengths", [rows], from.lengths)
            .with_i32("masked_positions", [masked_ids.len()], from.masked_positions)
            .with_i32("masked_ids", [masked_ids.len()], masked_ids);
        match next_sentence {
            Some(labels) => batch.with_i32("next_sentence", [rows], labels),
            None => batch,
        }
    }
}
