//! The device thread: opens the device with its replica of the model, and runs commands until the
//! channel closes. Cuts micro-batches that do not fit into memory, and emulates faults. Started by
//! `handle.rs`.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use hetseq_kernels::Dtype;
use hetseq_optim::Layout;
use hetseq_random::Key;

use super::burn_compute::catch_panic;
use super::done_signal::DoneSignal;
use super::{DeviceSpec, FaultInjection, PrecisionPolicy, StepParams};
use crate::data::loader::{self, Job, MicroBatch};
use crate::task::compute::{GradientSums, ReplicaSetup};
use crate::task::{Answer, ComputeError, OpenedTask, Replica, Split, Totals};

pub(super) enum DeviceCommand {
    /// Loads the first `count` parameters.
    Load {
        parameters: Arc<Vec<f32>>,
        count: usize,
    },
    /// Drops shared parameters, before they change.
    Release,
    Run {
        work: Work,
        jobs: Vec<Arc<Job>>,
    },
}

/// What to do with micro-batches.
#[derive(Clone)]
pub(super) enum Work {
    Train { params: Arc<StepParams>, faults: Arc<FaultInjection> },
    Evaluate,
    Predict,
}

pub(super) enum DeviceReply {
    /// The device is open.
    Ready(OpenDevice),
    Loaded,
    Done(WorkDone),
}

/// What an open device says of itself.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OpenDevice {
    /// The dtype of its products.
    pub(super) precision: Dtype,
    /// The size of its own memory, if known.
    pub(super) memory_bytes: Option<u64>,
}

/// The result of [`Work`] on one device.
pub(super) enum WorkDone {
    Trained {
        sums: GradientSums,
        /// Set if it ran out of memory: the limit on the tokens of a micro-batch that worked.
        most_tokens: Option<u64>,
    },
    Evaluated(Totals, Duration),
    Predicted(Vec<Answer>),
}

/// Everything that a device thread starts with.
#[derive(Clone)]
pub(super) struct DeviceSetup {
    pub(super) task: OpenedTask,
    pub(super) layout: Arc<Layout>,
    pub(super) policy: PrecisionPolicy,
    /// Raised after each reply.
    pub(super) done: Arc<DoneSignal>,
    /// How long the device may take for one micro-batch.
    pub(super) hang_timeout: Duration,
}

pub(super) struct DeviceThread {
    spec: DeviceSpec,
    setup: DeviceSetup,
    memory: MemoryLimit,
    /// Micro-batches and commands completed so far.
    steps: Arc<AtomicU64>,
}

/// The number of tokens that fit into the device's memory, as far as known.
#[derive(Default)]
struct MemoryLimit {
    /// Tokens of the largest micro-batch computed since memory last ran out.
    fits: Cell<u64>,
    /// Limit until the plan respects it. The plan includes it only two updates later.
    most: Cell<Option<u64>>,
}

impl MemoryLimit {
    /// Records that micro-batches of `tokens` do not fit. Returns the limit to try next.
    fn ran_out(&self, tokens: u64) -> u64 {
        let fits = self.fits.replace(0);
        let next = if (tokens / 2..tokens).contains(&fits) { fits } else { tokens / 2 };
        self.most.set(Some(next));
        next
    }

    fn computed(&self, tokens: u64) {
        self.fits.set(self.fits.get().max(tokens));
    }

    /// Returns the limit to which a plan with a largest micro-batch of `tokens` must be cut. A plan
    /// within the limit removes it: from then on the planner decides when to try more again.
    fn limit_of(&self, tokens: u64) -> Option<u64> {
        let most = self.most.get()?;
        if tokens <= most {
            self.most.set(None);
            return None;
        }
        Some(most)
    }
}

impl DeviceThread {
    pub(super) fn new(spec: DeviceSpec, setup: DeviceSetup, steps: Arc<AtomicU64>) -> Self {
        DeviceThread { spec, setup, memory: MemoryLimit::default(), steps }
    }

    pub(super) fn run(self, inbox: Receiver<DeviceCommand>, outbox: Sender<Result<DeviceReply, ComputeError>>) {
        let DeviceSetup { task, layout, policy, hang_timeout, .. } = self.setup.clone();
        let setup = ReplicaSetup { layout, policy, steps: self.steps.clone(), hang_timeout };
        let mut replica = match catch_panic(|| task.compute.open(&self.spec, &setup)) {
            Ok(replica) => replica,
            Err(error) => {
                _ = outbox.send(Err(error));
                return self.setup.done.raise();
            }
        };
        let reply = |reply| {
            self.steps.fetch_add(1, Ordering::Relaxed);
            let is_read = outbox.send(reply).is_ok();
            self.setup.done.raise();
            is_read
        };
        let open = OpenDevice { precision: replica.precision(), memory_bytes: replica.memory_bytes() };
        let mut is_read = reply(Ok(DeviceReply::Ready(open)));
        while let Some(command) = inbox.recv().ok().filter(|_| is_read) {
            is_read = reply(self.run_command(&mut *replica, command));
        }
    }

    fn run_command(&self, replica: &mut dyn Replica, command: DeviceCommand) -> Result<DeviceReply, ComputeError> {
        let (work, jobs) = match command {
            DeviceCommand::Load { parameters, count } => {
                return replica.load(&parameters, count).map(|()| DeviceReply::Loaded);
            }
            DeviceCommand::Release => {
                replica.release();
                return Ok(DeviceReply::Loaded);
            }
            DeviceCommand::Run { work, jobs } => (work, jobs),
        };
        let done = match work {
            Work::Train { params, faults } => self.train_with_faults(replica, jobs, &params, &faults)?,
            Work::Evaluate => replica.evaluate(&jobs).map(|(totals, time)| WorkDone::Evaluated(totals, time))?,
            Work::Predict => WorkDone::Predicted(replica.predict(&jobs)?),
        };
        Ok(DeviceReply::Done(done))
    }

    fn train_with_faults(
        &self,
        replica: &mut dyn Replica,
        jobs: Vec<Arc<Job>>,
        params: &StepParams,
        faults: &FaultInjection,
    ) -> Result<WorkDone, ComputeError> {
        let happens = |events: &[(String, u64)]| {
            events.iter().any(|(name, update)| *name == self.spec.name && *update == params.update)
        };
        if happens(&faults.lost) {
            return Err(ComputeError::Device("device lost (emulate.lost)".to_owned()));
        }
        while happens(&faults.hung) {
            std::thread::park();
        }
        let (before, has_jobs) = (thread_cpu_time(), !jobs.is_empty());
        let (mut sums, most_tokens) = self.train(replica, jobs, params, faults)?;
        if has_jobs
            && happens(&faults.not_finite)
            && let Some(first) = sums.flat.first_mut()
        {
            *first = f32::NAN;
        }
        if happens(&faults.wrong) {
            sums.flat.iter_mut().step_by(2).for_each(|value| *value *= 1.1);
        }
        if has_jobs && replica.precision() == Dtype::F16 && faults.overflows.contains(&params.update) {
            sums.has_overflowed = true;
        }
        if faults.slowdown > 1.0 && !sums.compute.is_zero() {
            let busy = thread_cpu_time().zip(before).map_or(sums.compute, |(after, before)| after - before);
            let pause = busy.mul_f64(faults.slowdown - 1.0);
            std::thread::sleep(pause);
            sums.compute += pause;
        }
        Ok(WorkDone::Trained { sums, most_tokens })
    }

    /// Computes the jobs. If one does not fit into memory, all start over, cut to half of the size
    /// that did not fit: the same samples, so the same sums. Returns that size, too.
    fn train(
        &self,
        replica: &mut dyn Replica,
        mut jobs: Vec<Arc<Job>>,
        params: &StepParams,
        faults: &FaultInjection,
    ) -> Result<(GradientSums, Option<u64>), ComputeError> {
        let largest_of = |jobs: &[Arc<Job>]| jobs.iter().map(|job| job.micro.tokens()).max().unwrap_or(0);
        if let Some(most) = self.memory.limit_of(largest_of(&jobs)) {
            jobs = self.cut(jobs, most, params.epoch_key, "out of memory before")?;
        }
        let mut most_tokens = None;
        loop {
            let largest = largest_of(&jobs);
            let attempt = match faults.most_tokens {
                Some(most) if largest > most => {
                    Err(ComputeError::OutOfMemory(format!("out of memory (emulate.memory_tokens = {most})")))
                }
                _ => replica.gradients(&jobs, params),
            };
            match attempt {
                Err(ComputeError::OutOfMemory(reason)) => {
                    let most = self.memory.ran_out(largest);
                    jobs = self.cut(jobs, most, params.epoch_key, &reason)?;
                    most_tokens = Some(most);
                }
                Err(error) => return Err(error),
                Ok(sums) => {
                    self.memory.computed(largest);
                    return Ok((sums, most_tokens));
                }
            }
        }
    }

    /// Splits the same samples into micro-batches of at most `most` tokens. `reason` says why.
    fn cut(&self, jobs: Vec<Arc<Job>>, most: u64, epoch_key: Key, reason: &str) -> Result<Vec<Arc<Job>>, ComputeError> {
        let mut fitting = Vec::new();
        let mut left: Vec<MicroBatch> = jobs.iter().rev().map(|job| job.micro.clone()).collect();
        while let Some(micro) = left.pop() {
            if micro.tokens() <= most {
                let collated = catch_panic(|| {
                    loader::collate(&self.setup.task, Split::Train, micro, epoch_key).map_err(ComputeError::Collate)
                })?;
                fitting.push(Arc::new(collated.job));
            } else if micro.samples.len() > 1 {
                let [first, second] = micro.halves();
                left.extend([second, first]);
            } else {
                return Err(ComputeError::SampleTooLarge { reason: reason.to_owned(), tokens: micro.longest });
            }
        }
        Ok(fitting)
    }
}

/// CPU time of this thread. An emulated slowdown multiplies it instead of wall-clock time, so that
/// waiting for a core is not multiplied too. Linux only; `None` elsewhere.
fn thread_cpu_time() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    stat.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}
