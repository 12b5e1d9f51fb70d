//! The host's end of a device: sends commands to the device thread and receives replies. Used by
//! `pool`. All waits time out: a device hangs if it completes neither a micro-batch nor a command
//! for `hang_timeout`, however long its whole work takes. Pauses of the whole process do not count.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rayon::{ThreadPool, ThreadPoolBuilder};

use super::thread::{DeviceCommand, DeviceReply, DeviceSetup, DeviceThread, OpenDevice, WorkDone};
use super::{DeviceKind, DeviceSpec};
use crate::devices::backend;
use crate::error::TrainError;
use crate::task::ComputeError;
use crate::trainer::running_time::RunningInstant;

/// A slow GPU is logged after this time, and again each time the wait has doubled: its first steps
/// take long.
const FIRST_NOTICE: Duration = Duration::from_secs(4);

/// More than `hetseq-engine` waits for the start of a program, whose error says more.
const ENGINE_START_TIMEOUT: Duration = Duration::from_secs(600);

pub(super) struct DeviceHandle {
    pub(super) spec: DeviceSpec,
    /// What it says of itself, once it is ready.
    pub(super) open: OpenDevice,
    /// It failed and is no longer used.
    pub(super) is_lost: bool,
    commands: Sender<DeviceCommand>,
    replies: Receiver<Result<DeviceReply, ComputeError>>,
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
    seen: Cell<(u64, RunningInstant)>,
}

impl Progress {
    fn restart(&self) {
        self.seen.set((self.steps.load(Ordering::Relaxed), RunningInstant::now()));
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

impl DeviceHandle {
    /// Starts the device thread. [`DeviceHandle::ready`] reports whether the device works.
    pub(super) fn start(spec: &DeviceSpec, setup: &DeviceSetup) -> Result<Self, TrainError> {
        let (commands, inbox) = channel();
        let (outbox, replies) = channel();
        let pool = thread_pool(spec)?;
        let progress = Progress { steps: Arc::default(), seen: Cell::new((0, RunningInstant::now())) };
        let thread = DeviceThread::new(spec.clone(), setup.clone(), progress.steps.clone());
        std::thread::Builder::new()
            .name(spec.name.clone())
            .spawn(move || pool.install(move || thread.run(inbox, outbox)))
            .map_err(TrainError::io(format!("starting the thread of {}", spec.name)))?;
        Ok(DeviceHandle {
            spec: spec.clone(),
            open: OpenDevice::default(),
            is_lost: false,
            commands,
            replies,
            replies_to_skip: 0,
            hang_timeout: setup.hang_timeout,
            progress,
            notice_at: Cell::new(FIRST_NOTICE),
        })
    }

    /// Waits until the device is open and has built its replica. Another program may take longer to
    /// start than for a micro-batch.
    pub(super) fn ready(&mut self) -> Result<(), ComputeError> {
        let start_timeout = if self.spec.is_engine() { ENGINE_START_TIMEOUT } else { Duration::ZERO };
        let hang_timeout = self.hang_timeout;
        self.hang_timeout = hang_timeout.max(start_timeout);
        let reply = self.wait_for_reply("starting");
        self.hang_timeout = hang_timeout;
        match reply? {
            DeviceReply::Ready(open) => self.open = open,
            _ => return Err(ComputeError::UnexpectedReply),
        }
        Ok(())
    }

    /// Sends a command. If the thread has ended, receiving the reply fails.
    pub(super) fn send(&self, command: DeviceCommand) {
        self.notice_at.set(FIRST_NOTICE);
        self.progress.restart();
        _ = self.commands.send(command);
    }

    /// Opens the device and loads `parameters` without waiting. The reply to the next command
    /// reports a failure.
    pub(super) fn open_in_background(&mut self, parameters: Option<Arc<Vec<f32>>>) {
        self.replies_to_skip = 1 + usize::from(parameters.is_some());
        if let Some(parameters) = parameters {
            let count = parameters.len();
            self.send(DeviceCommand::Load { parameters, count });
        }
    }

    /// Waits for the reply to the last command.
    pub(super) fn wait_for_reply(&mut self, doing: &'static str) -> Result<DeviceReply, ComputeError> {
        loop {
            if let Some(reply) = self.poll_within(self.longest_wait(), doing)? {
                return Ok(reply);
            }
        }
    }

    /// How long to wait before looking again: up to a second, and not beyond a deadline.
    pub(super) fn longest_wait(&self) -> Duration {
        let left = self.hang_timeout.saturating_sub(self.progress.idle()).min(self.notice_at.get());
        left.clamp(Duration::from_millis(1), Duration::from_secs(1))
    }

    /// Returns the result of the oldest work that it was given, if it is done. Never waits.
    pub(super) fn poll_work(&mut self, doing: &'static str) -> Result<Option<WorkDone>, ComputeError> {
        match self.poll_within(Duration::ZERO, doing)? {
            None => Ok(None),
            Some(DeviceReply::Done(done)) => Ok(Some(done)),
            Some(_) => Err(ComputeError::UnexpectedReply),
        }
    }

    /// Returns the next reply, if there is one within `limit`. Fails if the device hangs.
    fn poll_within(&mut self, limit: Duration, doing: &'static str) -> Result<Option<DeviceReply>, ComputeError> {
        let mut limit = limit;
        while let Some(reply) = self.receive(limit) {
            match reply? {
                DeviceReply::Ready(open) if self.replies_to_skip > 0 => self.open = open,
                DeviceReply::Loaded if self.replies_to_skip > 0 => {}
                reply => return Ok(Some(reply)),
            }
            self.replies_to_skip -= 1;
            limit = Duration::ZERO;
        }
        let idle = self.progress.idle();
        if idle > self.hang_timeout {
            return Err(ComputeError::Hung(self.hang_timeout));
        }
        self.log_if_slow(doing, idle);
        Ok(None)
    }

    fn receive(&self, timeout: Duration) -> Option<Result<DeviceReply, ComputeError>> {
        match self.replies.recv_timeout(timeout) {
            Ok(reply) => Some(reply),
            Err(RecvTimeoutError::Disconnected) => Some(Err(ComputeError::ThreadEnded)),
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

    pub(super) fn failed(&self, doing: &'static str, reason: impl ToString) -> TrainError {
        TrainError::Device { device: self.spec.name.clone(), doing, reason: reason.to_string() }
    }
}

/// Creates the threads of a device, pinned to their cores.
fn thread_pool(spec: &DeviceSpec) -> Result<ThreadPool, TrainError> {
    let failed = |reason| TrainError::Device { device: spec.name.clone(), doing: "starting", reason };
    let cores = match &spec.kind {
        DeviceKind::Cpu { cores, .. } => cores.clone(),
        DeviceKind::Gpu { .. } | DeviceKind::Engine { .. } => Vec::new(),
    };
    // An engine's threads are in its own process.
    let threads = if spec.is_engine() { 1 } else { spec.threads() };
    let (name, pin_error) = (spec.name.clone(), Arc::new(Mutex::new(None)));
    let set_error = pin_error.clone();
    let pool = ThreadPoolBuilder::new()
        .num_threads(threads)
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
