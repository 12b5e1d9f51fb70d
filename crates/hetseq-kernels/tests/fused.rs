//! Fused operations against their composition of Burn's operations: equal values and gradients, and
//! the same bits for any number of threads.

// Clippy's exception for tests does not cover helper functions.
#![allow(clippy::unwrap_used)]

use burn::tensor::activation;
use burn::tensor::{Device, Int, Tensor, TensorData};
use hetseq_kernels::{
    Attention, GradientBuffer, MAX_POSITIONS, add_gradient, cross_entropy_sum, dropout_of_rows, embedding, gelu,
    layer_norm, linear, smoothed_cross_entropy_sum, softmax,
};
use hetseq_random::Key;

const EPSILON: f64 = 1e-12;

fn device() -> Device {
    Device::flex().autodiff()
}

/// Normally distributed values.
fn draw<const D: usize>(name: &str, shape: [usize; D]) -> Tensor<D> {
    let count = shape.iter().product::<usize>() as u64;
    let key = Key::root(3).name(name);
    let values: Vec<f32> = (0..count).map(|i| key.normal(i)).collect();
    Tensor::<D>::from_data(TensorData::new(values, shape), &device())
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}

/// The output, then the gradients of the inputs (a tensor, a matrix, a vector) for a fixed upstream
/// gradient.
fn results<const D: usize>(
    (x, matrix, vector): (Tensor<D>, Tensor<2>, Tensor<1>),
    operation: impl Fn(Tensor<D>, Tensor<2>, Tensor<1>) -> Tensor<D>,
) -> Vec<Vec<f32>> {
    let (x, matrix, vector) = (x.require_grad(), matrix.require_grad(), vector.require_grad());
    let output = operation(x.clone(), matrix.clone(), vector.clone());
    let gradients = (output.clone() * draw("upstream", output.dims())).sum().backward();
    let mut all = vec![values(output)];
    all.extend(x.grad(&gradients).map(values));
    all.extend(matrix.grad(&gradients).map(values));
    all.extend(vector.grad(&gradients).map(values));
    all
}

fn assert_close(ours: &[Vec<f32>], theirs: &[Vec<f32>]) {
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    assert_eq!(ours.len(), theirs.len());
    for (i, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        assert_eq!(ours.len(), theirs.len());
        let error = norm(&mut ours.iter().zip(theirs).map(|(a, b)| a - b)) / norm(&mut theirs.iter().copied());
        assert!(error < 1e-6, "result {i} has a relative error of {error:e}");
    }
}

/// Checks that one and three threads give the same bits, and that `composed` agrees to 1e-6.
fn check<const D: usize>(
    shape: [usize; D],
    matrix: [usize; 2],
    fused: impl Fn(Tensor<D>, Tensor<2>, Tensor<1>) -> Tensor<D> + Sync,
    composed: impl Fn(Tensor<D>, Tensor<2>, Tensor<1>) -> Tensor<D>,
) {
    let inputs = || (draw("x", shape), draw("matrix", matrix), draw("vector", [matrix[0]]));
    let with_threads = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| results(inputs(), &fused))
    };
    let ours = with_threads(1);
    assert!(ours == with_threads(3), "the result depends on the number of threads");
    assert_close(&ours, &results(inputs(), composed));
}

#[test]
fn gelu_is_exact() {
    check([9, 700, 3], [1, 1], |x, _, _| gelu(x * 3.0), |x, _, _| activation::gelu(x * 3.0));
}

#[test]
fn softmax_over_the_last_dimension() {
    for width in [2, 17, 128] {
        check([8, 3, 31, width], [1, 1], |x, _, _| softmax(x * 4.0), |x, _, _| activation::softmax(x * 4.0, 3));
    }
}

/// Shared inputs are not overwritten, and non-contiguous inputs are supported.
#[test]
fn inputs_are_not_changed() {
    let fused = |x: Tensor<3>, _, _| softmax(x.clone().swap_dims(1, 2)).swap_dims(1, 2) * x;
    let composed = |x: Tensor<3>, _, _| activation::softmax(x.clone(), 1) * x;
    check([4, 33, 21], [1, 1], fused, composed);
    let x = draw("x", [3, 5]);
    let before = values(x.clone());
    _ = values(softmax(x.clone()));
    assert_eq!(values(x), before);
    let fused = |x: Tensor<2>, _, _| gelu(x.clone().narrow(0, 2, 4)).repeat_dim(0, 2) + x;
    let composed = |x: Tensor<2>, _, _| activation::gelu(x.clone().narrow(0, 2, 4)).repeat_dim(0, 2) + x;
    check([8, 30], [1, 1], fused, composed);
}

#[test]
fn layer_norm_of_rows() {
    for width in [5, 64, 300] {
        let weight = |matrix: Tensor<2>| matrix.reshape([width]);
        check(
            [30, 11, width],
            [width, 1],
            |x, matrix, bias| layer_norm(x * 2.0 + 1.0, weight(matrix), bias, EPSILON),
            |x, matrix, bias| burn::tensor::module::layer_norm(x * 2.0 + 1.0, weight(matrix), Some(bias), EPSILON),
        );
    }
}

#[test]
fn linear_of_rows() {
    for (shape, outputs) in [([4, 129, 40], 70), ([1, 1, 3], 1), ([2, 300, 96], 256)] {
        let composed = |x: Tensor<3>, weight: Tensor<2>, bias: Tensor<1>| {
            x.matmul(weight.transpose().unsqueeze()) + bias.unsqueeze::<3>()
        };
        // `check` needs an output as wide as the input, hence the sum.
        let narrowed = |y: Tensor<3>, x: Tensor<3>| (y.clone() * y).sum_dim(2) * x;
        check(
            shape,
            [outputs, shape[2]],
            |x, weight, bias| narrowed(linear(x.clone(), weight, bias), x),
            |x, weight, bias| narrowed(composed(x.clone(), weight, bias), x),
        );
    }
}

fn attention(heads: usize) -> Attention<'static> {
    Attention { heads, bias: None, dropout: 0.0, keys: &[] }
}

/// Fewer queries than keys, as in cross-attention; lengths and widths that are not multiples of a
/// SIMD vector.
#[test]
fn attention_of_heads() {
    for (heads, of_head) in [(1, 8), (3, 5), (4, 64)] {
        let width = heads * of_head;
        let parts = |x: Tensor<3>| {
            let part = |i: usize| x.clone().narrow(2, i * width, width);
            (part(0).narrow(1, 0, 19), part(1), part(2))
        };
        let fused = |x: Tensor<3>, _, _| {
            let (query, key, value) = parts(x);
            attention(heads).forward(query, key, value)
        };
        let composed = |x: Tensor<3>, _, _| {
            let (query, key, value) = parts(x);
            let split = |x: Tensor<3>| {
                let [samples, positions, _] = x.dims();
                x.reshape([samples, positions, heads, of_head]).swap_dims(1, 2)
            };
            let scores = split(query).matmul(split(key).transpose()) / (of_head as f64).sqrt();
            let mixed = activation::softmax(scores, 3).matmul(split(value));
            mixed.swap_dims(1, 2).reshape([5, 19, width])
        };
        check([5, 33, 3 * width], [1, 1], fused, composed);
    }
}

/// Sizes of one, odd sizes and several blocks of queries; dropout; masked keys, in places for all
/// queries.
#[test]
fn attention_with_masks_and_dropout() {
    for [samples, heads, queries, keys, of_head] in
        [[1, 1, 1, 1, 1], [2, 3, 1, 7, 5], [3, 2, 65, 64, 8], [2, 1, 130, 33, 16], [1, 4, 64, 129, 3]]
    {
        let width = heads * of_head;
        let samples_keys: Vec<Key> = (0..samples as u64).map(|sample| Key::root(1).index(sample)).collect();
        let of_heads = |key: &Key| (0..heads as u64).map(|head| key.index(head)).collect::<Vec<Key>>();
        let head_keys: Vec<Key> = samples_keys.iter().flat_map(of_heads).collect();
        let mask = |shape: [usize; 4]| {
            let masked = |i: usize| if i % 3 == 1 || i < keys { -1e9 } else { 0.25 };
            let values: Vec<f32> = (0..shape.iter().product()).map(masked).collect();
            Tensor::<4>::from_data(TensorData::new(values, shape), &device())
        };
        let masks = [mask([1; 4]) * 0.0, mask([samples, 1, 1, keys]), mask([1, heads, queries, keys])];
        for (mask, dropout) in masks.iter().flat_map(|mask| [(mask, 0.0), (mask, 0.4)]) {
            // The queries, keys and values, one below the other.
            let part = |x: Tensor<3>, from, count| x.narrow(1, from, count);
            let parts = |x: Tensor<3>| {
                let (query, key) = (part(x.clone(), 0, queries), part(x.clone(), queries, keys));
                (query, key, part(x, queries + keys, keys))
            };
            let split = |x: Tensor<3>| {
                let [samples, positions, _] = x.dims();
                x.reshape([samples, positions, heads, of_head]).swap_dims(1, 2)
            };
            // `check` needs an output of the shape of the input.
            let filled = |y: Tensor<3>, x: Tensor<3>| Tensor::cat(vec![y, part(x, queries, 2 * keys)], 1);
            let fused = |x: Tensor<3>, _, _| {
                let has_bias = mask.dims()[3] == keys && mask.dims() != [1; 4];
                let bias = has_bias.then_some(mask);
                let attention = Attention { heads, bias, dropout, keys: &samples_keys };
                let (query, key, value) = parts(x.clone());
                filled(attention.forward(query, key, value), x)
            };
            let composed = |x: Tensor<3>, _, _| {
                let (query, key, value) = parts(x.clone());
                let scores = split(query).matmul(split(key).transpose()) / (of_head as f64).sqrt() + mask.clone();
                let weights = activation::softmax(scores, 3).reshape([samples * heads, queries, keys]);
                let weights = dropout_of_rows(weights, dropout, &head_keys, MAX_POSITIONS);
                let mixed = weights.reshape([samples, heads, queries, keys]).matmul(split(value));
                filled(mixed.swap_dims(1, 2).reshape([samples, queries, width]), x)
            };
            check([samples, queries + 2 * keys, width], [1, 1], fused, composed);
        }
    }
}

#[test]
fn cross_entropy_of_rows() {
    for (rows, classes) in [(1, 2), (50, 1003), (7, 30_522)] {
        let labels = || {
            let labels: Vec<i32> = (0..rows as u64).map(|i| Key::root(1).below(i, classes as u64) as i32).collect();
            Tensor::<1, Int>::from_data(TensorData::new(labels, [rows]), &device())
        };
        let composed = |x: Tensor<2>| activation::log_softmax(x, 1).gather(1, labels().unsqueeze_dim(1)).sum().neg();
        let scaled = |loss: Tensor<1>, x: Tensor<2>| x * 0.001 + loss.unsqueeze::<2>();
        check(
            [rows, classes],
            [1, 1],
            |x, _, _| scaled(cross_entropy_sum(x.clone(), labels()), x),
            |x, _, _| scaled(composed(x.clone()), x),
        );
        let smoothing = 0.1;
        let composed = |x: Tensor<2>| {
            let even = activation::log_softmax(x.clone(), 1).sum().neg() * (smoothing / classes as f32);
            composed(x) * (1.0 - smoothing) + even
        };
        check(
            [rows, classes],
            [1, 1],
            |x, _, _| scaled(smoothed_cross_entropy_sum(x.clone(), labels(), smoothing), x),
            |x, _, _| scaled(composed(x.clone()), x),
        );
    }
}

#[test]
fn embedding_of_repeated_ids() {
    let ids = || {
        let ids: Vec<i32> = (0..60).map(|i| Key::root(2).below(i, 9) as i32).collect();
        Tensor::<2, Int>::from_data(TensorData::new(ids, [4, 15]), &device())
    };
    // One of the ten entries never occurs.
    let scaled = |vectors: Tensor<3>, x: Tensor<3>| vectors * x;
    check(
        [4, 15, 33],
        [10, 33],
        |x, table, _| scaled(embedding(table, ids()), x),
        |x, table, _| scaled(burn::tensor::module::embedding(table, ids()), x),
    );
}

/// A buffer has the sums of the graph: of tied weights, several passes, operations that are not
/// fused, and a parameter that is not used.
#[test]
fn gradients_in_a_buffer() {
    let ids = || Tensor::<2, Int>::from_data([[3, 1, 3, 0], [8, 8, 2, 5]], &device());
    let (table, bias) = (draw("table", [9, 33]).require_grad(), draw("bias", [9]).require_grad());
    let unused = draw("unused", [4]).require_grad();
    let backward = || {
        let logits = linear(embedding(table.clone(), ids()), table.clone(), bias.clone());
        ((logits.clone() * logits).sum() + table.clone().narrow(0, 2, 3).sum()).backward()
    };
    let mut graph = backward();
    let twice = |gradient: Vec<f32>| gradient.iter().map(|x| 2.0 * x).collect::<Vec<f32>>();
    let of_table = twice(values(table.grad_remove(&mut graph).unwrap()));
    let expected = [of_table, twice(values(bias.grad_remove(&mut graph).unwrap())), vec![0.0; 4], vec![7.0]];

    let mut buffer = GradientBuffer::new(1);
    buffer.push(&table);
    buffer.push(&bias);
    buffer.push(&unused);
    for _ in 0..2 {
        buffer.during(|| {
            let mut rest = backward();
            add_gradient(0, table.grad_remove(&mut rest).unwrap().reshape([9 * 33]));
            assert!(bias.grad_remove(&mut rest).is_none());
        });
    }
    // Outside, gradients are those of the graph.
    assert!(bias.grad_remove(&mut backward()).is_some());
    let sums = buffer.finish(&[7.0]);
    assert_close(&[sums], &[expected.concat()]);
    assert_eq!(GradientBuffer::new(2).finish(&[1.0, 2.0]), [1.0, 2.0]);
}

/// The results without autodiff are the same.
#[test]
fn tensors_without_autodiff_are_supported() {
    let all = |plain: bool| {
        let of = |x: Tensor<2>| if plain { x.inner() } else { x };
        let (x, weight, bias) = (of(draw("x", [6, 8])), of(draw("w", [5, 8])), of(draw("b", [1, 8])));
        let bias = bias.reshape([8]);
        [
            values(gelu(x.clone())),
            values(softmax(x.clone())),
            values(linear(x.clone(), weight, bias.clone().narrow(0, 0, 5))),
            values(layer_norm(x.clone(), bias.clone(), bias, EPSILON)),
            values(attention(2).forward(x.clone().unsqueeze(), x.clone().unsqueeze(), x.unsqueeze())),
        ]
    };
    assert_close(&all(true), &all(false));
}
