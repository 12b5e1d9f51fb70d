//! The global gradient norm and the clip factor.
//!
//! One norm over the whole flat buffer; norms of single parameters are in `optimizer/pieces.rs` and
//! use the same order of additions. Called by the trainer between the all-reduce and the optimizer
//! step.

use hetseq_simd::vectorised;
use rayon::prelude::*;

/// Elements per partial sum. Part of the definition of the result: changing it changes the last
/// bits of every norm.
pub(crate) const CHUNK: usize = 4096;

/// Independent accumulators per chunk. A single sum would wait for every addition and could not be
/// vectorised; a fixed number of accumulators can, and the order of additions stays fixed.
pub(crate) const LANES: usize = 8;

/// The constant that PyTorch's `clip_grad_norm_` adds to the norm before the division.
const CLIP_EPS: f64 = 1e-6;

/// The Euclidean norm, in `f64`, bit-identical for any number of threads.
///
/// Each chunk is summed in a fixed order, and the chunk sums are added in order of position.
/// Threads do not change the order. Infinite or NaN elements make the norm infinite or NaN.
pub fn global_norm(data: &[f32]) -> f64 {
    let sums: Vec<f64> = data.par_chunks(CHUNK).with_min_len(16).map(sum_of_squares).collect();
    sums.iter().fold(0.0, |total, sum| total + sum).sqrt()
}

vectorised! {
    /// The sum of squares of one chunk, in an order fixed by its length.
    pub(crate) fn sum_of_squares(chunk: &[f32]) -> f64 {
        let mut lanes = [0f64; LANES];
        let (rows, rest) = chunk.as_chunks::<LANES>();
        for row in rows {
            for (lane, x) in lanes.iter_mut().zip(row) {
                *lane += f64::from(*x) * f64::from(*x);
            }
        }
        for (lane, x) in lanes.iter_mut().zip(rest) {
            *lane += f64::from(*x) * f64::from(*x);
        }
        lanes.iter().fold(0.0, |total, lane| total + lane)
    }
}

/// The factor that limits the norm of the gradient to `max_norm`; `None` never clips.
///
/// As in PyTorch's `clip_grad_norm_`: `max_norm / (norm + 1e-6)`, at most 1. A NaN norm gives a NaN
/// factor, so that an overflow never looks like a normal update. An infinite norm gives 0. The
/// trainer refuses a norm that is not finite before it calls this.
pub fn clip_factor(norm: f64, max_norm: Option<f64>) -> f32 {
    let Some(max_norm) = max_norm else { return 1.0 };
    let factor = max_norm / (norm + CLIP_EPS);
    // Not `min`: it would turn NaN into 1.
    if factor > 1.0 { 1.0 } else { factor as f32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(len: usize) -> Vec<f32> {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 16_777_216.0 - 0.5
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn the_norm_does_not_depend_on_threads() {
        // Lengths around the chunk and lane sizes, and one that keeps several threads busy.
        for len in [0, 1, 7, 8, 4095, 4096, 4097, 1_000_003] {
            let data = noise(len);
            let in_order: f64 = data.chunks(CHUNK).map(sum_of_squares).fold(0.0, |a, b| a + b);
            for threads in [1, 2, 3, 8] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let norm = pool.install(|| global_norm(&data));
                assert_eq!(norm.to_bits(), in_order.sqrt().to_bits(), "{len} {threads}");
            }
        }
    }

    #[test]
    fn the_norm_is_euclidean() {
        assert_eq!(global_norm(&[3.0, -4.0]), 5.0);
        assert_eq!(global_norm(&[]), 0.0);
        // Squares far beyond f32, and a count at which an f32 sum would stop growing.
        assert_eq!(global_norm(&[3e30, 4e30]) as f32, 5e30);
        let ones = vec![1f32; 1 << 25];
        assert_eq!(global_norm(&ones), f64::from(1u32 << 25).sqrt());
        assert!(global_norm(&[1.0, f32::NAN]).is_nan());
        assert!(global_norm(&[1.0, f32::NEG_INFINITY]).is_infinite());
    }

    #[test]
    fn clipping_scales_down_only() {
        assert_eq!(clip_factor(10.0, None), 1.0);
        assert_eq!(clip_factor(0.0, Some(1.0)), 1.0);
        assert_eq!(clip_factor(0.5, Some(1.0)), 1.0);
        assert_eq!(clip_factor(4.0, Some(1.0)), (1.0 / 4.000_001) as f32);
        assert!(clip_factor(f64::NAN, Some(1.0)).is_nan());
        assert_eq!(clip_factor(f64::INFINITY, Some(1.0)), 0.0);
    }
}
