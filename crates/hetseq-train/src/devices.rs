//! The devices of this process, each a thread with its own replica, summed in memory before anything goes to the network.
//!
//! A CPU is by default one single-threaded device per core: every operation of a device runs inside its own rayon pool,
//! so that operations do not fight over the cores, and that beats threads inside operations (`hetseq bench step`
//! compares). A GPU is one device, whose thread only hands out work.
//!
//! A device that fails is given up: what it had to compute is computed by the others, in the same update, and from then on the
//! planner knows (`trainer/planning.rs`). If the same samples fail there too, it is not the device's fault, and the run ends.

mod spec;
#[cfg(test)]
mod tests;
mod thread;
mod worker;

use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use hetseq_comm::Waker;
use hetseq_kernels::Precision;
use hetseq_optim::Layout;
use hetseq_random::Key;
use serde::{Deserialize, Serialize};

use crate::engine;
use crate::error::TrainError;
use crate::loader::{self, Job, MicroBatch};
use crate::task::{Task, Totals, Which};

use spec::parse_devices;
pub use spec::{Api, DeviceSpec, Place};
pub(crate) use thread::guarded;
use thread::{Answer, Done, Input, Order};
use worker::Worker;

pub(crate) struct Devices<T: Task> {
    task: Arc<T>,
    layout: Arc<Layout>,
    workers: Vec<Worker<T>>,
    patience: Duration,
    emulated: Emulated,
    /// Whom the device threads wake when they are done.
    waker: Arc<OnceLock<Waker>>,
    /// What was loaded last, for a device that has to stand in for another.
    loaded: Weak<Vec<f32>>,
    round: Option<Round>,
    /// Since the last sum.
    newly_lost: Vec<Lost>,
}

/// What is the same for all micro-batches of an update.
pub(crate) struct Terms {
    /// As people count; 0 outside of training.
    pub(crate) update: u64,
    /// The factor of each term's loss sum.
    pub(crate) scales: Vec<f32>,
    /// What devices that compute in `f16` multiply these by, and divide their gradients by.
    pub(crate) loss_scale: f32,
    /// What dropout hangs on.
    pub(crate) update_key: Key,
    /// What the samples hang on.
    pub(crate) epoch_key: Key,
}

/// Another machine that this one pretends to be.
#[derive(Debug, Clone, Default)]
pub(crate) struct Emulated {
    /// Stretches compute time by sleeping; 1 or less is not at all.
    pub(crate) slowdown: f64,
    /// A micro-batch of more tokens fails as if it did not fit into memory.
    pub(crate) most_tokens: Option<u64>,
    /// Devices, and the updates in which they fail as if they were lost.
    pub(crate) lost: Vec<(String, u64)>,
    /// Devices, and the updates in which they hang.
    pub(crate) hung: Vec<(String, u64)>,
    /// Updates in which gradients in `f16` overflow.
    pub(crate) overflows: Vec<u64>,
}

/// Which precision a device shall compute products in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wanted {
    /// The lowest that a GPU can do; a CPU gains nothing by less than `f32`.
    Auto,
    #[default]
    F32,
    F16,
    Bf16,
}

/// A device that failed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Lost {
    /// Of this process.
    pub(crate) device: usize,
    pub(crate) reason: String,
    /// The process has no other, so its CPU does the work under the same number.
    pub(crate) has_stand_in: bool,
}

/// The sum over the local devices for one update.
pub(crate) struct LocalSum {
    /// Gradients in the flat layout, then the loss sum of each term.
    pub(crate) flat: Vec<f32>,
    pub(crate) devices: Vec<DeviceReport>,
    /// How long adding them up took.
    pub(crate) adding: Duration,
    /// Whether gradients of a device that computes in `f16` have overflowed; none if there is no such device.
    pub(crate) overflow: Option<bool>,
    pub(crate) lost: Vec<Lost>,
}

/// What is to be known of a device's part besides its sums.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DeviceReport {
    /// Own time over its micro-batches, and after them.
    pub(crate) compute: Duration,
    pub(crate) after: Duration,
    /// It ran out of memory with more tokens than these.
    pub(crate) most_tokens: Option<u64>,
    /// Of a GPU's own memory.
    pub(crate) held_bytes: Option<u64>,
}

/// An update that is being computed.
struct Round {
    terms: Arc<Terms>,
    /// Per device, in the order in which it was given them.
    parts: Vec<Vec<Part>>,
}

struct Part {
    micros: Vec<MicroBatch>,
    /// Not by the plan but for another device, so that its time tells nothing.
    is_extra: bool,
    /// Why another device could not.
    failed: Option<String>,
    done: Option<Done>,
}

/// What a value of `run.devices` means on this machine.
pub fn devices_named(text: &str) -> Result<Vec<DeviceSpec>, String> {
    let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    parse_devices(text, cores, engine::gpus)
}

impl<T: Task> Devices<T> {
    /// `patience` is how long a device may take over one micro-batch. A device that came up by itself and cannot be used is left out.
    pub(crate) fn start(
        task: &Arc<T>,
        layout: &Arc<Layout>,
        specs: &[DeviceSpec],
        precision: Wanted,
        patience: Duration,
    ) -> Result<Self, TrainError> {
        let waker = Arc::new(OnceLock::new());
        let mut workers = Vec::new();
        for spec in specs {
            workers.push(Worker::start(spec, task, layout, precision, &waker, patience)?);
        }
        let mut ready = Vec::new();
        for mut worker in workers {
            match worker.ready() {
                Ok(()) => ready.push(worker),
                Err(reason) if worker.spec.is_optional && worker.spec.is_gpu() => {
                    tracing::warn!("{} is left out: {reason}", worker.spec.name);
                }
                Err(reason) => return Err(worker.failed("starting", reason)),
            }
        }
        if ready.is_empty() {
            let mut worker = Worker::start(&DeviceSpec::cpu(0, 1), task, layout, precision, &waker, patience)?;
            worker.ready().map_err(|reason| worker.failed("starting", reason))?;
            ready.push(worker);
        }
        Ok(Devices {
            task: task.clone(),
            layout: layout.clone(),
            workers: ready,
            patience,
            emulated: Emulated::default(),
            waker,
            loaded: Weak::new(),
            round: None,
            newly_lost: Vec::new(),
        })
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
        self.workers.iter().map(|worker| worker.spec.name.as_str())
    }

    pub(crate) fn specs(&self) -> impl Iterator<Item = (&DeviceSpec, Precision)> {
        self.workers.iter().map(|worker| (&worker.spec, worker.precision))
    }

    pub(crate) fn load(&mut self, parameters: &Arc<Vec<f32>>) -> Result<(), TrainError> {
        self.loaded = Arc::downgrade(parameters);
        const LOADING: &str = "loading parameters";
        let mut failures = Vec::new();
        let alive = self.alive();
        for &at in &alive {
            self.workers[at].send(Order::Load(parameters.clone()));
        }
        for &at in &alive {
            if let Err(reason) = self.workers[at].answer(LOADING) {
                failures.push((at, reason));
            }
        }
        for (at, reason) in failures {
            self.give_up(at, reason, LOADING)?;
        }
        Ok(())
    }

    fn alive(&self) -> Vec<usize> {
        (0..self.workers.len()).filter(|&at| !self.workers[at].is_lost).collect()
    }

    /// Every device begins to compute its jobs; those of a lost device go to the others.
    pub(crate) fn begin(&mut self, jobs: Vec<Vec<Job<T>>>, terms: Terms) {
        let terms = Arc::new(terms);
        let parts = self.workers.iter().map(|_| Vec::new()).collect();
        let mut round = Round { terms, parts };
        let mut orphaned = Vec::new();
        for (at, jobs) in jobs.into_iter().enumerate() {
            match self.workers.get(at) {
                Some(worker) if !worker.is_lost => self.give(&mut round, at, Input::Collated(jobs), (false, None)),
                _ => orphaned.extend(jobs),
            }
        }
        for (at, jobs) in in_turns(&self.alive(), orphaned) {
            self.give(&mut round, at, Input::Collated(jobs), (true, None));
        }
        self.round = Some(round);
    }

    fn give(&self, round: &mut Round, at: usize, input: Input<T>, (is_extra, failed): (bool, Option<String>)) {
        let micros = match &input {
            Input::Collated(jobs) => jobs.iter().map(|job| job.micro.clone()).collect(),
            Input::Samples(micros) => micros.clone(),
        };
        round.parts[at].push(Part { micros, is_extra, failed, done: None });
        self.workers[at].send(Order::Train { input, terms: round.terms.clone(), emulated: self.emulated.clone() });
    }

    /// The sums of what was begun, once all devices are done. Never waits: others take over from a device that fails.
    pub(crate) fn poll(&mut self) -> Result<Option<LocalSum>, TrainError> {
        let Some(mut round) = self.round.take() else { return Ok(None) };
        let mut at = 0;
        while at < self.workers.len() {
            let Some(part) = round.parts[at].iter_mut().find(|part| part.done.is_none()) else {
                at += 1;
                continue;
            };
            match self.workers[at].answered() {
                Ok(None) => at += 1,
                Ok(Some(done)) => part.done = Some(done),
                Err(reason) => {
                    self.redo(&mut round, at, reason)?;
                    // Those before it may have got something to do.
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

    /// The sums of what was begun, waiting for them.
    pub(crate) fn finish(&mut self) -> Result<LocalSum, TrainError> {
        loop {
            if let Some(sum) = self.poll()? {
                return Ok(sum);
            }
            let Some(round) = &self.round else {
                return Ok(self.sum(Round::nothing(self.workers.len())));
            };
            let waits = |at: &usize| round.parts[*at].iter().any(|part| part.done.is_none());
            if let Some(at) = (0..self.workers.len()).find(waits) {
                self.workers[at].wait();
            }
        }
    }

    /// A device failed: its part of the round is computed by others.
    fn redo(&mut self, round: &mut Round, at: usize, reason: String) -> Result<(), TrainError> {
        let (done, left): (Vec<Part>, Vec<Part>) =
            std::mem::take(&mut round.parts[at]).into_iter().partition(|part| part.done.is_some());
        round.parts[at] = done;
        if let Some(first) = left.iter().find_map(|part| part.failed.as_ref()) {
            let both = if *first == reason { reason } else { format!("{reason} (and elsewhere: {first})") };
            return Err(self.workers[at].failed(COMPUTING, both));
        }
        self.give_up(at, reason.clone(), COMPUTING)?;
        let micros = left.into_iter().flat_map(|part| part.micros);
        for (at, micros) in in_turns(&self.alive(), micros) {
            self.give(round, at, Input::Samples(micros), (true, Some(reason.clone())));
        }
        Ok(())
    }

    /// From now on without this device. The last GPU of a process gives its place to the CPU; if there is nobody else, the run
    /// cannot go on.
    fn give_up(&mut self, at: usize, reason: String, doing: &'static str) -> Result<(), TrainError> {
        let is_alone = self.alive() == [at];
        if is_alone && !self.workers[at].spec.is_gpu() {
            return Err(self.workers[at].failed(doing, reason));
        }
        tracing::warn!("{} failed while {doing}: {reason}", self.workers[at].spec.name);
        self.workers[at].is_lost = true;
        if is_alone {
            self.workers[at] = self.stand_in(at)?;
        }
        self.newly_lost.push(Lost { device: at, reason, has_stand_in: is_alone });
        Ok(())
    }

    /// All cores as one device, in place of the one at `at`. It opens while others go on with their work.
    fn stand_in(&self, at: usize) -> Result<Worker<T>, TrainError> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let spec = DeviceSpec { name: format!("{} (cpu)", self.workers[at].spec.name), ..DeviceSpec::cpu(0, threads) };
        let mut worker = Worker::start(&spec, &self.task, &self.layout, Wanted::F32, &self.waker, self.patience)?;
        worker.open_later(self.loaded.upgrade());
        Ok(worker)
    }

    /// Added in the order of the devices, whoever was first.
    fn sum(&mut self, round: Round) -> LocalSum {
        let started = Instant::now();
        let has_f16 = self.specs().any(|(_, precision)| precision == Precision::F16);
        let mut sum = LocalSum {
            flat: Vec::new(),
            devices: Vec::new(),
            adding: Duration::ZERO,
            overflow: has_f16.then_some(false),
            lost: std::mem::take(&mut self.newly_lost),
        };
        for parts in round.parts {
            let mut report = DeviceReport::default();
            for Part { is_extra, done, .. } in parts {
                let Some(Done { work, most_tokens, has_overflowed }) = done else { continue };
                if !is_extra {
                    (report.compute, report.after) = (work.compute, work.after);
                }
                report.most_tokens = report.most_tokens.into_iter().chain(most_tokens).min();
                report.held_bytes = report.held_bytes.max(work.held_bytes);
                if has_overflowed {
                    sum.overflow = Some(true);
                }
                if sum.flat.is_empty() {
                    sum.flat = work.flat;
                } else {
                    hetseq_optim::add(&mut sum.flat, &work.flat);
                }
            }
            sum.devices.push(report);
        }
        sum.flat.resize(self.layout.len() + self.task.terms().len(), 0.0);
        sum.adding = started.elapsed();
        sum
    }

    /// The sums of each device, and its own compute time.
    pub(crate) fn evaluate(
        &mut self,
        mut jobs: Vec<Vec<Job<T>>>,
        epoch_key: Key,
    ) -> Result<Vec<(Totals, Duration)>, TrainError> {
        const EVALUATING: &str = "evaluating";
        let mut totals: Vec<(Totals, Duration)> = Vec::new();
        totals.resize_with(self.workers.len(), Default::default);
        let mut has_failed: Option<String> = None;
        loop {
            self.leave_to_others(&mut jobs);
            let mut given = Vec::new();
            for (at, jobs) in std::mem::take(&mut jobs).into_iter().enumerate() {
                if !self.workers[at].is_lost {
                    given.push((at, jobs.iter().map(|job| job.micro.clone()).collect::<Vec<_>>()));
                    self.workers[at].send(Order::Evaluate { jobs });
                }
            }
            jobs.resize_with(self.workers.len(), Vec::new);
            for (at, micros) in given {
                match self.workers[at].answer(EVALUATING) {
                    Ok(Answer::Evaluated(part, compute)) => {
                        let (sums, time) = &mut totals[at];
                        crate::evaluate::merge(sums, part);
                        *time += compute;
                    }
                    Ok(_) => return Err(self.workers[at].failed(EVALUATING, "it answered something else".to_owned())),
                    Err(reason) => {
                        if has_failed.replace(reason.clone()).is_some() {
                            return Err(self.workers[at].failed(EVALUATING, reason));
                        }
                        self.give_up(at, reason, EVALUATING)?;
                        for micro in micros {
                            jobs[at].push(loader::collate(&*self.task, Which::Valid, micro, epoch_key)?.job);
                        }
                    }
                }
            }
            // Again only for what a lost device leaves.
            if jobs.iter().all(Vec::is_empty) {
                return Ok(totals);
            }
        }
    }

    /// Of lost devices, in turns.
    fn leave_to_others(&self, jobs: &mut Vec<Vec<Job<T>>>) {
        jobs.resize_with(self.workers.len(), Vec::new);
        let lost = (0..self.workers.len()).filter(|&at| self.workers[at].is_lost);
        let orphaned: Vec<Job<T>> = lost.flat_map(|at| std::mem::take(&mut jobs[at])).collect();
        for (at, more) in in_turns(&self.alive(), orphaned) {
            jobs[at].extend(more);
        }
    }
}

/// Deals `work` out to the devices that are `alive`; those that get nothing are left out.
fn in_turns<W>(alive: &[usize], work: impl IntoIterator<Item = W>) -> Vec<(usize, Vec<W>)> {
    let mut turns: Vec<(usize, Vec<W>)> = alive.iter().map(|&at| (at, Vec::new())).collect();
    for (work, turn) in work.into_iter().zip((0..alive.len()).cycle()) {
        turns[turn].1.push(work);
    }
    turns.retain(|(_, work)| !work.is_empty());
    turns
}

impl Round {
    fn nothing(devices: usize) -> Self {
        let terms =
            Terms { update: 0, scales: Vec::new(), loss_scale: 1.0, update_key: Key::root(0), epoch_key: Key::root(0) };
        let parts = (0..devices).map(|_| Vec::new()).collect();
        Round { terms: Arc::new(terms), parts }
    }
}

const COMPUTING: &str = "computing gradients";
