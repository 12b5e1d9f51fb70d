//! GPUs through wgpu, and through CUDA and ROCm if built in. Called only by `backend/mod.rs`.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use burn::backend::{CubeDevice, DispatchDevice, WgpuDevice, WgpuDeviceKind};
use burn::tensor::wgpu::{WgpuBackend, WgpuSetup};
use burn::tensor::{Device, DeviceKind as BurnDeviceKind, DeviceType, FloatDType, Tensor};
use hetseq_kernels::Dtype;

use super::gpu_memory::{self, GpuMemory};
use super::{BackendError, GpuReport, catch_panic, failed, try_product};
use crate::devices::{Api, DeviceKind};

/// A GPU found by enumeration.
pub(super) struct FoundGpu {
    pub(super) kind: DeviceKind,
    /// It computes on the CPU.
    pub(super) is_software: bool,
}

/// Lists the GPUs, real ones first so that a software renderer does not change their numbers. A
/// card found through CUDA or ROCm is not listed again.
pub(super) fn found() -> Vec<FoundGpu> {
    let mut all: Vec<FoundGpu> = Vec::new();
    #[cfg(feature = "cuda")]
    all.extend(native(DeviceType::Cuda, Api::Cuda));
    #[cfg(feature = "rocm")]
    all.extend(native(DeviceType::Rocm, Api::Rocm));
    let cards = cards_of(&all);
    for (index, device) in wgpu_adapters(Api::Any).into_iter().enumerate() {
        let is_known = !cards.is_empty()
            && card(&Device::new(CubeDevice::Wgpu(device.clone())))
                .is_some_and(|card| cards.iter().any(|known| known.is_same_card(&card)));
        if !is_known {
            let kind = DeviceKind::Gpu { api: Api::Any, index };
            all.push(FoundGpu { kind, is_software: device.kind == WgpuDeviceKind::Cpu });
        }
    }
    all
}

#[cfg(any(feature = "cuda", feature = "rocm"))]
fn native(device_type: DeviceType, api: Api) -> Vec<FoundGpu> {
    let count = catch_panic(|| Ok(Device::enumerate(device_type).len())).unwrap_or(0);
    (0..count).map(|index| FoundGpu { kind: DeviceKind::Gpu { api, index }, is_software: false }).collect()
}

/// The physical cards of the GPUs found so far.
fn cards_of(found: &[FoundGpu]) -> Vec<burn::tensor::PhysicalDevice> {
    found.iter().filter_map(|found| card(&open(&found.kind).ok()?.device)).collect()
}

/// The physical card of a device, if known. Opens the device.
fn card(device: &Device) -> Option<burn::tensor::PhysicalDevice> {
    catch_panic(|| Ok(device.identity())).ok()??.physical
}

/// The wgpu adapters of an API, software renderers last.
fn wgpu_adapters(api: Api) -> Vec<WgpuDevice> {
    let Some(device_type) = device_type(api) else { return Vec::new() };
    let devices = catch_panic(|| Ok(Device::enumerate(device_type).into_vec())).unwrap_or_default();
    let mut adapters: Vec<WgpuDevice> = devices
        .iter()
        .filter_map(|device| match device.as_dispatch() {
            DispatchDevice::Cube(CubeDevice::Wgpu(adapter)) => Some(adapter.clone()),
            _ => None,
        })
        .collect();
    adapters.sort_by_key(|adapter| adapter.kind == WgpuDeviceKind::Cpu);
    adapters
}

fn device_type(api: Api) -> Option<DeviceType> {
    match api {
        Api::Any => Some(DeviceType::Wgpu),
        #[cfg(feature = "vulkan")]
        Api::Vulkan => Some(DeviceType::Vulkan),
        #[cfg(feature = "metal")]
        Api::Metal => Some(DeviceType::Metal),
        _ => None,
    }
}

/// An open device, and its wgpu setup if known.
#[derive(Clone)]
pub(super) struct OpenedGpu {
    pub(super) device: Device,
    setup: Option<WgpuSetup>,
}

impl OpenedGpu {
    pub(super) fn memory(&self) -> Option<GpuMemory> {
        gpu_memory::of(self.setup.as_ref()?)
    }
}

/// Open devices. Each is set up once per process.
static OPENED: Mutex<Vec<((Api, usize), OpenedGpu)>> = Mutex::new(Vec::new());

pub(super) fn open(kind: &DeviceKind) -> Result<OpenedGpu, BackendError> {
    let DeviceKind::Gpu { api, index } = *kind else { return Err(failed("it is not a GPU")) };
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, known)) = opened.iter().find(|(key, _)| *key == (api, index)) {
        return Ok(known.clone());
    }
    let new = match api {
        #[cfg(feature = "cuda")]
        Api::Cuda => open_native(DeviceType::Cuda, api, index, || Device::cuda(index))?,
        #[cfg(feature = "rocm")]
        Api::Rocm => open_native(DeviceType::Rocm, api, index, || Device::rocm(index))?,
        _ => open_wgpu(api, index)?,
    };
    opened.push(((api, index), new.clone()));
    Ok(new)
}

#[cfg(any(feature = "cuda", feature = "rocm"))]
fn open_native(
    device_type: DeviceType,
    api: Api,
    index: usize,
    device: impl FnOnce() -> Device,
) -> Result<OpenedGpu, BackendError> {
    let count = catch_panic(|| Ok(Device::enumerate(device_type).len()))?;
    if index >= count {
        return Err(no_such_gpu(api, count));
    }
    Ok(OpenedGpu { device: catch_panic(|| Ok(device()))?, setup: None })
}

fn open_wgpu(api: Api, index: usize) -> Result<OpenedGpu, BackendError> {
    if device_type(api).is_none() {
        return Err(not_built_in(api));
    }
    let adapters = wgpu_adapters(api);
    let adapter = adapters.get(index).ok_or_else(|| no_such_gpu(api, adapters.len()))?;
    let kind = match adapter.kind {
        WgpuDeviceKind::DiscreteGpu(i) => BurnDeviceKind::DiscreteGpu(i),
        WgpuDeviceKind::IntegratedGpu(i) => BurnDeviceKind::IntegratedGpu(i),
        WgpuDeviceKind::VirtualGpu(i) => BurnDeviceKind::VirtualGpu(i),
        WgpuDeviceKind::Cpu => BurnDeviceKind::Cpu,
        // A device that cannot be selected by kind is opened by its first use.
        _ => return Ok(OpenedGpu { device: Device::new(CubeDevice::Wgpu(adapter.clone())), setup: None }),
    };
    let options = Device::wgpu_options().device_kind(kind).graphics_api(wgpu_backend(api));
    let (device, setup) = catch_panic(|| options.init_with_setup().map_err(failed))?;
    Ok(OpenedGpu { device, setup: Some(setup) })
}

fn wgpu_backend(api: Api) -> WgpuBackend {
    match api {
        Api::Vulkan => WgpuBackend::Vulkan,
        Api::Metal => WgpuBackend::Metal,
        _ => WgpuBackend::Auto,
    }
}

fn no_such_gpu(api: Api, count: usize) -> BackendError {
    let name = api.prefix();
    BackendError(match count {
        0 => "no driver offers one: install the driver of your card (on Linux also the Vulkan loader, libvulkan1); `hetseq \
              devices` lists all devices"
            .to_owned(),
        1 => format!("there is only {name}:0; `hetseq devices` lists all devices"),
        _ => format!("there are {name}:0 to {name}:{}; `hetseq devices` lists them", count - 1),
    })
}

fn not_built_in(api: Api) -> BackendError {
    let name = api.prefix();
    BackendError(format!(
        "this hetseq was built without {name}: build it with `cargo build --release --features {name}`, or use gpu:0, which \
         supports the cards of all vendors"
    ))
}

pub(super) fn examine(kind: &DeviceKind) -> Result<GpuReport, BackendError> {
    let opened = open(kind)?;
    let memory = opened.memory();
    let OpenedGpu { device, setup } = opened;
    let tests = Dtype::ALL.map(|precision| (precision, try_product(&device, precision)));
    if let (_, Err(reason)) = &tests[0] {
        return Err(reason.clone());
    }
    let precisions: Vec<Dtype> = tests.iter().filter(|(_, test)| test.is_ok()).map(|(dtype, _)| *dtype).collect();
    let gflops = precisions.iter().map(|&precision| gflops(&device, precision)).collect::<Result<_, _>>()?;
    let identity = catch_panic(|| Ok(device.identity())).ok().flatten().unwrap_or_default();
    let mut report = GpuReport {
        name: super::name_of(kind),
        model: identity.name,
        vendor: String::new(),
        driver: String::new(),
        interface: super::name_of(kind).split(':').next().unwrap_or_default().to_owned(),
        is_software: false,
        address: identity.physical.and_then(|card| card.pci_address).map(|address| address.to_string()),
        memory_bytes: None,
        free_bytes: None,
        buffer_bytes: None,
        precisions,
        gflops,
        gigabytes_per_s: super::gigabytes_per_s(&device)?,
        launch_us: launch_us(&device)?,
    };
    if let Some(setup) = setup {
        let info = setup.adapter.get_info();
        report.is_software = info.device_type == burn::tensor::wgpu::wgpu::DeviceType::Cpu;
        report.vendor = vendor(info.vendor);
        report.driver = [info.driver, info.driver_info].join(" ").trim().to_owned();
        report.interface = format!("{:?}", info.backend);
        report.model = info.name;
        report.buffer_bytes = Some(setup.device.limits().max_storage_buffer_binding_size);
    }
    if let Some(memory) = memory {
        report.memory_bytes = Some(memory.bytes);
        report.free_bytes = memory.free_bytes;
    }
    Ok(report)
}

/// The vendor by its PCI id.
fn vendor(id: u32) -> String {
    match id {
        0x1002 => "AMD",
        0x106b => "Apple",
        0x10de => "NVIDIA",
        0x13b5 => "ARM",
        0x1414 => "Microsoft",
        0x5143 => "Qualcomm",
        0x8086 => "Intel",
        0x10005 => "Mesa",
        _ => return format!("vendor {id:#06x}"),
    }
    .to_owned()
}

/// Speed of square matrix products, the best of three sizes. A fast device needs large ones; on a
/// slow one they are skipped.
fn gflops(device: &Device, precision: Dtype) -> Result<f64, BackendError> {
    const ENOUGH_S: f64 = 0.3;
    let dtype = precision.cast_to().unwrap_or(FloatDType::F32);
    let mut best: f64 = 0.0;
    for side in [256, 1024, 4096] {
        let matrix = catch_panic(|| Ok(Tensor::<2>::full([side, side], 0.01, device).cast(dtype)))?;
        let product = || {
            catch_panic(|| {
                let product = matrix.clone().matmul(matrix.clone());
                device.sync().map_err(failed)?;
                drop(product);
                Ok(())
            })
        };
        // The first run compiles.
        product()?;
        let started = Instant::now();
        product()?;
        let seconds = started.elapsed().as_secs_f64();
        best = best.max(2.0 * (side as f64).powi(3) / seconds * 1e-9);
        if seconds > ENOUGH_S / 8.0 {
            break;
        }
    }
    Ok(best)
}

/// Time per operation on one element. The best of three series.
fn launch_us(device: &Device) -> Result<f64, BackendError> {
    const OPERATIONS: u32 = 200;
    let series = || {
        catch_panic(|| {
            let mut number = Tensor::<1>::zeros([1], device);
            let started = Instant::now();
            for _ in 0..OPERATIONS {
                number = number + 1.0;
            }
            device.sync().map_err(failed)?;
            Ok(started.elapsed().as_secs_f64() / f64::from(OPERATIONS) * 1e6)
        })
    };
    series()?;
    let times: Vec<f64> = (0..3).map(|_| series()).collect::<Result<_, _>>()?;
    Ok(times.into_iter().fold(f64::INFINITY, f64::min))
}
