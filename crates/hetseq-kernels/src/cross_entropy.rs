//! The sum of cross entropies of rows of logits. The softmax over a large vocabulary is never
//! stored: the backward pass overwrites the logits with their gradient.

use burn::tensor::activation::log_softmax;
use burn::tensor::{Int, Tensor};
use hetseq_simd::vectorised;
use rayon::prelude::*;

use crate::host::{BackwardRule, Target, Values, attach, indices, input};
use crate::math::{exp, largest, sum_of};

/// Sum of the cross entropies. `logits` is [row, class], `labels` has one class per row.
pub fn cross_entropy_sum(logits: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
    smoothed_cross_entropy_sum(logits, labels, 0.0)
}

/// The same with label smoothing (Szegedy et al., 2016): the fraction `smoothing` of each label is
/// spread evenly over all classes, as with PyTorch's `label_smoothing`.
pub fn smoothed_cross_entropy_sum(logits: Tensor<2>, labels: Tensor<1, Int>, smoothing: f32) -> Tensor<1> {
    let [rows, classes] = logits.dims();
    let (on_label, on_each) = (1.0 - smoothing, smoothing / classes as f32);
    let on_host = |input| Some((input, indices(&labels, classes).filter(|labels| labels.len() == rows)?));
    match input(&logits).and_then(on_host) {
        Some((input, labels)) => {
            drop(logits);
            let logits = input.values;
            let each = |(row, &label): (&[f32], &usize)| {
                let normaliser = log_sum_exp(row);
                let spread = if on_each > 0.0 { f64::from(on_each) * f64::from(sum_of(row, |x| x)) } else { 0.0 };
                (normaliser, f64::from(normaliser) - f64::from(on_label) * f64::from(row[label]) - spread)
            };
            let rows = logits.get().par_chunks_exact(classes).zip(&labels);
            let (normalisers, losses): (Vec<f32>, Vec<f64>) = rows.map(each).unzip();
            let loss = losses.iter().sum::<f64>() as f32;
            let rule = CrossEntropy { logits, labels, normalisers, on_label, on_each };
            attach([input.node], Values::from_vec(vec![loss], vec![1]), rule)
        }
        None => {
            let of_classes = log_softmax(logits, 1);
            let of_labels = of_classes.clone().gather(1, labels.unsqueeze_dim(1)).sum();
            if on_each > 0.0 { -(of_labels * on_label + of_classes.sum() * on_each) } else { -of_labels }
        }
    }
}

/// log(sum of e^x)
pub(crate) fn log_sum_exp(row: &[f32]) -> f32 {
    let (largest, sum) = largest_and_sum(row);
    largest + sum.ln()
}

vectorised! {
    /// The largest value, and the sum of e^(x - largest).
    fn largest_and_sum(row: &[f32]) -> (f32, f32) {
        let largest = largest(row);
        (largest, sum_of(row, |x| exp(x - largest)))
    }

    /// Overwrites logits with scale (softmax - on_each).
    fn distance(row: &mut [f32], normaliser: f32, on_each: f32, scale: f32) {
        for x in row {
            *x = scale * (exp(*x - normaliser) - on_each);
        }
    }
}

#[derive(Debug, Clone)]
struct CrossEntropy {
    logits: Values,
    labels: Vec<usize>,
    normalisers: Vec<f32>,
    /// Target probability of the label, in addition to that of each class.
    on_label: f32,
    on_each: f32,
}

impl BackwardRule<1> for CrossEntropy {
    /// g (softmax - target)
    fn gradients(self, upstream: Values, _: [Target; 1]) -> [Option<Values>; 1] {
        let scale = upstream.get().first().copied().unwrap_or(0.0);
        let mut gradients = self.logits;
        let classes = gradients.width();
        let rows = gradients.get_mut().par_chunks_exact_mut(classes).zip(&self.labels).zip(&self.normalisers);
        rows.for_each(|((row, &label), &normaliser)| {
            distance(row, normaliser, self.on_each, scale);
            row[label] -= scale * self.on_label;
        });
        [Some(gradients)]
    }
}
