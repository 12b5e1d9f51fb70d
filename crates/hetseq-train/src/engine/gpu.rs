//! GPUs by way of wgpu, and of CUDA and ROCm where they are built in.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use burn::backend::{CubeDevice, DispatchDevice, WgpuDevice, WgpuDeviceKind};
use burn::tensor::wgpu::{WgpuBackend, WgpuSetup};
use burn::tensor::{Device, DeviceKind, DeviceType, FloatDType, Tensor};
use hetseq_kernels::Precision;

use super::memory::{self, Memory};
use super::{GpuReport, try_product};
use crate::devices::{Api, Place, guarded};

/// A GPU that answered when all were asked.
pub(super) struct Found {
    pub(super) place: Place,
    /// It computes on the CPU.
    pub(super) is_software: bool,
}

/// Real ones first, so that a software renderer does not change their numbers. A card that CUDA or ROCm reaches is not
/// listed a second time.
pub(super) fn found() -> Vec<Found> {
    let mut all: Vec<Found> = Vec::new();
    #[cfg(feature = "cuda")]
    all.extend(native(DeviceType::Cuda, Api::Cuda));
    #[cfg(feature = "rocm")]
    all.extend(native(DeviceType::Rocm, Api::Rocm));
    let cards = cards_of(&all);
    for (index, device) in by_wgpu(Api::Any).into_iter().enumerate() {
        let is_known = !cards.is_empty()
            && card(&Device::new(CubeDevice::Wgpu(device.clone())))
                .is_some_and(|card| cards.iter().any(|known| known.is_same_card(&card)));
        if !is_known {
            let place = Place::Gpu { api: Api::Any, index };
            all.push(Found { place, is_software: device.kind == WgpuDeviceKind::Cpu });
        }
    }
    all
}

#[cfg(any(feature = "cuda", feature = "rocm"))]
fn native(kind: DeviceType, api: Api) -> Vec<Found> {
    let count = guarded(|| Ok(Device::enumerate(kind).len())).unwrap_or(0);
    (0..count).map(|index| Found { place: Place::Gpu { api, index }, is_software: false }).collect()
}

/// The cards behind what was found so far.
fn cards_of(found: &[Found]) -> Vec<burn::tensor::PhysicalDevice> {
    found.iter().filter_map(|found| card(&open(&found.place).ok()?.device)).collect()
}

/// Which card a device is, if it tells. Opens it.
fn card(device: &Device) -> Option<burn::tensor::PhysicalDevice> {
    guarded(|| Ok(device.identity())).ok()??.physical
}

/// The adapters of a graphics interface, software renderers last.
fn by_wgpu(api: Api) -> Vec<WgpuDevice> {
    let Some(kind) = device_type(api) else { return Vec::new() };
    let devices = guarded(|| Ok(Device::enumerate(kind).into_vec())).unwrap_or_default();
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

/// A device, and how it was set up where that is known.
#[derive(Clone)]
pub(super) struct Opened {
    pub(super) device: Device,
    setup: Option<WgpuSetup>,
}

impl Opened {
    pub(super) fn memory(&self) -> Option<Memory> {
        memory::of(self.setup.as_ref()?)
    }
}

/// A device is set up once per process.
static OPENED: Mutex<Vec<((Api, usize), Opened)>> = Mutex::new(Vec::new());

pub(super) fn open(place: &Place) -> Result<Opened, String> {
    let Place::Gpu { api, index } = *place else { return Err("it is no GPU".to_owned()) };
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, known)) = opened.iter().find(|(key, _)| *key == (api, index)) {
        return Ok(known.clone());
    }
    let new = match api {
        #[cfg(feature = "cuda")]
        Api::Cuda => numbered(DeviceType::Cuda, api, index, || Device::cuda(index))?,
        #[cfg(feature = "rocm")]
        Api::Rocm => numbered(DeviceType::Rocm, api, index, || Device::rocm(index))?,
        _ => open_by_wgpu(api, index)?,
    };
    opened.push(((api, index), new.clone()));
    Ok(new)
}

#[cfg(any(feature = "cuda", feature = "rocm"))]
fn numbered(kind: DeviceType, api: Api, index: usize, device: impl FnOnce() -> Device) -> Result<Opened, String> {
    let count = guarded(|| Ok(Device::enumerate(kind).len()))?;
    if index >= count {
        return Err(none_such(api, count));
    }
    Ok(Opened { device: guarded(|| Ok(device()))?, setup: None })
}

fn open_by_wgpu(api: Api, index: usize) -> Result<Opened, String> {
    if device_type(api).is_none() {
        return Err(not_built_in(api));
    }
    let adapters = by_wgpu(api);
    let adapter = adapters.get(index).ok_or_else(|| none_such(api, adapters.len()))?;
    let kind = match adapter.kind {
        WgpuDeviceKind::DiscreteGpu(i) => DeviceKind::DiscreteGpu(i),
        WgpuDeviceKind::IntegratedGpu(i) => DeviceKind::IntegratedGpu(i),
        WgpuDeviceKind::VirtualGpu(i) => DeviceKind::VirtualGpu(i),
        WgpuDeviceKind::Cpu => DeviceKind::Cpu,
        // What cannot be asked for by kind is opened by its first use.
        _ => return Ok(Opened { device: Device::new(CubeDevice::Wgpu(adapter.clone())), setup: None }),
    };
    let options = Device::wgpu_options().device_kind(kind).graphics_api(interface(api));
    let (device, setup) = guarded(|| options.init_with_setup().map_err(|error| error.to_string()))?;
    Ok(Opened { device, setup: Some(setup) })
}

fn interface(api: Api) -> WgpuBackend {
    match api {
        Api::Vulkan => WgpuBackend::Vulkan,
        Api::Metal => WgpuBackend::Metal,
        _ => WgpuBackend::Auto,
    }
}

fn none_such(api: Api, count: usize) -> String {
    let name = api.prefix();
    match count {
        0 => "no driver offers one: install the driver of your card (on Linux also the Vulkan loader, libvulkan1); `hetseq \
              devices` lists what there is"
            .to_owned(),
        1 => format!("there is only {name}:0; `hetseq devices` lists what there is"),
        _ => format!("there are {name}:0 to {name}:{}; `hetseq devices` lists them", count - 1),
    }
}

fn not_built_in(api: Api) -> String {
    let name = api.prefix();
    format!(
        "this hetseq was built without {name}: build it with `cargo build --release --features {name}`, or say gpu:0, which reaches \
         the cards of all vendors"
    )
}

pub(super) fn examine(place: &Place) -> Result<GpuReport, String> {
    let opened = open(place)?;
    let memory = opened.memory();
    let Opened { device, setup } = opened;
    let tries = Precision::ALL.map(|precision| (precision, try_product(&device, precision)));
    if let (_, Err(reason)) = &tries[0] {
        return Err(reason.clone());
    }
    let precisions: Vec<Precision> = tries.iter().filter(|(_, tried)| tried.is_ok()).map(|(name, _)| *name).collect();
    let gflops = precisions.iter().map(|&precision| gflops(&device, precision)).collect::<Result<_, _>>()?;
    let identity = guarded(|| Ok(device.identity())).ok().flatten().unwrap_or_default();
    let mut report = GpuReport {
        name: super::name_of(place),
        model: identity.name,
        vendor: String::new(),
        driver: String::new(),
        interface: super::name_of(place).split(':').next().unwrap_or_default().to_owned(),
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

/// By its number in the list of the PCI.
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

/// Of products of square matrices, the best of three sizes: a fast device needs large ones, and a slow one is not kept long.
fn gflops(device: &Device, precision: Precision) -> Result<f64, String> {
    const ENOUGH_S: f64 = 0.3;
    let dtype = precision.lower().unwrap_or(FloatDType::F32);
    let mut best: f64 = 0.0;
    for side in [256, 1024, 4096] {
        let matrix = guarded(|| Ok(Tensor::<2>::full([side, side], 0.01, device).cast(dtype)))?;
        let product = || {
            guarded(|| {
                let product = matrix.clone().matmul(matrix.clone());
                device.sync().map_err(|error| error.to_string())?;
                drop(product);
                Ok(())
            })
        };
        // The first compiles.
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

/// Of operations on next to nothing, one after the other; the best of three rows.
fn launch_us(device: &Device) -> Result<f64, String> {
    const OPERATIONS: u32 = 200;
    let row = || {
        guarded(|| {
            let mut number = Tensor::<1>::zeros([1], device);
            let started = Instant::now();
            for _ in 0..OPERATIONS {
                number = number + 1.0;
            }
            device.sync().map_err(|error| error.to_string())?;
            Ok(started.elapsed().as_secs_f64() / f64::from(OPERATIONS) * 1e6)
        })
    };
    row()?;
    let rows: Vec<f64> = (0..3).map(|_| row()).collect::<Result<_, _>>()?;
    Ok(rows.into_iter().fold(f64::INFINITY, f64::min))
}
