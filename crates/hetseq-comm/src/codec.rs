//! Encoding of values on the wire: f32, or bf16 with an exact tail.
//!
//! Pure. bf16 halves the bytes that a slow network carries and keeps the range of f32, with 8 bits
//! of precision. A vector may end in values that must not be rounded (the loss sums follow the
//! gradients), so the codec knows from which index on values are sent as f32; for plain f32 that
//! index is 0. Used by `reduce/` and `measure.rs`.

use std::ops::Range;

use half::bf16;

/// The format in which ranks send gradients to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WireFormat {
    /// Unchanged.
    #[default]
    F32,
    /// Rounded to bf16, except for the last `exact_tail` values of the vector. Sums are computed in
    /// f32.
    Bf16 { exact_tail: usize },
}

/// Converts ranges of one vector to bytes and back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Codec {
    /// Values from this index on are sent as f32.
    exact_from: usize,
}

impl Codec {
    pub(crate) fn new(wire_format: WireFormat, len: usize) -> Codec {
        match wire_format {
            WireFormat::F32 => Codec { exact_from: 0 },
            WireFormat::Bf16 { exact_tail } => Codec { exact_from: len.saturating_sub(exact_tail) },
        }
    }

    /// Returns how many values of `range` are rounded: always the first ones.
    fn rounded(self, range: &Range<usize>) -> usize {
        self.exact_from.clamp(range.start, range.end) - range.start
    }

    /// Returns the encoded size of `range`.
    pub(crate) fn bytes(self, range: &Range<usize>) -> usize {
        4 * range.len() - 2 * self.rounded(range)
    }

    /// Returns whether `range` is sent as it is in memory.
    pub(crate) fn sends_memory(self, range: &Range<usize>) -> bool {
        cfg!(target_endian = "little") && self.rounded(range) == 0
    }

    /// Replaces the contents of `bytes` by the encoded `values`, which are at `range` of their
    /// vector.
    pub(crate) fn encode(self, range: &Range<usize>, values: &[f32], bytes: &mut Vec<u8>) {
        debug_assert_eq!(range.len(), values.len());
        // A recycled buffer of the right size is not zeroed again.
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

    /// Decodes `bytes` and calls `take` with each slot of `values` and the value for it.
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

    /// Decodes `bytes` and writes `own` plus the decoded values to `sum`: one pass instead of a copy
    /// and an addition.
    pub(crate) fn decode_plus(self, range: &Range<usize>, bytes: &[u8], own: &[f32], sum: &mut [f32]) {
        debug_assert_eq!((bytes.len(), own.len(), sum.len()), (self.bytes(range), range.len(), range.len()));
        let at = self.rounded(range);
        let ((own_rounded, own_exact), (rounded, exact)) = (own.split_at(at), sum.split_at_mut(at));
        let (short, long) = bytes.split_at(2 * at);
        for ((to, own), bytes) in rounded.iter_mut().zip(own_rounded).zip(short.as_chunks::<2>().0) {
            *to = own + bf16::from_le_bytes(*bytes).to_f32();
        }
        for ((to, own), bytes) in exact.iter_mut().zip(own_exact).zip(long.as_chunks::<4>().0) {
            *to = own + f32::from_le_bytes(*bytes);
        }
    }

    /// Adds `own` to encoded values that are not rounded.
    pub(crate) fn add_to_exact(bytes: &mut [u8], own: &[f32]) {
        for (sum, own) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(own) {
            *sum = (own + f32::from_le_bytes(*sum)).to_le_bytes();
        }
    }

    /// Rounds `values` to what the other ranks receive.
    pub(crate) fn round(self, range: &Range<usize>, values: &mut [f32]) {
        for value in &mut values[..self.rounded(range)] {
            *value = f32::from_bits(u32::from(round_bits(*value)) << 16);
        }
    }
}

/// Returns the nearest bf16, ties to even. It has no branch, so that loops over it vectorize;
/// `half` tests for NaN first.
fn round_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    // A NaN must stay a NaN even if the bits that remain are zero.
    let bits = if value.is_nan() { bits | 0x0040_0000 } else { rounded };
    (bits >> 16) as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rounding_matches_the_half_crate() {
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
        fn decoding_gives_what_round_gives(
            values in prop::collection::vec(any::<f32>(), 0..200), before in 0usize..50, tail in 0usize..300, exact: bool,
        ) {
            let range = before..before + values.len();
            let wire_format = if exact { WireFormat::F32 } else { WireFormat::Bf16 { exact_tail: tail } };
            let codec = Codec::new(wire_format, range.end + 7);
            let mut bytes = vec![1; 13];
            codec.encode(&range, &values, &mut bytes);
            let mut decoded = vec![0.0; values.len()];
            codec.decode(&range, &bytes, &mut decoded, |to, value| *to = value);
            let mut rounded_values = values.clone();
            codec.round(&range, &mut rounded_values);
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&decoded), bits(&rounded_values));
            let own: Vec<f32> = values.iter().rev().copied().collect();
            let mut sum = vec![0.0; values.len()];
            codec.decode_plus(&range, &bytes, &own, &mut sum);
            let mut added = own;
            codec.decode(&range, &bytes, &mut added, |to, value| *to += value);
            let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            prop_assert!(sum.iter().zip(&added).all(same), "{:?} {:?}", sum, added);
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
