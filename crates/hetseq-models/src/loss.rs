//! Losses as sums: what to divide by is known only when all machines have counted.

use burn::tensor::activation::log_softmax;
use burn::tensor::{Int, Tensor};

/// The cross entropy of each row of `logits` [row, class] with its label, added up over the rows.
pub fn cross_entropy_sum(logits: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
    log_softmax(logits, 1).gather(1, labels.unsqueeze_dim(1)).sum().neg()
}
