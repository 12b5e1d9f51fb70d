//! The host's end of a device: sends commands to the device thread and receives replies. Used by
//! `pool`. All waits time out: a device hangs if it completes neither a micro-batch nor a command
//! for `hang_timeout`, however long its whole work takes.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use hetseq_comm::Waker;
use hetseq_kernels::Dtype;
use hetseq_optim::Layout;
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::thread::{DeviceCommand, DeviceReply, DeviceThread, StepDone};
use super::{DeviceKind, DeviceSpec, PrecisionPolicy};
use crate::devices::backend;
use crate::error::TrainError;
use crate::task::Task;

pub(super) const COMPUTING: &str = "computing gradients";

/// A slow GPU is logged after this time, and again each time the wait has doubled: its first steps
/// take long.
const FIRST_NOTICE: Duration = Duration::from_secs(4);

pub(super) struct DeviceHandle<T: Task> {
    pub(super) spec: DeviceSpec,
    /// The dtype of its products, once it is ready.
    pub(super) precision: Dtype,
    /// It failed and is no longer used.
    pub(super) is_lost: bool,
    commands: Sender<DeviceCommand<T>>,
    replies: Receiver<Result<DeviceReply, String>>,
    /// A reply that was received but not yet processed.
    received: Option<Result<DeviceReply, String>>,
    /// Number of replies to skip: those of a replacement that opens in the background.
    replies_to_skip: usize,
    hang_timeout: Duration,
    progress: Progress,
    /// Length of the wait at which to log the next notice.
    notice_at: Cell<Duration>,
}

/// Tracks when the device last completed something.
struct Progress {
    steps: Arc<AtomicU64>,
    seen: Cell<(u64, Instant)>,
}

impl Progress {
    fn restart(&self) {
        self.seen.set((self.steps.load(Ordering::Relaxed), Instant::now()));
    }

    /// Time since the last completed step.
    fn idle(&self) -> Duration {
        let (steps, since) = self.seen.get();
        if self.steps.load(Ordering::Relaxed) != steps {
            self.restart();
            return Duration::ZERO;
        }
        since.elapsed()
    }
}

impl<T: Task> DeviceHandle<T> {
    /// Starts the device thread. [`DeviceHandle::ready`] reports whether the device works.
    pub(super) fn start(
        spec: &DeviceSpec,
        task: &Arc<T>,
        layout: &Arc<Layout>,
        policy: PrecisionPolicy,
        waker: &Arc<OnceLock<Waker>>,
        hang_timeout: Duration,
    ) -> Result<Self, TrainError> {
        let (commands, inbox) = channel();
        let (outbox, replies) = channel();
        let pool = thread_pool(spec)?;
        let progress = Progress { steps: Arc::default(), seen: Cell::new((0, Instant::now())) };
        let thread = DeviceThread::new(
            spec.clone(),
            task.clone(),
            layout.clone(),
            waker.clone(),
            policy,
            progress.steps.clone(),
        );
        std::thread::Builder::new()
            .name(spec.name.clone())
            .spawn(move || pool.install(move || thread.run(inbox, outbox)))
            .map_err(TrainError::io(format!("starting the thread of {}", spec.name)))?;
        Ok(DeviceHandle {
            spec: spec.clone(),
            precision: Dtype::F32,
            is_lost: false,
            commands,
            replies,
            received: None,
            replies_to_skip: 0,
            hang_timeout,
            progress,
            notice_at: Cell::new(FIRST_NOTICE),
        })
    }

    /// Waits until the device is open and has built its replica.
    pub(super) fn ready(&mut self) -> Result<(), String> {
        match self.wait_for_reply("starting")? {
            DeviceReply::Ready(precision) => self.precision = precision,
            _ => return Err("unexpected reply".to_owned()),
        }
        Ok(())
    }

    /// Sends a command. If the thread has ended, receiving the reply fails.
    pub(super) fn send(&self, command: DeviceCommand<T>) {
        self.notice_at.set(FIRST_NOTICE);
        self.progress.restart();
        _ = self.commands.send(command);
    }

    /// Opens the device and loads `parameters` without waiting. The reply to the next command
    /// reports a failure.
    pub(super) fn open_in_background(&mut self, parameters: Option<Arc<Vec<f32>>>) {
        self.replies_to_skip = 1 + usize::from(parameters.is_some());
        if let Some(parameters) = parameters {
            self.send(DeviceCommand::Load(parameters));
        }
    }

    /// Waits for the reply to the last command.
    pub(super) fn wait_for_reply(&mut self, doing: &'static str) -> Result<DeviceReply, String> {
        loop {
            self.wait();
            if let Some(reply) = self.poll(doing)? {
                return Ok(reply);
            }
        }
    }

    /// Waits up to a second for a reply, and keeps it for [`DeviceHandle::poll`].
    pub(super) fn wait(&mut self) {
        let left = self.hang_timeout.saturating_sub(self.progress.idle()).min(self.notice_at.get());
        let slice = left.clamp(Duration::from_millis(1), Duration::from_secs(1));
        self.received = self.received.take().or_else(|| self.receive(slice));
    }

    /// Returns the device's part of the update, if it is done.
    pub(super) fn poll_step(&mut self) -> Result<Option<StepDone>, String> {
        match self.poll(COMPUTING)? {
            None => Ok(None),
            Some(DeviceReply::Trained(done)) => Ok(Some(done)),
            Some(_) => Err("unexpected reply".to_owned()),
        }
    }

    /// Returns the next reply, if there is one. Fails if the device hangs.
    fn poll(&mut self, doing: &'static str) -> Result<Option<DeviceReply>, String> {
        while let Some(reply) = self.received.take().or_else(|| self.receive(Duration::ZERO)) {
            match reply? {
                DeviceReply::Ready(precision) if self.replies_to_skip > 0 => self.precision = precision,
                DeviceReply::Loaded if self.replies_to_skip > 0 => {}
                reply => return Ok(Some(reply)),
            }
            self.replies_to_skip -= 1;
        }
        let idle = self.progress.idle();
        if idle > self.hang_timeout {
            let seconds = self.hang_timeout.as_secs_f64();
            return Err(format!("it hangs: it completed nothing for {seconds} s (a third of comm.progress_s)"));
        }
        self.log_if_slow(doing, idle);
        Ok(None)
    }

    fn receive(&self, timeout: Duration) -> Option<Result<DeviceReply, String>> {
        match self.replies.recv_timeout(timeout) {
            Ok(reply) => Some(reply),
            Err(RecvTimeoutError::Disconnected) => Some(Err("its thread has ended".to_owned())),
            Err(RecvTimeoutError::Timeout) => None,
        }
    }

    fn log_if_slow(&self, doing: &str, waited: Duration) {
        if self.spec.is_gpu() && waited >= self.notice_at.get() {
            self.notice_at.set(waited * 2);
            let (name, seconds) = (&self.spec.name, waited.as_secs());
            tracing::info!(
                "{name} has been {doing} for {seconds} s: its first steps compile kernels, which it then reuses"
            );
        }
    }

    pub(super) fn failed(&self, doing: &'static str, reason: String) -> TrainError {
        TrainError::Device { device: self.spec.name.clone(), doing, reason }
    }
}

/// Creates the threads of a device, pinned to their cores.
fn thread_pool(spec: &DeviceSpec) -> Result<ThreadPool, TrainError> {
    let failed = |reason| TrainError::Device { device: spec.name.clone(), doing: "starting", reason };
    let cores = match &spec.kind {
        DeviceKind::Cpu { cores, .. } => cores.clone(),
        DeviceKind::Gpu { .. } => Vec::new(),
    };
    let (name, pin_error) = (spec.name.clone(), Arc::new(Mutex::new(None)));
    let set_error = pin_error.clone();
    let pool = ThreadPoolBuilder::new()
        .num_threads(spec.threads())
        .thread_name(move |i| format!("{name}.{i}"))
        .start_handler(move |i| {
            if let Some(Err(reason)) = cores.get(i).map(|&core| backend::pin(core)) {
                *set_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
            }
        })
        .build()
        .map_err(|error| failed(error.to_string()))?;
    // Returns once all threads have started.
    pool.broadcast(|_| ());
    match pin_error.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(reason) => Err(failed(reason)),
        None => Ok(pool),
    }
}
