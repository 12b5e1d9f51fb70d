//! The two matrix products of attention, per head. Queries, keys and values have the shape of the
//! projections, [sample, position, feature] with the features of the heads side by side, and so has
//! the result. Heads are never copied apart, neither forward nor backward.

use burn::tensor::Tensor;
use rayon::prelude::*;

use crate::host::{BackwardRule, HostInput, Target, Values, attach, input, same_tracking};
use crate::precision::{low_precision, matmul};
use crate::product::{Matrix, MatrixMut, write_product};

/// Attention scores [sample, head, query, key]: dot products divided by the square root of the
/// head's width.
///
/// # Panics
/// Like Burn's products, if the sizes do not match.
pub fn attention_scores(query: Tensor<3>, key: Tensor<3>, heads: usize) -> Tensor<4> {
    let scale = ((query.dims()[2] / heads) as f64).powf(-0.5);
    match inputs(&query, &key) {
        Some([query, key]) => {
            let rule = Scores { query: query.values, key: key.values, scale: scale as f32 };
            let scores = pairs(&rule.query, &rule.key, heads, rule.scale);
            attach([query.node, key.node], scores, rule)
        }
        // Scales the queries and not the scores, because there are fewer of them.
        None => matmul(split_heads(query * scale, heads), split_heads(key, heads).transpose()),
    }
}

/// Sums of the values weighted by attention, [sample, query, feature].
///
/// # Panics
/// Like Burn's products, if the sizes do not match.
pub fn attention_mix(weights: Tensor<4>, value: Tensor<3>) -> Tensor<3> {
    let [samples, heads, queries, _] = weights.dims();
    let width = value.dims()[2];
    match inputs(&weights, &value) {
        Some([weights, value]) => {
            let rule = Mix { weights: weights.values, value: value.values };
            let mixed = rows(&rule.weights, false, &rule.value, 1.0);
            attach([weights.node, value.node], mixed, rule)
        }
        None => {
            let mixed = matmul(weights, split_heads(value, heads));
            mixed.swap_dims(1, 2).reshape([samples, queries, width])
        }
    }
}

/// From [sample, position, feature] to [sample, head, position, feature of the head].
fn split_heads(x: Tensor<3>, heads: usize) -> Tensor<4> {
    let [samples, positions, width] = x.dims();
    x.reshape([samples, positions, heads, width / heads]).swap_dims(1, 2)
}

/// Returns `None` if the operation must be composed of Burn's.
fn inputs<const A: usize, const B: usize>(a: &Tensor<A>, b: &Tensor<B>) -> Option<[HostInput; 2]> {
    if low_precision().is_some() { None } else { same_tracking([input(a)?, input(b)?]) }
}

#[derive(Debug, Clone)]
struct Scores {
    query: Values,
    key: Values,
    scale: f32,
}

impl BackwardRule<2> for Scores {
    fn gradients(self, upstream: Values, [of_query, of_key]: [Target; 2]) -> [Option<Values>; 2] {
        [
            of_query.is_needed().then(|| rows(&upstream, false, &self.key, self.scale)),
            of_key.is_needed().then(|| rows(&upstream, true, &self.query, self.scale)),
        ]
    }
}

#[derive(Debug, Clone)]
struct Mix {
    weights: Values,
    value: Values,
}

impl BackwardRule<2> for Mix {
    fn gradients(self, upstream: Values, [of_weights, of_value]: [Target; 2]) -> [Option<Values>; 2] {
        let heads = self.weights.shape()[1];
        [
            of_weights.is_needed().then(|| pairs(&upstream, &self.value, heads, 1.0)),
            of_value.is_needed().then(|| rows(&self.weights, true, &upstream, 1.0)),
        ]
    }
}

/// `scale a bᵀ` per head: [sample, head, position of a, position of b].
fn pairs(a: &Values, b: &Values, heads: usize, scale: f32) -> Values {
    let (a, b) = (Heads::new(a, heads), Heads::new(b, heads));
    assert!((a.samples, a.width) == (b.samples, b.width), "heads of {a:?} and of {b:?}");
    let mut pairs = vec![0.0; a.samples * heads * a.positions * b.positions];
    let matrices = pairs.par_chunks_mut((a.positions * b.positions).max(1)).enumerate();
    matrices.for_each(|(i, matrix)| {
        let (sample, head) = (i / heads, i % heads);
        let out = MatrixMut::new(matrix, b.positions);
        write_product(a.matrix(sample, head), b.matrix(sample, head).transposed(), scale, out);
    });
    Values::from_vec(pairs, vec![a.samples, heads, a.positions, b.positions])
}

/// `scale p b` per head, or `scale pᵀ b`: [sample, position, feature].
fn rows(pairs: &Values, is_transposed: bool, b: &Values, scale: f32) -> Values {
    let shape = pairs.shape();
    let (heads, first, second) = (shape[1], shape[2], shape[3]);
    let b = Heads::new(b, heads);
    let positions = if is_transposed { second } else { first };
    assert_eq!(shape[0], b.samples, "samples of attention");
    let mut rows = vec![0.0; b.samples * positions * b.width];
    let samples = rows.par_chunks_mut((positions * b.width).max(1)).enumerate();
    samples.for_each(|(sample, rows)| {
        for head in 0..heads {
            let size = first * second;
            let matrix = Matrix::new(&pairs.get()[(sample * heads + head) * size..][..size], second);
            let matrix = if is_transposed { matrix.transposed() } else { matrix };
            let (from, columns) = b.columns(head);
            write_product(matrix, b.matrix(sample, head), scale, MatrixMut::columns(rows, b.width, from, columns));
        }
    });
    Values::from_vec(rows, vec![b.samples, positions, b.width])
}

/// Values of shape [sample, position, feature], seen as heads.
#[derive(Debug)]
struct Heads<'a> {
    values: &'a [f32],
    heads: usize,
    samples: usize,
    positions: usize,
    width: usize,
}

impl<'a> Heads<'a> {
    fn new(values: &'a Values, heads: usize) -> Self {
        let shape = values.shape();
        let (samples, positions, width) = (shape[0], shape[1], shape[2]);
        assert!(width.is_multiple_of(heads), "{width} features for {heads} heads");
        Heads { values: values.get(), heads, samples, positions, width }
    }

    /// The first column of a head, and the number of its columns.
    fn columns(&self, head: usize) -> (usize, usize) {
        let of_head = self.width / self.heads;
        (head * of_head, of_head)
    }

    fn matrix(&self, sample: usize, head: usize) -> Matrix<'a> {
        let (size, (from, columns)) = (self.positions * self.width, self.columns(head));
        Matrix::columns(&self.values[sample * size..][..size], self.width, from, columns)
    }
}
