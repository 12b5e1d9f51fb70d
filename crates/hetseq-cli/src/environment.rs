//! Environment variables that libraries in this process read. Set by `main` before any thread exists.

/// Keeps a Vulkan layer of Mesa from printing an error at each start on machines without a desktop:
/// it asks the display server which GPU is the default one. HetSeq numbers GPUs itself.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
pub(crate) fn silence_mesa() {
    let is_set = |name| std::env::var_os(name).is_some();
    // With a desktop the layer works, and a choice of the user is kept.
    if ["XDG_RUNTIME_DIR", "MESA_VK_DEVICE_SELECT", "NODEVICE_SELECT"].into_iter().any(is_set) {
        return;
    }
    // SAFETY: called once, before any other thread exists.
    unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn silence_mesa() {}
