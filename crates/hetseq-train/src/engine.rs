//! Burn's devices: which there are, opening one, and trying what it can do. The only place that names GPUs to Burn; devices'
//! threads and `hetseq devices` call it.
//!
//! Burn panics where there is no driver, and some drivers do worse. So nothing is believed of a GPU before it has multiplied two
//! small matrices, and `hetseq devices` tries each in a process of its own.

#[cfg(feature = "wgpu")]
mod gpu;
#[cfg(feature = "wgpu")]
mod memory;
mod pinning;

use std::time::Instant;

use burn::tensor::{Device, Tensor};
use hetseq_kernels::{Precision, with_products_in};

use crate::devices::{Place, guarded};

pub(crate) use pinning::pin;

/// The GPUs worth training on: real ones, each by the interface that suits it best. Wakes drivers.
pub fn gpus() -> Vec<Place> {
    #[cfg(feature = "wgpu")]
    {
        gpu::found().into_iter().filter(|found| !found.is_software).map(|found| found.place).collect()
    }
    #[cfg(not(feature = "wgpu"))]
    Vec::new()
}

/// Every GPU of this machine, software renderers too.
pub fn places() -> Vec<Place> {
    #[cfg(feature = "wgpu")]
    {
        gpu::found().into_iter().map(|found| found.place).collect()
    }
    #[cfg(not(feature = "wgpu"))]
    Vec::new()
}

/// A device that has shown that it computes.
pub(crate) fn open(place: &Place) -> Result<Device, String> {
    if matches!(place, Place::Cpu { .. }) {
        return Ok(Device::flex());
    }
    #[cfg(feature = "wgpu")]
    {
        let device = gpu::open(place)?.device;
        try_product(&device, Precision::F32)?;
        Ok(device)
    }
    #[cfg(not(feature = "wgpu"))]
    Err(WITHOUT_GPUS.to_owned())
}

/// Of an open GPU's memory, what this process may use, if the driver tells.
pub(crate) fn free_bytes(place: &Place) -> Option<u64> {
    #[cfg(feature = "wgpu")]
    {
        let memory = gpu::open(place).ok()?.memory()?;
        Some(memory.free_bytes.unwrap_or(memory.bytes))
    }
    #[cfg(not(feature = "wgpu"))]
    {
        _ = place;
        None
    }
}

#[cfg(not(feature = "wgpu"))]
const WITHOUT_GPUS: &str = "this hetseq was built without support for GPUs: build it without --no-default-features";

/// Whether products in this precision come out right, and if not, why.
pub(crate) fn try_product(device: &Device, precision: Precision) -> Result<(), String> {
    const SIDE: usize = 16;
    if let Some(low) = precision.lower()
        && !device.supports_dtype(low)
    {
        return Err(format!("it cannot compute in {precision}"));
    }
    let values = guarded(|| {
        with_products_in(precision, || {
            let ones = Tensor::<2>::full([SIDE, SIDE], 0.5, device);
            let product = hetseq_kernels::matmul(ones.clone(), ones);
            product.try_into_vec_as::<f32>().map_err(|error| error.to_string())
        })
    })
    .map_err(|reason| format!("it cannot multiply matrices in {precision}: {reason}"))?;
    let right = 0.25 * SIDE as f32;
    if values.len() == SIDE * SIDE && values.iter().all(|&value| value == right) {
        return Ok(());
    }
    Err(format!("it multiplies matrices wrongly in {precision}: where {right} is right, it gave {:?}", values.first()))
}

/// As `run.devices` calls it.
pub fn name_of(place: &Place) -> String {
    match place {
        Place::Cpu { .. } => "cpu".to_owned(),
        Place::Gpu { api, index } => format!("{}:{index}", api.prefix()),
    }
}

/// What the CPU computes products in.
pub fn host_precisions() -> Vec<Precision> {
    let device = Device::flex();
    Precision::ALL.into_iter().filter(|&precision| try_product(&device, precision).is_ok()).collect()
}

/// Of reading and writing memory, by one thread.
pub fn host_gigabytes_per_s() -> Result<f64, String> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().map_err(|error| error.to_string())?;
    pool.install(|| gigabytes_per_s(&Device::flex()))
}

/// Reads 64 MiB and writes as many, the best of three.
fn gigabytes_per_s(device: &Device) -> Result<f64, String> {
    const NUMBERS: usize = 16 << 20;
    let run = |numbers: &Tensor<1>| {
        guarded(|| {
            let started = Instant::now();
            let more = numbers.clone() + 1.0;
            device.sync().map_err(|error| error.to_string())?;
            drop(more);
            Ok(started.elapsed().as_secs_f64())
        })
    };
    let numbers = guarded(|| Ok(Tensor::<1>::zeros([NUMBERS], device)))?;
    run(&numbers)?;
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        best = best.min(run(&numbers)?);
    }
    Ok(2.0 * 4.0 * NUMBERS as f64 / best * 1e-9)
}

/// What a GPU says of itself, and what it was seen to do.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct GpuReport {
    /// As `run.devices` calls it.
    pub name: String,
    pub model: String,
    pub vendor: String,
    pub driver: String,
    /// Vulkan, Metal, ...
    pub interface: String,
    /// It computes on the CPU: good for tests only.
    pub is_software: bool,
    /// On the bus, if it tells; the same card by another interface has the same.
    pub address: Option<String>,
    pub memory_bytes: Option<u64>,
    /// What other programs leave of it.
    pub free_bytes: Option<u64>,
    /// The largest single tensor.
    pub buffer_bytes: Option<u64>,
    /// Those tried with success.
    pub precisions: Vec<Precision>,
    /// Of matrix products, for each of the precisions.
    pub gflops: Vec<f64>,
    /// Of reading and writing its memory.
    pub gigabytes_per_s: f64,
    /// What an operation takes that has nothing to compute: small models are held up by it.
    pub launch_us: f64,
}

/// Opens a GPU and measures it.
pub fn examine(place: &Place) -> Result<GpuReport, String> {
    #[cfg(feature = "wgpu")]
    {
        gpu::examine(place)
    }
    #[cfg(not(feature = "wgpu"))]
    {
        _ = place;
        Err(WITHOUT_GPUS.to_owned())
    }
}
