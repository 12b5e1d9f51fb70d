//! Models, one file or folder each. Parameters have PyTorch's names and memory layout, so
//! checkpoints need no conversion.

mod activation;
pub mod attention;
pub mod beam;
pub mod bert;
mod config_error;
pub mod convnet;
pub mod layers;
pub mod loss;
mod network;
mod path;
pub mod recompute;
pub mod resnet;
pub mod transformer;

pub use activation::Activation;
pub use config_error::ConfigError;
pub use network::{Init, Network};
pub use path::ParameterPath;
