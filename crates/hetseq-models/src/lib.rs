//! One file, one model. Weights are laid out and named as PyTorch does it, so that a checkpoint needs no translation.

mod activation;
pub mod attention;
pub mod beam;
pub mod bert;
mod config;
pub mod convnet;
pub mod layers;
pub mod loss;
mod network;
mod path;
pub mod recompute;
pub mod resnet;
pub mod transformer;

pub use activation::Activation;
pub use config::ConfigError;
pub use network::{Init, Network};
pub use path::ParameterPath;
