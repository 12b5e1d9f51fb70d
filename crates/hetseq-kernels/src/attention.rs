//! Multi-head scaled dot-product attention (Vaswani et al., 2017) without the projections. Queries,
//! keys and values have the shape of the projections, [sample, position, feature] with the features
//! of the heads side by side, and so has the result.
//!
//! In host memory, heads are never copied apart, and weights exist only for a block of queries of one
//! head at a time, small enough for the cache. The backward pass computes them again.

use burn::tensor::Tensor;
use hetseq_random::Key;
use rayon::prelude::*;

use crate::dropout::{RowMask, dropout_of_rows};
use crate::host::{BackwardRule, Target, Values, attach, input, same_tracking};
use crate::precision::{low_precision, matmul};
use crate::product::{Matrix, MatrixMut, add_scaled_product, write_product};
use crate::softmax;

/// Maximum length of keys. For dropout, each row of attention weights counts as this many elements,
/// so that masks do not depend on the padded length.
pub const MAX_POSITIONS: usize = 1 << 16;

/// Queries per block: with 512 keys, its weights and their gradients take 256 KiB.
const QUERIES: usize = 64;

/// Attention settings.
#[derive(Debug, Clone, Copy)]
pub struct Attention<'a> {
    pub heads: usize,
    /// Added to the scores [sample, head, query, key]; every dimension but the last may be 1.
    pub bias: Option<&'a Tensor<4>>,
    /// Dropout rate of the weights. `keys` as in [`dropout`](crate::dropout()).
    pub dropout: f32,
    pub keys: &'a [Key],
}

impl Attention<'_> {
    /// Returns the sums of the values, weighted for each query.
    ///
    /// # Panics
    /// Like Burn's products, if the sizes do not match.
    pub fn forward(&self, query: Tensor<3>, key: Tensor<3>, value: Tensor<3>) -> Tensor<3> {
        match self.on_host(&query, &key, &value) {
            Some(output) => output,
            None => self.composed(query, key, value),
        }
    }

    /// Of Burn's operations, and the softmax.
    fn composed(&self, query: Tensor<3>, key: Tensor<3>, value: Tensor<3>) -> Tensor<3> {
        let ([samples, queries, width], [_, keys, _], heads) = (query.dims(), key.dims(), self.heads);
        // Scales the queries and not the scores, because there are fewer of them.
        let query = query * scale_of(width / heads);
        let mut scores = matmul(split_heads(query, heads), split_heads(key, heads).transpose());
        if let Some(bias) = self.bias {
            scores = scores + bias.clone();
        }
        let weights = softmax::softmax(scores).reshape([samples * heads, queries, keys]);
        let weights = dropout_of_rows(weights, self.dropout, &self.keys_of_heads(), MAX_POSITIONS);
        let mixed = matmul(weights.reshape([samples, heads, queries, keys]), split_heads(value, heads));
        mixed.swap_dims(1, 2).reshape([samples, queries, width])
    }

    /// Each head has its own key, and each query a row of fixed length, so that masks do not depend
    /// on the padding of the micro-batch.
    fn keys_of_heads(&self) -> Vec<Key> {
        self.keys.iter().flat_map(|key| (0..self.heads as u64).map(|head| key.index(head))).collect()
    }

    /// Returns `None` if the operation must be composed of Burn's.
    fn on_host(&self, query: &Tensor<3>, key: &Tensor<3>, value: &Tensor<3>) -> Option<Tensor<3>> {
        if low_precision().is_some() || self.bias.is_some_and(Tensor::is_tracked) {
            return None;
        }
        let bias = match self.bias {
            Some(bias) => Some(input(bias)?.values),
            None => None,
        };
        let [query, key, value] = same_tracking([input(query)?, input(key)?, input(value)?])?;
        let keys = if self.dropout > 0.0 { self.keys_of_heads() } else { Vec::new() };
        let rule = Attend {
            sizes: Sizes::new(&query.values, &key.values, &value.values, self.heads),
            query: query.values,
            key: key.values,
            value: value.values,
            bias,
            dropout: RowMask { rate: self.dropout, stride: MAX_POSITIONS },
            keys,
        };
        Some(attach([query.node, key.node, value.node], rule.forward(), rule))
    }
}

fn scale_of(width_of_head: usize) -> f32 {
    (width_of_head as f64).powf(-0.5) as f32
}

/// From [sample, position, feature] to [sample, head, position, feature of the head].
fn split_heads(x: Tensor<3>, heads: usize) -> Tensor<4> {
    let [samples, positions, width] = x.dims();
    x.reshape([samples, positions, heads, width / heads]).swap_dims(1, 2)
}

#[derive(Debug, Clone, Copy)]
struct Sizes {
    samples: usize,
    heads: usize,
    queries: usize,
    keys: usize,
    width: usize,
}

impl Sizes {
    fn new(query: &Values, key: &Values, value: &Values, heads: usize) -> Self {
        let (of_query, of_key) = (query.shape(), key.shape());
        let (samples, queries, width) = (of_query[0], of_query[1], of_query[2]);
        let keys = of_key[1];
        assert_eq!(of_key, [samples, keys, width], "the shape of attention's keys");
        assert_eq!(value.shape(), of_key, "the shape of attention's values");
        assert!(width.is_multiple_of(heads), "{width} features for {heads} heads");
        Sizes { samples, heads, queries, keys, width }
    }

    fn width_of_head(self) -> usize {
        self.width / self.heads
    }

    /// The rows of one head in a matrix of `positions` rows of all heads.
    fn of_head(self, values: &[f32], head: usize) -> Matrix<'_> {
        Matrix::columns(values, self.width, head * self.width_of_head(), self.width_of_head())
    }

    fn of_head_mut(self, values: &mut [f32], head: usize) -> MatrixMut<'_> {
        MatrixMut::columns(values, self.width, head * self.width_of_head(), self.width_of_head())
    }

    /// The ranges of queries in blocks.
    fn blocks(self) -> impl Iterator<Item = std::ops::Range<usize>> {
        (0..self.queries).step_by(QUERIES).map(move |start| start..self.queries.min(start + QUERIES))
    }
}

/// Attention in host memory.
#[derive(Debug, Clone)]
struct Attend {
    sizes: Sizes,
    query: Values,
    key: Values,
    value: Values,
    bias: Option<Values>,
    dropout: RowMask,
    /// For each head of each sample. Empty without dropout.
    keys: Vec<Key>,
}

/// A block of queries of one head.
#[derive(Debug, Clone)]
struct Block {
    sample: usize,
    head: usize,
    queries: std::ops::Range<usize>,
}

/// The values of one sample.
fn of_sample(values: &[f32], sample: usize, samples: usize) -> &[f32] {
    let size = values.len() / samples.max(1);
    &values[sample * size..][..size]
}

impl Attend {
    fn forward(&self) -> Values {
        let sizes @ Sizes { samples, queries, width, .. } = self.sizes;
        let mut output = vec![0.0; samples * queries * width];
        output.par_chunks_mut((queries * width).max(1)).enumerate().for_each(|(sample, output)| {
            let value = of_sample(self.value.get(), sample, samples);
            let mut scratch = self.scratch();
            for head in 0..sizes.heads {
                for queries in sizes.blocks() {
                    let block = Block { sample, head, queries };
                    let weights = self.weights(&block, &mut scratch);
                    self.drop(&block, weights);
                    let rows = &mut output[block.queries.start * width..block.queries.end * width];
                    let weights = Matrix::new(weights, sizes.keys);
                    write_product(weights, sizes.of_head(value, head), 1.0, sizes.of_head_mut(rows, head));
                }
            }
        });
        Values::from_vec(output, vec![samples, queries, width])
    }

    /// Room for the weights of a block.
    fn scratch(&self) -> Vec<f32> {
        vec![0.0; QUERIES.min(self.sizes.queries) * self.sizes.keys]
    }

    /// The weights [query, key] of a block, before dropout.
    fn weights<'a>(&self, block: &Block, scratch: &'a mut [f32]) -> &'a mut [f32] {
        let sizes @ Sizes { samples, keys, width, .. } = self.sizes;
        let Block { sample, head, queries } = block.clone();
        let weights = &mut scratch[..queries.len() * keys];
        let query = &of_sample(self.query.get(), sample, samples)[queries.start * width..queries.end * width];
        let key = sizes.of_head(of_sample(self.key.get(), sample, samples), head).transposed();
        let scale = scale_of(sizes.width_of_head());
        write_product(sizes.of_head(query, head), key, scale, MatrixMut::new(weights, keys));
        if let Some(bias) = &self.bias {
            let shape = bias.shape();
            assert_eq!(shape[3], keys, "the keys of attention's bias");
            let at = |dimension: usize, index: usize| if shape[dimension] == 1 { 0 } else { index };
            for (query, weights) in queries.zip(weights.chunks_exact_mut(keys.max(1))) {
                let row = (at(0, sample) * shape[1] + at(1, head)) * shape[2] + at(2, query);
                let bias = &bias.get()[row * keys..][..keys];
                weights.iter_mut().zip(bias).for_each(|(weight, bias)| *weight += bias);
            }
        }
        softmax::normalise(weights, keys.max(1));
        weights
    }

    /// Applies dropout to rows [query, key] of a block, or to their gradients.
    fn drop(&self, block: &Block, rows: &mut [f32]) {
        if let Some(key) = self.keys.get(block.sample * self.sizes.heads + block.head) {
            self.dropout.apply(rows, self.sizes.keys, block.queries.start, key);
        }
    }

    /// The gradients of one sample: of its queries, keys and values, which are zero before.
    fn backward(&self, sample: usize, upstream: &[f32], [of_query, of_key, of_value]: [&mut [f32]; 3]) {
        let sizes @ Sizes { samples, keys, width, .. } = self.sizes;
        let scale = scale_of(sizes.width_of_head());
        let [query, key, value] = [&self.query, &self.key, &self.value].map(|x| of_sample(x.get(), sample, samples));
        let (mut scratch, mut scratch_of_gradients) = (self.scratch(), self.scratch());
        for head in 0..sizes.heads {
            for queries in sizes.blocks() {
                let rows = queries.start * width..queries.end * width;
                let block = Block { sample, head, queries };
                let weights = self.weights(&block, &mut scratch);
                let upstream = sizes.of_head(&upstream[rows.clone()], head);
                let gradients = &mut scratch_of_gradients[..weights.len()];

                // First, the dropped weights, for the values.
                gradients.copy_from_slice(weights);
                self.drop(&block, gradients);
                let dropped = Matrix::new(gradients, keys).transposed();
                add_scaled_product(dropped, upstream, 1.0, sizes.of_head_mut(of_value, head));

                // Then the gradients of the weights, and through the softmax those of the scores.
                let value = sizes.of_head(value, head).transposed();
                write_product(upstream, value, 1.0, MatrixMut::new(gradients, keys));
                self.drop(&block, gradients);
                softmax::backward(gradients, weights, keys.max(1));
                let of_scores = Matrix::new(gradients, keys);
                let of_query = sizes.of_head_mut(&mut of_query[rows.clone()], head);
                add_scaled_product(of_scores, sizes.of_head(key, head), scale, of_query);
                let query = sizes.of_head(&query[rows], head);
                add_scaled_product(of_scores.transposed(), query, scale, sizes.of_head_mut(of_key, head));
            }
        }
    }
}

impl BackwardRule<3> for Attend {
    fn gradients(self, upstream: Values, _: [Target; 3]) -> [Option<Values>; 3] {
        let Sizes { samples, queries, keys, width, .. } = self.sizes;
        let zeros = |positions: usize| vec![0.0; samples * positions * width];
        let (mut of_query, mut of_key, mut of_value) = (zeros(queries), zeros(keys), zeros(keys));
        let of_samples = (of_query.par_chunks_mut((queries * width).max(1)))
            .zip(of_key.par_chunks_mut((keys * width).max(1)))
            .zip(of_value.par_chunks_mut((keys * width).max(1)));
        of_samples.enumerate().for_each(|(sample, ((of_query, of_key), of_value))| {
            self.backward(sample, of_sample(upstream.get(), sample, samples), [of_query, of_key, of_value]);
        });
        let values = |gradient, positions| Some(Values::from_vec(gradient, vec![samples, positions, width]));
        [values(of_query, queries), values(of_key, keys), values(of_value, keys)]
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;

    fn draw<const D: usize>(name: &str, shape: [usize; D]) -> Tensor<D> {
        let key = Key::root(5).name(name);
        let values: Vec<f32> = (0..shape.iter().product::<usize>() as u64).map(|i| key.normal(i)).collect();
        Tensor::from_data(TensorData::new(values, shape), &Device::flex().autodiff())
    }

    /// The output, then the gradients.
    fn results(inputs: &[Tensor<3>; 3], forward: impl FnOnce([Tensor<3>; 3]) -> Tensor<3>) -> [Vec<f32>; 4] {
        let inputs = inputs.clone().map(|input| input.detach().require_grad());
        let output = forward(inputs.clone());
        let gradients = (output.clone() * draw("upstream", output.dims())).sum().backward();
        let [query, key, value] = inputs.map(|input| input.grad(&gradients).unwrap());
        [output.inner(), query, key, value].map(|tensor| tensor.into_data().try_to_vec().unwrap())
    }

    /// Sizes of one, odd sizes and several blocks; dropout; keys masked for some samples, for all heads
    /// and queries, and all keys of a sample.
    #[test]
    fn blocks_are_equal_to_the_composition() {
        let cases = [[1, 1, 1, 1, 1], [2, 3, 1, 7, 5], [3, 2, 65, 64, 8], [2, 1, 130, 33, 16], [1, 4, 64, 129, 3]];
        for [samples, heads, queries, keys, of_head] in cases {
            let width = heads * of_head;
            let inputs = [("query", queries), ("key", keys), ("value", keys)];
            let inputs = inputs.map(|(name, positions)| draw(name, [samples, positions, width]));
            let of_dropout: Vec<Key> = (0..samples as u64).map(|sample| Key::root(1).index(sample)).collect();
            let mask = |shape: [usize; 4]| {
                let values = (0..shape.iter().product()).map(|i| if i % 3 == 1 || i < keys { -1e9 } else { 0.25 });
                Tensor::<4>::from_data(TensorData::new(values.collect::<Vec<f32>>(), shape), &Device::flex())
            };
            let biases = [None, Some(mask([samples, 1, 1, keys])), Some(mask([1, heads, queries, keys]))];
            for (bias, dropout) in biases.iter().flat_map(|bias| [(bias, 0.0), (bias, 0.4)]) {
                let attention = Attention { heads, bias: bias.as_ref(), dropout, keys: &of_dropout };
                let ours = results(&inputs, |[query, key, value]| attention.on_host(&query, &key, &value).unwrap());
                let theirs = results(&inputs, |[query, key, value]| attention.composed(query, key, value));
                for (i, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
                    let largest = theirs.iter().fold(1.0f32, |largest, x| largest.max(x.abs()));
                    let error = ours.iter().zip(theirs).fold(0.0f32, |error, (a, b)| error.max((a - b).abs()));
                    let limit = if i == 0 { 1e-6 } else { 1e-5 };
                    assert!(error <= limit * largest, "result {i} of {samples} {heads} {queries} {keys}: {error:e}");
                }
            }
        }
    }
}
