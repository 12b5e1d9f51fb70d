//! The device thread: opens the device, builds its replica, and runs commands until the channel
//! closes. Burn reports failures by panicking; here they become error replies. Started by
//! `handle.rs`.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hetseq_comm::Waker;
use hetseq_kernels::{Dtype, with_precision};
use hetseq_optim::Layout;
use hetseq_random::Key;

use super::{DeviceSpec, FaultInjection, PrecisionPolicy, StepParams};
use crate::data::loader::{self, Job, MicroBatch};
use crate::devices::backend;
use crate::devices::replica::{Replica, ReplicaOutput};
use crate::task::{Split, Task, Totals};

pub(super) enum DeviceCommand<T: Task> {
    Load(Arc<Vec<f32>>),
    Train { input: DeviceInput<T>, params: Arc<StepParams>, faults: FaultInjection },
    Evaluate { jobs: Vec<Job<T>> },
}

/// The micro-batches to compute gradients for.
pub(super) enum DeviceInput<T: Task> {
    /// Collated by the loader.
    Collated(Vec<Job<T>>),
    /// Samples of a failed device. The device that takes over collates them, so that the rank's
    /// main thread does not wait for a disk.
    Samples(Vec<MicroBatch>),
}

pub(super) enum DeviceReply {
    /// The device is open and computes products in this precision.
    Ready(Dtype),
    Loaded,
    Trained(StepDone),
    Evaluated(Totals, Duration),
}

/// A device's part of an update.
pub(super) struct StepDone {
    pub(super) output: ReplicaOutput,
    /// Set if it ran out of memory: the limit on the tokens of a micro-batch that worked.
    pub(super) most_tokens: Option<u64>,
    pub(super) has_overflowed: bool,
}

pub(super) struct DeviceThread<T: Task> {
    spec: DeviceSpec,
    task: Arc<T>,
    layout: Arc<Layout>,
    waker: Arc<OnceLock<Waker>>,
    policy: PrecisionPolicy,
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

impl<T: Task> DeviceThread<T> {
    pub(super) fn new(
        spec: DeviceSpec,
        task: Arc<T>,
        layout: Arc<Layout>,
        waker: Arc<OnceLock<Waker>>,
        policy: PrecisionPolicy,
        steps: Arc<AtomicU64>,
    ) -> Self {
        DeviceThread { spec, task, layout, waker, policy, memory: MemoryLimit::default(), steps }
    }

    pub(super) fn run(self, inbox: Receiver<DeviceCommand<T>>, outbox: Sender<Result<DeviceReply, String>>) {
        let (precision, mut replica) = match self.open() {
            Ok(opened) => opened,
            Err(reason) => {
                _ = outbox.send(Err(reason));
                return;
            }
        };
        if outbox.send(Ok(DeviceReply::Ready(precision))).is_err() {
            return;
        }
        with_precision(precision, || {
            for command in inbox {
                let reply = self.run_command(&mut replica, command, precision);
                self.steps.fetch_add(1, Ordering::Relaxed);
                if outbox.send(reply).is_err() {
                    return;
                }
                if let Some(waker) = self.waker.get() {
                    waker.wake();
                }
            }
        });
    }

    fn open(&self) -> Result<(Dtype, Replica<T>), String> {
        let device = backend::open(&self.spec.kind)?;
        let precision = self.precision(|precision| backend::try_product(&device, precision))?;
        let replica = catch_panic(|| Ok(Replica::new(self.task.clone(), self.layout.clone(), device.autodiff())))?;
        Ok((precision, replica.counting(self.steps.clone())))
    }

    /// Chooses the precision: that of the device's name, else that of `run.precision`. `can` tests
    /// one on the device.
    fn precision(&self, can: impl Fn(Dtype) -> Result<(), String>) -> Result<Dtype, String> {
        let requested = match (self.spec.precision, self.policy) {
            (Some(precision), _) => precision,
            (None, PrecisionPolicy::Fixed(dtype)) => dtype,
            (None, PrecisionPolicy::Auto) if !self.spec.is_gpu() => Dtype::F32,
            (None, PrecisionPolicy::Auto) => {
                let lower = [Dtype::Bf16, Dtype::F16].into_iter().find(|&precision| can(precision).is_ok());
                return Ok(lower.unwrap_or(Dtype::F32));
            }
        };
        can(requested).map_err(|reason| {
            format!(
                "{reason}. Use {}@f32 in run.devices, or run.precision = \"auto\" for the best of each device",
                self.spec.name
            )
        })?;
        Ok(requested)
    }

    fn run_command(
        &self,
        replica: &mut Replica<T>,
        command: DeviceCommand<T>,
        precision: Dtype,
    ) -> Result<DeviceReply, String> {
        match command {
            DeviceCommand::Load(parameters) => catch_panic(|| replica.load(&parameters)).map(|()| DeviceReply::Loaded),
            DeviceCommand::Train { input, params, faults } => {
                let happens = |events: &[(String, u64)]| {
                    events.iter().any(|(name, update)| *name == self.spec.name && *update == params.update)
                };
                if happens(&faults.lost) {
                    return Err("device lost (emulate.lost)".to_owned());
                }
                while happens(&faults.hung) {
                    std::thread::park();
                }
                let jobs = match input {
                    DeviceInput::Collated(jobs) => jobs,
                    DeviceInput::Samples(micros) => catch_panic(|| self.collate(micros, params.epoch_key))?,
                };
                let before = thread_cpu_time();
                let mut done = self.train(replica, jobs, &params, &faults, precision)?;
                if faults.slowdown > 1.0 && !done.output.compute.is_zero() {
                    let compute = &mut done.output.compute;
                    let busy = thread_cpu_time().zip(before).map_or(*compute, |(after, before)| after - before);
                    let pause = busy.mul_f64(faults.slowdown - 1.0);
                    std::thread::sleep(pause);
                    *compute += pause;
                }
                Ok(DeviceReply::Trained(done))
            }
            DeviceCommand::Evaluate { jobs } => {
                catch_panic(|| replica.evaluate(&jobs)).map(|(part, compute)| DeviceReply::Evaluated(part, compute))
            }
        }
    }

    /// Computes the jobs. If one does not fit into memory, all start over, cut to half of the size
    /// that did not fit: the same samples, so the same sums.
    fn train(
        &self,
        replica: &Replica<T>,
        mut jobs: Vec<Job<T>>,
        params: &StepParams,
        faults: &FaultInjection,
        precision: Dtype,
    ) -> Result<StepDone, String> {
        let largest_of = |jobs: &[Job<T>]| jobs.iter().map(|job| job.micro.tokens()).max().unwrap_or(0);
        if let Some(most) = self.memory.limit_of(largest_of(&jobs)) {
            jobs = self.cut(jobs, most, params.epoch_key)?;
        }
        let loss_scale = if precision == Dtype::F16 { params.loss_scale } else { 1.0 };
        let scales: Vec<f32> = params.scales.iter().map(|scale| scale * loss_scale).collect();
        let mut most_tokens = None;
        loop {
            let largest = largest_of(&jobs);
            let attempt = match faults.most_tokens {
                Some(most) if largest > most => Err(format!("out of memory (emulate.memory_tokens = {most})")),
                _ => catch_panic(|| replica.gradients(&jobs, &scales, params.update_key)),
            };
            match attempt {
                Ok(mut output) => {
                    self.memory.computed(largest);
                    let mut has_overflowed = false;
                    if precision == Dtype::F16 {
                        let gradients = &mut output.flat[..self.layout.len()];
                        if faults.overflows.contains(&params.update) && !jobs.is_empty() {
                            gradients[0] = f32::INFINITY;
                        }
                        has_overflowed = !hetseq_optim::unscale(gradients, loss_scale);
                    }
                    return Ok(StepDone { output, most_tokens, has_overflowed });
                }
                Err(reason) if is_out_of_memory(&reason) => {
                    let most = self.memory.ran_out(largest);
                    jobs = self.cut(jobs, most, params.epoch_key).map_err(|why| format!("{reason}; {why}"))?;
                    most_tokens = Some(most);
                }
                Err(reason) => return Err(reason),
            }
        }
    }

    /// Splits the same samples into micro-batches of at most `most` tokens.
    fn cut(&self, jobs: Vec<Job<T>>, most: u64, epoch_key: Key) -> Result<Vec<Job<T>>, String> {
        let mut fitting = Vec::new();
        let mut left: Vec<MicroBatch> = jobs.into_iter().rev().map(|job| job.micro).collect();
        while let Some(micro) = left.pop() {
            if micro.tokens() <= most {
                fitting.push(micro);
            } else if micro.samples.len() > 1 {
                let [first, second] = micro.halves();
                left.extend([second, first]);
            } else {
                return Err(format!(
                    "not even one sample of {} tokens fits: use a device with more memory, a smaller model or shorter samples",
                    micro.longest
                ));
            }
        }
        self.collate(fitting, epoch_key)
    }

    fn collate(&self, micros: Vec<MicroBatch>, epoch_key: Key) -> Result<Vec<Job<T>>, String> {
        let collate = |micro| {
            let collated = loader::collate(&*self.task, Split::Train, micro, epoch_key);
            Ok(collated.map_err(|error| error.to_string())?.job)
        };
        micros.into_iter().map(collate).collect()
    }
}

/// Whether a message of a backend or allocator reports a lack of memory.
fn is_out_of_memory(reason: &str) -> bool {
    let reason = reason.to_lowercase();
    let phrases =
        ["out of memory", "outofmemory", "memory allocation", "out of device memory", "can't allocate", "buffertoobig"];
    phrases.iter().any(|phrase| reason.contains(phrase))
}

/// CPU time of this thread. An emulated slowdown multiplies it instead of wall-clock time, so that
/// waiting for a core is not multiplied too. Linux only; `None` elsewhere.
fn thread_cpu_time() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    stat.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// Turns a panic into an error: Burn reports failures by panicking.
pub(crate) fn catch_panic<R>(work: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        Err(text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".to_owned()))
    })
}
