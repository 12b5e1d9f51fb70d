//! The devices of this process, each a thread with its own replica. Training, evaluation and
//! inference all run on it; their gradients are summed in memory before anything is sent over the
//! network. Called by the trainer, the probe, `bench` and `inference`.
//!
//! By default a CPU is one single-threaded device per core. Every operation of a device runs inside
//! the device's own rayon pool, so operations do not compete for cores. That is faster than threads
//! inside operations (`hetseq bench step` compares both). A GPU is one device; its thread only
//! launches work.
//!
//! A device that fails is dropped: the others compute its samples in the same round
//! (`failover.rs`), and from then on the planner excludes it (`trainer/planning.rs`). If the same
//! samples fail on another device too, the device is not the cause and the run ends.

mod failover;
mod round;

use std::num::NonZeroUsize;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use hetseq_comm::Waker;
use hetseq_kernels::Dtype;
use hetseq_optim::Layout;
use hetseq_random::Key;

use crate::data::loader::Job;
use crate::devices::backend;
use crate::error::TrainError;
use crate::task::compute::GradientSums;
use crate::task::{Answer, OpenedTask, Totals};

use self::round::Round;
use super::PrecisionPolicy;
use super::handle::DeviceHandle;
use super::spec::{DeviceSpec, parse_devices};
use super::thread::{DeviceCommand, DeviceSetup, Work, WorkDone};

pub(crate) struct Devices {
    /// For a device that replaces another.
    setup: DeviceSetup,
    handles: Vec<DeviceHandle>,
    faults: Arc<FaultInjection>,
    /// The parameters loaded last, for a device that replaces another. The caller keeps
    /// them: a second owner would make the optimizer copy them.
    loaded: Option<Weak<Vec<f32>>>,
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
    /// Devices, and the updates in which their gradients are not finite.
    pub(crate) not_finite: Vec<(String, u64)>,
    /// Devices, and the updates in which their gradients are wrong. Only `hetseq selftest` sets it.
    pub(crate) wrong: Vec<(String, u64)>,
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
    /// Gradients of the trainable parameters in the flat layout, then the loss sum of each term.
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

/// Resolves a value of `run.devices` on this machine.
pub fn devices_named(text: &str) -> Result<Vec<DeviceSpec>, String> {
    let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    parse_devices(text, cores, backend::gpus)
}

impl Devices {
    /// Starts the devices. `hang_timeout` is how long a device may take for one micro-batch. GPUs
    /// that the user did not name (`all`) and that fail to start are skipped.
    pub(crate) fn start(
        task: &OpenedTask,
        layout: &Arc<Layout>,
        specs: &[DeviceSpec],
        policy: PrecisionPolicy,
        hang_timeout: Duration,
    ) -> Result<Self, TrainError> {
        let (task, layout) = (task.clone(), layout.clone());
        let setup = DeviceSetup { task, layout, policy, done: Arc::default(), hang_timeout };
        let mut started = Vec::new();
        for spec in specs {
            started.push(DeviceHandle::start(spec, &setup)?);
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
        if handles.is_empty() && !specs.is_empty() {
            let mut handle = DeviceHandle::start(&DeviceSpec::cpu(0, 1), &setup)?;
            handle.ready().map_err(|reason| handle.failed("starting", reason))?;
            handles.push(handle);
        }
        Ok(Devices { setup, handles, faults: Arc::default(), loaded: None, round: None, newly_lost: Vec::new() })
    }

    /// Emulates these faults from now on.
    pub(crate) fn inject_faults(&mut self, faults: FaultInjection) {
        self.faults = Arc::new(faults);
    }

    /// Sets the waker that devices wake when they finish a command.
    pub(crate) fn set_waker(&self, waker: Waker) {
        self.setup.done.set_group(waker);
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.handles.iter().map(|handle| handle.spec.name.as_str())
    }

    pub(crate) fn specs(&self) -> impl Iterator<Item = (&DeviceSpec, Dtype)> {
        self.handles.iter().map(|handle| (&handle.spec, handle.open.precision))
    }

    /// The size of a device's own memory, if it has said so.
    pub(crate) fn memory_bytes(&self, at: usize) -> Option<u64> {
        self.handles.get(at).and_then(|handle| handle.open.memory_bytes)
    }

    /// Loads the parameters into all replicas.
    pub(crate) fn load(&mut self, parameters: &Arc<Vec<f32>>) -> Result<(), TrainError> {
        self.load_first(parameters.len(), parameters)
    }

    /// Loads the parameters after a step of the optimizer: the frozen ones must be those of the last
    /// [`Devices::load`].
    pub(crate) fn load_trainable(&mut self, parameters: &Arc<Vec<f32>>) -> Result<(), TrainError> {
        self.load_first(self.setup.layout.trainable_len(), parameters)
    }

    /// Makes all replicas drop the parameters that they share, so that the optimizer changes them in
    /// place instead of a copy. Call [`Devices::load_trainable`] before the next work.
    pub(crate) fn release(&mut self) -> Result<(), TrainError> {
        self.command_all(|| DeviceCommand::Release)
    }

    fn load_first(&mut self, count: usize, parameters: &Arc<Vec<f32>>) -> Result<(), TrainError> {
        self.loaded = Some(Arc::downgrade(parameters));
        self.command_all(|| DeviceCommand::Load { parameters: parameters.clone(), count })
    }

    /// Sends a command to all devices and waits for their replies.
    fn command_all(&mut self, command: impl Fn() -> DeviceCommand) -> Result<(), TrainError> {
        const LOADING: &str = "loading parameters";
        let mut failures = Vec::new();
        let alive = self.alive();
        for &at in &alive {
            self.handles[at].send(command());
        }
        for &at in &alive {
            if let Err(error) = self.handles[at].wait_for_reply(LOADING) {
                failures.push((at, error));
            }
        }
        for (at, error) in failures {
            self.drop_device(at, error.to_string(), LOADING)?;
        }
        Ok(())
    }

    /// Starts computing gradients: each device its own jobs, and the jobs of lost devices on the
    /// others.
    pub(crate) fn begin(&mut self, jobs: Vec<Vec<Arc<Job>>>, params: StepParams) {
        self.begin_round(Work::Train { params: Arc::new(params), faults: self.faults.clone() }, jobs);
    }

    /// Returns the sums of the gradients once all devices are done. Never blocks.
    pub(crate) fn poll(&mut self) -> Result<Option<LocalSum>, TrainError> {
        Ok(self.poll_round()?.map(|round| self.sum(round)))
    }

    /// Whether a round is under way whose results were not taken.
    pub(crate) fn is_computing(&self) -> bool {
        self.round.is_some()
    }

    /// Waits for the gradients and returns their sums.
    pub(crate) fn finish(&mut self) -> Result<LocalSum, TrainError> {
        let round = self.finish_round()?;
        Ok(self.sum(round))
    }

    /// Returns the sums and the compute time of each device, without gradients.
    pub(crate) fn evaluate(&mut self, jobs: Vec<Vec<Arc<Job>>>) -> Result<Vec<(Totals, Duration)>, TrainError> {
        self.begin_round(Work::Evaluate, jobs);
        let round = self.finish_round()?;
        let of_device = |parts: Vec<WorkDone>| {
            let mut all = (Totals::default(), Duration::ZERO);
            for done in parts {
                if let WorkDone::Evaluated(totals, time) = done {
                    all.0.merge(&totals);
                    all.1 += time;
                }
            }
            all
        };
        Ok(round.into_done().map(of_device).collect())
    }

    /// Answers the jobs: each goes to the next free device, in their order. `done` is called with
    /// the answers of each, in order of completion, and returns whether to continue.
    pub(crate) fn predict(
        &mut self,
        jobs: Vec<Arc<Job>>,
        done: &mut dyn FnMut(&Job, Vec<Answer>) -> bool,
    ) -> Result<(), TrainError> {
        self.begin_queue(Work::Predict, jobs);
        let mut continues = true;
        while continues {
            let seen = self.setup.done.count();
            let finished = self.poll_round()?;
            let is_finished = finished.is_some();
            let mut round = finished.or_else(|| self.round.take());
            for (job, predictions) in round.iter_mut().flat_map(Round::take_predicted) {
                continues &= done(&job, predictions);
            }
            if is_finished {
                return Ok(());
            }
            self.round = round;
            if continues {
                self.wait_for_any(seen);
            }
        }
        // Asked to stop: only what the devices have begun is finished.
        if let Some(round) = &mut self.round {
            round.queue.clear();
        }
        self.finish_round().map(drop)
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
            for part in parts {
                let Some(WorkDone::Trained { sums, most_tokens: most }) = part.done else { continue };
                let GradientSums { flat, has_overflowed, compute, after, held_bytes } = sums;
                if !part.is_extra {
                    (report.compute, report.after) = (compute, after);
                }
                report.most_tokens = report.most_tokens.into_iter().chain(most).min();
                report.held_bytes = report.held_bytes.max(held_bytes);
                if has_overflowed {
                    sum.overflow = Some(true);
                }
                if sum.flat.is_empty() {
                    sum.flat = flat;
                } else {
                    hetseq_optim::add(&mut sum.flat, &flat);
                }
            }
            sum.devices.push(report);
        }
        sum.flat.resize(self.setup.layout.trainable_len() + self.setup.task.data.terms().len(), 0.0);
        sum.adding = started.elapsed();
        sum
    }
}
