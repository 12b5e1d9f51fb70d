//! Losses as sums: what to divide by is known only when all machines have counted.

pub use hetseq_kernels::{cross_entropy_sum, smoothed_cross_entropy_sum};
