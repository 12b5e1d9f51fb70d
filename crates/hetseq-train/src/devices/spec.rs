//! Device names, as `run.devices` gives them, and what they stand for on a machine. Pure: what the machine has is told.

use std::collections::HashSet;
use std::fmt;
use std::num::NonZeroUsize;

use hetseq_kernels::Precision;

use crate::engine;

/// One device of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSpec {
    /// As it stands in messages: `cpu:0`, `gpu:1`.
    pub name: String,
    pub place: Place,
    /// Of its products; none if the name does not say, and what `run.precision` says holds.
    pub precision: Option<Precision>,
    /// Whether the name came up by itself (`all`): then it is no error if it cannot be used.
    pub is_optional: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Threads in host memory. Each is kept on one of the `cores`, if any are named.
    Cpu {
        threads: usize,
        cores: Vec<usize>,
    },
    Gpu {
        api: Api,
        index: usize,
    },
}

/// How a GPU is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Api {
    /// Whatever the system has: Vulkan, Metal or DirectX.
    Any,
    Vulkan,
    Metal,
    Cuda,
    Rocm,
}

impl Api {
    pub const ALL: [Api; 5] = [Api::Any, Api::Vulkan, Api::Metal, Api::Cuda, Api::Rocm];

    /// What stands before the number in a device's name.
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
    /// A device of so many threads in host memory.
    pub fn cpu(index: usize, threads: usize) -> Self {
        let place = Place::Cpu { threads, cores: Vec::new() };
        DeviceSpec { name: format!("cpu:{index}"), place, precision: None, is_optional: false }
    }

    pub fn is_gpu(&self) -> bool {
        matches!(self.place, Place::Gpu { .. })
    }

    /// How many threads of the host it keeps busy. A GPU's only hands out work, but is late with it if it has to wait for a core.
    pub fn threads(&self) -> usize {
        match self.place {
            Place::Cpu { threads, .. } => threads,
            Place::Gpu { .. } => 1,
        }
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// More than this many threads is a typing error.
const MOST: usize = 4096;

/// What `run.devices` means on a machine with so many cores. `gpus` lists its real GPUs, and is asked only if it matters,
/// since asking wakes drivers.
pub(super) fn parse_devices(
    text: &str,
    cores: NonZeroUsize,
    gpus: impl Fn() -> Vec<Place>,
) -> Result<Vec<DeviceSpec>, String> {
    let mut specs = Vec::new();
    for name in text.split(',').map(str::trim) {
        let (base, precision) = match name.split_once('@') {
            Some((base, precision)) => (base.trim(), Some(precision.trim().parse()?)),
            None => (name, None),
        };
        let places = parse_one(base, cores.get(), &gpus).ok_or_else(|| wrong(name))?;
        if places.is_empty() {
            return Err(format!("`{name}`: there is no GPU on this machine; `hetseq devices` lists what there is"));
        }
        for place in places {
            specs.push(DeviceSpec { name: String::new(), place, precision, is_optional: base == "all" });
        }
    }
    named(specs)
}

fn parse_one(name: &str, cores: usize, gpus: &impl Fn() -> Vec<Place>) -> Option<Vec<Place>> {
    let single = Place::Cpu { threads: 1, cores: Vec::new() };
    if name == "all" {
        // Each GPU has a thread of the host to itself.
        let gpus = gpus();
        let left = cores.saturating_sub(gpus.len()).max(usize::from(gpus.is_empty()));
        return Some(gpus.into_iter().chain(std::iter::repeat_n(single, left)).collect());
    }
    let (kind, which) = match name.split_once(':') {
        Some((kind, which)) => (kind.trim(), Some(which)),
        None => (name, None),
    };
    if kind == "cpu" {
        let Some(which) = which else { return Some(vec![single; cores]) };
        if let Some((first, last)) = which.split_once('-') {
            let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            let pinned: Vec<usize> = (first..=last.min(first.saturating_add(MOST))).collect();
            return (!pinned.is_empty()).then(|| vec![Place::Cpu { threads: pinned.len(), cores: pinned }]);
        }
        let (count, threads) = match which.split_once('x') {
            Some((count, threads)) => (number(count)?, number(threads)?),
            None => (number(which)?, 1),
        };
        return (count * threads <= MOST).then(|| vec![Place::Cpu { threads, cores: Vec::new() }; count]);
    }
    let api = Api::ALL.into_iter().find(|api| api.prefix() == kind)?;
    match which {
        Some(index) => {
            let index = index.trim().parse().ok().filter(|&index: &usize| index < MOST)?;
            Some(vec![Place::Gpu { api, index }])
        }
        None if api == Api::Any => Some(gpus()),
        None => Some(vec![Place::Gpu { api, index: 0 }]),
    }
}

fn number(text: &str) -> Option<usize> {
    text.trim().parse().ok().filter(|n| (1..=MOST).contains(n))
}

/// Numbers the devices of the CPU; a GPU keeps the number it has on the machine.
fn named(mut specs: Vec<DeviceSpec>) -> Result<Vec<DeviceSpec>, String> {
    let (mut cpus, mut seen) = (0.., HashSet::new());
    for DeviceSpec { name, place, .. } in &mut specs {
        *name = match place {
            Place::Cpu { .. } => format!("cpu:{}", cpus.next().unwrap_or_default()),
            place => engine::name_of(place),
        };
        if !seen.insert(name.clone()) {
            return Err(format!("{name} is named twice: one device computes faster than two that share it"));
        }
    }
    Ok(specs)
}

fn wrong(name: &str) -> String {
    format!(
        "unknown device `{name}`: say `all` (every GPU, and a device for every core that is left), `cpu` (one single-threaded \
         device per core), `cpu:4` (four of them), `cpu:2x8` (two devices of eight threads each), `cpu:0-3` (one device on these \
         cores), `gpu` (every GPU) or `gpu:0` (one, as `hetseq devices` numbers them; cuda:0, rocm:0, metal:0 and vulkan:0 by \
         that interface); `gpu:0@f16` computes its products in f16, see also run.precision"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, gpus: usize) -> Result<Vec<String>, String> {
        let all = || (0..gpus).map(|index| Place::Gpu { api: Api::Any, index }).collect();
        let specs = parse_devices(text, NonZeroUsize::new(3).unwrap(), all)?;
        let in_words = |spec: &DeviceSpec| {
            let place = match &spec.place {
                Place::Cpu { threads, cores } if cores.is_empty() => format!("{threads} threads"),
                Place::Cpu { cores, .. } => format!("cores {cores:?}"),
                Place::Gpu { .. } => String::new(),
            };
            let precision = spec.precision.map_or(String::new(), |precision| precision.to_string());
            [spec.name.clone(), place, precision].join(" ").trim().to_owned()
        };
        Ok(specs.iter().map(in_words).collect())
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
        assert_eq!(parse("rocm", 2).unwrap(), ["rocm:0"]);
    }

    #[test]
    fn all_leaves_each_gpu_a_core() {
        assert_eq!(parse("all", 0).unwrap().len(), 3);
        assert_eq!(parse("all", 2).unwrap(), ["gpu:0", "gpu:1", "cpu:0 1 threads"]);
        assert_eq!(parse("all", 4).unwrap().len(), 4);
        assert_eq!(parse("all@bf16", 3).unwrap(), ["gpu:0  bf16", "gpu:1  bf16", "gpu:2  bf16"]);
    }

    #[test]
    fn drivers_are_asked_only_if_it_matters() {
        let cores = NonZeroUsize::new(2).unwrap();
        assert!(parse_devices("cpu, gpu:0", cores, || panic!("asked")).is_ok());
    }

    #[test]
    fn what_is_wrong_is_refused() {
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
        ] {
            assert!(parse(bad, 1).is_err(), "{bad}");
        }
        assert!(parse("gpu", 0).unwrap_err().contains("no GPU on this machine"));
        assert!(parse("gpu:0,gpu:0", 1).unwrap_err().contains("twice"));
        assert!(parse("all,gpu:0", 1).unwrap_err().contains("twice"));
    }
}
