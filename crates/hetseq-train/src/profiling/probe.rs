//! The device probe before the first update: measures how long micro-batches of several sizes and
//! lengths take, and how large they may be until memory runs out. The planner starts from these
//! tables; its drift control follows later changes. Called once per group by `session.rs`.
//!
//! All devices run at the same time, as in training: they share the machine's memory and its
//! bandwidth. Equal devices run the same size. Sizes double; the next one is run only if there is
//! enough memory and time for it, and if larger sizes still got faster. The results are cached in
//! the run directory, so that the next start only corrects them to its current speed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hetseq_balance::{CostPoint, CostTable, DeviceProfile};
use hetseq_data::{GlobalBatch, SampleLengths};
use hetseq_kernels::Dtype;
use hetseq_metrics::rate;
use hetseq_random::Key;
use rayon::ThreadPool;
use rayon::prelude::*;

use crate::data::loader::{self, Job, MicroBatch};
use crate::devices::backend;
use crate::devices::memory;
use crate::devices::{DeviceSpec, Devices, LocalSum, StepParams};
use crate::error::TrainError;
use crate::task::{OpenedTask, Split};
use crate::trainer::stop::StopFlag;

pub(crate) use super::probe_cache::{ProbeCache, ProbeEntry, ProbeKey};
use super::sizes::{self, ProbeStep, SizeSearch};

/// Each size is run at least this often, and for at least this long.
pub(super) const RUNS: u32 = 2;
const MIN_TIME: Duration = Duration::from_millis(100);
/// A cached table is valid if one micro-batch takes as long as the table says, within this factor.
/// A machine that is busier than before needs all its times corrected, not a new measurement.
const MAX_CHANGE: f64 = 2.0;

/// The limits of a probe.
#[derive(Debug, Clone)]
pub(crate) struct ProbeLimits {
    /// `batch.micro` and `batch.max_tokens`.
    pub(crate) max_samples: Option<u32>,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) global: GlobalBatch,
    /// Memory that the process may use.
    pub(crate) memory_bytes: Option<u64>,
    /// The configured limit of each GPU.
    pub(crate) gpu_memory_bytes: Option<u64>,
    /// Memory that training holds besides what a step needs: the optimizer's state, buffers of the
    /// exchange.
    pub(crate) reserved_bytes: u64,
    pub(crate) budget: Duration,
}

/// The result of a probe.
pub(crate) struct Probed {
    /// One profile per device of this process.
    pub(crate) devices: Vec<DeviceProfile>,
    /// Whether they were measured now, not taken from the cache.
    pub(crate) is_new: bool,
}

/// Equal devices, which are measured at the same time and at the same size: the devices of a CPU,
/// or a single GPU or engine.
struct DeviceClass {
    /// Indices among the devices of this process.
    devices: Vec<usize>,
    /// Whether the device reports the memory that it holds, because it is not this process's.
    is_gpu: bool,
    /// The memory limit is of the memory that the device uses.
    limits: ProbeLimits,
    /// Bytes of that memory in use.
    held_bytes: u64,
    /// Set if memory ran out: the most tokens that fit.
    out_of_memory: Option<u32>,
}

/// The class of a device: equal for devices that are measured together.
fn kind_of(spec: &DeviceSpec, precision: Dtype) -> String {
    match spec.is_gpu() || spec.is_engine() {
        true => spec.name.clone(),
        false => format!("{} {precision}", spec.threads()),
    }
}

/// Memory of this process now, plus what it will hold in training besides steps.
fn held_by_process(limits: &ProbeLimits) -> u64 {
    memory::anonymous_bytes().map_or(0, |held| held + limits.reserved_bytes)
}

fn device_classes(devices: &Devices, limits: &ProbeLimits) -> Vec<DeviceClass> {
    let mut classes: Vec<(String, DeviceClass)> = Vec::new();
    for (at, (spec, precision)) in devices.specs().enumerate() {
        let (is_gpu, key) = (spec.is_gpu() || spec.is_engine(), kind_of(spec, precision));
        match classes.iter_mut().find(|(known, _)| *known == key) {
            Some((_, class)) => class.devices.push(at),
            None => {
                let own = || devices.memory_bytes(at).or_else(|| backend::free_bytes(&spec.kind));
                let memory_bytes = match is_gpu.then(own).flatten() {
                    Some(own) => Some(limits.gpu_memory_bytes.map_or(own, |limit| limit.min(own))),
                    None if spec.is_gpu() => limits.gpu_memory_bytes,
                    // Engines on CPU cores share the memory with this process and each other.
                    None if spec.is_engine() => engine_share(devices, limits),
                    None => limits.memory_bytes,
                };
                let held_bytes = if is_gpu { 0 } else { held_by_process(limits) };
                let limits = ProbeLimits { memory_bytes, ..limits.clone() };
                classes.push((key, DeviceClass { devices: vec![at], is_gpu, limits, held_bytes, out_of_memory: None }));
            }
        }
    }
    classes.into_iter().map(|(_, class)| class).collect()
}

/// The memory for one of the engines that compute on CPU cores.
fn engine_share(devices: &Devices, limits: &ProbeLimits) -> Option<u64> {
    let engines =
        (0..).zip(devices.specs()).filter(|(at, (spec, _))| spec.is_engine() && devices.memory_bytes(*at).is_none());
    Some(limits.memory_bytes?.saturating_sub(held_by_process(limits)) / engines.count().max(1) as u64)
}

/// Measures all devices, or uses the `known` profiles of an earlier start if they are still valid.
/// When `stop` is set, ends as soon as there is enough to plan with.
pub(crate) fn probe(
    task: &OpenedTask,
    devices: &mut Devices,
    pool: &ThreadPool,
    limits: &ProbeLimits,
    known: Option<&[DeviceProfile]>,
    stop: &StopFlag,
) -> Result<Probed, TrainError> {
    let names: Vec<String> = devices.names().map(str::to_owned).collect();
    let sample_lengths = task.data.lengths(Split::Train);
    let mut classes = device_classes(devices, limits);
    let mut runner = ProbeRunner { task, devices, pool, sample_lengths: &sample_lengths, limits, stop, is_warm: false };
    if let Some(known) = known
        && let Some(devices) = runner.corrected(known, &classes)?
    {
        return Ok(Probed { devices, is_new: false });
    }
    tracing::info!("measuring what the devices can do, for at most {} s", limits.budget.as_secs());
    let mut times = DeviceTimes::new(names.len());
    let started = Instant::now();
    let lengths = sizes::lengths(&sample_lengths);
    // The longest first: the process keeps freed memory, so only the first length shows its growth.
    for (at, &tokens) in lengths.iter().rev().enumerate() {
        let budget = limits.budget.saturating_sub(started.elapsed()) / (lengths.len() - at) as u32;
        runner.probe_length(tokens, budget, &mut classes, &mut times)?;
    }
    let mut max_tokens = vec![None; names.len()];
    for class in &classes {
        let by_memory = sizes::token_cap(&times.points[class.devices[0]], &lengths, &class.limits);
        for &device in &class.devices {
            max_tokens[device] = [by_memory, class.out_of_memory].into_iter().flatten().min();
        }
    }
    let DeviceTimes { points, after } = times;
    let mut found = Vec::new();
    for (((name, points), after), max_tokens) in names.into_iter().zip(points).zip(after).zip(max_tokens) {
        let table = CostTable::new(sizes::smoothed(points))
            .map_err(|reason| TrainError::Config(format!("{name} could not be measured: {reason}")))?;
        let (after_s, max_samples) = (after.as_secs_f64(), limits.max_samples);
        found.push(DeviceProfile { name, table, after_s, weight: 1.0, max_tokens, max_samples });
    }
    Ok(Probed { devices: found, is_new: true })
}

/// The measured times, per device.
struct DeviceTimes {
    points: Vec<Vec<CostPoint>>,
    after: Vec<Duration>,
}

impl DeviceTimes {
    fn new(devices: usize) -> Self {
        DeviceTimes { points: vec![Vec::new(); devices], after: vec![Duration::ZERO; devices] }
    }
}

/// One line of text for each kind of device, for the log.
pub(crate) fn describe(devices: &Devices, profiles: &[DeviceProfile], is_new: bool) -> Vec<String> {
    let mut kinds: Vec<(String, usize, &DeviceProfile, Dtype)> = Vec::new();
    for ((spec, precision), profile) in devices.specs().zip(profiles) {
        let kind = kind_of(spec, precision);
        match kinds.iter_mut().find(|(known, ..)| *known == kind) {
            Some((_, count, ..)) => *count += 1,
            None => kinds.push((kind, 1, profile, precision)),
        }
    }
    kinds.into_iter().map(|(_, count, profile, precision)| describe_kind(profile, count, precision, is_new)).collect()
}

fn describe_kind(device: &DeviceProfile, count: usize, precision: Dtype, is_new: bool) -> String {
    let DeviceProfile { name, table, .. } = device;
    let tokens = table.points().last().map_or(1, |point| point.tokens);
    let samples = table.best_samples(tokens);
    let speed = f64::from(samples) / table.seconds(samples, tokens).max(1e-9);
    // Shown only if it is a real limit.
    let largest = table.points().iter().map(|point| point.samples.saturating_mul(point.tokens)).max().unwrap_or(0);
    let memory = device.max_tokens.filter(|&most| most < largest.saturating_mul(2));
    let memory = memory.map_or_else(String::new, |most| format!(", at most {most} tokens at once"));
    let precision = if precision == Dtype::F32 { String::new() } else { format!(", products in {precision}") };
    let others = if count > 1 { format!(" ({count} such devices)") } else { String::new() };
    let when = if is_new { "measured" } else { "as measured at an earlier start" };
    // Images have no length.
    let length = if tokens > 1 { format!(" of {tokens} tokens") } else { String::new() };
    let speed = rate(speed);
    format!("{name}{others}: {speed} samples/s{length} in micro-batches of {samples}{memory}{precision}, {when}")
}

/// Runs micro-batches on the devices and times them.
struct ProbeRunner<'a> {
    task: &'a OpenedTask,
    devices: &'a mut Devices,
    pool: &'a ThreadPool,
    sample_lengths: &'a SampleLengths,
    limits: &'a ProbeLimits,
    stop: &'a StopFlag,
    is_warm: bool,
}

struct Measured {
    /// All devices, including those without work.
    devices: Vec<DeviceMeasurement>,
    /// How many times each was run.
    runs: u32,
}

#[derive(Clone, Copy, Default)]
struct DeviceMeasurement {
    /// Time for a micro-batch, and after it, without waiting.
    compute: Duration,
    after: Duration,
    /// Set if the device ran out of memory: the most tokens that fit.
    most_tokens: Option<u32>,
    /// Bytes in use of a GPU's memory.
    held_bytes: Option<u64>,
}

impl ProbeRunner<'_> {
    /// Measures samples of `tokens` tokens in growing micro-batches, until the search of every
    /// class ends. Takes about `budget`.
    fn probe_length(
        &mut self,
        tokens: u32,
        budget: Duration,
        classes: &mut [DeviceClass],
        times: &mut DeviceTimes,
    ) -> Result<(), TrainError> {
        let search = |class: &DeviceClass| SizeSearch::new(&class.limits, tokens, budget, class.held_bytes);
        let mut searches: Vec<SizeSearch> = classes.iter().map(search).collect();
        let most = searches.iter().map(SizeSearch::max_samples).max().unwrap_or(1);
        let candidates = sizes::samples(self.sample_lengths, tokens, most);
        let mut is_full = vec![false; classes.len()];
        // A round: each class at its next size, all at the same time, as in training.
        loop {
            let next = |(search, is_full): (&SizeSearch, &bool)| match search.next() {
                // Each length needs one size, even when the run is asked to stop.
                ProbeStep::Run(samples) if !is_full && (samples == 1 || !self.stop.is_set()) => Some(samples),
                _ => None,
            };
            let sizes: Vec<Option<u32>> = searches.iter().zip(&is_full).map(next).collect();
            if sizes.iter().all(Option::is_none) {
                break;
            }
            let measured = self.time(classes, &sizes, &candidates, tokens)?;
            for (at, class) in classes.iter_mut().enumerate() {
                let Some(samples) = sizes[at] else { continue };
                let of_class = || class.devices.iter().map(|&device| &measured.devices[device]);
                // A size that did not fit is no measurement, and larger ones need not be tried.
                if let Some(most) = of_class().filter_map(|device| device.most_tokens).min() {
                    class.out_of_memory = Some(class.out_of_memory.map_or(most, |known| known.min(most)));
                    is_full[at] = true;
                    continue;
                }
                let held_by_gpu = of_class().filter_map(|device| device.held_bytes).max();
                let bytes = held_by_gpu.unwrap_or_else(|| if class.is_gpu { 0 } else { held_by_process(self.limits) });
                let slowest = of_class().map(|device| device.compute).max().unwrap_or_default();
                for &device in &class.devices {
                    let DeviceMeasurement { compute, after, .. } = measured.devices[device];
                    let micros = compute.as_micros().max(1) as u64;
                    times.points[device].push(CostPoint { samples, tokens, micros, bytes });
                    times.after[device] = after;
                }
                searches[at].record(samples, slowest, bytes, slowest * measured.runs);
                class.held_bytes = bytes;
            }
        }
        for (class, search) in classes.iter().zip(&searches) {
            if let Some(needed) = search.single_sample_too_large() {
                return Err(TrainError::Device {
                    device: self.devices.names().nth(class.devices[0]).unwrap_or_default().to_owned(),
                    doing: "measuring how large micro-batches may be",
                    reason: sizes::memory_too_small(
                        needed,
                        class.limits.memory_bytes.unwrap_or(0),
                        tokens,
                        class.is_gpu,
                    ),
                });
            }
        }
        Ok(())
    }

    /// Returns the means of several runs. Each class runs as many of the `candidates` as its entry
    /// in `sizes` says; a class with `None` is idle.
    fn time(
        &mut self,
        classes: &[DeviceClass],
        sizes: &[Option<u32>],
        candidates: &[u32],
        tokens: u32,
    ) -> Result<Measured, TrainError> {
        let mut micros: Vec<Option<MicroBatch>> = vec![None; self.devices.names().count()];
        let mut to_warm = micros.clone();
        let is_cold = !std::mem::replace(&mut self.is_warm, true);
        for (class, size) in classes.iter().zip(sizes) {
            let samples = size.map(|size| candidates[..size as usize].to_vec());
            for &device in &class.devices {
                micros[device] = samples.clone().map(|samples| MicroBatch { samples, longest: tokens });
                // A GPU compiles and selects kernels for each size.
                if is_cold || class.is_gpu {
                    to_warm[device].clone_from(&micros[device]);
                }
            }
        }
        if to_warm.iter().any(Option::is_some) {
            self.run(&to_warm)?;
        }
        let (mut sums, mut runs) = (vec![DeviceMeasurement::default(); micros.len()], 0);
        let timed = Instant::now();
        while runs < RUNS || timed.elapsed() < MIN_TIME {
            for (sum, report) in sums.iter_mut().zip(self.run(&micros)?.devices) {
                sum.compute += report.compute;
                sum.after += report.after;
                let most = report.most_tokens.map(|most| u32::try_from(most).unwrap_or(u32::MAX));
                sum.most_tokens = sum.most_tokens.into_iter().chain(most).min();
                sum.held_bytes = sum.held_bytes.max(report.held_bytes);
            }
            runs += 1;
        }
        let mean =
            |sum: DeviceMeasurement| DeviceMeasurement { compute: sum.compute / runs, after: sum.after / runs, ..sum };
        Ok(Measured { devices: sums.into_iter().map(mean).collect(), runs })
    }

    /// Runs one micro-batch, or none, on each device.
    fn run(&mut self, micros: &[Option<MicroBatch>]) -> Result<LocalSum, TrainError> {
        let task = self.task;
        let epoch_key = Key::root(0).name("probe");
        let collate = |micro: &Option<MicroBatch>| -> Result<Vec<Arc<Job>>, TrainError> {
            let Some(micro) = micro.clone() else { return Ok(Vec::new()) };
            let collated = loader::collate(task, Split::Train, micro, epoch_key);
            Ok(vec![Arc::new(collated.map_err(|reason| task.collate_error(reason))?.job)])
        };
        let jobs: Result<Vec<_>, TrainError> = self.pool.install(|| micros.par_iter().map(collate).collect());
        let scales = vec![1.0; task.data.terms().len()];
        // The loss scale does not matter: gradients that overflow take as long.
        let params = StepParams { update: 0, scales, loss_scale: 1.0, update_key: epoch_key, epoch_key };
        self.devices.begin(jobs?, params);
        let sum = self.devices.finish()?;
        // Before a run starts, a failed device is an error: no other device takes over its work.
        match sum.lost.first() {
            None => Ok(sum),
            Some(lost) => Err(TrainError::Device {
                device: self.devices.names().nth(lost.device).unwrap_or_default().to_owned(),
                doing: "being measured",
                reason: lost.reason.clone(),
            }),
        }
    }

    /// The `known` profiles, corrected to the current speed by one micro-batch of the best size.
    /// None if the speed has changed too much.
    fn corrected(
        &mut self,
        known: &[DeviceProfile],
        classes: &[DeviceClass],
    ) -> Result<Option<Vec<DeviceProfile>>, TrainError> {
        let Some(point) = known.first().and_then(|device| device.table.points().last().copied()) else {
            return Ok(None);
        };
        let tokens = point.tokens;
        let usual = |class: &DeviceClass| known.get(class.devices[0]).map(|device| device.table.best_samples(tokens));
        let sizes: Vec<Option<u32>> = classes.iter().map(usual).collect();
        // A probe with these limits never ran a larger size, so such a cache is damaged.
        let most_of = |class: &DeviceClass| SizeSearch::new(&class.limits, tokens, Duration::ZERO, 0).max_samples();
        let is_possible = |(class, size): (&DeviceClass, &Option<u32>)| size.is_none_or(|size| size <= most_of(class));
        if !classes.iter().zip(&sizes).all(is_possible) {
            return Ok(None);
        }
        let most = sizes.iter().flatten().copied().max().unwrap_or(1);
        let candidates = sizes::samples(self.sample_lengths, tokens, most);
        if candidates.is_empty() {
            return Ok(None);
        }
        let measured = self.time(classes, &sizes, &candidates, tokens)?;
        let mut corrected = known.to_vec();
        for (class, size) in classes.iter().zip(sizes) {
            for &device in &class.devices {
                let (Some(samples), Some(profile)) = (size, corrected.get_mut(device)) else { return Ok(None) };
                let DeviceMeasurement { compute, most_tokens, .. } = measured.devices[device];
                let ratio = compute.as_secs_f64().max(1e-6) / profile.table.seconds(samples, tokens);
                if !(MAX_CHANGE.recip()..=MAX_CHANGE).contains(&ratio) || most_tokens.is_some() {
                    return Ok(None);
                }
                profile.table = profile.table.scaled(ratio);
            }
        }
        Ok(Some(corrected))
    }
}
