//! The device's end: opens it, builds its replica, and obeys orders until there are no more. Burn reports failures by
//! panicking; here they become answers.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hetseq_comm::Waker;
use hetseq_kernels::{Precision, with_products_in};
use hetseq_optim::Layout;
use hetseq_random::Key;

use super::{DeviceSpec, Emulated, Terms, Wanted};
use crate::engine;
use crate::loader::{self, Job, MicroBatch};
use crate::replica::{Replica, Work};
use crate::task::{Task, Totals, Which};

pub(super) enum Order<T: Task> {
    Load(Arc<Vec<f32>>),
    Train { input: Input<T>, terms: Arc<Terms>, emulated: Emulated },
    Evaluate { jobs: Vec<Job<T>> },
}

/// What to compute gradients of.
pub(super) enum Input<T: Task> {
    /// As the loader prepared it.
    Collated(Vec<Job<T>>),
    /// The samples of a device that failed. The device that takes over collates them, so that the rank's thread does not wait
    /// for a disk.
    Samples(Vec<MicroBatch>),
}

pub(super) enum Answer {
    /// The device is open; its products are in this precision.
    Ready(Precision),
    Loaded,
    Trained(Done),
    Evaluated(Totals, Duration),
}

/// A device's part of an update.
pub(super) struct Done {
    pub(super) work: Work,
    /// It ran out of memory, and got by with micro-batches of at most so many tokens.
    pub(super) most_tokens: Option<u64>,
    pub(super) has_overflowed: bool,
}

pub(super) struct Thread<T: Task> {
    spec: DeviceSpec,
    task: Arc<T>,
    layout: Arc<Layout>,
    waker: Arc<OnceLock<Waker>>,
    wanted: Wanted,
    memory: Memory,
    /// Micro-batches and orders completed so far.
    steps: Arc<AtomicU64>,
}

/// What is known of how many tokens fit into the device's memory.
#[derive(Default)]
struct Memory {
    /// The largest micro-batch that was computed since memory last ran out.
    fits: Cell<u64>,
    /// More than these did not fit; until the plan, which hears of it two updates later, takes it into account.
    most: Cell<Option<u64>>,
}

impl Memory {
    /// Micro-batches of `tokens` do not fit: what to try next.
    fn ran_out(&self, tokens: u64) -> u64 {
        let fits = self.fits.replace(0);
        let next = if (tokens / 2..tokens).contains(&fits) { fits } else { tokens / 2 };
        self.most.set(Some(next));
        next
    }

    fn computed(&self, tokens: u64) {
        self.fits.set(self.fits.get().max(tokens));
    }

    /// What a plan whose largest micro-batch has `tokens` must be cut to. A plan that keeps to the limit ends it: from then on
    /// the planner decides when more is tried again.
    fn limit_of(&self, tokens: u64) -> Option<u64> {
        let most = self.most.get()?;
        if tokens <= most {
            self.most.set(None);
            return None;
        }
        Some(most)
    }
}

impl<T: Task> Thread<T> {
    pub(super) fn new(
        spec: DeviceSpec,
        task: Arc<T>,
        layout: Arc<Layout>,
        waker: Arc<OnceLock<Waker>>,
        wanted: Wanted,
        steps: Arc<AtomicU64>,
    ) -> Self {
        Thread { spec, task, layout, waker, wanted, memory: Memory::default(), steps }
    }

    pub(super) fn run(self, inbox: Receiver<Order<T>>, outbox: Sender<Result<Answer, String>>) {
        let (precision, mut replica) = match self.open() {
            Ok(opened) => opened,
            Err(reason) => {
                _ = outbox.send(Err(reason));
                return;
            }
        };
        if outbox.send(Ok(Answer::Ready(precision))).is_err() {
            return;
        }
        with_products_in(precision, || {
            for order in inbox {
                let answer = self.obey(&mut replica, order, precision);
                self.steps.fetch_add(1, Ordering::Relaxed);
                if outbox.send(answer).is_err() {
                    return;
                }
                if let Some(waker) = self.waker.get() {
                    waker.wake();
                }
            }
        });
    }

    fn open(&self) -> Result<(Precision, Replica<T>), String> {
        let device = engine::open(&self.spec.place)?;
        let precision = self.precision(|precision| engine::try_product(&device, precision))?;
        let replica = guarded(|| Ok(Replica::new(self.task.clone(), self.layout.clone(), device.autodiff())))?;
        Ok((precision, replica.counting(self.steps.clone())))
    }

    fn precision(&self, can: impl Fn(Precision) -> Result<(), String>) -> Result<Precision, String> {
        let wanted = match (self.spec.precision, self.wanted) {
            (Some(precision), _) => precision,
            (None, Wanted::F32) => Precision::F32,
            (None, Wanted::F16) => Precision::F16,
            (None, Wanted::Bf16) => Precision::Bf16,
            (None, Wanted::Auto) if !self.spec.is_gpu() => Precision::F32,
            (None, Wanted::Auto) => {
                let lower = [Precision::Bf16, Precision::F16].into_iter().find(|&precision| can(precision).is_ok());
                return Ok(lower.unwrap_or(Precision::F32));
            }
        };
        can(wanted).map_err(|reason| {
            format!(
                "{reason}. Say {}@f32 in run.devices, or run.precision = \"auto\" for what each device can do",
                self.spec.name
            )
        })?;
        Ok(wanted)
    }

    fn obey(&self, replica: &mut Replica<T>, order: Order<T>, precision: Precision) -> Result<Answer, String> {
        match order {
            Order::Load(parameters) => guarded(|| replica.load(&parameters)).map(|()| Answer::Loaded),
            Order::Train { input, terms, emulated } => {
                let happens = |faults: &[(String, u64)]| {
                    faults.iter().any(|(name, update)| *name == self.spec.name && *update == terms.update)
                };
                if happens(&emulated.lost) {
                    return Err("device lost (emulate.lost)".to_owned());
                }
                while happens(&emulated.hung) {
                    std::thread::park();
                }
                let jobs = match input {
                    Input::Collated(jobs) => jobs,
                    Input::Samples(micros) => guarded(|| self.collated(micros, terms.epoch_key))?,
                };
                let before = thread_cpu_time();
                let mut done = self.train(replica, jobs, &terms, &emulated, precision)?;
                if emulated.slowdown > 1.0 && !done.work.compute.is_zero() {
                    let compute = &mut done.work.compute;
                    let busy = thread_cpu_time().zip(before).map_or(*compute, |(after, before)| after - before);
                    let pause = busy.mul_f64(emulated.slowdown - 1.0);
                    std::thread::sleep(pause);
                    *compute += pause;
                }
                Ok(Answer::Trained(done))
            }
            Order::Evaluate { jobs } => {
                guarded(|| replica.evaluate(&jobs)).map(|(part, compute)| Answer::Evaluated(part, compute))
            }
        }
    }

    /// Computes the jobs. If one does not fit into memory, all begin again, cut to half of what did not fit: the same
    /// samples, and so the same sums.
    fn train(
        &self,
        replica: &Replica<T>,
        mut jobs: Vec<Job<T>>,
        terms: &Terms,
        emulated: &Emulated,
        precision: Precision,
    ) -> Result<Done, String> {
        let largest_of = |jobs: &[Job<T>]| jobs.iter().map(|job| job.micro.tokens()).max().unwrap_or(0);
        if let Some(most) = self.memory.limit_of(largest_of(&jobs)) {
            jobs = self.cut(jobs, most, terms.epoch_key)?;
        }
        let loss_scale = if precision == Precision::F16 { terms.loss_scale } else { 1.0 };
        let scales: Vec<f32> = terms.scales.iter().map(|scale| scale * loss_scale).collect();
        let mut most_tokens = None;
        loop {
            let largest = largest_of(&jobs);
            let attempt = match emulated.most_tokens {
                Some(most) if largest > most => Err(format!("out of memory (emulate.memory_tokens = {most})")),
                _ => guarded(|| replica.gradients(&jobs, &scales, terms.update_key)),
            };
            match attempt {
                Ok(mut work) => {
                    self.memory.computed(largest);
                    let mut has_overflowed = false;
                    if precision == Precision::F16 {
                        let gradients = &mut work.flat[..self.layout.len()];
                        if emulated.overflows.contains(&terms.update) && !jobs.is_empty() {
                            gradients[0] = f32::INFINITY;
                        }
                        has_overflowed = !hetseq_optim::unscale(gradients, loss_scale);
                    }
                    return Ok(Done { work, most_tokens, has_overflowed });
                }
                Err(reason) if is_out_of_memory(&reason) => {
                    let most = self.memory.ran_out(largest);
                    jobs = self.cut(jobs, most, terms.epoch_key).map_err(|why| format!("{reason}; {why}"))?;
                    most_tokens = Some(most);
                }
                Err(reason) => return Err(reason),
            }
        }
    }

    /// The same samples in micro-batches of at most `most` tokens.
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
        self.collated(fitting, epoch_key)
    }

    fn collated(&self, micros: Vec<MicroBatch>, epoch_key: Key) -> Result<Vec<Job<T>>, String> {
        let collate = |micro| {
            let collated = loader::collate(&*self.task, Which::Train, micro, epoch_key);
            Ok(collated.map_err(|error| error.to_string())?.job)
        };
        micros.into_iter().map(collate).collect()
    }
}

/// As engines and allocators say it.
fn is_out_of_memory(reason: &str) -> bool {
    let reason = reason.to_lowercase();
    let words =
        ["out of memory", "outofmemory", "memory allocation", "out of device memory", "can't allocate", "buffertoobig"];
    words.iter().any(|words| reason.contains(words))
}

/// How long this thread has been on a core. An emulated slowdown follows it rather than the clock, or waiting for a core
/// would be multiplied too. Linux only; None elsewhere.
fn thread_cpu_time() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    stat.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// Burn reports failures by panicking: here they become errors that name the device.
pub(crate) fn guarded<R>(work: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        Err(text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".to_owned()))
    })
}
