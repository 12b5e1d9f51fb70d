//! Losses as sums. The divisor is known only after all machines have counted.

pub use hetseq_kernels::{cross_entropy_sum, smoothed_cross_entropy_sum};
