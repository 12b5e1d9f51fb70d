//! Scaled dot-product attention over several heads (Vaswani et al., 2017), without the projections around it: those belong
//! to the model, whose names they carry. Queries may be another sequence than keys and values.

use burn::tensor::{Device, Tensor, TensorData};
use hetseq_kernels::{attention_mix, attention_scores, dropout_of_rows, softmax};
use hetseq_random::Key;

/// The longest sequence that can be attended to: so many elements a row of attention weights has for the purpose of dropout,
/// however long the row is in a given micro-batch.
pub const LONGEST: usize = 1 << 16;

/// Added to the score of a hidden key. Its weight becomes exactly zero beside any other key's; and where all keys are hidden
/// (a sample that could not be read), the weights are still numbers, unlike with minus infinity.
const HIDDEN: f32 = -1e9;

/// How to attend.
#[derive(Debug)]
pub struct Attention<'a> {
    pub heads: usize,
    /// Added to the scores [sample, head, query, key]; see [`hide_padding`].
    pub bias: Option<&'a Tensor<4>>,
    /// Dropout of the weights; `keys` as in [`hetseq_kernels::dropout`].
    pub dropout: f32,
    pub keys: &'a [Key],
}

impl Attention<'_> {
    /// All are [sample, position, feature], the heads' features side by side.
    pub fn forward(&self, query: Tensor<3>, key: Tensor<3>, value: Tensor<3>) -> Tensor<3> {
        let scores = attention_scores(query, key, self.heads);
        let scores = match self.bias {
            Some(bias) => scores + bias.clone(),
            None => scores,
        };
        attention_mix(self.drop(softmax(scores)), value)
    }

    /// Each head has a key of its own, and each query a row of fixed length, so that the mask of a weight does not depend on
    /// how far the micro-batch is padded.
    fn drop(&self, weights: Tensor<4>) -> Tensor<4> {
        if self.dropout <= 0.0 || self.keys.is_empty() {
            return weights;
        }
        let [samples, heads, queries, keys] = weights.dims();
        let of_head: Vec<Key> =
            self.keys.iter().flat_map(|key| (0..heads as u64).map(|head| key.index(head))).collect();
        let rows = weights.reshape([samples * heads, queries, keys]);
        dropout_of_rows(rows, self.dropout, &of_head, LONGEST).reshape([samples, heads, queries, keys])
    }
}

/// The bias [1, 1, query, key] that hides from each position what comes after it.
pub fn hide_future(positions: usize, device: &Device) -> Tensor<4> {
    let of_query = |query: usize| (0..positions).map(move |key| if key <= query { 0.0 } else { HIDDEN });
    let bias: Vec<f32> = (0..positions).flat_map(of_query).collect();
    Tensor::from_data(TensorData::new(bias, [1, 1, positions, positions]), device)
}

/// The bias [sample, 1, 1, key] that hides what lies beyond the length of each sample; none if nothing does.
pub fn hide_padding(lengths: &[usize], positions: usize, device: &Device) -> Option<Tensor<4>> {
    if lengths.iter().all(|&length| length >= positions) {
        return None;
    }
    let of_sample = |&length: &usize| (0..positions).map(move |key| if key < length { 0.0 } else { HIDDEN });
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
    fn a_hidden_key_has_no_weight_at_all() {
        let device = Device::flex();
        let bias = hide_padding(&[2, 3], 3, &device).unwrap();
        let attention = Attention { heads: 1, bias: Some(&bias), dropout: 0.0, keys: &[] };
        let (query, key) = (Tensor::ones([2, 1, 2], &device), Tensor::ones([2, 3, 2], &device));
        let value =
            Tensor::from_data([[[1.0, 1.0], [3.0, 1.0], [1e9, 1e9]], [[1.0, 1.0], [3.0, 1.0], [8.0, 1.0]]], &device);
        assert_eq!(values(attention.forward(query, key, value)), [2.0, 1.0, 4.0, 1.0]);
    }

    #[test]
    fn nothing_to_attend_to_still_gives_numbers() {
        let device = Device::flex();
        let bias = hide_padding(&[0], 2, &device).unwrap();
        let attention = Attention { heads: 1, bias: Some(&bias), dropout: 0.0, keys: &[] };
        let ones = || Tensor::<3>::ones([1, 2, 4], &device);
        assert_eq!(values(attention.forward(ones(), ones(), ones())), [1.0; 8]);
    }

    #[test]
    fn no_padding_needs_no_bias() {
        assert!(hide_padding(&[3, 3], 3, &Device::flex()).is_none());
    }
}
