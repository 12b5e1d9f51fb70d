//! The cross entropy of rows of logits with their labels, as a sum. The softmax over a large vocabulary is never stored: the
//! backward pass turns the logits themselves into their gradient.

use burn::tensor::activation::log_softmax;
use burn::tensor::{Int, Tensor};
use rayon::prelude::*;

use crate::host::{Rule, Values, attach, indices, input};
use crate::math::{exp, largest, sum_of};

/// `logits` is [row, class], `labels` has one class per row.
pub fn cross_entropy_sum(logits: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
    let [rows, classes] = logits.dims();
    match input(&logits).zip(indices(&labels, classes).filter(|labels| labels.len() == rows)) {
        Some((input, labels)) => {
            drop(logits);
            let logits = input.values;
            let each = |(row, &label): (&[f32], &usize)| {
                let normaliser = log_sum_exp(row);
                (normaliser, f64::from(normaliser - row[label]))
            };
            let rows = logits.get().par_chunks_exact(classes).zip(&labels);
            let (normalisers, losses): (Vec<f32>, Vec<f64>) = rows.map(each).unzip();
            let loss = losses.iter().sum::<f64>() as f32;
            attach([input.node], Values::from_vec(vec![loss], vec![1]), CrossEntropy { logits, labels, normalisers })
        }
        None => log_softmax(logits, 1).gather(1, labels.unsqueeze_dim(1)).sum().neg(),
    }
}

/// log(sum of e^x)
fn log_sum_exp(row: &[f32]) -> f32 {
    let largest = largest(row);
    largest + sum_of(row, |x| exp(x - largest)).ln()
}

#[derive(Debug, Clone)]
struct CrossEntropy {
    logits: Values,
    labels: Vec<usize>,
    normalisers: Vec<f32>,
}

impl Rule<1> for CrossEntropy {
    /// g (softmax - one at the label)
    fn gradients(self, upstream: Values, _: [bool; 1]) -> [Option<Values>; 1] {
        let scale = upstream.get().first().copied().unwrap_or(0.0);
        let mut gradients = self.logits;
        let classes = gradients.width();
        let rows = gradients.get_mut().par_chunks_exact_mut(classes).zip(&self.labels).zip(&self.normalisers);
        rows.for_each(|((row, &label), &normaliser)| {
            for x in row.iter_mut() {
                *x = scale * exp(*x - normaliser);
            }
            row[label] -= scale;
        });
        [Some(gradients)]
    }
}
