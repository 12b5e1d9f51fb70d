//! Micro-batches ahead of time: while the devices compute an update, the next ones are read and put together on threads of
//! the loader's own. It can be done ahead, because who does what in a coming update is decided early (see `trainer`).
//!
//! Orders are carried out one after the other and come out in the order they were given; inside an order all micro-batches
//! are made at once, and a task may use rayon for the samples of one. What is in memory is what was ordered: the trainer
//! bounds that by `run.prefetch`.

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use hetseq_comm::Waker;
use hetseq_random::Key;
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::devices::DeviceSpec;
use crate::error::TrainError;
use crate::replica::add;
use crate::skips::Skipped;
use crate::task::{Samples, Task, TaskError, Which};

/// One micro-batch, ready for a device.
pub(crate) struct Job<T: Task> {
    pub(crate) micro: MicroBatch,
    pub(crate) batch: T::Batch,
}

/// Samples that go through the model together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MicroBatch {
    pub(crate) samples: Vec<u32>,
    /// Tokens of the longest: all are padded to it.
    pub(crate) longest: u32,
}

impl MicroBatch {
    /// As computed, padding included.
    pub(crate) fn tokens(&self) -> u64 {
        self.samples.len() as u64 * u64::from(self.longest)
    }

    /// For a device that cannot hold it. The longest of all may be longer than need be in one half, never too short.
    pub(crate) fn halves(self) -> [MicroBatch; 2] {
        let MicroBatch { mut samples, longest } = self;
        let rest = samples.split_off(samples.len().div_ceil(2));
        [samples, rest].map(|samples| MicroBatch { samples, longest })
    }
}

/// What to collate: for each local device its micro-batches.
pub(crate) struct Order {
    pub(crate) which: Which,
    pub(crate) epoch: u64,
    pub(crate) devices: Vec<Vec<MicroBatch>>,
}

/// An order carried out.
pub(crate) struct Prepared<T: Task> {
    pub(crate) devices: Vec<Vec<Job<T>>>,
    /// What the randomness of its samples hangs on.
    pub(crate) epoch_key: Key,
    /// Per loss term, over all local devices.
    pub(crate) counts: Vec<u64>,
    /// With those that were skipped.
    pub(crate) samples: u64,
    pub(crate) skipped: Vec<Skipped>,
}

pub(crate) struct Loader<T: Task> {
    orders: Sender<Order>,
    prepared: Receiver<Result<Prepared<T>, TrainError>>,
    patience: Duration,
    /// Since when the oldest order is waited for.
    asked: Cell<Option<Instant>>,
}

/// The threads that loaders of this process work on: `asked` for, or as many as the devices leave cores.
pub(crate) fn pool(
    asked: Option<usize>,
    devices: &[DeviceSpec],
    cores: NonZeroUsize,
) -> Result<Arc<ThreadPool>, TrainError> {
    let busy = devices.iter().map(DeviceSpec::threads).sum();
    let pool = ThreadPoolBuilder::new()
        .num_threads(asked.unwrap_or_else(|| spare_threads(cores.get(), busy)))
        .thread_name(|i| format!("loader.{i}"))
        .build()
        .map_err(|error| failed("starting", error.to_string()))?;
    Ok(Arc::new(pool))
}

/// One thread at least, though it takes time from a device where there is no core to spare. More than 16 help nobody: by
/// then the disk or the network is the limit.
fn spare_threads(cores: usize, busy: usize) -> usize {
    cores.saturating_sub(busy).clamp(1, 16)
}

impl<T: Task> Loader<T> {
    /// `patience`: how long to wait for one order, such as a file system that hangs. `waker` ends the sleep of a rank that
    /// waits for one with [`Loader::try_take`].
    pub(crate) fn start(
        task: &Arc<T>,
        seed: u64,
        pool: &Arc<ThreadPool>,
        patience: Duration,
        waker: Option<Waker>,
    ) -> Result<Self, TrainError> {
        let (orders, inbox) = channel::<Order>();
        let (outbox, prepared) = channel();
        let (task, pool) = (task.clone(), pool.clone());
        let work = move || {
            for order in inbox {
                if outbox.send(pool.install(|| prepare(&*task, seed, order))).is_err() {
                    return;
                }
                if let Some(waker) = &waker {
                    waker.wake();
                }
            }
        };
        std::thread::Builder::new()
            .name("loader".to_owned())
            .spawn(work)
            .map_err(TrainError::io("starting the loader thread"))?;
        Ok(Loader { orders, prepared, patience, asked: Cell::new(None) })
    }

    pub(crate) fn order(&self, order: Order) -> Result<(), TrainError> {
        self.orders.send(order).map_err(|_| stopped())
    }

    /// The oldest order that was not taken yet, waiting for it if need be.
    pub(crate) fn take(&self) -> Result<Prepared<T>, TrainError> {
        self.receive(self.patience)?.ok_or_else(|| self.out_of_patience())
    }

    /// The oldest order that was not taken yet, if it is ready; an error if it has been asked for for too long.
    pub(crate) fn try_take(&self) -> Result<Option<Prepared<T>>, TrainError> {
        let asked = self.asked.get().unwrap_or_else(Instant::now);
        let taken = self.receive(Duration::ZERO)?;
        self.asked.set(taken.is_none().then_some(asked));
        if taken.is_none() && asked.elapsed() > self.patience {
            return Err(self.out_of_patience());
        }
        Ok(taken)
    }

    fn receive(&self, limit: Duration) -> Result<Option<Prepared<T>>, TrainError> {
        match self.prepared.recv_timeout(limit) {
            Ok(prepared) => prepared.map(Some),
            Err(RecvTimeoutError::Disconnected) => Err(stopped()),
            Err(RecvTimeoutError::Timeout) => Ok(None),
        }
    }

    fn out_of_patience(&self) -> TrainError {
        failed("collating", format!("nothing came for {} s (comm.progress_s)", self.patience.as_secs()))
    }
}

/// A panic inside a task's `collate` ends the thread; its message is on standard error already.
fn stopped() -> TrainError {
    failed("collating", "the task's collate panicked (see above)".to_owned())
}

fn failed(doing: &'static str, reason: String) -> TrainError {
    TrainError::Device { device: "the loader".to_owned(), doing, reason }
}

fn prepare<T: Task>(task: &T, seed: u64, order: Order) -> Result<Prepared<T>, TrainError> {
    let epoch_key = Key::root(seed).name("sample").index(order.epoch);
    let terms = task.terms().len();
    let collate = |micro: MicroBatch| collate(task, order.which, micro, epoch_key);
    let device = |micro: Vec<MicroBatch>| -> Vec<_> { micro.into_par_iter().map(collate).collect() };
    let collated: Vec<Vec<_>> = order.devices.into_par_iter().map(device).collect();
    let mut prepared =
        Prepared { devices: Vec::new(), epoch_key, counts: vec![0; terms], samples: 0, skipped: Vec::new() };
    for micro_batches in collated {
        let mut jobs = Vec::with_capacity(micro_batches.len());
        for collated in micro_batches {
            // Of several errors the first in order: which one is told must not depend on the threads.
            let Collated { job, counts, skipped } = collated?;
            add(&mut prepared.counts, counts);
            prepared.samples += job.micro.samples.len() as u64;
            prepared.skipped.extend(skipped);
            jobs.push(job);
        }
        prepared.devices.push(jobs);
    }
    Ok(prepared)
}

pub(crate) struct Collated<T: Task> {
    pub(crate) job: Job<T>,
    counts: Vec<u64>,
    skipped: Vec<Skipped>,
}

/// One micro-batch. Pure but for what the task reads: the same samples give the same batch whenever and wherever.
pub(crate) fn collate<T: Task>(
    task: &T,
    which: Which,
    micro: MicroBatch,
    epoch_key: Key,
) -> Result<Collated<T>, TrainError> {
    let asked = Samples::new(which, &micro.samples, epoch_key);
    let batch = task.collate(&asked).map_err(|reason| TrainError::Collate { task: T::NAME, reason })?;
    let skipped = asked.into_skipped();
    let (counts, terms) = (task.counts(&batch), task.terms().len());
    if counts.len() != terms {
        let reason = format!("it names {terms} loss terms but counted {}", counts.len());
        return Err(TrainError::Collate { task: T::NAME, reason: TaskError::Other(reason) });
    }
    Ok(Collated { job: Job { micro, batch }, counts, skipped })
}

#[cfg(test)]
mod tests;
