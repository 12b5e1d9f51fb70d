//! Operations of our own behind Burn's tensors. Models call these; nothing here knows of tasks or ranks.
//!
//! On the CPU each is one pass over memory forward and one backward; elsewhere they are composed of Burn's operations.

mod attention;
mod best;
mod cross_entropy;
pub mod dropout;
mod embedding;
mod gelu;
mod host;
mod layer_norm;
mod linear;
mod math;
mod precision;
mod product;
mod softmax;

pub use attention::{attention_mix, attention_scores};
pub use best::best_of_rows;
pub use cross_entropy::{cross_entropy_sum, smoothed_cross_entropy_sum};
pub use dropout::{dropout, dropout_of_rows};
pub use embedding::embedding;
pub use gelu::gelu;
pub use host::is_host;
pub use layer_norm::layer_norm;
pub use linear::linear;
pub use precision::{Precision, conv2d, matmul, with_products_in};
pub use softmax::softmax;
