//! What this process's devices can do, measured before the first update: how long micro-batches of several sizes and
//! lengths take, and how large they may be until memory runs out. The planner starts from these tables; what changes
//! later is followed by its drift control. Called once per group by `crew.rs`.
//!
//! All devices run at the same time, as they will when training: they share the machine's memory and its bandwidth. Those that are
//! alike run the same size. Sizes double, each under a guard: the next is run only if the memory it is expected to need is there, if the time
//! is, and if larger ones still got faster. What was found is kept in the run directory, so that the next start only
//! corrects it to the speed of that day.

mod kept;
mod sizes;

use std::time::{Duration, Instant};

use hetseq_balance::{CostTable, DeviceProfile, Point};
use hetseq_data::{Costs, GlobalBatch};
use hetseq_kernels::Precision;
use hetseq_random::Key;
use rayon::ThreadPool;
use rayon::prelude::*;

use crate::devices::{DeviceSpec, Devices, LocalSum, Terms};
use crate::engine;
use crate::error::TrainError;
use crate::loader::{self, Job, MicroBatch};
use crate::memory;
use crate::signals::StopFlag;
use crate::task::{Task, Which};

pub(crate) use kept::{Entry, Kept, Key as ProbeKey};
use sizes::{Guard, Step};

/// Each size is run at least this often, and for at least this long.
const RUNS: u32 = 2;
const LEAST: Duration = Duration::from_millis(100);
/// A table that is kept from an earlier start counts if one micro-batch takes as long as it says, within this factor: a machine
/// that is busier than it was then needs all its times corrected, not measured anew.
const STILL_TRUE: f64 = 2.0;

/// What bounds a probe.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// `batch.micro` and `batch.max_tokens`.
    pub(crate) max_samples: Option<u32>,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) global: GlobalBatch,
    /// What the process may use.
    pub(crate) memory_bytes: Option<u64>,
    /// What was set for each GPU.
    pub(crate) gpu_memory_bytes: Option<u64>,
    /// What training will hold beside what a step needs: the optimizer's state, buffers of the exchange.
    pub(crate) reserved_bytes: u64,
    pub(crate) budget: Duration,
}

/// The devices of this process as the planner knows them; one per device.
pub(crate) struct Probed {
    pub(crate) devices: Vec<DeviceProfile>,
    /// Whether it was measured now.
    pub(crate) is_new: bool,
}

/// Devices that are alike, and so are measured together and at the same size: the devices of a CPU, or a single GPU.
struct Class {
    /// Of this process.
    devices: Vec<usize>,
    is_gpu: bool,
    /// What bounds it; the memory is a GPU's own.
    limits: Limits,
    /// Of that memory, so much is in use.
    held_bytes: u64,
    /// More than these did not fit.
    out_of_memory: Option<u32>,
}

/// Devices of the same kind are alike.
fn kind_of(spec: &DeviceSpec, precision: Precision) -> String {
    if spec.is_gpu() { spec.name.clone() } else { format!("{} {precision}", spec.threads()) }
}

/// And what it will hold beside that when training.
fn held_by_process(limits: &Limits) -> u64 {
    memory::anonymous_bytes().map_or(0, |held| held + limits.reserved_bytes)
}

fn classes<T: Task>(devices: &Devices<T>, limits: &Limits) -> Vec<Class> {
    let mut classes: Vec<(String, Class)> = Vec::new();
    for (at, (spec, precision)) in devices.specs().enumerate() {
        let (is_gpu, key) = (spec.is_gpu(), kind_of(spec, precision));
        match classes.iter_mut().find(|(known, _)| *known == key) {
            Some((_, class)) => class.devices.push(at),
            None => {
                let memory_bytes = if is_gpu {
                    [limits.gpu_memory_bytes, engine::free_bytes(&spec.place)].into_iter().flatten().min()
                } else {
                    limits.memory_bytes
                };
                let held_bytes = if is_gpu { 0 } else { held_by_process(limits) };
                let limits = Limits { memory_bytes, ..limits.clone() };
                classes.push((key, Class { devices: vec![at], is_gpu, limits, held_bytes, out_of_memory: None }));
            }
        }
    }
    classes.into_iter().map(|(_, class)| class).collect()
}

/// Measure all devices, or take over what is `known` from an earlier start if that is still true. When
/// `stop` is set it ends as soon as there is something to plan with.
pub(crate) fn probe<T: Task>(
    task: &T,
    devices: &mut Devices<T>,
    pool: &ThreadPool,
    limits: &Limits,
    known: Option<&[DeviceProfile]>,
    stop: &StopFlag,
) -> Result<Probed, TrainError> {
    let names: Vec<String> = devices.names().map(str::to_owned).collect();
    let costs = task.costs(Which::Train);
    let mut classes = classes(devices, limits);
    let mut bench = Bench { task, devices, pool, costs: &costs, is_warm: false };
    if let Some(known) = known
        && let Some(devices) = bench.corrected(known, &classes)?
    {
        return Ok(Probed { devices, is_new: false });
    }
    tracing::info!("measuring what the devices can do, for at most {} s", limits.budget.as_secs());
    let mut points: Vec<Vec<Point>> = vec![Vec::new(); names.len()];
    let mut after = vec![Duration::ZERO; names.len()];
    let started = Instant::now();
    let lengths = sizes::lengths(&costs);
    // The longest first: what is freed stays with the process, so only there growth shows for what it is.
    for (at, &tokens) in lengths.iter().rev().enumerate() {
        let left = limits.budget.saturating_sub(started.elapsed()) / (lengths.len() - at) as u32;
        let guard = |class: &Class| Guard::new(&class.limits, tokens, left, class.held_bytes);
        let mut guards: Vec<Guard> = classes.iter().map(guard).collect();
        let most = guards.iter().map(Guard::most).max().unwrap_or(1);
        let candidates = sizes::samples(&costs, tokens, most);
        let mut is_full = vec![false; classes.len()];
        // A round: each class at its next size, all at the same time, as they will when training.
        loop {
            let next = |(guard, is_full): (&Guard, &bool)| match guard.next() {
                // Each length needs one size.
                Step::Run(samples) if !is_full && (samples == 1 || !stop.is_set()) => Some(samples),
                _ => None,
            };
            let sizes: Vec<Option<u32>> = guards.iter().zip(&is_full).map(next).collect();
            if sizes.iter().all(Option::is_none) {
                break;
            }
            let measured = bench.time(&classes, &sizes, &candidates, tokens)?;
            for (at, class) in classes.iter_mut().enumerate() {
                let Some(samples) = sizes[at] else { continue };
                let of_class = || class.devices.iter().map(|&device| &measured.devices[device]);
                // What did not fit is no measurement, and nothing larger need be tried.
                if let Some(most) = of_class().filter_map(|device| device.most_tokens).min() {
                    class.out_of_memory = Some(class.out_of_memory.map_or(most, |known| known.min(most)));
                    is_full[at] = true;
                    continue;
                }
                let held_by_gpu = of_class().filter_map(|device| device.held_bytes).max();
                let bytes = held_by_gpu.unwrap_or_else(|| if class.is_gpu { 0 } else { held_by_process(limits) });
                let slowest = of_class().map(|device| device.compute).max().unwrap_or_default();
                for &device in &class.devices {
                    let OfDevice { compute, after: after_it, .. } = measured.devices[device];
                    let micros = compute.as_micros().max(1) as u64;
                    points[device].push(Point { samples, tokens, micros, bytes });
                    after[device] = after_it;
                }
                guards[at].ran(samples, slowest, bytes, slowest * measured.runs);
                class.held_bytes = bytes;
            }
        }
        for (class, guard) in classes.iter().zip(&guards) {
            if let Some(needed) = guard.impossible() {
                return Err(TrainError::Device {
                    device: names.get(class.devices[0]).cloned().unwrap_or_default(),
                    doing: "measuring how large micro-batches may be",
                    reason: sizes::too_small(needed, class.limits.memory_bytes.unwrap_or(0), tokens, class.is_gpu),
                });
            }
        }
    }
    let mut max_tokens = vec![None; names.len()];
    for class in &classes {
        let by_memory = sizes::cap(&points[class.devices[0]], &lengths, &class.limits);
        for &device in &class.devices {
            max_tokens[device] = [by_memory, class.out_of_memory].into_iter().flatten().min();
        }
    }
    let mut found = Vec::new();
    for (((name, points), after), max_tokens) in names.into_iter().zip(points).zip(after).zip(max_tokens) {
        let table = CostTable::new(sizes::without_noise(points))
            .map_err(|reason| TrainError::Config(format!("{name} could not be measured: {reason}")))?;
        let (after_s, max_samples) = (after.as_secs_f64(), limits.max_samples);
        found.push(DeviceProfile { name, table, after_s, weight: 1.0, max_tokens, max_samples });
    }
    Ok(Probed { devices: found, is_new: true })
}

/// For people, a line for each kind of device.
pub(crate) fn in_words<T: Task>(devices: &Devices<T>, profiles: &[DeviceProfile], is_new: bool) -> Vec<String> {
    let mut kinds: Vec<(String, usize, &DeviceProfile, Precision)> = Vec::new();
    for ((spec, precision), profile) in devices.specs().zip(profiles) {
        let kind = kind_of(spec, precision);
        match kinds.iter_mut().find(|(known, ..)| *known == kind) {
            Some((_, count, ..)) => *count += 1,
            None => kinds.push((kind, 1, profile, precision)),
        }
    }
    kinds.into_iter().map(|(_, count, profile, precision)| of_kind(profile, count, precision, is_new)).collect()
}

fn of_kind(device: &DeviceProfile, count: usize, precision: Precision, is_new: bool) -> String {
    let DeviceProfile { name, table, .. } = device;
    let tokens = table.points().last().map_or(1, |point| point.tokens);
    let samples = table.best_samples(tokens);
    let speed = f64::from(samples) / table.seconds(samples, tokens).max(1e-9);
    // Only what is less than would be of use.
    let largest = table.points().iter().map(|point| point.samples.saturating_mul(point.tokens)).max().unwrap_or(0);
    let memory = device.max_tokens.filter(|&most| most < largest.saturating_mul(2));
    let memory = memory.map_or_else(String::new, |most| format!(", at most {most} tokens at once"));
    let precision = if precision == Precision::F32 { String::new() } else { format!(", products in {precision}") };
    let others = if count > 1 { format!(" ({count} such devices)") } else { String::new() };
    let when = if is_new { "measured" } else { "as measured at an earlier start" };
    format!(
        "{name}{others}: {speed:.1} samples/s of {tokens} tokens in micro-batches of {samples}{memory}{precision}, {when}"
    )
}

struct Bench<'a, T: Task> {
    task: &'a T,
    devices: &'a mut Devices<T>,
    pool: &'a ThreadPool,
    costs: &'a Costs,
    is_warm: bool,
}

struct Measured {
    /// All devices, those without work too.
    devices: Vec<OfDevice>,
    /// How often each was run.
    runs: u32,
}

#[derive(Clone, Copy, Default)]
struct OfDevice {
    /// Own time over a micro-batch, and after it.
    compute: Duration,
    after: Duration,
    /// It ran out of memory with more tokens than these.
    most_tokens: Option<u32>,
    /// Of a GPU's own memory.
    held_bytes: Option<u64>,
}

impl<T: Task> Bench<'_, T> {
    /// The means of several runs, each class with as many of the `candidates` as `sizes` says, none for a class that rests.
    fn time(
        &mut self,
        classes: &[Class],
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
                // A GPU compiles and chooses its programs anew for each size.
                if is_cold || class.is_gpu {
                    to_warm[device].clone_from(&micros[device]);
                }
            }
        }
        if to_warm.iter().any(Option::is_some) {
            self.run(&to_warm)?;
        }
        let (mut sums, mut runs) = (vec![OfDevice::default(); micros.len()], 0);
        let timed = Instant::now();
        while runs < RUNS || timed.elapsed() < LEAST {
            for (sum, report) in sums.iter_mut().zip(self.run(&micros)?.devices) {
                sum.compute += report.compute;
                sum.after += report.after;
                let most = report.most_tokens.map(|most| u32::try_from(most).unwrap_or(u32::MAX));
                sum.most_tokens = sum.most_tokens.into_iter().chain(most).min();
                sum.held_bytes = sum.held_bytes.max(report.held_bytes);
            }
            runs += 1;
        }
        let mean = |sum: OfDevice| OfDevice { compute: sum.compute / runs, after: sum.after / runs, ..sum };
        Ok(Measured { devices: sums.into_iter().map(mean).collect(), runs })
    }

    /// One micro-batch on each device, or none.
    fn run(&mut self, micros: &[Option<MicroBatch>]) -> Result<LocalSum, TrainError> {
        let task = self.task;
        let epoch_key = Key::root(0).name("probe");
        let collate = |micro: &Option<MicroBatch>| -> Result<Vec<Job<T>>, TrainError> {
            let Some(micro) = micro.clone() else { return Ok(Vec::new()) };
            Ok(vec![loader::collate(task, Which::Train, micro, epoch_key)?.job])
        };
        let jobs: Result<Vec<Vec<Job<T>>>, TrainError> = self.pool.install(|| micros.par_iter().map(collate).collect());
        let scales = vec![1.0; task.terms().len()];
        // What overflows takes as long as what does not.
        let terms = Terms { update: 0, scales, loss_scale: 1.0, update_key: epoch_key, epoch_key };
        self.devices.begin(jobs?, terms);
        let sum = self.devices.finish()?;
        // Before a run begins nobody else is asked to do what a device cannot.
        match sum.lost.first() {
            None => Ok(sum),
            Some(lost) => Err(TrainError::Device {
                device: self.devices.names().nth(lost.device).unwrap_or_default().to_owned(),
                doing: "being measured",
                reason: lost.reason.clone(),
            }),
        }
    }

    /// What was known, at the speed of today: by one micro-batch of the usual size. None if that has changed too much to be believed.
    fn corrected(
        &mut self,
        known: &[DeviceProfile],
        classes: &[Class],
    ) -> Result<Option<Vec<DeviceProfile>>, TrainError> {
        let Some(point) = known.first().and_then(|device| device.table.points().last().copied()) else {
            return Ok(None);
        };
        let tokens = point.tokens;
        let usual = |class: &Class| known.get(class.devices[0]).map(|device| device.table.best_samples(tokens));
        let sizes: Vec<Option<u32>> = classes.iter().map(usual).collect();
        // A probe within these limits has run nothing larger, so that what says so is damaged.
        let most_of = |class: &Class| Guard::new(&class.limits, tokens, Duration::ZERO, 0).most();
        let is_possible = |(class, size): (&Class, &Option<u32>)| size.is_none_or(|size| size <= most_of(class));
        if !classes.iter().zip(&sizes).all(is_possible) {
            return Ok(None);
        }
        let most = sizes.iter().flatten().copied().max().unwrap_or(1);
        let candidates = sizes::samples(self.costs, tokens, most);
        if candidates.is_empty() {
            return Ok(None);
        }
        let measured = self.time(classes, &sizes, &candidates, tokens)?;
        let mut corrected = known.to_vec();
        for (class, size) in classes.iter().zip(sizes) {
            for &device in &class.devices {
                let (Some(samples), Some(profile)) = (size, corrected.get_mut(device)) else { return Ok(None) };
                let OfDevice { compute, most_tokens, .. } = measured.devices[device];
                let ratio = compute.as_secs_f64().max(1e-6) / profile.table.seconds(samples, tokens);
                if !(STILL_TRUE.recip()..=STILL_TRUE).contains(&ratio) || most_tokens.is_some() {
                    return Ok(None);
                }
                profile.table = profile.table.scaled(ratio);
            }
        }
        Ok(Some(corrected))
    }
}
