//! One file, one model. Weights are laid out and named as PyTorch does it, so that a checkpoint needs no translation.

pub mod attention;
pub mod bert;
pub mod convnet;
pub mod layers;
pub mod loss;
mod network;
mod path;
pub mod recompute;
pub mod resnet;

pub use network::{Init, Network};
pub use path::ParameterPath;
