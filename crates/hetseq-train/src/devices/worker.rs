//! The host's end of a device: orders go out, answers come in. All waits time out: a device that completes neither a micro-batch
//! nor an order for its patience hangs, however long all of its work may take.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
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
    /// Answers to orders that were not waited for, and so are passed over: those of a stand-in that has still to open.
    unasked: usize,
    patience: Duration,
    watch: Watch,
    /// When to speak of a wait next.
    speak_at: Cell<Duration>,
}

/// When the device was last seen to complete something.
struct Watch {
    steps: Arc<AtomicU64>,
    seen: Cell<(u64, Instant)>,
}

impl Watch {
    fn restart(&self) {
        self.seen.set((self.steps.load(Ordering::Relaxed), Instant::now()));
    }

    /// For how long nothing was completed.
    fn idle(&self) -> Duration {
        let (steps, since) = self.seen.get();
        if self.steps.load(Ordering::Relaxed) != steps {
            self.restart();
            return Duration::ZERO;
        }
        since.elapsed()
    }
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
        let watch = Watch { steps: Arc::default(), seen: Cell::new((0, Instant::now())) };
        let thread =
            Thread::new(spec.clone(), task.clone(), layout.clone(), waker.clone(), wanted, watch.steps.clone());
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
            unasked: 0,
            patience,
            watch,
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
        self.watch.restart();
        _ = self.orders.send(order);
    }

    /// Opens the device and loads `parameters` without waiting for either: the answer to the next order tells.
    pub(super) fn open_later(&mut self, parameters: Option<Arc<Vec<f32>>>) {
        self.unasked = 1 + usize::from(parameters.is_some());
        if let Some(parameters) = parameters {
            self.send(Order::Load(parameters));
        }
    }

    /// Waits for the answer.
    pub(super) fn answer(&mut self, doing: &'static str) -> Result<Answer, String> {
        loop {
            self.wait();
            if let Some(answer) = self.next(doing)? {
                return Ok(answer);
            }
        }
    }

    /// Waits a while for an answer, and keeps it for [`Worker::next`].
    pub(super) fn wait(&mut self) {
        let left = self.patience.saturating_sub(self.watch.idle()).min(self.speak_at.get());
        let slice = left.clamp(Duration::from_millis(1), Duration::from_secs(1));
        self.early = self.early.take().or_else(|| self.receive(slice));
    }

    /// What it was given to compute, if it is done.
    pub(super) fn answered(&mut self) -> Result<Option<Done>, String> {
        match self.next(COMPUTING)? {
            None => Ok(None),
            Some(Answer::Trained(done)) => Ok(Some(done)),
            Some(_) => Err("it answered something else".to_owned()),
        }
    }

    /// The next answer, if it has come; an error if the device hangs.
    fn next(&mut self, doing: &'static str) -> Result<Option<Answer>, String> {
        while let Some(answer) = self.early.take().or_else(|| self.receive(Duration::ZERO)) {
            match answer? {
                Answer::Ready(precision) if self.unasked > 0 => self.precision = precision,
                Answer::Loaded if self.unasked > 0 => {}
                answer => return Ok(Some(answer)),
            }
            self.unasked -= 1;
        }
        let idle = self.watch.idle();
        if idle > self.patience {
            let seconds = self.patience.as_secs_f64();
            return Err(format!("it hangs: nothing was completed for {seconds} s (a third of comm.progress_s)"));
        }
        self.speak_of(doing, idle);
        Ok(None)
    }

    fn receive(&self, limit: Duration) -> Option<Result<Answer, String>> {
        match self.answers.recv_timeout(limit) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Disconnected) => Some(Err("its thread has ended".to_owned())),
            Err(RecvTimeoutError::Timeout) => None,
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

    pub(super) fn failed(&self, doing: &'static str, reason: String) -> TrainError {
        TrainError::Device { device: self.spec.name.clone(), doing, reason }
    }
}

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
