//! Pins a thread to a core. Called when the thread pool of a device starts.

/// Restricts this thread to `core`.
#[cfg(target_os = "linux")]
pub(crate) fn pin(core: usize) -> Result<(), String> {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    let failed = |error: rustix::io::Errno| format!("could not pin a thread to core {core}: {error}");
    let allowed = sched_getaffinity(None).map_err(failed)?;
    if core >= CpuSet::MAX_CPU || !allowed.is_set(core) {
        let cores: Vec<String> =
            (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).map(|core| core.to_string()).collect();
        return Err(format!("there is no core {core} for this process; it may use {}", cores.join(", ")));
    }
    let mut only = CpuSet::new();
    only.set(core);
    sched_setaffinity(None, &only).map_err(failed)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn pin(_: usize) -> Result<(), String> {
    Err("pinning threads to cores works on Linux only: use cpu:1x4 instead of cpu:0-3".to_owned())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_has_one_core() {
        let first = rustix::thread::sched_getaffinity(None).unwrap();
        let core = (0..rustix::thread::CpuSet::MAX_CPU).find(|&core| first.is_set(core)).unwrap();
        std::thread::spawn(move || {
            pin(core).unwrap();
            let now = rustix::thread::sched_getaffinity(None).unwrap();
            assert_eq!((now.count(), now.is_set(core)), (1, true));
        })
        .join()
        .unwrap();
        assert!(pin(100_000).unwrap_err().contains("there is no core 100000"));
    }
}
