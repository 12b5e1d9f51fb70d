//! Masked samples without padding in one block of bytes, in memory or in a mapped file.
//!
//! A shard in NVIDIA's layout is decoded into this form ([`hdf5`](super::hdf5)): about a quarter of
//! the size, with random access to rows. [`pretrain`](crate::pretrain) reads it.
//!
//! A header (`file_header.rs`) has the kind `HETSEQRW`, the numbers largest id and longest row, and
//! the counts of rows, tokens and masked tokens. Tables follow: `u32` token ends per row, `u32`
//! masked ends per row, `u16` tokens of the first segment per row, `u8` label per row, `u16`
//! position per masked token, ids, masked ids. All numbers are little-endian.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::bytes::{Bytes, IdWidth, part, u16_at, u32_at};
use super::checksum::ChecksummedFile;
use super::file_header::{FileHeader, HEADER_BYTES};
use crate::error::{CorpusError, DataError};

const KIND: [u8; 8] = *b"HETSEQRW";
const VERSION: u32 = 1;

/// One masked sample.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Row {
    /// Masked ids with the special tokens, without padding.
    pub ids: Vec<u32>,
    /// Number of ids in the first segment.
    pub first_segment: usize,
    /// Ascending.
    pub masked_positions: Vec<u32>,
    /// The original ids at the masked positions.
    pub masked_ids: Vec<u32>,
    /// The second segment does not follow the first: NVIDIA's label 1.
    pub is_random_next: bool,
}

/// Builds a block of rows.
#[derive(Debug, Default)]
pub struct RowsBuilder {
    largest: u32,
    longest: u32,
    token_ends: Vec<u32>,
    masked_ends: Vec<u32>,
    first_segments: Vec<u16>,
    labels: Vec<u8>,
    positions: Vec<u16>,
    ids: Vec<u32>,
    masked_ids: Vec<u32>,
}

impl RowsBuilder {
    /// Adds a row of at most 65,535 tokens. Masked positions must be inside the row.
    pub fn push(&mut self, row: &Row) {
        self.ids.extend_from_slice(&row.ids);
        self.masked_ids.extend_from_slice(&row.masked_ids);
        self.positions.extend(row.masked_positions.iter().map(|&at| at as u16));
        self.token_ends.push(self.ids.len() as u32);
        self.masked_ends.push(self.masked_ids.len() as u32);
        self.first_segments.push(row.first_segment as u16);
        self.labels.push(u8::from(row.is_random_next));
        self.longest = self.longest.max(row.ids.len() as u32);
        self.largest = row.ids.iter().chain(&row.masked_ids).fold(self.largest, |largest, &id| largest.max(id));
    }

    /// Returns the block of bytes.
    pub fn finish(self) -> Vec<u8> {
        let width = IdWidth::for_vocabulary(self.largest as usize + 1);
        let mut bytes = vec![0; HEADER_BYTES];
        for end in self.token_ends.iter().chain(&self.masked_ends) {
            bytes.extend_from_slice(&end.to_le_bytes());
        }
        self.first_segments.iter().for_each(|first| bytes.extend_from_slice(&first.to_le_bytes()));
        bytes.extend_from_slice(&self.labels);
        self.positions.iter().for_each(|at| bytes.extend_from_slice(&at.to_le_bytes()));
        width.pack(&self.ids, &mut bytes);
        width.pack(&self.masked_ids, &mut bytes);

        let header = FileHeader {
            id_bytes: width.bytes() as u32,
            numbers: [self.largest, self.longest],
            counts: [self.labels.len(), self.ids.len(), self.masked_ids.len()],
            hash: *blake3::hash(&bytes[HEADER_BYTES..]).as_bytes(),
        };
        bytes[..HEADER_BYTES].copy_from_slice(&header.to_bytes(KIND, VERSION));
        bytes
    }
}

/// A block of rows opened for reading.
#[derive(Debug)]
pub struct Rows {
    path: PathBuf,
    bytes: Arc<Bytes>,
    width: IdWidth,
    pub largest_id: u32,
    pub longest_row: u32,
    rows: usize,
    tokens: usize,
    masked: usize,
    hash: [u8; 32],
}

impl Rows {
    /// Checks the header and the row ends. `path` is the origin of the bytes, for errors.
    pub fn new(path: &Path, bytes: Bytes) -> Result<Self, DataError> {
        let damaged = |field, problem| damaged(path, field, problem);
        let Some(header) = bytes.get(..HEADER_BYTES).filter(|header| header.starts_with(&KIND)) else {
            return Err(damaged("header", "it does not begin with HETSEQRW"));
        };
        if FileHeader::version(header) != VERSION {
            return Err(damaged("version", "it was written by another version of hetseq"));
        }
        let Some(FileHeader { id_bytes, numbers, counts, hash }) = FileHeader::read(header) else {
            return Err(damaged("header", "its checksum is wrong"));
        };
        let width = IdWidth::from_bytes(id_bytes).ok_or_else(|| damaged("id width", "it is neither 2 nor 4"))?;
        let ([largest_id, longest_row], [rows, tokens, masked]) = (numbers, counts);
        let expected_bytes = HEADER_BYTES as u128
            + 11 * rows as u128
            + 2 * masked as u128
            + width.bytes() as u128 * (tokens as u128 + masked as u128);
        if bytes.len() as u128 != expected_bytes {
            let shape = format!("{rows} rows of {tokens} tokens, {masked} masked");
            let found_bytes = bytes.len() as u64;
            return Err(DataError::TooShort { path: path.to_owned(), shape, expected_bytes, found_bytes });
        }
        let (path, bytes) = (path.to_owned(), Arc::new(bytes));
        let block = Rows { path, bytes, width, largest_id, longest_row, rows, tokens, masked, hash };
        if !block.ends_ascend(0, tokens) || !block.ends_ascend(1, masked) {
            return Err(self::damaged(&block.path, "row ends", "they do not ascend to the total"));
        }
        Ok(block)
    }

    /// Checks that the token ends (table 0) or masked ends (table 1) ascend to the total.
    fn ends_ascend(&self, table: usize, total: usize) -> bool {
        let ends = part(&self.bytes, HEADER_BYTES + 4 * self.rows * table, self.rows, 4).unwrap_or_default();
        let mut last = 0;
        ends.chunks_exact(4).map(|end| u32_at(end, 0)).all(|end| {
            let ascends = end >= last;
            last = end;
            ascends
        }) && last as usize == total
    }

    /// The file with its hash, to be verified. `None` in memory, where the hash was computed from
    /// the same bytes.
    pub fn checksummed_file(&self) -> Option<ChecksummedFile> {
        let remedy = "delete the file: it is created again from its HDF5 shard";
        let is_mapped = matches!(*self.bytes, Bytes::Mapped(_));
        is_mapped.then(|| ChecksummedFile::new(&self.path, &self.bytes, HEADER_BYTES, self.hash, remedy))
    }

    pub fn len(&self) -> usize {
        self.rows
    }

    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Identifies the content.
    pub fn hash(&self) -> &[u8; 32] {
        &self.hash
    }

    /// Size of the block in bytes.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Number of tokens in a row.
    pub fn row_tokens(&self, row: usize) -> usize {
        self.range(0, row).len()
    }

    /// Reads a row into `out`; an empty one past the end. Mapped bytes may have changed since they
    /// were written, so positions and ids that would break the model are rejected.
    pub fn read(&self, row: usize, out: &mut Row) -> Result<(), DataError> {
        out.ids.clear();
        out.masked_ids.clear();
        out.masked_positions.clear();
        let (tokens, masked) = (self.range(0, row), self.range(1, row));
        let first_segments = HEADER_BYTES + 8 * self.rows;
        let labels = first_segments + 2 * self.rows;
        let positions = labels + self.rows;
        let ids = positions + 2 * self.masked;
        let masked_ids = ids + self.width.bytes() * self.tokens;
        let packed = |start: usize, range: &Range<usize>| {
            part(&self.bytes, start + self.width.bytes() * range.start, range.len(), self.width.bytes())
                .unwrap_or_default()
        };
        self.width.unpack(packed(ids, &tokens), &mut out.ids);
        self.width.unpack(packed(masked_ids, &masked), &mut out.masked_ids);
        let packed_positions = self.bytes.get(positions..).unwrap_or_default();
        out.masked_positions.extend(masked.map(|at| u32::from(u16_at(packed_positions, at))));
        out.first_segment =
            usize::from(u16_at(self.bytes.get(first_segments..).unwrap_or_default(), row)).min(out.ids.len());
        out.is_random_next = self.bytes.get(labels + row).is_some_and(|&label| label != 0);
        if out.masked_positions.iter().any(|&position| position as usize >= out.ids.len()) {
            return Err(damaged(&self.path, "positions", "one is outside its row"));
        }
        if out.ids.iter().chain(&out.masked_ids).any(|&id| id > self.largest_id) {
            return Err(damaged(&self.path, "ids", "one is larger than the largest in the header"));
        }
        Ok(())
    }

    fn range(&self, table: usize, row: usize) -> Range<usize> {
        let ends = self.bytes.get(HEADER_BYTES + 4 * self.rows * table..).unwrap_or_default();
        if row >= self.rows {
            return 0..0;
        }
        let start = if row == 0 { 0 } else { u32_at(ends, row - 1) };
        start as usize..u32_at(ends, row) as usize
    }
}

fn damaged(path: &Path, field: &'static str, problem: &str) -> DataError {
    CorpusError::Damaged { path: path.to_owned(), field, problem: problem.to_owned() }.into()
}
