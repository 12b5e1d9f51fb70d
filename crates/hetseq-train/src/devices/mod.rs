//! The devices of this process. The trainer calls `pool`; `spec` parses device names; `handle` and
//! `thread` are the two ends of a device. They know models only as `task::Compute`, which
//! `burn_compute` implements: `replica` is a device's copy of a Burn model, `params` makes its
//! tensors of the flat buffer, `gradients` collects its gradients into one, and only `backend` asks
//! Burn for devices. `engine` makes a device of another program.

pub mod backend;
pub(crate) mod burn_compute;
mod done_signal;
pub(crate) mod engine;
pub(crate) mod gradients;
mod handle;
pub(crate) mod memory;
pub(crate) mod params;
mod pool;
mod precision_policy;
pub(crate) mod replica;
mod spec;
#[cfg(test)]
mod tests;
mod thread;

pub use pool::devices_named;
pub(crate) use pool::{DeviceReport, Devices, FaultInjection, LocalSum, Lost, StepParams};
pub use precision_policy::PrecisionPolicy;
pub use spec::{Api, DeviceKind, DeviceSpec, EngineProgram};
