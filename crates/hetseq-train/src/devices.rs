//! The devices of this process, each a thread with its own replica, summed in memory before anything goes to the network.
//!
//! A CPU is by default one single-threaded device per core: every operation of a device runs inside its own rayon pool,
//! so that operations do not fight over the cores, and that beats threads inside operations (`hetseq bench step`
//! compares).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use burn::tensor::Device;
use hetseq_optim::Layout;
use hetseq_random::Key;
use rayon::prelude::*;

use crate::error::TrainError;
use crate::loader::Job;
use crate::replica::{Replica, Work};
use crate::task::{Task, Totals};

mod spec;
#[cfg(test)]
mod tests;

pub use spec::{DeviceSpec, parse_devices};

pub(crate) struct Devices<T: Task> {
    workers: Vec<Worker<T>>,
    terms: usize,
    parameters: usize,
    slowdown: f64,
}

struct Worker<T: Task> {
    name: String,
    orders: Sender<Order<T>>,
    answers: Receiver<Result<Answer, String>>,
    patience: Duration,
}

enum Order<T: Task> {
    Load(Arc<Vec<f32>>),
    Train { jobs: Vec<Job<T>>, scales: Arc<Vec<f32>>, update_key: Key, slowdown: f64 },
    Evaluate { jobs: Vec<Job<T>> },
}

enum Answer {
    Ready,
    Trained(Work),
    Evaluated(Totals, Duration),
}

/// The sum over the local devices for one update.
pub(crate) struct LocalSum {
    /// Gradients in the flat layout, then the loss sum of each term.
    pub(crate) flat: Vec<f32>,
    /// Own compute time of each device.
    pub(crate) compute: Vec<Duration>,
}

impl<T: Task> Devices<T> {
    /// `patience` is how long a device may take over one order.
    pub(crate) fn start(
        task: &Arc<T>,
        layout: &Arc<Layout>,
        specs: &[DeviceSpec],
        patience: Duration,
    ) -> Result<Self, TrainError> {
        let mut workers = Vec::new();
        for (index, spec) in specs.iter().enumerate() {
            let name = format!("cpu:{index}");
            let (orders, inbox) = channel();
            let (outbox, answers) = channel();
            let thread = Thread { task: task.clone(), layout: layout.clone() };
            let threads = spec.threads;
            let pool_name = name.clone();
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .thread_name(move |i| format!("{pool_name}.{i}"))
                .build()
                .map_err(|error| failed(&name, "starting", error.to_string()))?;
            std::thread::Builder::new()
                .name(name.clone())
                .spawn(move || pool.install(move || thread.run(inbox, outbox)))
                .map_err(TrainError::io(format!("starting the thread of {name}")))?;
            workers.push(Worker { name, orders, answers, patience });
        }
        let devices = Devices { workers, terms: task.terms().len(), parameters: layout.len(), slowdown: 1.0 };
        for worker in &devices.workers {
            worker.answer("building the model")?;
        }
        Ok(devices)
    }

    /// From now on stretch this process's compute time by sleeping (1 = not at all), to emulate a slower machine.
    pub(crate) fn slow_down(&mut self, factor: f64) {
        self.slowdown = factor;
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.workers.iter().map(|worker| worker.name.as_str())
    }

    pub(crate) fn load(&self, parameters: &Arc<Vec<f32>>) -> Result<(), TrainError> {
        for worker in &self.workers {
            worker.send(Order::Load(parameters.clone()), "loading")?;
        }
        for worker in &self.workers {
            worker.answer("loading parameters")?;
        }
        Ok(())
    }

    /// Every device computes its jobs; the sums are added in the order of the devices.
    pub(crate) fn gradients(
        &self,
        jobs: Vec<Vec<Job<T>>>,
        scales: Vec<f32>,
        update_key: Key,
    ) -> Result<LocalSum, TrainError> {
        let scales = Arc::new(scales);
        for (worker, jobs) in self.workers.iter().zip(jobs) {
            let order = Order::Train { jobs, scales: scales.clone(), update_key, slowdown: self.slowdown };
            worker.send(order, "computing gradients")?;
        }
        let mut sum = LocalSum { flat: Vec::new(), compute: Vec::new() };
        for worker in &self.workers {
            if let Answer::Trained(work) = worker.answer("computing gradients")? {
                sum.compute.push(work.compute);
                if sum.flat.is_empty() {
                    sum.flat = work.flat;
                } else {
                    add_in_place(&mut sum.flat, &work.flat);
                }
            }
        }
        sum.flat.resize(self.parameters + self.terms, 0.0);
        Ok(sum)
    }

    /// The sums of each device, and its own compute time.
    pub(crate) fn evaluate(&self, jobs: Vec<Vec<Job<T>>>) -> Result<Vec<(Totals, Duration)>, TrainError> {
        for (worker, jobs) in self.workers.iter().zip(jobs) {
            worker.send(Order::Evaluate { jobs }, "evaluating")?;
        }
        let mut totals = Vec::new();
        for worker in &self.workers {
            if let Answer::Evaluated(part, compute) = worker.answer("evaluating")? {
                totals.push((part, compute));
            }
        }
        Ok(totals)
    }
}

/// Large enough that splitting the addition over threads pays.
const PARALLEL_CHUNK: usize = 1 << 16;

fn add_in_place(sum: &mut [f32], more: &[f32]) {
    let add = |(sum, more): (&mut [f32], &[f32])| {
        for (sum, value) in sum.iter_mut().zip(more) {
            *sum += value;
        }
    };
    sum.par_chunks_mut(PARALLEL_CHUNK).zip(more.par_chunks(PARALLEL_CHUNK)).for_each(add);
}

impl<T: Task> Worker<T> {
    fn send(&self, order: Order<T>, doing: &'static str) -> Result<(), TrainError> {
        self.orders.send(order).map_err(|_| failed(&self.name, doing, "its thread has ended".to_owned()))
    }

    fn answer(&self, doing: &'static str) -> Result<Answer, TrainError> {
        match self.answers.recv_timeout(self.patience) {
            Ok(answer) => answer.map_err(|reason| failed(&self.name, doing, reason)),
            Err(RecvTimeoutError::Disconnected) => Err(failed(&self.name, doing, "its thread has ended".to_owned())),
            Err(RecvTimeoutError::Timeout) => {
                let reason = format!("no answer for {} s (comm.progress_s)", self.patience.as_secs());
                Err(failed(&self.name, doing, reason))
            }
        }
    }
}

fn failed(device: &str, doing: &'static str, reason: String) -> TrainError {
    TrainError::Device { device: device.to_owned(), doing, reason }
}

/// The device side of a worker.
struct Thread<T: Task> {
    task: Arc<T>,
    layout: Arc<Layout>,
}

impl<T: Task> Thread<T> {
    fn run(self, inbox: Receiver<Order<T>>, outbox: Sender<Result<Answer, String>>) {
        let device = Device::flex().autodiff();
        let mut replica = match guarded(|| Ok(Replica::new(self.task.clone(), self.layout.clone(), device))) {
            Ok(replica) => replica,
            Err(reason) => {
                _ = outbox.send(Err(reason));
                return;
            }
        };
        if outbox.send(Ok(Answer::Ready)).is_err() {
            return;
        }
        for order in inbox {
            if outbox.send(guarded(|| self.obey(&mut replica, order))).is_err() {
                return;
            }
        }
    }

    fn obey(&self, replica: &mut Replica<T>, order: Order<T>) -> Result<Answer, String> {
        match order {
            Order::Load(parameters) => {
                replica.load(&parameters);
                Ok(Answer::Ready)
            }
            Order::Train { jobs, scales, update_key, slowdown } => {
                let before = thread_cpu_time();
                let mut work = replica.gradients(&jobs, &scales, update_key)?;
                if slowdown > 1.0 && !jobs.is_empty() {
                    let busy = thread_cpu_time().zip(before).map_or(work.compute, |(after, before)| after - before);
                    let pause = busy.mul_f64(slowdown - 1.0);
                    std::thread::sleep(pause);
                    work.compute += pause;
                }
                Ok(Answer::Trained(work))
            }
            Order::Evaluate { jobs } => replica.evaluate(&jobs).map(|(part, compute)| Answer::Evaluated(part, compute)),
        }
    }
}

/// How long this thread has been on a core. An emulated slowdown follows it rather than the clock, or waiting for a core
/// would be multiplied too. Linux only; None elsewhere.
fn thread_cpu_time() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    stat.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// Burn reports failures by panicking: here they become errors that name the device.
fn guarded<R>(work: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        Err(text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".to_owned()))
    })
}
