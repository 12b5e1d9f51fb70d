//! How much memory a GPU has and how much of it is free. wgpu itself does not tell; Vulkan does.

use burn::tensor::wgpu::WgpuSetup;

/// Of the device's own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Memory {
    pub(super) bytes: u64,
    /// What this process may use of it, next to what others use. Not every driver tells.
    pub(super) free_bytes: Option<u64>,
}

#[cfg(not(target_vendor = "apple"))]
#[expect(unsafe_code, reason = "asks the adapter below wgpu for numbers and changes nothing")]
pub(super) fn of(setup: &WgpuSetup) -> Option<Memory> {
    use ash::vk;
    use burn::tensor::wgpu::wgpu::hal::api::Vulkan;

    // SAFETY: the adapter is only asked, while the setup keeps it and its instance alive.
    let adapter = unsafe { setup.adapter.as_hal::<Vulkan>()? };
    let (instance, card) = (adapter.shared_instance().raw_instance(), adapter.raw_physical_device());
    let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    // SAFETY: as above.
    let known = unsafe { instance.enumerate_device_extension_properties(card) }.unwrap_or_default();
    let tells_budget = known.iter().any(|known| known.extension_name_as_c_str() == Ok(ash::ext::memory_budget::NAME));
    let mut asked = vk::PhysicalDeviceMemoryProperties2::default();
    if tells_budget {
        asked = asked.push_next(&mut budget);
    }
    // SAFETY: as above; wgpu asks for Vulkan 1.1 at least, which has this call.
    unsafe { instance.get_physical_device_memory_properties2(card, &mut asked) };
    let heaps = asked.memory_properties;
    let (largest, heap) = heaps.memory_heaps[..heaps.memory_heap_count as usize]
        .iter()
        .enumerate()
        .filter(|(_, heap)| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL))
        .max_by_key(|(_, heap)| heap.size)?;
    let free = tells_budget.then(|| budget.heap_budget[largest]).filter(|&bytes| bytes > 0);
    Some(Memory { bytes: heap.size, free_bytes: free })
}

#[cfg(target_vendor = "apple")]
pub(super) fn of(_: &WgpuSetup) -> Option<Memory> {
    None
}
