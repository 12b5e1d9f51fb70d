//! Total and free memory of a GPU. wgpu does not report it; Vulkan does. Called by `gpu.rs`.

use burn::tensor::wgpu::WgpuSetup;

/// Memory of the device itself, not of the host.
#[derive(Debug, Clone, Copy)]
pub(super) struct GpuMemory {
    pub(super) bytes: u64,
    /// Memory that this process may use besides other processes. Not every driver reports it.
    pub(super) free_bytes: Option<u64>,
}

#[cfg(not(target_vendor = "apple"))]
#[expect(unsafe_code, reason = "queries the adapter below wgpu, read-only")]
pub(super) fn of(setup: &WgpuSetup) -> Option<GpuMemory> {
    use ash::vk;
    use burn::tensor::wgpu::wgpu::hal::api::Vulkan;

    // SAFETY: the adapter is only queried, while the setup keeps it and its instance alive.
    let adapter = unsafe { setup.adapter.as_hal::<Vulkan>()? };
    let (instance, card) = (adapter.shared_instance().raw_instance(), adapter.raw_physical_device());
    let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    // SAFETY: as above.
    let supported = unsafe { instance.enumerate_device_extension_properties(card) }.unwrap_or_default();
    let has_budget =
        supported.iter().any(|extension| extension.extension_name_as_c_str() == Ok(ash::ext::memory_budget::NAME));
    let mut properties = vk::PhysicalDeviceMemoryProperties2::default();
    if has_budget {
        properties = properties.push_next(&mut budget);
    }
    // SAFETY: as above; wgpu requires at least Vulkan 1.1, which has this call.
    unsafe { instance.get_physical_device_memory_properties2(card, &mut properties) };
    let heaps = properties.memory_properties;
    let (largest, heap) = heaps.memory_heaps[..heaps.memory_heap_count as usize]
        .iter()
        .enumerate()
        .filter(|(_, heap)| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL))
        .max_by_key(|(_, heap)| heap.size)?;
    let free = has_budget.then(|| budget.heap_budget[largest]).filter(|&bytes| bytes > 0);
    Some(GpuMemory { bytes: heap.size, free_bytes: free })
}

#[cfg(target_vendor = "apple")]
pub(super) fn of(_: &WgpuSetup) -> Option<GpuMemory> {
    None
}
