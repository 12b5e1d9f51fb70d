//! What this process's devices can do, measured before the first update: how long micro-batches of several sizes and
//! lengths take, and how large they may be until memory runs out. The planner starts from these tables; what changes
//! later is followed by its drift control. Called once per group by `crew.rs`.
//!
//! All devices run the same size at the same time, as they will when training: they share the machine's memory and its
//! bandwidth. Sizes double, each under a guard: the next is run only if the memory it is expected to need is there, if the time
//! is, and if larger ones still got faster. What was found is kept in the run directory, so that the next start only
//! corrects it to the speed of that day.

mod kept;
mod sizes;

use std::time::{Duration, Instant};

use hetseq_balance::{CostTable, DeviceProfile, Point};
use hetseq_data::{Costs, GlobalBatch};
use hetseq_random::Key;
use rayon::ThreadPool;
use rayon::prelude::*;

use crate::devices::{Devices, LocalSum, Terms};
use crate::error::TrainError;
use crate::loader::{self, Job, MicroBatch};
use crate::memory;
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
    pub(crate) memory_bytes: Option<u64>,
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

/// Measure all devices, or take over what is `known` from an earlier start if that is still true.
pub(crate) fn probe<T: Task>(
    task: &T,
    devices: &mut Devices<T>,
    pool: &ThreadPool,
    limits: &Limits,
    known: Option<&[DeviceProfile]>,
) -> Result<Probed, TrainError> {
    let names: Vec<String> = devices.names().map(str::to_owned).collect();
    let costs = task.costs(Which::Train);
    let mut bench = Bench { task, devices, pool, costs: &costs, is_warm: false };
    if let Some(known) = known
        && let Some(devices) = bench.corrected(known)?
    {
        return Ok(Probed { devices, is_new: false });
    }
    tracing::info!("measuring what the devices can do, for at most {} s", limits.budget.as_secs());
    let mut points: Vec<Vec<Point>> = vec![Vec::new(); names.len()];
    let mut after = vec![Duration::ZERO; names.len()];
    let mut out_of_memory = None;
    let started = Instant::now();
    let lengths = sizes::lengths(&costs);
    // The longest first: what is freed stays with the process, so only there growth shows for what it is.
    for (at, &tokens) in lengths.iter().rev().enumerate() {
        let left = limits.budget.saturating_sub(started.elapsed()) / (lengths.len() - at) as u32;
        let held = || memory::anonymous_bytes().map_or(0, |held| held + limits.reserved_bytes);
        let mut guard = Guard::new(limits, tokens, left, held());
        let candidates = sizes::samples(&costs, tokens, guard.most());
        while let Step::Run(samples) = guard.next() {
            let measured = bench.time(&candidates[..samples as usize], tokens)?;
            let bytes = held();
            if let Some(most) = measured.most_tokens {
                // What did not fit is no measurement, and nothing larger need be tried.
                out_of_memory = Some(out_of_memory.map_or(most, |known: u32| known.min(most)));
                break;
            }
            for (device, (micros, after_s)) in measured.devices.iter().enumerate() {
                points[device].push(Point { samples, tokens, micros: *micros, bytes });
                after[device] = *after_s;
            }
            guard.ran(samples, measured.slowest, bytes, measured.took);
        }
        if let Some(needed) = guard.impossible() {
            return Err(TrainError::Device {
                device: names.first().cloned().unwrap_or_default(),
                doing: "measuring how large micro-batches may be",
                reason: sizes::too_small(needed, limits.memory_bytes.unwrap_or(0), tokens),
            });
        }
    }
    let max_tokens = [sizes::cap(&points, &lengths, limits), out_of_memory].into_iter().flatten().min();
    let mut found = Vec::new();
    for ((name, points), after) in names.into_iter().zip(points).zip(after) {
        let table = CostTable::new(sizes::without_noise(points))
            .map_err(|reason| TrainError::Config(format!("{name} could not be measured: {reason}")))?;
        found.push(DeviceProfile {
            name,
            table,
            after_s: after.as_secs_f64(),
            weight: 1.0,
            max_tokens,
            max_samples: limits.max_samples,
        });
    }
    Ok(Probed { devices: found, is_new: true })
}

/// For people, about the first of `count` devices.
pub(crate) fn in_words(device: &DeviceProfile, count: usize, is_new: bool) -> String {
    let DeviceProfile { name, table, .. } = device;
    let tokens = table.points().last().map_or(1, |point| point.tokens);
    let samples = table.best_samples(tokens);
    let speed = f64::from(samples) / table.seconds(samples, tokens).max(1e-9);
    let others = if count > 1 { format!(" ({count} such devices)") } else { String::new() };
    // Only what is less than would be of use.
    let largest = table.points().iter().map(|point| point.samples.saturating_mul(point.tokens)).max().unwrap_or(0);
    let memory = device.max_tokens.filter(|&most| most < largest.saturating_mul(2));
    let memory = memory.map_or_else(String::new, |most| format!(", at most {most} tokens at once"));
    let when = if is_new { "measured" } else { "as measured at an earlier start" };
    format!("{name}{others}: {speed:.1} samples/s of {tokens} tokens in micro-batches of {samples}{memory}, {when}")
}

struct Bench<'a, T: Task> {
    task: &'a T,
    devices: &'a mut Devices<T>,
    pool: &'a ThreadPool,
    costs: &'a Costs,
    is_warm: bool,
}

struct Measured {
    /// Per device: own time over a micro-batch in microseconds, and after it.
    devices: Vec<(u64, Duration)>,
    slowest: Duration,
    /// In all, runs to warm up included.
    took: Duration,
    /// A device ran out of memory with more tokens than these.
    most_tokens: Option<u32>,
}

impl<T: Task> Bench<'_, T> {
    /// The mean of several runs of one size.
    fn time(&mut self, samples: &[u32], tokens: u32) -> Result<Measured, TrainError> {
        let started = Instant::now();
        let micro = MicroBatch { samples: samples.to_vec(), longest: tokens };
        if !std::mem::replace(&mut self.is_warm, true) {
            self.run(&micro)?;
        }
        let (mut sums, mut runs, mut most_tokens) = (Vec::new(), 0, None);
        let timed = Instant::now();
        while runs < RUNS || timed.elapsed() < LEAST {
            let sum = self.run(&micro)?;
            sums.resize(sum.devices.len(), (Duration::ZERO, Duration::ZERO));
            for (sum, report) in sums.iter_mut().zip(&sum.devices) {
                sum.0 += report.compute;
                sum.1 += report.after;
            }
            most_tokens = sum.devices.iter().filter_map(|report| report.most_tokens).chain(most_tokens).min();
            runs += 1;
        }
        let mean =
            |(compute, after): &(Duration, Duration)| ((*compute / runs).as_micros().max(1) as u64, *after / runs);
        let slowest = sums.iter().map(|(compute, _)| *compute / runs).max().unwrap_or_default();
        let most_tokens = most_tokens.map(|most| u32::try_from(most).unwrap_or(u32::MAX));
        Ok(Measured { devices: sums.iter().map(mean).collect(), slowest, took: started.elapsed(), most_tokens })
    }

    /// One micro-batch on every device.
    fn run(&mut self, micro: &MicroBatch) -> Result<LocalSum, TrainError> {
        let (task, count) = (self.task, self.devices.names().count());
        let epoch_key = Key::root(0).name("probe");
        let collate =
            |_| loader::collate(task, Which::Train, micro.clone(), epoch_key).map(|collated| vec![collated.job]);
        let jobs: Result<Vec<Vec<Job<T>>>, TrainError> =
            self.pool.install(|| (0..count).into_par_iter().map(collate).collect());
        let scales = vec![1.0; task.terms().len()];
        self.devices.begin(jobs?, Terms { scales, update_key: epoch_key, epoch_key })?;
        self.devices.finish()
    }

    /// What was known, at the speed of today: by one micro-batch of the usual size. None if that has changed too much to be believed.
    fn corrected(&mut self, known: &[DeviceProfile]) -> Result<Option<Vec<DeviceProfile>>, TrainError> {
        let Some(point) = known.first().and_then(|device| device.table.points().last().copied()) else {
            return Ok(None);
        };
        let samples = known[0].table.best_samples(point.tokens);
        let measured = self.time(&sizes::samples(self.costs, point.tokens, samples), point.tokens)?;
        let correct = |(device, (micros, _)): (&DeviceProfile, &(u64, Duration))| {
            let ratio = *micros as f64 * 1e-6 / device.table.seconds(samples, point.tokens);
            let is_true = (STILL_TRUE.recip()..=STILL_TRUE).contains(&ratio);
            is_true.then(|| DeviceProfile { table: device.table.scaled(ratio), ..device.clone() })
        };
        let has_memory = measured.most_tokens.is_none();
        Ok(known.iter().zip(&measured.devices).map(correct).collect::<Option<Vec<_>>>().filter(|_| has_memory))
    }
}
