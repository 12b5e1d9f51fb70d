//! Burn's devices: lists, opens and tests them. The only module that asks Burn for GPUs. Called by
//! device threads and by `hetseq devices`.
//!
//! Burn panics without a driver, and some drivers do worse. So a GPU is not used before it has
//! multiplied two small matrices, and `hetseq devices` tests each GPU in a separate process.

#[cfg(feature = "gpu")]
mod gpu;
#[cfg(feature = "gpu")]
mod gpu_memory;
mod pinning;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use burn::tensor::{Device, Tensor};
use hetseq_kernels::{Dtype, with_precision};
use thiserror::Error;

use crate::devices::DeviceKind;

pub(crate) use pinning::pin;

/// A message of Burn or of a driver, which give nothing else, or why a device cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct BackendError(pub(crate) String);

/// Turns a panic into an error: Burn reports failures by panicking.
pub(crate) fn catch_panic<R>(work: impl FnOnce() -> Result<R, BackendError>) -> Result<R, BackendError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(BackendError(text.unwrap_or_else(|| "it panicked".to_owned())))
    })
}

/// The error for a failure that Burn returns.
fn failed(error: impl ToString) -> BackendError {
    BackendError(error.to_string())
}

/// The GPUs to train on: real ones, each with its best API. Loads drivers.
pub fn gpus() -> Vec<DeviceKind> {
    #[cfg(feature = "gpu")]
    {
        gpu::found().into_iter().filter(|found| !found.is_software).map(|found| found.kind).collect()
    }
    #[cfg(not(feature = "gpu"))]
    Vec::new()
}

/// All GPUs of this machine, including software renderers.
pub fn gpu_kinds() -> Vec<DeviceKind> {
    #[cfg(feature = "gpu")]
    {
        gpu::found().into_iter().map(|found| found.kind).collect()
    }
    #[cfg(not(feature = "gpu"))]
    Vec::new()
}

/// Opens a device and tests that it computes.
pub(crate) fn open(kind: &DeviceKind) -> Result<Device, BackendError> {
    if matches!(kind, DeviceKind::Cpu { .. }) {
        return Ok(Device::flex());
    }
    #[cfg(feature = "gpu")]
    {
        let device = gpu::open(kind)?.device;
        try_product(&device, Dtype::F32)?;
        Ok(device)
    }
    #[cfg(not(feature = "gpu"))]
    Err(failed(WITHOUT_GPU_SUPPORT.unwrap_or_default()))
}

/// Memory of an open GPU that this process may use, if the driver reports it.
pub fn free_bytes(kind: &DeviceKind) -> Option<u64> {
    #[cfg(feature = "gpu")]
    {
        let memory = gpu::open(kind).ok()?.memory()?;
        Some(memory.free_bytes.unwrap_or(memory.bytes))
    }
    #[cfg(not(feature = "gpu"))]
    {
        _ = kind;
        None
    }
}

/// Why a build without the feature `gpu` finds no GPUs, and what to do. `None` with the feature.
pub const WITHOUT_GPU_SUPPORT: Option<&str> = if cfg!(feature = "gpu") {
    None
} else {
    Some("this hetseq is built for CPUs only; for GPUs: cargo build --release --features gpu (see docs/devices.md)")
};

/// Tests matrix products in this precision. The error says why they do not work.
pub(crate) fn try_product(device: &Device, precision: Dtype) -> Result<(), BackendError> {
    const SIDE: usize = 16;
    if let Some(low) = precision.cast_to()
        && !device.supports_dtype(low)
    {
        return Err(failed(format!("it cannot compute in {precision}")));
    }
    let values = catch_panic(|| {
        with_precision(precision, || {
            let halves = Tensor::<2>::full([SIDE, SIDE], 0.5, device);
            let product = hetseq_kernels::matmul(halves.clone(), halves);
            product.try_into_vec_as::<f32>().map_err(failed)
        })
    })
    .map_err(|reason| failed(format!("it cannot multiply matrices in {precision}: {reason}")))?;
    let expected = 0.25 * SIDE as f32;
    if values.len() == SIDE * SIDE && values.iter().all(|&value| value == expected) {
        return Ok(());
    }
    let found = values.first();
    Err(failed(format!("wrong matrix product in {precision}: expected {expected}, got {found:?}")))
}

/// The device's name in `run.devices`.
pub fn name_of(kind: &DeviceKind) -> String {
    match kind {
        DeviceKind::Cpu { .. } => "cpu".to_owned(),
        DeviceKind::Gpu { api, index } => format!("{}:{index}", api.prefix()),
        DeviceKind::Engine { .. } => "an engine".to_owned(),
    }
}

/// The precisions in which the CPU computes products.
pub fn host_precisions() -> Vec<Dtype> {
    let device = Device::flex();
    Dtype::ALL.into_iter().filter(|&precision| try_product(&device, precision).is_ok()).collect()
}

/// Memory bandwidth of one CPU thread, reading and writing.
pub fn host_gigabytes_per_s() -> Result<f64, BackendError> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().map_err(failed)?;
    pool.install(|| gigabytes_per_s(&Device::flex()))
}

/// Reads and writes 64 MiB each. The best of three runs.
fn gigabytes_per_s(device: &Device) -> Result<f64, BackendError> {
    const ELEMENTS: usize = 16 << 20;
    let run = |input: &Tensor<1>| {
        catch_panic(|| {
            let started = Instant::now();
            let output = input.clone() + 1.0;
            device.sync().map_err(failed)?;
            drop(output);
            Ok(started.elapsed().as_secs_f64())
        })
    };
    let input = catch_panic(|| Ok(Tensor::<1>::zeros([ELEMENTS], device)))?;
    run(&input)?;
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        best = best.min(run(&input)?);
    }
    Ok(2.0 * 4.0 * ELEMENTS as f64 / best * 1e-9)
}

/// A GPU's properties and measurements.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct GpuReport {
    /// The name in `run.devices`.
    pub name: String,
    pub model: String,
    pub vendor: String,
    pub driver: String,
    /// The API: Vulkan, Metal, ...
    pub interface: String,
    /// A renderer that computes on the CPU: for tests only.
    pub is_software: bool,
    /// PCI address, if known. The same card has the same address with every API.
    pub address: Option<String>,
    pub memory_bytes: Option<u64>,
    /// Memory not used by other programs.
    pub free_bytes: Option<u64>,
    /// Size of the largest possible tensor.
    pub buffer_bytes: Option<u64>,
    /// Precisions that passed the test.
    pub precisions: Vec<Dtype>,
    /// Speed of matrix products, per precision.
    pub gflops: Vec<f64>,
    /// Memory bandwidth, reading and writing.
    pub gigabytes_per_s: f64,
    /// Time of an operation without work. It limits small models.
    pub launch_us: f64,
}

/// Opens a GPU and measures it.
pub fn examine(kind: &DeviceKind) -> Result<GpuReport, BackendError> {
    #[cfg(feature = "gpu")]
    {
        gpu::examine(kind)
    }
    #[cfg(not(feature = "gpu"))]
    {
        _ = kind;
        Err(failed(WITHOUT_GPU_SUPPORT.unwrap_or_default()))
    }
}
