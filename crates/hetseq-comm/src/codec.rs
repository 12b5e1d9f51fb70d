//! Values on the wire: f32, or bf16 with an exact tail.
//!
//! Pure. bf16 halves what a slow network has to carry and keeps the range of f32 with 8 bits of precision. A vector may
//! end in values that must not be rounded (loss sums ride behind the gradients), so the codec knows from which index on
//! values travel as they are; plain f32 is that index at 0. Used by `reduce/`.

use std::ops::Range;

use half::bf16;

/// How gradients travel between ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wire {
    /// As they are.
    #[default]
    F32,
    /// Rounded to bf16, except for the last `exact_tail` values of the vector. Sums are taken in f32.
    Bf16 { exact_tail: usize },
}

/// Turns ranges of one vector into bytes and back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Codec {
    /// Values from here on travel as f32.
    exact_from: usize,
}

impl Codec {
    pub(crate) fn new(wire: Wire, len: usize) -> Codec {
        match wire {
            Wire::F32 => Codec { exact_from: 0 },
            Wire::Bf16 { exact_tail } => Codec { exact_from: len.saturating_sub(exact_tail) },
        }
    }

    /// How many of the values of `range` are rounded: the first ones.
    fn rounded(self, range: &Range<usize>) -> usize {
        self.exact_from.clamp(range.start, range.end) - range.start
    }

    pub(crate) fn bytes(self, range: &Range<usize>) -> usize {
        4 * range.len() - 2 * self.rounded(range)
    }

    /// Fills `bytes`, whatever was in it, with `values`, which are at `range` of their vector.
    pub(crate) fn encode(self, range: &Range<usize>, values: &[f32], bytes: &mut Vec<u8>) {
        debug_assert_eq!(range.len(), values.len());
        // A buffer of the right size needs no filling with zeros.
        bytes.resize(self.bytes(range), 0);
        let (rounded, exact) = values.split_at(self.rounded(range));
        let (short, long) = bytes.split_at_mut(2 * rounded.len());
        for (to, value) in short.as_chunks_mut::<2>().0.iter_mut().zip(rounded) {
            *to = round_bits(*value).to_le_bytes();
        }
        for (to, value) in long.as_chunks_mut::<4>().0.iter_mut().zip(exact) {
            *to = value.to_le_bytes();
        }
    }

    /// Hands every value of an encoded range to `take`, with its place in `values`.
    pub(crate) fn decode(
        self,
        range: &Range<usize>,
        bytes: &[u8],
        values: &mut [f32],
        take: impl Fn(&mut f32, f32) + Copy,
    ) {
        debug_assert_eq!((bytes.len(), values.len()), (self.bytes(range), range.len()));
        let (rounded, exact) = values.split_at_mut(self.rounded(range));
        let (short, long) = bytes.split_at(2 * rounded.len());
        for (to, bytes) in rounded.iter_mut().zip(short.as_chunks::<2>().0) {
            take(to, bf16::from_le_bytes(*bytes).to_f32());
        }
        for (to, bytes) in exact.iter_mut().zip(long.as_chunks::<4>().0) {
            take(to, f32::from_le_bytes(*bytes));
        }
    }

    /// Makes `values` what the others will see of them.
    pub(crate) fn round(self, range: &Range<usize>, values: &mut [f32]) {
        for value in &mut values[..self.rounded(range)] {
            *value = f32::from_bits(u32::from(round_bits(*value)) << 16);
        }
    }
}

/// The nearest bf16, ties to even. Without a branch, so that a loop over it runs on vectors; `half` tests for NaN first.
fn round_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    // A NaN must stay one, though the bits that remain may be zero.
    let kept = if value.is_nan() { bits | 0x0040_0000 } else { rounded };
    (kept >> 16) as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rounding_is_that_of_half() {
        let mut state = 1u32;
        for _ in 0..1_000_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let value = f32::from_bits(state ^ state >> 13);
            assert_eq!(round_bits(value), bf16::from_f32(value).to_bits(), "{value:e}");
        }
        for value in [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN_POSITIVE, f32::from_bits(1)] {
            assert_eq!(round_bits(value), bf16::from_f32(value).to_bits(), "{value:e}");
        }
        assert!(bf16::from_bits(round_bits(f32::from_bits(0x7f80_0001))).is_nan());
    }

    proptest! {
        #[test]
        fn what_is_decoded_is_what_round_promises(
            values in prop::collection::vec(any::<f32>(), 0..200), before in 0usize..50, tail in 0usize..300, exact: bool,
        ) {
            let range = before..before + values.len();
            let wire = if exact { Wire::F32 } else { Wire::Bf16 { exact_tail: tail } };
            let codec = Codec::new(wire, range.end + 7);
            let mut bytes = vec![1; 13];
            codec.encode(&range, &values, &mut bytes);
            let mut decoded = vec![0.0; values.len()];
            codec.decode(&range, &bytes, &mut decoded, |to, value| *to = value);
            let mut promised = values.clone();
            codec.round(&range, &mut promised);
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&decoded), bits(&promised));
            // The exact tail is untouched.
            let exact_from = if exact { 0 } else { (range.end + 7).saturating_sub(tail) };
            for (at, (was, is)) in values.iter().zip(&decoded).enumerate() {
                if before + at >= exact_from {
                    prop_assert_eq!(was.to_bits(), is.to_bits());
                }
            }
        }
    }
}
