//! Custom tensor operations on Burn's tensors, called by models. Independent of tasks and ranks.
//!
//! On the CPU each operation is one pass over memory forward and one backward. On other devices it
//! is composed of Burn's operations.

mod attention;
mod cross_entropy;
pub mod dropout;
mod dtype;
mod embedding;
mod gelu;
mod gradient_buffer;
mod host;
mod layer_norm;
mod linear;
mod math;
mod precision;
mod product;
mod softmax;
mod top_k;

pub use attention::{Attention, MAX_POSITIONS};
pub use cross_entropy::{cross_entropy_sum, smoothed_cross_entropy_sum};
pub use dropout::{dropout, dropout_of_rows};
pub use dtype::Dtype;
pub use embedding::embedding;
pub use gelu::gelu;
pub use gradient_buffer::{GradientBuffer, add_gradient};
pub use host::is_host;
pub use layer_norm::layer_norm;
pub use linear::linear;
pub use precision::{conv2d, matmul, with_precision};
pub use softmax::softmax;
pub use top_k::top_k_of_rows;
