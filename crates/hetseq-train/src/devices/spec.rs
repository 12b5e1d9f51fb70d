//! Parses `run.devices` into device specs. Pure: the machine's cores and GPUs are arguments.

use std::collections::HashSet;
use std::fmt;
use std::num::NonZeroUsize;

use hetseq_kernels::Dtype;

use crate::devices::backend;

/// One device of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSpec {
    /// The name in messages: `cpu:0`, `gpu:1`.
    pub name: String,
    pub kind: DeviceKind,
    /// The precision of its products, if its name gives one. Otherwise `run.precision` applies.
    pub precision: Option<Dtype>,
    /// The user did not name it (`all`), so it is skipped if it cannot be used.
    pub is_optional: bool,
}

/// A CPU or GPU device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceKind {
    /// Threads in host memory. Each is pinned to one of the `cores`, if any are given.
    Cpu {
        threads: usize,
        cores: Vec<usize>,
    },
    Gpu {
        api: Api,
        index: usize,
    },
    /// Another program, in a child process.
    Engine {
        program: EngineProgram,
        /// Threads of a device that computes on CPU cores; 1 for others.
        threads: usize,
    },
}

/// The program of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineProgram {
    /// PyTorch on one of its devices: `cpu`, `cuda:0`, `mps`, ...
    Torch { device: String },
    /// Any command, in words.
    Exec { words: Vec<String> },
}

/// The API used to access a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Api {
    /// The API that the system offers: Vulkan, Metal or DirectX.
    Any,
    Vulkan,
    Metal,
    Cuda,
    Rocm,
}

impl Api {
    pub const ALL: [Api; 5] = [Api::Any, Api::Vulkan, Api::Metal, Api::Cuda, Api::Rocm];

    /// The part of a device name before the number.
    pub fn prefix(self) -> &'static str {
        match self {
            Api::Any => "gpu",
            Api::Vulkan => "vulkan",
            Api::Metal => "metal",
            Api::Cuda => "cuda",
            Api::Rocm => "rocm",
        }
    }
}

impl DeviceSpec {
    /// A CPU device with this many threads.
    pub fn cpu(index: usize, threads: usize) -> Self {
        let kind = DeviceKind::Cpu { threads, cores: Vec::new() };
        DeviceSpec { name: format!("cpu:{index}"), kind, precision: None, is_optional: false }
    }

    pub fn is_gpu(&self) -> bool {
        matches!(self.kind, DeviceKind::Gpu { .. })
    }

    pub fn is_engine(&self) -> bool {
        matches!(self.kind, DeviceKind::Engine { .. })
    }

    /// Number of host threads that it uses. The thread of a GPU only launches work, but is late if
    /// it has to wait for a core.
    pub fn threads(&self) -> usize {
        match self.kind {
            DeviceKind::Cpu { threads, .. } | DeviceKind::Engine { threads, .. } => threads,
            DeviceKind::Gpu { .. } => 1,
        }
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// A larger number of threads or devices is a typing error.
const MAX_COUNT: usize = 4096;

/// Resolves `run.devices` on a machine with this many cores. `gpus` lists its real GPUs. It is
/// called only if needed, because it loads drivers.
pub(super) fn parse_devices(
    text: &str,
    cores: NonZeroUsize,
    gpus: impl Fn() -> Vec<DeviceKind>,
) -> Result<Vec<DeviceSpec>, String> {
    let mut specs = Vec::new();
    if text.trim() == NONE {
        return Ok(specs);
    }
    for name in text.split(',').map(str::trim) {
        let (base, precision) = match name.rsplit_once('@') {
            // An `@` in a command is part of it.
            Some((base, precision)) if !base.starts_with(EXEC) || precision.parse::<Dtype>().is_ok() => {
                (base.trim(), Some(precision.trim().parse()?))
            }
            _ => (name, None),
        };
        let kinds = parse_one(base, cores.get(), &gpus).ok_or_else(|| unknown_device(name))?;
        if kinds.is_empty() {
            return Err(format!("`{name}`: there is no GPU on this machine; `hetseq devices` lists all devices"));
        }
        for kind in kinds {
            specs.push(DeviceSpec { name: String::new(), kind, precision, is_optional: base == "all" });
        }
    }
    assign_names(specs)
}

/// A rank without devices computes nothing. It holds the state and has a vote when ranks are lost.
const NONE: &str = "none";
const EXEC: &str = "exec:";
const TORCH: &str = "torch:";

/// Parses one entry of the list. `None` if it is not valid.
fn parse_one(name: &str, cores: usize, gpus: &impl Fn() -> Vec<DeviceKind>) -> Option<Vec<DeviceKind>> {
    let single = DeviceKind::Cpu { threads: 1, cores: Vec::new() };
    if let Some(command) = name.strip_prefix(EXEC) {
        let words = shlex::split(command).filter(|words| !words.is_empty())?;
        return Some(vec![DeviceKind::Engine { program: EngineProgram::Exec { words }, threads: 1 }]);
    }
    if let Some(device) = name.strip_prefix(TORCH) {
        return parse_torch(device.trim(), cores);
    }
    if name == "all" {
        // Each GPU needs a host thread.
        let gpus = gpus();
        let left = cores.saturating_sub(gpus.len()).max(usize::from(gpus.is_empty()));
        return Some(gpus.into_iter().chain(std::iter::repeat_n(single, left)).collect());
    }
    let (prefix, suffix) = match name.split_once(':') {
        Some((prefix, suffix)) => (prefix.trim(), Some(suffix)),
        None => (name, None),
    };
    if prefix == "cpu" {
        let Some(suffix) = suffix else { return Some(vec![single; cores]) };
        if let Some((first, last)) = suffix.split_once('-') {
            let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            let pinned: Vec<usize> = (first..=last.min(first.saturating_add(MAX_COUNT))).collect();
            return (!pinned.is_empty()).then(|| vec![DeviceKind::Cpu { threads: pinned.len(), cores: pinned }]);
        }
        let (count, threads) = parse_count(suffix)?;
        return (count * threads <= MAX_COUNT).then(|| vec![DeviceKind::Cpu { threads, cores: Vec::new() }; count]);
    }
    let api = Api::ALL.into_iter().find(|api| api.prefix() == prefix)?;
    match suffix {
        Some(index) => {
            let index = index.trim().parse().ok().filter(|&index: &usize| index < MAX_COUNT)?;
            Some(vec![DeviceKind::Gpu { api, index }])
        }
        None if api == Api::Any => Some(gpus()),
        None => Some(vec![DeviceKind::Gpu { api, index: 0 }]),
    }
}

/// Parses what follows `torch:`. Its CPU is by default one device with all cores, as PyTorch uses it.
fn parse_torch(device: &str, cores: usize) -> Option<Vec<DeviceKind>> {
    let engine = |device: &str, threads| {
        let program = EngineProgram::Torch { device: device.to_owned() };
        DeviceKind::Engine { program, threads }
    };
    let (kind, suffix) = device.split_once(':').map_or((device, None), |(kind, suffix)| (kind, Some(suffix)));
    match (kind, suffix) {
        ("cpu", None) => Some(vec![engine("cpu", cores)]),
        ("cpu", Some(suffix)) => {
            let (count, threads) = parse_count(suffix)?;
            (count * threads <= MAX_COUNT).then(|| vec![engine("cpu", threads); count])
        }
        ("", _) => None,
        (kind, suffix) if kind.chars().all(char::is_alphanumeric) => {
            let index: usize = suffix.map_or(Some(0), |suffix| suffix.parse().ok())?;
            // Apple's GPU has no number.
            let device = if kind == "mps" { kind.to_owned() } else { format!("{kind}:{index}") };
            Some(vec![engine(&device, 1)])
        }
        _ => None,
    }
}

/// Parses `4` (four single-threaded devices) or `2x8` (two devices of eight threads).
fn parse_count(text: &str) -> Option<(usize, usize)> {
    match text.split_once('x') {
        Some((count, threads)) => Some((number(count)?, number(threads)?)),
        None => Some((number(text)?, 1)),
    }
}

fn number(text: &str) -> Option<usize> {
    text.trim().parse().ok().filter(|n| (1..=MAX_COUNT).contains(n))
}

/// Names the devices. CPU devices are numbered; a GPU keeps its number on the machine.
fn assign_names(mut specs: Vec<DeviceSpec>) -> Result<Vec<DeviceSpec>, String> {
    let (mut cpus, mut torch_cpus, mut commands, mut seen) = (0.., 0.., 0.., HashSet::new());
    let next = |prefix: &str, numbers: &mut std::ops::RangeFrom<usize>| {
        format!("{prefix}{}", numbers.next().unwrap_or_default())
    };
    for DeviceSpec { name, kind, .. } in &mut specs {
        *name = match kind {
            DeviceKind::Cpu { .. } => next("cpu:", &mut cpus),
            DeviceKind::Engine { program: EngineProgram::Exec { .. }, .. } => next(EXEC, &mut commands),
            DeviceKind::Engine { program: EngineProgram::Torch { device }, .. } => match device.as_str() {
                "cpu" => next("torch:cpu:", &mut torch_cpus),
                device => format!("{TORCH}{device}"),
            },
            kind => backend::name_of(kind),
        };
        if !seen.insert(name.clone()) {
            return Err(format!("{name} is listed twice: one device computes faster than two that share it"));
        }
    }
    Ok(specs)
}

fn unknown_device(name: &str) -> String {
    format!(
        "unknown device `{name}`: use `all` (every GPU, and one device per remaining core), `cpu` (one single-threaded device \
         per core), `cpu:4` (four of them), `cpu:2x8` (two devices of eight threads each), `cpu:0-3` (one device on these \
         cores), `gpu` (every GPU) or `gpu:0` (one GPU, numbered as in `hetseq devices`; cuda:0, rocm:0, metal:0 and vulkan:0 \
         select the API); `torch:cpu`, `torch:cpu:2x8`, `torch:cuda:0` (PyTorch, see docs/pytorch.md); `exec:COMMAND` (an \
         engine of your own, see docs/engine-protocol.md); `gpu:0@f16` computes its products in f16, see also run.precision; \
         `none` for a rank that only votes on who continues"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, gpus: usize) -> Result<Vec<String>, String> {
        let all = || (0..gpus).map(|index| DeviceKind::Gpu { api: Api::Any, index }).collect();
        let specs = parse_devices(text, NonZeroUsize::new(3).unwrap(), all)?;
        let describe = |spec: &DeviceSpec| {
            let kind = match &spec.kind {
                DeviceKind::Cpu { threads, cores } if cores.is_empty() => format!("{threads} threads"),
                DeviceKind::Cpu { cores, .. } => format!("cores {cores:?}"),
                DeviceKind::Gpu { .. } => String::new(),
                DeviceKind::Engine { program: EngineProgram::Exec { words }, .. } => format!("{words:?}"),
                DeviceKind::Engine { threads, .. } => format!("{threads} threads"),
            };
            let precision = spec.precision.map_or(String::new(), |precision| precision.to_string());
            [spec.name.clone(), kind, precision].join(" ").trim().to_owned()
        };
        Ok(specs.iter().map(describe).collect())
    }

    #[test]
    fn names_and_what_they_mean() {
        assert_eq!(parse("cpu", 0).unwrap(), ["cpu:0 1 threads", "cpu:1 1 threads", "cpu:2 1 threads"]);
        assert_eq!(parse("cpu:2x8", 0).unwrap(), ["cpu:0 8 threads", "cpu:1 8 threads"]);
        assert_eq!(parse("cpu:1 x 4, cpu:1", 0).unwrap(), ["cpu:0 4 threads", "cpu:1 1 threads"]);
        assert_eq!(parse("cpu:1-2", 0).unwrap(), ["cpu:0 cores [1, 2]"]);
        assert_eq!(parse("cpu:1, gpu:5", 0).unwrap(), ["cpu:0 1 threads", "gpu:5"]);
        assert_eq!(
            parse("gpu:0@f16, cuda:1@bf16, cpu:1@f32", 9).unwrap(),
            ["gpu:0  f16", "cuda:1  bf16", "cpu:0 1 threads f32"]
        );
        assert_eq!(parse("gpu", 2).unwrap(), ["gpu:0", "gpu:1"]);
        assert_eq!(parse(" none", 2).unwrap(), [""; 0]);
        assert!(parse("none,cpu", 2).unwrap_err().starts_with("unknown device `none`"));
        assert_eq!(parse("rocm", 2).unwrap(), ["rocm:0"]);
    }

    #[test]
    fn engines_are_programs() {
        assert_eq!(parse("torch:cpu", 0).unwrap(), ["torch:cpu:0 3 threads"]);
        assert_eq!(parse("torch:cpu:2x4", 0).unwrap(), ["torch:cpu:0 4 threads", "torch:cpu:1 4 threads"]);
        assert_eq!(
            parse("torch:cuda:1@bf16, torch:cuda, torch:mps, cpu:1", 0).unwrap(),
            ["torch:cuda:1 1 threads bf16", "torch:cuda:0 1 threads", "torch:mps 1 threads", "cpu:0 1 threads"]
        );
        assert_eq!(
            parse("exec:python3 'my engine.py' a@b, exec:./twin@f16", 0).unwrap(),
            [r#"exec:0 ["python3", "my engine.py", "a@b"]"#, r#"exec:1 ["./twin"] f16"#]
        );
    }

    #[test]
    fn all_leaves_each_gpu_a_core() {
        assert_eq!(parse("all", 0).unwrap().len(), 3);
        assert_eq!(parse("all", 2).unwrap(), ["gpu:0", "gpu:1", "cpu:0 1 threads"]);
        assert_eq!(parse("all", 4).unwrap().len(), 4);
        assert_eq!(parse("all@bf16", 3).unwrap(), ["gpu:0  bf16", "gpu:1  bf16", "gpu:2  bf16"]);
    }

    #[test]
    fn drivers_are_loaded_only_if_needed() {
        let cores = NonZeroUsize::new(2).unwrap();
        assert!(parse_devices("cpu, gpu:0", cores, || panic!("loaded")).is_ok());
    }

    #[test]
    fn invalid_names_are_refused() {
        for bad in [
            "",
            "cpu:0",
            "cpu:x",
            "cpu:2x",
            "cpu:99999",
            "cpu:4096x2",
            "cpu2",
            "cpu:1,",
            "cpu:3-1",
            "gpu:",
            "gpu:x",
            "tpu:0",
            "gpu:0@f64",
            "all:1",
            "torch:",
            "torch:cpu:0",
            "torch:cuda:x",
            "torch:a b",
            "exec:",
            "exec:'open",
        ] {
            assert!(parse(bad, 1).is_err(), "{bad}");
        }
        assert!(parse("gpu", 0).unwrap_err().contains("no GPU on this machine"));
        assert!(parse("gpu:0,gpu:0", 1).unwrap_err().contains("twice"));
        assert!(parse("all,gpu:0", 1).unwrap_err().contains("twice"));
    }
}
