//! The masks of attention, and the attention that they are for.

use burn::tensor::{Device, Tensor, TensorData};
pub use hetseq_kernels::{Attention, MAX_POSITIONS};

/// Added to the score of a masked key. Its weight is exactly zero next to any other key. If all
/// keys are masked (a sample that could not be read), the weights are still finite, unlike with
/// minus infinity.
const MASKED: f32 = -1e9;

/// The causal mask [1, 1, query, key]: no position attends to later ones.
pub fn causal_mask(positions: usize, device: &Device) -> Tensor<4> {
    let of_query = |query: usize| (0..positions).map(move |key| if key <= query { 0.0 } else { MASKED });
    let bias: Vec<f32> = (0..positions).flat_map(of_query).collect();
    Tensor::from_data(TensorData::new(bias, [1, 1, positions, positions]), device)
}

/// The padding mask [sample, 1, 1, key]: masks positions beyond the length of each sample. `None`
/// if there is no padding.
pub fn padding_mask(lengths: &[usize], positions: usize, device: &Device) -> Option<Tensor<4>> {
    if lengths.iter().all(|&length| length >= positions) {
        return None;
    }
    let of_sample = |&length: &usize| (0..positions).map(move |key| if key < length { 0.0 } else { MASKED });
    let bias: Vec<f32> = lengths.iter().flat_map(of_sample).collect();
    Some(Tensor::from_data(TensorData::new(bias, [lengths.len(), 1, 1, positions]), device))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        tensor.into_data().try_to_vec().unwrap()
    }

    #[test]
    fn a_masked_key_has_zero_weight() {
        let device = Device::flex();
        let bias = padding_mask(&[2, 3], 3, &device).unwrap();
        let attention = Attention { heads: 1, bias: Some(&bias), dropout: 0.0, keys: &[] };
        let (query, key) = (Tensor::ones([2, 1, 2], &device), Tensor::ones([2, 3, 2], &device));
        let value =
            Tensor::from_data([[[1.0, 1.0], [3.0, 1.0], [1e9, 1e9]], [[1.0, 1.0], [3.0, 1.0], [8.0, 1.0]]], &device);
        assert_eq!(values(attention.forward(query, key, value)), [2.0, 1.0, 4.0, 1.0]);
    }

    #[test]
    fn all_keys_masked_gives_finite_values() {
        let device = Device::flex();
        let bias = padding_mask(&[0], 2, &device).unwrap();
        let attention = Attention { heads: 1, bias: Some(&bias), dropout: 0.0, keys: &[] };
        let ones = || Tensor::<3>::ones([1, 2, 4], &device);
        assert_eq!(values(attention.forward(ones(), ones(), ones())), [1.0; 8]);
    }

    #[test]
    fn no_padding_needs_no_mask() {
        assert!(padding_mask(&[3, 3], 3, &Device::flex()).is_none());
    }
}
