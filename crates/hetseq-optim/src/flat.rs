//! Arithmetic on whole flat buffers, outside of the optimizers: sums of device gradients, and
//! checks for values that are not finite. Called by the trainer and by the optimizers.

use hetseq_simd::vectorised;
use rayon::prelude::*;

/// Elements per task: large enough that splitting the addition over threads is faster.
const PARALLEL_CHUNK: usize = 1 << 16;

/// `sum += more`, element by element.
pub fn add(sum: &mut [f32], more: &[f32]) {
    let chunks = sum.par_chunks_mut(PARALLEL_CHUNK).zip(more.par_chunks(PARALLEL_CHUNK));
    chunks.for_each(|(sum, more)| add_chunk(sum, more));
}

vectorised! {
    fn add_chunk(sum: &mut [f32], more: &[f32]) {
        for (sum, value) in sum.iter_mut().zip(more) {
            *sum += value;
        }
    }
}

/// Divides by `scale`, a power of two. Returns whether all results are finite.
pub fn unscale(gradients: &mut [f32], scale: f32) -> bool {
    let factor = 1.0 / scale;
    let mut is_finite = true;
    for gradient in gradients {
        *gradient *= factor;
        is_finite &= gradient.is_finite();
    }
    is_finite
}

/// The position of the first value that is infinite or NaN.
pub fn first_not_finite(values: &[f32]) -> Option<usize> {
    let chunk = values.par_chunks(PARALLEL_CHUNK).position_first(|chunk| !are_finite(chunk))?;
    let start = chunk * PARALLEL_CHUNK;
    values[start..].iter().position(|value| !value.is_finite()).map(|at| start + at)
}

/// Whether no value is infinite or NaN.
pub(crate) fn are_finite(values: &[f32]) -> bool {
    // Without an early exit, so that the loop is vectorised.
    is_clear(values.iter().fold(0, |flags, value| flags | flag(*value)))
}

/// Bits of which the highest is set if and only if `value` is infinite or NaN. Flags of many values
/// can be combined with `|` in any order, so that loops can check the values that they write and
/// are still vectorised.
#[inline(always)]
pub(crate) fn flag(value: f32) -> u32 {
    const MAGNITUDE: u32 = 0x7fff_ffff;
    // The lowest bit of the exponent: added to an exponent of all ones, it carries into the sign
    // bit.
    const CARRY: u32 = 0x0080_0000;
    (value.to_bits() & MAGNITUDE).wrapping_add(CARRY)
}

/// Whether none of the combined flags is set.
#[inline(always)]
pub(crate) fn is_clear(flags: u32) -> bool {
    flags >> 31 == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_over_many_chunks() {
        let mut sum: Vec<f32> = (0..3 * PARALLEL_CHUNK + 7).map(|i| i as f32).collect();
        let more: Vec<f32> = sum.iter().map(|value| 2.0 * value).collect();
        add(&mut sum, &more);
        assert!(sum.iter().enumerate().all(|(i, &value)| value == 3.0 * i as f32));
    }

    #[test]
    fn an_overflow_is_reported() {
        let mut gradients = [4.0, -8.0];
        assert!(unscale(&mut gradients, 4.0));
        assert_eq!(gradients, [1.0, -2.0]);
        assert!(!unscale(&mut [1.0, f32::INFINITY], 2.0));
        assert!(!unscale(&mut [f32::NAN, 1.0], 2.0));
    }

    #[test]
    fn the_first_value_that_is_not_finite_is_found() {
        let mut values = vec![f32::MAX; 3 * PARALLEL_CHUNK + 7];
        values[5] = -f32::MIN_POSITIVE / 2.0;
        assert_eq!(first_not_finite(&values), None);
        for (at, value) in [(3 * PARALLEL_CHUNK + 6, f32::NAN), (PARALLEL_CHUNK + 1, f32::NEG_INFINITY), (0, -f32::NAN)]
        {
            values[at] = value;
            assert_eq!(first_not_finite(&values), Some(at));
        }
        assert_eq!(first_not_finite(&[]), None);
    }
}
