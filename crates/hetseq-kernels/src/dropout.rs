//! Keyed dropout: the mask is a pure function of the sample's key and the element's index within
//! the sample.
//!
//! Burn's dropout draws from one generator per process, so its masks depend on what ran before.
//! Here a sample has the same mask on every worker, in every micro-batch, and when a block is
//! recomputed.

use burn::tensor::{DType, Device, Int, Shape, Tensor, TensorData};
use hetseq_random::{Key, MIX_FIRST, MIX_SECOND};
use hetseq_simd::vectorised;
use rayon::prelude::*;

use crate::host::{self, BackwardRule, Target, Values, attach};

/// Zeroes each element with probability `rate` and scales the others by `1 / (1 - rate)`.
///
/// The first dimension of `input` is the sample. `keys` holds one key per sample, specific to the
/// update and to this layer. With a rate of zero or without keys (evaluation), returns the input
/// unchanged.
pub fn dropout<const D: usize>(input: Tensor<D>, rate: f32, keys: &[Key]) -> Tensor<D> {
    if rate <= 0.0 || keys.is_empty() {
        return input;
    }
    let elements = input.dims()[1..].iter().product();
    apply(input, rate, keys, Grid { rows: 1, columns: elements, stride: elements })
}

/// [`dropout`] for tensors whose last dimension is padded to the longest sample of a micro-batch
/// and that have further dimensions before it, such as attention weights.
///
/// Each row counts as `stride` elements, so that the mask of an element does not depend on the
/// padded length. Counted this way, a sample has at most 2^32 distinct elements.
pub fn dropout_of_rows<const D: usize>(input: Tensor<D>, rate: f32, keys: &[Key], stride: usize) -> Tensor<D> {
    if rate <= 0.0 || keys.is_empty() {
        return input;
    }
    let shape = input.dims();
    let grid = Grid { rows: shape[1..D - 1].iter().product(), columns: shape[D - 1], stride };
    apply(input, rate, keys, grid)
}

fn apply<const D: usize>(input: Tensor<D>, rate: f32, keys: &[Key], grid: Grid) -> Tensor<D> {
    let Some(on_host) = host::input(&input) else {
        let (shape, device) = (Shape::from(input.dims()), input.device());
        return input * mask_on_device(keys, grid, rate, &device).reshape(shape);
    };
    drop(input);
    let mut values = on_host.values;
    let rule = Dropout { keys: keys.to_vec(), grid, rate };
    rule.apply(values.get_mut());
    attach([on_host.node], values, rule)
}

/// Dropout in host memory, in place. The mask is not kept: the backward pass computes it again.
#[derive(Debug, Clone)]
struct Dropout {
    keys: Vec<Key>,
    grid: Grid,
    rate: f32,
}

impl Dropout {
    fn apply(&self, values: &mut [f32]) {
        let Grid { rows, columns, stride } = self.grid;
        let mask = RowMask { rate: self.rate, stride };
        let samples = values.par_chunks_mut((rows * columns).max(1)).zip(&self.keys);
        samples.for_each(|(sample, key)| mask.apply(sample, columns, 0, key));
    }
}

/// The mask of rows that count as `stride` elements each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowMask {
    pub(crate) rate: f32,
    pub(crate) stride: usize,
}

impl RowMask {
    /// Drops elements of the rows from `first` on, of `columns` elements each.
    pub(crate) fn apply(self, rows: &mut [f32], columns: usize, first: usize, key: &Key) {
        for (row, values) in (first..).zip(rows.chunks_mut(columns.max(1))) {
            let first = (row * self.stride) as u32;
            drop_some(values, key.words(), first, threshold(self.rate), keep_scale(self.rate));
        }
    }
}

vectorised! {
    /// Multiplies by the mask of the elements from `first` on.
    fn drop_some(values: &mut [f32], key: (u32, u32), first: u32, threshold: u32, scale: f32) {
        for (i, value) in values.iter_mut().enumerate() {
            let is_kept = hetseq_random::element_bits(key.0, key.1, first.wrapping_add(i as u32)) >= threshold;
            *value *= if is_kept { scale } else { 0.0 };
        }
    }
}

impl BackwardRule<1> for Dropout {
    fn gradients(self, mut upstream: Values, _: [Target; 1]) -> [Option<Values>; 1] {
        self.apply(upstream.get_mut());
        [Some(upstream)]
    }
}

/// The elements of a sample: element `column` of row `row` has the index `row * stride + column`.
#[derive(Debug, Clone, Copy)]
struct Grid {
    rows: usize,
    columns: usize,
    stride: usize,
}

/// The smallest hash value that is kept.
fn threshold(rate: f32) -> u32 {
    (f64::from(rate.min(1.0)) * 4_294_967_296.0).min(4_294_967_295.0) as u32
}

fn keep_scale(rate: f32) -> f32 {
    1.0 / (1.0 - rate)
}

/// Computes the same bits with integer tensor operations, for devices to which the mask should not
/// be transferred. Multiplication of 32-bit integers wraps on every backend. Their right shift
/// keeps the sign, so it is masked.
fn mask_on_device(keys: &[Key], grid: Grid, rate: f32, device: &Device) -> Tensor<2> {
    let elements = grid.rows * grid.columns;
    let column = |word: fn(&Key) -> u32| {
        let words: Vec<i32> = keys.iter().map(|key| word(key) as i32).collect();
        Tensor::<2, Int>::from_data(TensorData::new(words, [keys.len(), 1]), (device, DType::I32))
    };
    let count = |n: usize| Tensor::<1, Int>::arange(0..n as i64, (device, DType::I32));
    let firsts = count(grid.rows).reshape([grid.rows, 1]) * (grid.stride as u32 as i32);
    let index = (firsts + count(grid.columns).reshape([1, grid.columns])).reshape([1, elements]);
    let low = column(|key| key.words().0).expand([keys.len(), elements]);
    let high = column(|key| key.words().1).expand([keys.len(), elements]);
    let bits = mix32(mix32(index.expand([keys.len(), elements]).bitwise_xor(low)).bitwise_xor(high));
    // Flipping the top bit turns the unsigned comparison into a signed one, which tensors have.
    let threshold = (threshold(rate) ^ 0x8000_0000) as i32;
    let keep = bits.bitwise_xor_scalar(i32::MIN).greater_equal_elem(threshold);
    keep.float() * keep_scale(rate)
}

fn mix32(x: Tensor<2, Int>) -> Tensor<2, Int> {
    let x = xor_shifted(x, 16) * (MIX_FIRST as i32);
    let x = xor_shifted(x, 15) * (MIX_SECOND as i32);
    xor_shifted(x, 16)
}

/// `x ^ (x >> shift)` with a logical shift.
fn xor_shifted(x: Tensor<2, Int>, shift: u32) -> Tensor<2, Int> {
    let shifted = x.clone().bitwise_right_shift_scalar(shift as i32).bitwise_and_scalar((u32::MAX >> shift) as i32);
    x.bitwise_xor(shifted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(count: u64) -> Vec<Key> {
        (0..count).map(|sample| Key::root(9).name("dropout").index(sample)).collect()
    }

    fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        tensor.into_data().try_to_vec().unwrap()
    }

    #[test]
    fn host_and_device_masks_are_equal() {
        let device = Device::flex();
        for rate in [0.1, 0.5, 0.9] {
            for grid in [
                Grid { rows: 1, columns: 1001, stride: 1001 },
                // The last rows exceed a signed index.
                Grid { rows: 40_000, columns: 3, stride: 1 << 16 },
            ] {
                let ones = Tensor::<2>::ones([7, grid.rows * grid.columns], &device);
                let host = values(apply(ones, rate, &keys(7), grid));
                assert_eq!(host, values(mask_on_device(&keys(7), grid, rate, &device)));
            }
        }
    }

    #[test]
    fn rate_and_mean_are_correct() {
        let device = Device::flex();
        let out = values(dropout(Tensor::<3>::ones([50, 40, 50], &device), 0.3, &keys(50)));
        let dropped = out.iter().filter(|&&x| x == 0.0).count() as f32 / out.len() as f32;
        assert!((dropped - 0.3).abs() < 0.005, "dropped {dropped}");
        let mean = out.iter().sum::<f32>() / out.len() as f32;
        assert!((mean - 1.0).abs() < 0.01, "mean {mean}");
    }

    #[test]
    fn a_mask_does_not_depend_on_the_micro_batch() {
        let device = Device::flex();
        let all = values(dropout(Tensor::<2>::ones([6, 64], &device), 0.5, &keys(6)));
        let alone = values(dropout(Tensor::<2>::ones([1, 64], &device), 0.5, &keys(6)[4..5]));
        assert_eq!(&all[4 * 64..5 * 64], alone);
        assert_ne!(&all[..64], &all[64..128]);
    }

    #[test]
    fn a_mask_does_not_depend_on_the_padded_length() {
        let device = Device::flex();
        let long = dropout_of_rows(Tensor::<4>::ones([2, 3, 5, 9], &device), 0.5, &keys(2), 5 * 64);
        let short = dropout_of_rows(Tensor::<4>::ones([2, 3, 5, 4], &device), 0.5, &keys(2), 5 * 64);
        assert_eq!(values(long.slice([0..2, 0..3, 0..5, 0..4])), values(short.clone()));
        assert_ne!(values(short.clone().slice([0..1, 0..1])), values(short.slice([0..1, 1..2])));
    }

    #[test]
    fn gradients_use_the_same_mask() {
        let device = Device::flex().autodiff();
        let input = Tensor::<2>::ones([2, 32], &device).require_grad();
        let out = dropout(input.clone(), 0.5, &keys(2));
        let grads = out.clone().sum().backward();
        assert_eq!(values(input.grad(&grads).unwrap()), values(out.inner()));
    }
}
