//! Optimizers and schedules on the host, over ranges of a flat, named parameter layout.
//!
//! The steps of an update: a [`Layout`] names the ranges of one flat `f32` buffer. The gradient in
//! that buffer is measured and clipped ([`global_norm`], [`clip_factor`]). The learning rate comes
//! from a pure function ([`lr`]). The [`Optimizer`] applies it, scaled for each parameter by its
//! [`ParameterGroup`].
//!
//! Nothing here depends on tensors, devices, ranks or files. The trainer calls it. The checkpoint
//! writer gets the optimizer's state as named slices and scalars.
//!
//! Replicas must stay bit-identical, so no result depends on the number of threads or on the
//! instruction set. Loops over elements use only + - * / and square root, which IEEE 754 rounds
//! correctly, and never fuse them. Everything else is scalar `f64` arithmetic in a fixed order,
//! with `pow` and `cos` from a portable library instead of the platform's.
//!
//! ```
//! use hetseq_optim::{BaseRate, Layout, Optimizer, OptimizerConfig, Position, ScheduleConfig};
//! use hetseq_optim::{clip_factor, global_norm, lr};
//!
//! let layout = Layout::new([("w".to_owned(), vec![2, 2]), ("bias".to_owned(), vec![2])])?;
//! let mut optimizer = Optimizer::new(&OptimizerConfig::default(), &layout)?;
//! let mut parameters = vec![1.0; layout.len()];
//! for update in 0..3 {
//!     let gradients = parameters.clone(); // of half the sum of squares
//!     let scale = clip_factor(global_norm(&gradients), Some(1.0));
//!     let rate = lr(&ScheduleConfig::default(), &BaseRate::Constant(0.1), 3, Position { update, epoch: 0 });
//!     optimizer.step(&mut parameters, &gradients, scale, rate as f32);
//! }
//! assert!(parameters.iter().all(|p| *p < 1.0));
//! # Ok::<(), hetseq_optim::OptimError>(())
//! ```

mod error;
mod flat;
mod groups;
mod layer_decay;
mod layout;
mod norm;
mod optimizer;
mod schedule;

pub use error::OptimError;
pub use flat::{add, first_not_finite, unscale};
pub use groups::{ParameterGroup, ParameterGroups};
pub use layer_decay::layer_decay;
pub use layout::{Layout, LayoutEntry, decays};
pub use norm::{clip_factor, global_norm};
pub use optimizer::{Eps, Optimizer, OptimizerConfig, OptimizerName};
pub use schedule::{BaseRate, Position, ScheduleConfig, ScheduleKind, lr};
