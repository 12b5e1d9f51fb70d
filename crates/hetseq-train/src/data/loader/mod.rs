//! Loading micro-batches ahead of time: while the devices compute an update, the loader's threads
//! read and collate the next ones. The split of an update is decided early to make this possible
//! (see `trainer`).
//!
//! Requests are processed one after the other and results come in the order of requests. Inside a
//! request all micro-batches are collated in parallel, and a task may use rayon for the samples of
//! one. Memory holds what was requested; the trainer bounds that by `run.prefetch`.

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use hetseq_comm::Waker;
use hetseq_data::Batch;
use hetseq_random::Key;
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use thiserror::Error;

use crate::devices::DeviceSpec;
use crate::error::TrainError;
use crate::task::skipped_samples::SkippedSample;
use crate::task::totals::add;
use crate::task::{OpenedTask, Samples, Split, TaskError};
use crate::trainer::running_time::{RunningInstant, recv_timeout};

/// One micro-batch, ready for a device.
pub(crate) struct Job {
    pub(crate) micro: MicroBatch,
    pub(crate) batch: Batch,
}

/// Why the loader cannot continue. An error of the task's `collate` is none of these.
#[derive(Debug, Error)]
pub enum LoaderError {
    #[error("its threads could not be started: {0}")]
    Start(String),
    #[error("the task's collate panicked (see above)")]
    Panicked,
    #[error("collating timed out after {} s (comm.progress_s)", .0.as_secs())]
    TimedOut(Duration),
}

/// Samples that go through the model together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MicroBatch {
    pub(crate) samples: Vec<u32>,
    /// Tokens of the longest sample: all are padded to it.
    pub(crate) longest: u32,
}

impl MicroBatch {
    /// Tokens to compute, padding included.
    pub(crate) fn tokens(&self) -> u64 {
        self.samples.len() as u64 * u64::from(self.longest)
    }

    /// Two halves, for a device that cannot hold the whole. `longest` may be more than a half
    /// needs, never less.
    pub(crate) fn halves(self) -> [MicroBatch; 2] {
        let MicroBatch { mut samples, longest } = self;
        let rest = samples.split_off(samples.len().div_ceil(2));
        [samples, rest].map(|samples| MicroBatch { samples, longest })
    }
}

/// What to load: for each local device its micro-batches.
pub(crate) struct LoadRequest {
    pub(crate) split: Split,
    pub(crate) epoch: u64,
    pub(crate) devices: Vec<Vec<MicroBatch>>,
}

/// The result of a [`LoadRequest`].
pub(crate) struct LoadedUpdate {
    pub(crate) devices: Vec<Vec<Arc<Job>>>,
    /// The key of the randomness of its samples.
    pub(crate) epoch_key: Key,
    /// Per loss term, over all local devices.
    pub(crate) counts: Vec<u64>,
    /// Including those that were skipped.
    pub(crate) samples: u64,
    pub(crate) skipped: Vec<SkippedSample>,
}

pub(crate) struct Loader {
    requests: Sender<LoadRequest>,
    loaded: Receiver<Result<LoadedUpdate, TrainError>>,
    timeout: Duration,
    /// When the trainer started to wait for the oldest request.
    waiting_since: Cell<Option<RunningInstant>>,
}

/// The threads of this process's loaders: as many as `configured`, or as the devices leave cores.
pub(crate) fn pool(
    configured: Option<usize>,
    devices: &[DeviceSpec],
    cores: NonZeroUsize,
) -> Result<Arc<ThreadPool>, TrainError> {
    let busy = devices.iter().map(DeviceSpec::threads).sum();
    let pool = ThreadPoolBuilder::new()
        .num_threads(configured.unwrap_or_else(|| spare_threads(cores.get(), busy)))
        .thread_name(|i| format!("loader.{i}"))
        .build()
        .map_err(|error| LoaderError::Start(error.to_string()))?;
    Ok(Arc::new(pool))
}

/// At least one thread, though it takes time from a device where no core is free. At most 16: with
/// more, the disk or the network is the limit.
fn spare_threads(cores: usize, busy: usize) -> usize {
    cores.saturating_sub(busy).clamp(1, 16)
}

impl Loader {
    /// Starts the loader's thread. `timeout` limits the wait for one request, such as on a file
    /// system that hangs. `waker` wakes a rank that polls with [`Loader::try_take`].
    pub(crate) fn start(
        task: &OpenedTask,
        seed: u64,
        pool: &Arc<ThreadPool>,
        timeout: Duration,
        waker: Option<Waker>,
    ) -> Result<Self, TrainError> {
        let (requests, inbox) = channel::<LoadRequest>();
        let (outbox, loaded) = channel();
        let (task, pool) = (task.clone(), pool.clone());
        let work = move || {
            for request in inbox {
                if outbox.send(pool.install(|| load(&task, seed, request))).is_err() {
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
        Ok(Loader { requests, loaded, timeout, waiting_since: Cell::new(None) })
    }

    pub(crate) fn request(&self, request: LoadRequest) -> Result<(), TrainError> {
        // A panic inside a task's `collate` ends the thread.
        self.requests.send(request).map_err(|_| LoaderError::Panicked.into())
    }

    /// Returns the result of the oldest request that was not taken yet; waits for it.
    pub(crate) fn take(&self) -> Result<LoadedUpdate, TrainError> {
        self.receive(self.timeout)?.ok_or_else(|| self.timed_out())
    }

    /// Returns the result of the oldest request that was not taken yet, if it is ready. Fails if it
    /// was polled for longer than the timeout.
    pub(crate) fn try_take(&self) -> Result<Option<LoadedUpdate>, TrainError> {
        let since = self.waiting_since.get().unwrap_or_else(RunningInstant::now);
        let taken = self.receive(Duration::ZERO)?;
        self.waiting_since.set(taken.is_none().then_some(since));
        if taken.is_none() && since.elapsed() > self.timeout {
            return Err(self.timed_out());
        }
        Ok(taken)
    }

    fn receive(&self, limit: Duration) -> Result<Option<LoadedUpdate>, TrainError> {
        match recv_timeout(&self.loaded, limit) {
            Ok(loaded) => loaded.map(Some),
            Err(RecvTimeoutError::Disconnected) => Err(LoaderError::Panicked.into()),
            Err(RecvTimeoutError::Timeout) => Ok(None),
        }
    }

    fn timed_out(&self) -> TrainError {
        LoaderError::TimedOut(self.timeout).into()
    }
}

fn load(task: &OpenedTask, seed: u64, request: LoadRequest) -> Result<LoadedUpdate, TrainError> {
    let epoch_key = Key::root(seed).name("sample").index(request.epoch);
    let collate = |micro: MicroBatch| collate(task, request.split, micro, epoch_key);
    let device = |micro: Vec<MicroBatch>| -> Vec<_> { micro.into_par_iter().map(collate).collect() };
    let collated: Vec<Vec<_>> = request.devices.into_par_iter().map(device).collect();
    let counts = vec![0; task.data.terms().len()];
    let mut loaded = LoadedUpdate { devices: Vec::new(), epoch_key, counts, samples: 0, skipped: Vec::new() };
    for micro_batches in collated {
        let mut jobs = Vec::with_capacity(micro_batches.len());
        for collated in micro_batches {
            // The first error in order: which one is reported must not depend on the threads.
            let Collated { job, skipped } = collated.map_err(|reason| task.collate_error(reason))?;
            add(&mut loaded.counts, job.batch.counts());
            loaded.samples += job.micro.samples.len() as u64;
            loaded.skipped.extend(skipped);
            jobs.push(Arc::new(job));
        }
        loaded.devices.push(jobs);
    }
    Ok(loaded)
}

pub(crate) struct Collated {
    pub(crate) job: Job,
    skipped: Vec<SkippedSample>,
}

/// Collates one micro-batch. Pure except for what the task reads: the same samples give the same
/// batch at any time, on any rank.
pub(crate) fn collate(
    task: &OpenedTask,
    split: Split,
    micro: MicroBatch,
    epoch_key: Key,
) -> Result<Collated, TaskError> {
    let samples = Samples::new(split, &micro.samples, epoch_key);
    let batch = task.data.collate(&samples)?;
    batch.check()?;
    let skipped = samples.into_skipped();
    let (counts, terms) = (batch.counts().len(), task.data.terms().len());
    if counts != terms {
        return Err(format!("it names {terms} loss terms but counted {counts}").into());
    }
    Ok(Collated { job: Job { micro, batch }, skipped })
}

#[cfg(test)]
mod tests;
