//! Micro-batches ahead of time: a thread that collates the work of the next update while the devices compute this one.
//! It can, because who does what in update k + 1 is known as soon as the header of update k is agreed.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use hetseq_random::Key;

use crate::error::TrainError;
use crate::replica::add;
use crate::task::{Samples, Task, TaskError, Which};

/// One micro-batch, ready for a device.
pub(crate) struct Job<T: Task> {
    pub(crate) samples: Vec<u32>,
    pub(crate) batch: T::Batch,
}

/// What to collate: for each local device its micro-batches as sample ids.
pub(crate) struct Order {
    pub(crate) which: Which,
    pub(crate) epoch: u64,
    pub(crate) devices: Vec<Vec<Vec<u32>>>,
}

/// An order carried out.
pub(crate) struct Prepared<T: Task> {
    pub(crate) devices: Vec<Vec<Job<T>>>,
    /// Per loss term, over all local devices.
    pub(crate) counts: Vec<u64>,
    pub(crate) samples: u64,
}

pub(crate) struct Loader<T: Task> {
    orders: Sender<Order>,
    prepared: Receiver<Result<Prepared<T>, TrainError>>,
    patience: Duration,
}

impl<T: Task> Loader<T> {
    /// `patience`: how long to wait for one order, such as a file system that hangs.
    pub(crate) fn start(task: Arc<T>, seed: u64, patience: Duration) -> Result<Self, TrainError> {
        let (orders, inbox) = channel::<Order>();
        let (outbox, prepared) = channel();
        let work = move || {
            for order in inbox {
                if outbox.send(prepare(&*task, seed, order)).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new()
            .name("loader".to_owned())
            .spawn(work)
            .map_err(TrainError::io("starting the loader thread"))?;
        Ok(Loader { orders, prepared, patience })
    }

    pub(crate) fn order(&self, order: Order) -> Result<(), TrainError> {
        self.orders.send(order).map_err(|_| stopped())
    }

    /// The oldest order that was not taken yet, waiting for it if need be.
    pub(crate) fn take(&self) -> Result<Prepared<T>, TrainError> {
        match self.prepared.recv_timeout(self.patience) {
            Ok(prepared) => prepared,
            Err(RecvTimeoutError::Disconnected) => Err(stopped()),
            Err(RecvTimeoutError::Timeout) => Err(failed(format!("nothing came for {} s", self.patience.as_secs()))),
        }
    }
}

/// A panic inside a task's `collate` ends the thread; its message is on standard error already.
fn stopped() -> TrainError {
    failed("the task's collate panicked (see above)".to_owned())
}

fn failed(reason: String) -> TrainError {
    TrainError::Device { device: "the loader".to_owned(), doing: "collating", reason }
}

fn prepare<T: Task>(task: &T, seed: u64, order: Order) -> Result<Prepared<T>, TrainError> {
    let epoch_key = Key::root(seed).name("sample").index(order.epoch);
    let mut prepared = Prepared { devices: Vec::new(), counts: vec![0; task.terms().len()], samples: 0 };
    for micro_batches in order.devices {
        let mut jobs = Vec::with_capacity(micro_batches.len());
        for samples in micro_batches {
            let batch = task
                .collate(&Samples { which: order.which, ids: &samples, epoch_key })
                .map_err(|reason| TrainError::Collate { task: T::NAME, reason })?;
            let counts = task.counts(&batch);
            if counts.len() != prepared.counts.len() {
                let reason = format!("it names {} loss terms but counted {}", prepared.counts.len(), counts.len());
                return Err(TrainError::Collate { task: T::NAME, reason: TaskError::Other(reason) });
            }
            add(&mut prepared.counts, counts);
            prepared.samples += samples.len() as u64;
            jobs.push(Job { samples, batch });
        }
        prepared.devices.push(jobs);
    }
    Ok(prepared)
}
