//! Arithmetic on whole flat buffers that is no optimizer's: devices' gradients are put together with it.

use rayon::prelude::*;

/// Large enough that splitting the addition over threads pays.
const PARALLEL_CHUNK: usize = 1 << 16;

/// `sum += more`, each number by itself.
pub fn add(sum: &mut [f32], more: &[f32]) {
    let add = |(sum, more): (&mut [f32], &[f32])| {
        for (sum, value) in sum.iter_mut().zip(more) {
            *sum += value;
        }
    };
    sum.par_chunks_mut(PARALLEL_CHUNK).zip(more.par_chunks(PARALLEL_CHUNK)).for_each(add);
}

/// Divides by the scale, a power of two, and tells whether all are numbers.
pub fn unscale(gradients: &mut [f32], scale: f32) -> bool {
    let factor = 1.0 / scale;
    let mut is_finite = true;
    for gradient in gradients {
        *gradient *= factor;
        is_finite &= gradient.is_finite();
    }
    is_finite
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
    fn what_overflowed_is_told() {
        let mut gradients = [4.0, -8.0];
        assert!(unscale(&mut gradients, 4.0));
        assert_eq!(gradients, [1.0, -2.0]);
        assert!(!unscale(&mut [1.0, f32::INFINITY], 2.0));
        assert!(!unscale(&mut [f32::NAN, 1.0], 2.0));
    }
}
