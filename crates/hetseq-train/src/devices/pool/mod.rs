//! The devices of this process, each a thread with its own replica. Their gradients are summed in
//! memory before anything is sent over the network. Called by the trainer, the probe and `bench`.
//!
//! By default a CPU is one single-threaded device per core. Every operation of a device runs inside
//! the device's own rayon pool, so operations do not compete for cores. That is faster than threads
//! inside operations (`hetseq bench step` compares both). A GPU is one device; its thread only
//! launches work.
//!
//! A device that fails is dropped: the others compute its samples in the same update
//! (`failover.rs`), and from then on the planner excludes it (`trainer/planning.rs`). If the same
//! samples fail on another device too, the device is not the cause and the run ends.

mod evaluation;
mod failover;

use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use hetseq_comm::Waker;
use hetseq_kernels::Dtype;
use hetseq_optim::Layout;
use hetseq_random::Key;

use crate::data::loader::{Job, MicroBatch};
use crate::devices::backend;
use crate::error::TrainError;
use crate::task::Task;

use self::failover::round_robin;
use super::PrecisionPolicy;
use super::handle::DeviceHandle;
use super::spec::{DeviceSpec, parse_devices};
use super::thread::{DeviceCommand, DeviceInput, StepDone};

pub(crate) struct Devices<T: Task> {
    task: Arc<T>,
    layout: Arc<Layout>,
    handles: Vec<DeviceHandle<T>>,
    /// How long a device may take for one micro-batch.
    hang_timeout: Duration,
    faults: FaultInjection,
    /// Woken by the device threads when they finish a command.
    waker: Arc<OnceLock<Waker>>,
    /// The parameters loaded last, for a device that replaces another.
    loaded: Weak<Vec<f32>>,
    round: Option<Round>,
    /// Devices lost since the last sum.
    newly_lost: Vec<Lost>,
}

/// Values that are the same for all micro-batches of an update.
pub(crate) struct StepParams {
    /// Counted from 1; 0 outside of training.
    pub(crate) update: u64,
    /// The factor of each term's loss sum.
    pub(crate) scales: Vec<f32>,
    /// Devices that compute in `f16` multiply the scales by this and divide their gradients by it.
    pub(crate) loss_scale: f32,
    /// The key of all dropout masks.
    pub(crate) update_key: Key,
    /// The key of the samples' own randomness, such as augmentation.
    pub(crate) epoch_key: Key,
}

/// Faults and limits that this process emulates (`[emulate]` in the config).
#[derive(Debug, Clone, Default)]
pub(crate) struct FaultInjection {
    /// Factor on the compute time, by sleeping. 1 or less has no effect.
    pub(crate) slowdown: f64,
    /// A micro-batch of more tokens fails as if it did not fit into memory.
    pub(crate) most_tokens: Option<u64>,
    /// Devices, and the updates in which they fail as if they were lost.
    pub(crate) lost: Vec<(String, u64)>,
    /// Devices, and the updates in which they hang.
    pub(crate) hung: Vec<(String, u64)>,
    /// Updates in which `f16` gradients overflow.
    pub(crate) overflows: Vec<u64>,
}

/// A device that failed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Lost {
    /// Its index in this process.
    pub(crate) device: usize,
    pub(crate) reason: String,
    /// It was the only device of the process, so the CPU replaces it under the same index.
    pub(crate) has_replacement: bool,
}

/// The sum over the local devices for one update.
pub(crate) struct LocalSum {
    /// Gradients in the flat layout, then the loss sum of each term.
    pub(crate) flat: Vec<f32>,
    pub(crate) devices: Vec<DeviceReport>,
    /// Time to add up the devices.
    pub(crate) adding: Duration,
    /// Whether the gradients of a device that computes in `f16` overflowed. `None` without one.
    pub(crate) overflow: Option<bool>,
    pub(crate) lost: Vec<Lost>,
}

/// A device's measurements for one update.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DeviceReport {
    /// Time for its micro-batches.
    pub(crate) compute: Duration,
    /// Time after them, to download the gradients.
    pub(crate) after: Duration,
    /// Set if it ran out of memory with more tokens than this.
    pub(crate) most_tokens: Option<u64>,
    /// Memory held on a GPU.
    pub(crate) held_bytes: Option<u64>,
}

/// An update that is being computed.
struct Round {
    params: Arc<StepParams>,
    /// Per device, in the order in which they were assigned.
    parts: Vec<Vec<RoundPart>>,
}

/// Micro-batches assigned to a device in one command.
struct RoundPart {
    micros: Vec<MicroBatch>,
    /// Taken over from another device. The planner does not expect this work, so its time is not
    /// reported.
    is_extra: bool,
    /// Why another device failed with it.
    earlier_failure: Option<String>,
    done: Option<StepDone>,
}

/// Resolves a value of `run.devices` on this machine.
pub fn devices_named(text: &str) -> Result<Vec<DeviceSpec>, String> {
    let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    parse_devices(text, cores, backend::gpus)
}

impl<T: Task> Devices<T> {
    /// Starts the devices. `hang_timeout` is how long a device may take for one micro-batch. GPUs
    /// that the user did not name (`all`) and that fail to start are skipped.
    pub(crate) fn start(
        task: &Arc<T>,
        layout: &Arc<Layout>,
        specs: &[DeviceSpec],
        precision: PrecisionPolicy,
        hang_timeout: Duration,
    ) -> Result<Self, TrainError> {
        let waker = Arc::new(OnceLock::new());
        let mut started = Vec::new();
        for spec in specs {
            started.push(DeviceHandle::start(spec, task, layout, precision, &waker, hang_timeout)?);
        }
        let mut handles = Vec::new();
        for mut handle in started {
            match handle.ready() {
                Ok(()) => handles.push(handle),
                Err(reason) if handle.spec.is_optional && handle.spec.is_gpu() => {
                    tracing::warn!("{} is not used: {reason}", handle.spec.name);
                }
                Err(reason) => return Err(handle.failed("starting", reason)),
            }
        }
        if handles.is_empty() {
            let spec = DeviceSpec::cpu(0, 1);
            let mut handle = DeviceHandle::start(&spec, task, layout, precision, &waker, hang_timeout)?;
            handle.ready().map_err(|reason| handle.failed("starting", reason))?;
            handles.push(handle);
        }
        Ok(Devices {
            task: task.clone(),
            layout: layout.clone(),
            handles,
            hang_timeout,
            faults: FaultInjection::default(),
            waker,
            loaded: Weak::new(),
            round: None,
            newly_lost: Vec::new(),
        })
    }

    /// Emulates these faults from now on.
    pub(crate) fn inject_faults(&mut self, faults: FaultInjection) {
        self.faults = faults;
    }

    /// Sets the waker that devices wake when they finish a command.
    pub(crate) fn set_waker(&self, waker: Waker) {
        _ = self.waker.set(waker);
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.handles.iter().map(|handle| handle.spec.name.as_str())
    }

    pub(crate) fn specs(&self) -> impl Iterator<Item = (&DeviceSpec, Dtype)> {
        self.handles.iter().map(|handle| (&handle.spec, handle.precision))
    }

    /// Loads the parameters into all replicas.
    pub(crate) fn load(&mut self, parameters: &Arc<Vec<f32>>) -> Result<(), TrainError> {
        self.loaded = Arc::downgrade(parameters);
        const LOADING: &str = "loading parameters";
        let mut failures = Vec::new();
        let alive = self.alive();
        for &at in &alive {
            self.handles[at].send(DeviceCommand::Load(parameters.clone()));
        }
        for &at in &alive {
            if let Err(reason) = self.handles[at].wait_for_reply(LOADING) {
                failures.push((at, reason));
            }
        }
        for (at, reason) in failures {
            self.drop_device(at, reason, LOADING)?;
        }
        Ok(())
    }

    /// Starts computing: each device its own jobs, and the jobs of lost devices on the others.
    pub(crate) fn begin(&mut self, jobs: Vec<Vec<Job<T>>>, params: StepParams) {
        let params = Arc::new(params);
        let parts = self.handles.iter().map(|_| Vec::new()).collect();
        let mut round = Round { params, parts };
        let mut orphaned = Vec::new();
        for (at, jobs) in jobs.into_iter().enumerate() {
            match self.handles.get(at) {
                Some(handle) if !handle.is_lost => {
                    self.assign(&mut round, at, DeviceInput::Collated(jobs), (false, None))
                }
                _ => orphaned.extend(jobs),
            }
        }
        for (at, jobs) in round_robin(&self.alive(), orphaned) {
            self.assign(&mut round, at, DeviceInput::Collated(jobs), (true, None));
        }
        self.round = Some(round);
    }

    fn assign(
        &self,
        round: &mut Round,
        at: usize,
        input: DeviceInput<T>,
        (is_extra, earlier_failure): (bool, Option<String>),
    ) {
        let micros = match &input {
            DeviceInput::Collated(jobs) => jobs.iter().map(|job| job.micro.clone()).collect(),
            DeviceInput::Samples(micros) => micros.clone(),
        };
        round.parts[at].push(RoundPart { micros, is_extra, earlier_failure, done: None });
        self.handles[at].send(DeviceCommand::Train {
            input,
            params: round.params.clone(),
            faults: self.faults.clone(),
        });
    }

    /// Returns the sums of the current round once all devices are done. Never blocks. If a device
    /// failed, reassigns its work to the others.
    pub(crate) fn poll(&mut self) -> Result<Option<LocalSum>, TrainError> {
        let Some(mut round) = self.round.take() else { return Ok(None) };
        let mut at = 0;
        while at < self.handles.len() {
            let Some(part) = round.parts[at].iter_mut().find(|part| part.done.is_none()) else {
                at += 1;
                continue;
            };
            match self.handles[at].poll_step() {
                Ok(None) => at += 1,
                Ok(Some(done)) => part.done = Some(done),
                Err(reason) => {
                    self.recompute(&mut round, at, reason)?;
                    // Earlier devices may have new work.
                    at = 0;
                }
            }
        }
        if round.parts.iter().flatten().any(|part| part.done.is_none()) {
            self.round = Some(round);
            return Ok(None);
        }
        Ok(Some(self.sum(round)))
    }

    /// Waits for the current round and returns its sums.
    pub(crate) fn finish(&mut self) -> Result<LocalSum, TrainError> {
        loop {
            if let Some(sum) = self.poll()? {
                return Ok(sum);
            }
            let Some(round) = &self.round else {
                return Ok(self.sum(Round::empty(self.handles.len())));
            };
            let is_busy = |at: &usize| round.parts[*at].iter().any(|part| part.done.is_none());
            if let Some(at) = (0..self.handles.len()).find(is_busy) {
                self.handles[at].wait();
            }
        }
    }

    /// Adds in device order, so that the result does not depend on which device finished first.
    fn sum(&mut self, round: Round) -> LocalSum {
        let started = Instant::now();
        let has_f16 = self.specs().any(|(_, precision)| precision == Dtype::F16);
        let mut sum = LocalSum {
            flat: Vec::new(),
            devices: Vec::new(),
            adding: Duration::ZERO,
            overflow: has_f16.then_some(false),
            lost: std::mem::take(&mut self.newly_lost),
        };
        for parts in round.parts {
            let mut report = DeviceReport::default();
            for RoundPart { is_extra, done, .. } in parts {
                let Some(StepDone { output, most_tokens, has_overflowed }) = done else { continue };
                if !is_extra {
                    (report.compute, report.after) = (output.compute, output.after);
                }
                report.most_tokens = report.most_tokens.into_iter().chain(most_tokens).min();
                report.held_bytes = report.held_bytes.max(output.held_bytes);
                if has_overflowed {
                    sum.overflow = Some(true);
                }
                if sum.flat.is_empty() {
                    sum.flat = output.flat;
                } else {
                    hetseq_optim::add(&mut sum.flat, &output.flat);
                }
            }
            sum.devices.push(report);
        }
        sum.flat.resize(self.layout.len() + self.task.terms().len(), 0.0);
        sum.adding = started.elapsed();
        sum
    }
}

impl Round {
    fn empty(devices: usize) -> Self {
        let params = StepParams {
            update: 0,
            scales: Vec::new(),
            loss_scale: 1.0,
            update_key: Key::root(0),
            epoch_key: Key::root(0),
        };
        let parts = (0..devices).map(|_| Vec::new()).collect();
        Round { params: Arc::new(params), parts }
    }
}
