//! Cuts parameters into pieces for threads, with sums over each parameter in a fixed order. Used by
//! LAMB and Adafactor; the element-wise rules do not need parameter boundaries.
//!
//! LAMB and Adafactor scale a step by norms of single parameters. A norm is summed in `f64` over
//! chunks of 4,096 elements from the start of the parameter, and the chunk sums are added in order.
//! This is the order of the global norm, and the result is equal. Pieces consist of whole chunks,
//! so threads do not change the order of additions.

use std::ops::Range;

use crate::norm::{CHUNK, sum_of_squares};
use crate::{Layout, ParameterGroup, ParameterGroups};

/// Chunks per piece: 128 KiB of each stream, as for the element-wise rules.
const CHUNKS: usize = 8;

/// The smallest number of elements in a part: 1 MiB of each stream, enough work for several
/// threads.
const PART: usize = 256 * 1024;

/// One sum per chunk of a piece; 0 where a piece is shorter.
pub(super) type ChunkSums = [f64; CHUNKS];

/// A parameter with at least one element.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub(super) range: Range<usize>,
    pub(super) shape: Vec<usize>,
    pub(super) group: ParameterGroup,
}

/// A part of one parameter.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Piece {
    /// Position in [`Pieces::tensors`].
    pub(super) tensor: usize,
    /// The range in the flat layout.
    pub(super) range: Range<usize>,
}

impl Piece {
    /// The elements of this piece in a buffer that begins at element `start` of the layout.
    pub(super) fn of<'a>(&self, buffer: &'a [f32], start: usize) -> &'a [f32] {
        &buffer[self.range.start - start..self.range.end - start]
    }
}

/// The trainable parameters of a layout and their pieces, both in order and without gaps.
#[derive(Debug)]
pub(super) struct Pieces {
    pub(super) tensors: Vec<Tensor>,
    pieces: Vec<Piece>,
}

impl Pieces {
    pub(super) fn new(layout: &Layout, groups: &ParameterGroups) -> Pieces {
        let entries = layout.trainable_entries().iter().zip(groups.as_slice());
        let tensors: Vec<Tensor> = entries
            .filter(|(entry, _)| !entry.range.is_empty())
            .map(|(entry, group)| Tensor { range: entry.range.clone(), shape: entry.shape.clone(), group: *group })
            .collect();
        let mut pieces = Vec::new();
        for (tensor, Tensor { range, .. }) in tensors.iter().enumerate() {
            let starts = range.clone().step_by(CHUNKS * CHUNK);
            pieces
                .extend(starts.map(|at| Piece { tensor, range: at..range.end.min(at.saturating_add(CHUNKS * CHUNK)) }));
        }
        Pieces { tensors, pieces }
    }

    /// The pieces of the parameters in `range`.
    ///
    /// # Panics
    /// If the range cuts a parameter.
    pub(super) fn within(&self, range: &Range<usize>) -> &[Piece] {
        let is_boundary = |at: usize| self.tensors.iter().all(|t| at <= t.range.start || at >= t.range.end);
        assert!(is_boundary(range.start) && is_boundary(range.end), "{range:?} cuts a parameter in two");
        let first = self.pieces.partition_point(|piece| piece.range.start < range.start);
        let last = self.pieces.partition_point(|piece| piece.range.end <= range.end);
        &self.pieces[first..last]
    }

    /// Splits `range` into parts of whole parameters, which are stepped one after the other, so
    /// that the second pass over a part finds it in the cache. Does not affect the result.
    pub(super) fn parts(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        let mut parts = Vec::new();
        let mut start = range.start;
        for piece in self.within(range) {
            let end = self.tensors[piece.tensor].range.end;
            if piece.range.end == end && (end - start >= PART || end == range.end) {
                parts.push(start..end);
                start = end;
            }
        }
        parts
    }

    /// The sum over each parameter; 0 for parameters without pieces in `pieces`.
    pub(super) fn totals(&self, pieces: &[Piece], sums: impl Iterator<Item = ChunkSums>) -> Vec<f64> {
        let mut totals = vec![0.0; self.tensors.len()];
        for (piece, sums) in pieces.iter().zip(sums) {
            // Missing chunks are 0; adding 0 changes no bit.
            totals[piece.tensor] = sums.iter().fold(totals[piece.tensor], |total, sum| total + sum);
        }
        totals
    }
}

/// Cuts `data` into parts of the given lengths; the rest is left out.
pub(super) fn cut<T>(mut data: &mut [T], lengths: impl Iterator<Item = usize>) -> Vec<&mut [T]> {
    let mut take = |length: usize| {
        let (part, rest) = std::mem::take(&mut data).split_at_mut(length);
        data = rest;
        part
    };
    lengths.map(&mut take).collect()
}

/// A buffer of one chunk on the stack.
pub(super) type Scratch = [f32; CHUNK];

pub(super) fn scratch() -> Scratch {
    [0.0; CHUNK]
}

/// The ranges of a piece's chunks, relative to its start.
pub(super) fn chunks(length: usize) -> impl Iterator<Item = Range<usize>> {
    (0..length).step_by(CHUNK).map(move |at| at..length.min(at + CHUNK))
}

/// The sum of squares of each chunk of a piece.
pub(super) fn squares(values: &[f32]) -> ChunkSums {
    let mut sums = [0.0; CHUNKS];
    for (sum, chunk) in sums.iter_mut().zip(values.chunks(CHUNK)) {
        *sum = sum_of_squares(chunk);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::global_norm;

    fn pieces(sizes: &[usize]) -> Pieces {
        let named = sizes.iter().enumerate().map(|(i, size)| (i.to_string(), vec![*size]));
        let layout = Layout::new(named).unwrap();
        Pieces::new(&layout, &ParameterGroups::by_shape(&layout))
    }

    #[test]
    fn the_norm_of_a_parameter_equals_its_global_norm() {
        let sizes = [5, 0, 4096, 32 * 1024, 100_003];
        let pieces = pieces(&sizes);
        let len = sizes.iter().sum();
        let values: Vec<f32> = (0..len).map(|i| ((i * 7919) % 1000) as f32 * 1e-3 - 0.4).collect();
        let all = pieces.within(&(0..len));
        let totals = pieces.totals(all, all.iter().map(|piece| squares(piece.of(&values, 0))));
        assert_eq!(totals.len(), 4);
        for (tensor, total) in pieces.tensors.iter().zip(totals) {
            assert_eq!(total.sqrt().to_bits(), global_norm(&values[tensor.range.clone()]).to_bits());
        }
    }

    #[test]
    fn pieces_cover_each_parameter_in_order() {
        let pieces = pieces(&[70_000, 3, 0, 32_768]);
        let mut at = 0;
        for piece in pieces.within(&(0..102_771)) {
            let tensor = &pieces.tensors[piece.tensor];
            assert!(piece.range.start == at && piece.range.end <= tensor.range.end && !piece.range.is_empty());
            assert_eq!((piece.range.start - tensor.range.start) % CHUNK, 0);
            at = piece.range.end;
        }
        assert_eq!(at, 102_771);
        let lengths: Vec<usize> = pieces.within(&(70_000..70_003)).iter().map(|piece| piece.range.len()).collect();
        assert_eq!(lengths, [3]);
        assert!(pieces.within(&(70_003..70_003)).is_empty());
    }

    #[test]
    fn parts_are_whole_parameters_and_cover_the_range() {
        let pieces = pieces(&[3, 1_000_000, 5, 0, 200_000, 100_000, 7]);
        let parts = [0..1_000_003, 1_000_003..1_300_008, 1_300_008..1_300_015];
        assert_eq!(pieces.parts(&(0..1_300_015)), parts);
        assert_eq!(pieces.parts(&(3..1_000_008)), [3..1_000_003, 1_000_003..1_000_008]);
        assert_eq!(pieces.parts(&(3..3)), []);
    }

    #[test]
    #[should_panic(expected = "1..8 cuts a parameter")]
    fn a_range_must_not_cut_a_parameter() {
        pieces(&[4, 4]).within(&(1..8));
    }

    #[test]
    fn parts_are_cut_in_order() {
        let mut data = [1, 2, 3, 4];
        let parts = cut(&mut data, [1, 0, 3].into_iter());
        assert_eq!(parts, [&[1][..], &[], &[2, 3, 4]]);
    }
}
