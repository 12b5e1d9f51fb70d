//! The cross entropy of rows of logits with their labels, as a sum. The softmax over a large vocabulary is never stored: the
//! backward pass turns the logits themselves into their gradient.

use burn::tensor::activation::log_softmax;
use burn::tensor::{Int, Tensor};
use rayon::prelude::*;

use crate::host::{Rule, Values, attach, indices, input};
use crate::math::{exp, largest, sum_of};

/// `logits` is [row, class], `labels` has one class per row.
pub fn cross_entropy_sum(logits: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
    smoothed_cross_entropy_sum(logits, labels, 0.0)
}

/// With the part `smoothing` of each label spread evenly over all classes (Szegedy et al., 2016), as PyTorch's `label_smoothing`.
pub fn smoothed_cross_entropy_sum(logits: Tensor<2>, labels: Tensor<1, Int>, smoothing: f32) -> Tensor<1> {
    let [rows, classes] = logits.dims();
    let (sure, even) = (1.0 - smoothing, smoothing / classes as f32);
    let on_host = |input| Some((input, indices(&labels, classes).filter(|labels| labels.len() == rows)?));
    match input(&logits).and_then(on_host) {
        Some((input, labels)) => {
            drop(logits);
            let logits = input.values;
            let each = |(row, &label): (&[f32], &usize)| {
                let normaliser = log_sum_exp(row);
                let spread = if even > 0.0 { f64::from(even) * f64::from(sum_of(row, |x| x)) } else { 0.0 };
                (normaliser, f64::from(normaliser) - f64::from(sure) * f64::from(row[label]) - spread)
            };
            let rows = logits.get().par_chunks_exact(classes).zip(&labels);
            let (normalisers, losses): (Vec<f32>, Vec<f64>) = rows.map(each).unzip();
            let loss = losses.iter().sum::<f64>() as f32;
            let rule = CrossEntropy { logits, labels, normalisers, sure, even };
            attach([input.node], Values::from_vec(vec![loss], vec![1]), rule)
        }
        None => {
            let of_classes = log_softmax(logits, 1);
            let of_labels = of_classes.clone().gather(1, labels.unsqueeze_dim(1)).sum();
            if even > 0.0 { -(of_labels * sure + of_classes.sum() * even) } else { -of_labels }
        }
    }
}

/// log(sum of e^x)
pub(crate) fn log_sum_exp(row: &[f32]) -> f32 {
    let largest = largest(row);
    largest + sum_of(row, |x| exp(x - largest)).ln()
}

#[derive(Debug, Clone)]
struct CrossEntropy {
    logits: Values,
    labels: Vec<usize>,
    normalisers: Vec<f32>,
    /// What the label itself has, and what every class has.
    sure: f32,
    even: f32,
}

impl Rule<1> for CrossEntropy {
    /// g (softmax - what the classes were to have)
    fn gradients(self, upstream: Values, _: [bool; 1]) -> [Option<Values>; 1] {
        let scale = upstream.get().first().copied().unwrap_or(0.0);
        let mut gradients = self.logits;
        let classes = gradients.width();
        let rows = gradients.get_mut().par_chunks_exact_mut(classes).zip(&self.labels).zip(&self.normalisers);
        rows.for_each(|((row, &label), &normaliser)| {
            for x in row.iter_mut() {
                *x = scale * (exp(*x - normaliser) - self.even);
            }
            row[label] -= scale * self.sure;
        });
        [Some(gradients)]
    }
}
