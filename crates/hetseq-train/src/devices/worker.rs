//! The host's end of a device: orders go out, answers come in, and nobody waits for ever.

use std::cell::Cell;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use hetseq_comm::Waker;
use hetseq_kernels::Precision;
use hetseq_optim::Layout;
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::thread::{Answer, Done, Order, Thread};
use super::{COMPUTING, DeviceSpec, Place, Wanted};
use crate::engine;
use crate::error::TrainError;
use crate::task::Task;

/// A GPU that has not answered for so long is spoken of, and again each time the wait has doubled: its first steps take long.
const UNEASY: Duration = Duration::from_secs(4);

pub(super) struct Worker<T: Task> {
    pub(super) spec: DeviceSpec,
    /// What it computes in, once it is ready.
    pub(super) precision: Precision,
    /// It failed, and computes no more.
    pub(super) is_lost: bool,
    orders: Sender<Order<T>>,
    answers: Receiver<Result<Answer, String>>,
    /// An answer that was waited for but not looked at.
    early: Option<Result<Answer, String>>,
    patience: Duration,
    /// When to speak of a wait next.
    speak_at: Cell<Duration>,
}

impl<T: Task> Worker<T> {
    /// The thread is started; whether the device works, [`Worker::ready`] tells.
    pub(super) fn start(
        spec: &DeviceSpec,
        task: &Arc<T>,
        layout: &Arc<Layout>,
        wanted: Wanted,
        waker: &Arc<OnceLock<Waker>>,
        patience: Duration,
    ) -> Result<Self, TrainError> {
        let (orders, inbox) = channel();
        let (outbox, answers) = channel();
        let pool = pool(spec)?;
        let thread = Thread::new(spec.clone(), task.clone(), layout.clone(), waker.clone(), wanted);
        std::thread::Builder::new()
            .name(spec.name.clone())
            .spawn(move || pool.install(move || thread.run(inbox, outbox)))
            .map_err(TrainError::io(format!("starting the thread of {}", spec.name)))?;
        Ok(Worker {
            spec: spec.clone(),
            precision: Precision::F32,
            is_lost: false,
            orders,
            answers,
            early: None,
            patience,
            speak_at: Cell::new(UNEASY),
        })
    }

    /// Waits until the device has been opened and has the model.
    pub(super) fn ready(&mut self) -> Result<(), String> {
        match self.answer("starting")? {
            Answer::Ready(precision) => self.precision = precision,
            _ => return Err("it answered something else".to_owned()),
        }
        Ok(())
    }

    /// If its thread has ended, that shows when the answer is asked for.
    pub(super) fn send(&self, order: Order<T>) {
        self.speak_at.set(UNEASY);
        _ = self.orders.send(order);
    }

    /// Waits for the answer.
    pub(super) fn answer(&mut self, doing: &'static str) -> Result<Answer, String> {
        if let Some(answer) = self.early.take() {
            return answer;
        }
        let since = Instant::now();
        loop {
            let waited = since.elapsed();
            if waited > self.patience {
                return Err(self.out_of_patience());
            }
            self.speak_of(doing, waited);
            let slice = (self.speak_at.get().saturating_sub(waited)).min(self.patience - waited);
            match self.answers.recv_timeout(slice.max(Duration::from_millis(1))) {
                Ok(answer) => return answer,
                Err(RecvTimeoutError::Disconnected) => return Err(ENDED.to_owned()),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Waits a while for an answer, and keeps it for [`Worker::answered`].
    pub(super) fn wait(&mut self) {
        if self.early.is_none() {
            let slice = self.speak_at.get().min(Duration::from_secs(1)).max(Duration::from_millis(1));
            self.early = match self.answers.recv_timeout(slice) {
                Ok(answer) => Some(answer),
                Err(RecvTimeoutError::Disconnected) => Some(Err(ENDED.to_owned())),
                Err(RecvTimeoutError::Timeout) => None,
            };
        }
    }

    /// What it was given to compute at `since`, if it is done.
    pub(super) fn answered(&mut self, since: Instant) -> Result<Option<Done>, String> {
        let answer = match self.early.take() {
            Some(answer) => answer,
            None => match self.answers.try_recv() {
                Ok(answer) => answer,
                Err(TryRecvError::Disconnected) => return Err(ENDED.to_owned()),
                Err(TryRecvError::Empty) => {
                    let waited = since.elapsed();
                    if waited > self.patience {
                        return Err(self.out_of_patience());
                    }
                    self.speak_of(COMPUTING, waited);
                    return Ok(None);
                }
            },
        };
        match answer? {
            Answer::Trained(done) => Ok(Some(done)),
            _ => Err("it answered something else".to_owned()),
        }
    }

    fn speak_of(&self, doing: &str, waited: Duration) {
        if self.spec.is_gpu() && waited >= self.speak_at.get() {
            self.speak_at.set(waited * 2);
            let (name, seconds) = (&self.spec.name, waited.as_secs());
            tracing::info!(
                "{name} is {doing}, for {seconds} s by now: the first time it compiles its programs, which it then keeps"
            );
        }
    }

    fn out_of_patience(&self) -> String {
        format!("no answer for {} s (comm.progress_s)", self.patience.as_secs())
    }

    pub(super) fn failed(&self, doing: &'static str, reason: String) -> TrainError {
        TrainError::Device { device: self.spec.name.clone(), doing, reason }
    }
}

const ENDED: &str = "its thread has ended";

/// The threads of a device, on their cores.
fn pool(spec: &DeviceSpec) -> Result<ThreadPool, TrainError> {
    let failed = |reason| TrainError::Device { device: spec.name.clone(), doing: "starting", reason };
    let cores = match &spec.place {
        Place::Cpu { cores, .. } => cores.clone(),
        Place::Gpu { .. } => Vec::new(),
    };
    let (name, trouble) = (spec.name.clone(), Arc::new(Mutex::new(None)));
    let told = trouble.clone();
    let pool = ThreadPoolBuilder::new()
        .num_threads(spec.threads())
        .thread_name(move |i| format!("{name}.{i}"))
        .start_handler(move |i| {
            if let Some(Err(reason)) = cores.get(i).map(|&core| engine::pin(core)) {
                *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
            }
        })
        .build()
        .map_err(|error| failed(error.to_string()))?;
    // Only now all have started.
    pool.broadcast(|_| ());
    match trouble.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(reason) => Err(failed(reason)),
        None => Ok(pool),
    }
}
