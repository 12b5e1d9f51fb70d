//! The devices of this process, each a thread with its own replica, summed in memory before anything goes to the network.
//!
//! A CPU is by default one single-threaded device per core: every operation of a device runs inside its own rayon pool,
//! so that operations do not fight over the cores, and that beats threads inside operations (`hetseq bench step`
//! compares).

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use burn::tensor::Device;
use hetseq_comm::Waker;
use hetseq_optim::Layout;
use hetseq_random::Key;
use rayon::prelude::*;

use crate::error::TrainError;
use crate::loader::{self, Job, MicroBatch};
use crate::replica::{Replica, Work};
use crate::task::{Task, Totals, Which};

mod spec;
#[cfg(test)]
mod tests;

pub use spec::{DeviceSpec, parse_devices};

pub(crate) struct Devices<T: Task> {
    workers: Vec<Worker<T>>,
    terms: usize,
    parameters: usize,
    emulated: Emulated,
    /// Whom the device threads wake when they are done.
    waker: Arc<OnceLock<Waker>>,
    /// The answers so far, and since when they are awaited.
    awaited: Option<(Vec<Option<Done>>, Instant)>,
}

struct Worker<T: Task> {
    name: String,
    orders: Sender<Order<T>>,
    answers: Receiver<Result<Answer, String>>,
    patience: Duration,
}

/// What is the same for all micro-batches of an update.
pub(crate) struct Terms {
    /// The factor of each term's loss sum.
    pub(crate) scales: Vec<f32>,
    /// What dropout hangs on.
    pub(crate) update_key: Key,
    /// What the samples hang on.
    pub(crate) epoch_key: Key,
}

/// Another machine that this one pretends to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Emulated {
    /// Stretches compute time by sleeping; 1 is not at all.
    pub(crate) slowdown: f64,
    /// A micro-batch of more tokens fails as if it did not fit into memory.
    pub(crate) most_tokens: Option<u64>,
}

enum Order<T: Task> {
    Load(Arc<Vec<f32>>),
    Train { jobs: Vec<Job<T>>, terms: Arc<Terms>, emulated: Emulated },
    Evaluate { jobs: Vec<Job<T>> },
}

enum Answer {
    Ready,
    Trained(Done),
    Evaluated(Totals, Duration),
}

/// A device's part of an update.
struct Done {
    work: Work,
    /// It ran out of memory, and got by with micro-batches of at most so many tokens.
    most_tokens: Option<u64>,
}

/// The sum over the local devices for one update.
pub(crate) struct LocalSum {
    /// Gradients in the flat layout, then the loss sum of each term.
    pub(crate) flat: Vec<f32>,
    pub(crate) devices: Vec<DeviceReport>,
    /// How long adding them up took.
    pub(crate) adding: Duration,
}

/// What is to be known of a device's part besides its sums.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeviceReport {
    /// Own time over its micro-batches, and after them.
    pub(crate) compute: Duration,
    pub(crate) after: Duration,
    /// It ran out of memory with more tokens than these.
    pub(crate) most_tokens: Option<u64>,
}

impl<T: Task> Devices<T> {
    /// `patience` is how long a device may take over one order.
    pub(crate) fn start(
        task: &Arc<T>,
        layout: &Arc<Layout>,
        specs: &[DeviceSpec],
        patience: Duration,
    ) -> Result<Self, TrainError> {
        let waker = Arc::new(OnceLock::new());
        let mut workers = Vec::new();
        for (index, spec) in specs.iter().enumerate() {
            let name = format!("cpu:{index}");
            let (orders, inbox) = channel();
            let (outbox, answers) = channel();
            let (task, layout, waker) = (task.clone(), layout.clone(), waker.clone());
            let thread = Thread { task, layout, waker, most_tokens: Cell::new(None) };
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
        let (terms, parameters) = (task.terms().len(), layout.len());
        let emulated = Emulated { slowdown: 1.0, most_tokens: None };
        let devices = Devices { workers, terms, parameters, emulated, waker, awaited: None };
        for worker in &devices.workers {
            worker.answer("building the model")?;
        }
        Ok(devices)
    }

    /// From now on pretend to be another machine.
    pub(crate) fn emulate(&mut self, emulated: Emulated) {
        self.emulated = emulated;
    }

    /// From now on `waker` is told when a device is done.
    pub(crate) fn tell(&self, waker: Waker) {
        _ = self.waker.set(waker);
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

    /// Every device begins to compute its jobs.
    pub(crate) fn begin(&mut self, jobs: Vec<Vec<Job<T>>>, terms: Terms) -> Result<(), TrainError> {
        let terms = Arc::new(terms);
        for (worker, jobs) in self.workers.iter().zip(jobs) {
            let order = Order::Train { jobs, terms: terms.clone(), emulated: self.emulated };
            worker.send(order, COMPUTING)?;
        }
        self.awaited = Some((self.workers.iter().map(|_| None).collect(), Instant::now()));
        Ok(())
    }

    /// The sums of what was begun, once all devices are done. Never waits.
    pub(crate) fn poll(&mut self) -> Result<Option<LocalSum>, TrainError> {
        let Some((answers, since)) = &mut self.awaited else { return Ok(None) };
        for (worker, answer) in self.workers.iter().zip(answers.iter_mut()) {
            if answer.is_none() {
                *answer = worker.answered(*since)?;
            }
        }
        if answers.iter().any(Option::is_none) {
            return Ok(None);
        }
        Ok(self.awaited.take().map(|(answers, _)| self.sum(answers)))
    }

    /// The sums of what was begun, waiting for them.
    pub(crate) fn finish(&mut self) -> Result<LocalSum, TrainError> {
        let Some((mut answers, _)) = self.awaited.take() else { return Ok(self.sum(Vec::new())) };
        for (worker, answer) in self.workers.iter().zip(&mut answers) {
            if answer.is_none()
                && let Answer::Trained(done) = worker.answer(COMPUTING)?
            {
                *answer = Some(done);
            }
        }
        Ok(self.sum(answers))
    }

    /// Added in the order of the devices, whoever was first.
    fn sum(&self, answers: Vec<Option<Done>>) -> LocalSum {
        let started = Instant::now();
        let mut sum = LocalSum { flat: Vec::new(), devices: Vec::new(), adding: Duration::ZERO };
        for Done { work, most_tokens } in answers.into_iter().flatten() {
            sum.devices.push(DeviceReport { compute: work.compute, after: work.after, most_tokens });
            if sum.flat.is_empty() {
                sum.flat = work.flat;
            } else {
                add_in_place(&mut sum.flat, &work.flat);
            }
        }
        sum.flat.resize(self.parameters + self.terms, 0.0);
        sum.adding = started.elapsed();
        sum
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

const COMPUTING: &str = "computing gradients";

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
            Err(RecvTimeoutError::Timeout) => Err(self.out_of_patience(doing)),
        }
    }

    /// What it was given to compute at `since`, if it is done.
    fn answered(&self, since: Instant) -> Result<Option<Done>, TrainError> {
        match self.answers.try_recv() {
            Ok(Ok(Answer::Trained(done))) => Ok(Some(done)),
            Ok(Ok(_)) => Err(failed(&self.name, COMPUTING, "it answered something else".to_owned())),
            Ok(Err(reason)) => Err(failed(&self.name, COMPUTING, reason)),
            Err(TryRecvError::Disconnected) => Err(failed(&self.name, COMPUTING, "its thread has ended".to_owned())),
            Err(TryRecvError::Empty) if since.elapsed() > self.patience => Err(self.out_of_patience(COMPUTING)),
            Err(TryRecvError::Empty) => Ok(None),
        }
    }

    fn out_of_patience(&self, doing: &'static str) -> TrainError {
        failed(&self.name, doing, format!("no answer for {} s (comm.progress_s)", self.patience.as_secs()))
    }
}

fn failed(device: &str, doing: &'static str, reason: String) -> TrainError {
    TrainError::Device { device: device.to_owned(), doing, reason }
}

/// The device side of a worker.
struct Thread<T: Task> {
    task: Arc<T>,
    layout: Arc<Layout>,
    waker: Arc<OnceLock<Waker>>,
    /// More than this did not fit into memory.
    most_tokens: Cell<Option<u64>>,
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
            if outbox.send(self.obey(&mut replica, order)).is_err() {
                return;
            }
            if let Some(waker) = self.waker.get() {
                waker.wake();
            }
        }
    }

    fn obey(&self, replica: &mut Replica<T>, order: Order<T>) -> Result<Answer, String> {
        match order {
            Order::Load(parameters) => guarded(|| {
                replica.load(&parameters);
                Ok(Answer::Ready)
            }),
            Order::Train { jobs, terms, emulated } => {
                let before = thread_cpu_time();
                let mut done = self.train(replica, jobs, &terms, emulated.most_tokens)?;
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
        emulated_memory: Option<u64>,
    ) -> Result<Done, String> {
        let largest_of = |jobs: &[Job<T>]| jobs.iter().map(|job| job.micro.tokens()).max().unwrap_or(0);
        // The plan hears of it two updates later.
        if let Some(most) = self.most_tokens.get().filter(|&most| largest_of(&jobs) > most) {
            jobs = self.cut(jobs, most, terms.epoch_key)?;
        }
        let mut most_tokens = None;
        loop {
            let largest = largest_of(&jobs);
            let attempt = match emulated_memory {
                Some(most) if largest > most => Err(format!("out of memory (emulate.memory_tokens = {most})")),
                _ => guarded(|| replica.gradients(&jobs, &terms.scales, terms.update_key)),
            };
            match attempt {
                Ok(work) => return Ok(Done { work, most_tokens }),
                Err(reason) if is_out_of_memory(&reason) => {
                    let most = largest / 2;
                    jobs = self.cut(jobs, most, terms.epoch_key).map_err(|why| format!("{reason}; {why}"))?;
                    most_tokens = Some(most);
                    self.most_tokens.set(most_tokens);
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
                let collated = loader::collate(&*self.task, Which::Train, micro, epoch_key);
                fitting.push(collated.map_err(|error| error.to_string())?.job);
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
        Ok(fitting)
    }
}

/// As engines and allocators say it.
fn is_out_of_memory(reason: &str) -> bool {
    let reason = reason.to_lowercase();
    ["out of memory", "outofmemory", "out_of_memory", "memory allocation"].iter().any(|words| reason.contains(words))
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
