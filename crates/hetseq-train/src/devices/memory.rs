//! How much memory this process may use, and how much it uses. Linux kills a process that exceeds a
//! limit instead of refusing the allocation, so `probe.rs` must know before what will not fit.

use std::path::{Path, PathBuf};

use fs_err as fs;

/// Number of ranks that share memory with this one, including itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sharing {
    /// On the same machine.
    pub(crate) host: u64,
    /// In the same cgroup on that machine.
    pub(crate) group: u64,
}

/// The memory limit of this process: the minimum of the configured limit, its part of the cgroup
/// limit, and its present use plus its part of the machine's free memory. `None` if nothing is
/// known.
pub(crate) fn limit_bytes(configured: Option<u64>, sharing: Sharing) -> Option<u64> {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let allowed = group_files(&control_groups()).iter().filter_map(|file| parse_limit(&read(file)?)).min();
    let allowed = allowed.map(|allowed| allowed / sharing.group.max(1));
    let free = read(Path::new("/proc/meminfo")).and_then(|text| field(&text, "MemAvailable:"));
    let free = free.map(|free| (free / sharing.host.max(1)).saturating_add(anonymous_bytes().unwrap_or(0)));
    [configured, allowed, free].into_iter().flatten().min()
}

/// The cgroups of this process. Empty if there are none.
pub(crate) fn control_groups() -> String {
    std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default()
}

/// Anonymous memory of this process: what the kernel cannot read again from a file. The allocator
/// keeps freed memory, so after a step this is the peak of the step.
pub(crate) fn anonymous_bytes() -> Option<u64> {
    field(&fs::read_to_string("/proc/self/status").ok()?, "RssAnon:")
}

/// The files with the memory limits of the groups in `/proc/self/cgroup` and of all their parents.
/// Supports cgroups v1 and v2.
fn group_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            list if list.split(',').any(|name| name == "memory") => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        let mut group = Path::new(path.trim_start_matches('/'));
        loop {
            files.push(Path::new(root).join(group).join(file));
            match group.parent() {
                Some(parent) => group = parent,
                None => break,
            }
        }
    }
    files
}

/// Parses a limit. `max` and very large numbers mean that there is none.
fn parse_limit(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|&bytes: &u64| bytes < 1 << 60)
}

/// Reads a line such as `RssAnon:     1234 kB`.
fn field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_both_cgroup_versions_are_found() {
        let files = |text| -> Vec<String> { group_files(text).iter().map(|path| path.display().to_string()).collect() };
        let v2 = files("0::/user/job\n");
        assert_eq!(
            v2,
            ["/sys/fs/cgroup/user/job/memory.max", "/sys/fs/cgroup/user/memory.max", "/sys/fs/cgroup/memory.max"]
        );
        let v1 = files("11:cpu,cpuacct:/a\n5:memory:/slurm\n1:name=systemd:/x\n");
        assert_eq!(
            v1,
            ["/sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        );
        assert!(files("nonsense").is_empty());
    }

    #[test]
    fn very_large_limits_are_ignored() {
        assert_eq!(parse_limit("max\n"), None);
        assert_eq!(parse_limit("9223372036854771712\n"), None);
        assert_eq!(parse_limit("1073741824\n"), Some(1 << 30));
    }

    #[test]
    fn the_smallest_limit_applies() {
        let alone = Sharing { host: 1, group: 1 };
        assert_eq!(limit_bytes(Some(1000), alone), Some(1000));
        #[cfg(target_os = "linux")]
        {
            let free = limit_bytes(None, alone).unwrap();
            assert!(limit_bytes(Some(u64::MAX), alone) <= Some(free.saturating_mul(2)));
            // Each of four ranks on a machine gets a quarter of its memory.
            let quarter = limit_bytes(None, Sharing { host: 4, group: 4 }).unwrap();
            assert!(quarter < free / 2, "{quarter} of {free}");
            let held = anonymous_bytes().unwrap();
            assert!(held > 100_000 && held < free, "{held} of {free}");
        }
    }
}
