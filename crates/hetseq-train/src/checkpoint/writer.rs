//! Rank 0's background checkpoint writer: one thread, one save at a time, while training continues.
//! A failed snapshot is kept and retried until it is written or a newer one replaces it.
//!
//! The trainer (`trainer/checkpointing.rs`) calls this at update boundaries. It decides what to
//! report and whether to stop. Time and the save function are arguments.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use super::{SaveError, Saved, Snapshot};
use crate::error::TrainError;
use crate::trainer::running_time::recv_timeout;

/// Delay before a failed save is retried, unless the next regular save comes earlier.
pub(crate) const RETRY: Duration = Duration::from_secs(120);

pub(crate) struct CheckpointWriter {
    queue: Sender<Snapshot>,
    finished: Receiver<FinishedSave>,
    running: Option<RunningSave>,
    failed: Option<FailedSave>,
    /// Buffers for the next snapshot.
    spare: Option<Snapshot>,
    /// The update of the newest complete checkpoint.
    saved: Option<u64>,
}

/// The save in progress.
struct RunningSave {
    update: u64,
    paused: Duration,
    earlier_tries: u32,
}

/// A snapshot that could not be written.
struct FailedSave {
    snapshot: Snapshot,
    since: Instant,
    tries: u32,
}

/// The writer thread's reply.
struct FinishedSave {
    snapshot: Snapshot,
    result: Result<Saved, SaveError>,
    took: Duration,
}

/// The result of a save.
pub(crate) enum SaveStatus {
    Saved {
        update: u64,
        saved: Saved,
        is_best: bool,
        /// Time to write it, in the background.
        took: Duration,
        /// How long training was paused for it.
        paused: Duration,
    },
    Failed {
        update: u64,
        /// Completed epochs at the time of the snapshot.
        epoch: u64,
        save_error: SaveError,
        /// Number of attempts, including this one.
        tries: u32,
    },
}

impl CheckpointWriter {
    /// Starts the thread. `save` writes one snapshot on it; `saved` is the update of the checkpoint
    /// that the run resumes from.
    pub(crate) fn start(
        saved: Option<u64>,
        save: impl Fn(&Snapshot) -> Result<Saved, SaveError> + Send + 'static,
    ) -> Result<Self, TrainError> {
        let (queue, inbox) = channel::<Snapshot>();
        let (outbox, finished) = channel();
        let work = move || {
            for snapshot in inbox {
                let started = Instant::now();
                let result = save(&snapshot);
                if outbox.send(FinishedSave { snapshot, result, took: started.elapsed() }).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new()
            .name("checkpoints".to_owned())
            .spawn(work)
            .map_err(TrainError::io("starting the thread that writes checkpoints"))?;
        Ok(CheckpointWriter { queue, finished, running: None, failed: None, spare: None, saved })
    }

    /// The update of the newest complete checkpoint.
    pub(crate) fn saved(&self) -> Option<u64> {
        self.saved
    }

    /// The update whose checkpoint is being written.
    pub(crate) fn in_progress(&self) -> Option<u64> {
        self.running.as_ref().map(|running| running.update)
    }

    /// The update whose checkpoint could not be written and waits for a retry.
    pub(crate) fn failed(&self) -> Option<u64> {
        self.failed.as_ref().map(|failed| failed.snapshot.update())
    }

    /// Returns the result of the save in progress, if it has finished.
    pub(crate) fn poll(&mut self, now: Instant) -> Result<Option<SaveStatus>, TrainError> {
        if self.running.is_none() {
            return Ok(None);
        }
        match self.finished.try_recv() {
            Ok(finished) => Ok(Some(self.finish(finished, now))),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(broken("it panicked (see above)".to_owned())),
        }
    }

    /// Waits for the save in progress and returns its result. Returns `None` if there is none.
    pub(crate) fn wait(&mut self, timeout: Duration) -> Result<Option<SaveStatus>, TrainError> {
        if self.running.is_none() {
            return Ok(None);
        }
        let reason = match recv_timeout(&self.finished, timeout) {
            Ok(finished) => return Ok(Some(self.finish(finished, Instant::now()))),
            Err(RecvTimeoutError::Disconnected) => "it panicked (see above)".to_owned(),
            Err(RecvTimeoutError::Timeout) => {
                format!("it did not finish within {} s (comm.progress_s)", timeout.as_secs_f64())
            }
        };
        // Later calls must not wait for it again.
        self.running = None;
        Err(broken(reason))
    }

    fn finish(&mut self, FinishedSave { snapshot, result, took }: FinishedSave, now: Instant) -> SaveStatus {
        let update = snapshot.update();
        let (paused, tries) =
            self.running.take().map_or((Duration::ZERO, 1), |save| (save.paused, 1 + save.earlier_tries));
        match result {
            Ok(saved) => {
                let is_best = snapshot.is_best();
                self.spare = Some(snapshot);
                self.saved = Some(update);
                SaveStatus::Saved { update, saved, is_best, took, paused }
            }
            Err(save_error) => {
                let epoch = snapshot.state.cursor.epoch;
                self.failed = Some(FailedSave { snapshot, since: now, tries });
                SaveStatus::Failed { update, epoch, save_error, tries }
            }
        }
    }

    /// Retries the failed save once [`RETRY`] has passed.
    pub(crate) fn retry_if_due(&mut self, now: Instant) -> Result<(), TrainError> {
        match self.failed.take_if(|failed| now.duration_since(failed.since) >= RETRY) {
            Some(FailedSave { snapshot, tries, .. }) => self.send(snapshot, Duration::ZERO, tries),
            None => Ok(()),
        }
    }

    /// Drops the failed snapshot before a newer one is saved. Returns its update.
    pub(crate) fn drop_failed(&mut self) -> Option<u64> {
        let FailedSave { snapshot, .. } = self.failed.take()?;
        let update = snapshot.update();
        self.spare = Some(snapshot);
        Some(update)
    }

    /// Buffers for the next snapshot.
    pub(crate) fn spare(&mut self) -> Option<Snapshot> {
        self.spare.take()
    }

    /// Starts writing `snapshot`. Call [`CheckpointWriter::wait`] and
    /// [`CheckpointWriter::drop_failed`] first. `paused` is how long training was paused.
    pub(crate) fn begin(&mut self, snapshot: Snapshot, paused: Duration) -> Result<(), TrainError> {
        self.send(snapshot, paused, 0)
    }

    fn send(&mut self, snapshot: Snapshot, paused: Duration, earlier_tries: u32) -> Result<(), TrainError> {
        self.running = Some(RunningSave { update: snapshot.update(), paused, earlier_tries });
        self.queue.send(snapshot).map_err(|_| broken("it panicked (see above)".to_owned()))
    }
}

fn broken(reason: String) -> TrainError {
    TrainError::io("waiting for the thread that writes checkpoints")(io::Error::other(reason))
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::sync::Mutex;

    use super::*;
    use crate::checkpoint::tests::snapshot;

    const TIMEOUT: Duration = Duration::from_secs(20);

    /// A writer whose saves return the results that the test sends, one per save.
    fn writer(results: Receiver<Result<(), i32>>) -> CheckpointWriter {
        let results = Mutex::new(results);
        let save = move |snapshot: &Snapshot| match results.lock().unwrap().recv_timeout(TIMEOUT).unwrap_or(Err(5)) {
            Ok(()) => Ok(Saved { path: PathBuf::from(format!("step-{}", snapshot.update())), warnings: Vec::new() }),
            Err(code) => Err(SaveError::new(Path::new("/x/step"), io::Error::from_raw_os_error(code), 1)),
        };
        CheckpointWriter::start(Some(3), save).unwrap()
    }

    #[test]
    fn a_save_runs_in_the_background() {
        let (send_result, results) = channel();
        let mut writer = writer(results);
        writer.begin(snapshot(5, Some(5), 1.0), Duration::from_millis(7)).unwrap();
        assert!(writer.poll(Instant::now()).unwrap().is_none());
        assert_eq!((writer.saved(), writer.in_progress()), (Some(3), Some(5)));
        send_result.send(Ok(())).unwrap();
        let Some(SaveStatus::Saved { update: 5, saved, is_best: true, paused, .. }) = writer.wait(TIMEOUT).unwrap()
        else {
            panic!("not saved")
        };
        assert_eq!((saved.path, paused), (PathBuf::from("step-5"), Duration::from_millis(7)));
        assert_eq!((writer.saved(), writer.in_progress()), (Some(5), None));
        assert_eq!(writer.spare().map(|spare| spare.update()), Some(5));
        assert!(writer.wait(TIMEOUT).unwrap().is_none());
    }

    #[test]
    fn a_failed_save_is_retried_after_a_delay() {
        let (send_result, results) = channel();
        let mut writer = writer(results);
        writer.begin(snapshot(5, None, 1.0), Duration::ZERO).unwrap();
        for tries in 1..=2 {
            send_result.send(Err(28)).unwrap();
            let Some(SaveStatus::Failed { update: 5, tries: counted, save_error, .. }) = writer.wait(TIMEOUT).unwrap()
            else {
                panic!("not failed")
            };
            assert_eq!(counted, tries);
            assert!(save_error.to_string().contains("No space left"));
            assert_eq!((writer.saved(), writer.failed()), (Some(3), Some(5)));
            writer.retry_if_due(Instant::now()).unwrap();
            assert_eq!(writer.in_progress(), None, "too early");
            writer.retry_if_due(Instant::now() + RETRY).unwrap();
            assert_eq!(writer.in_progress(), Some(5));
        }
        send_result.send(Ok(())).unwrap();
        assert!(matches!(writer.wait(TIMEOUT).unwrap(), Some(SaveStatus::Saved { update: 5, .. })));
        assert_eq!(writer.drop_failed(), None);
    }

    #[test]
    fn a_newer_snapshot_replaces_a_failed_one() {
        let (send_result, results) = channel();
        let mut writer = writer(results);
        send_result.send(Err(5)).unwrap();
        writer.begin(snapshot(5, None, 1.0), Duration::ZERO).unwrap();
        assert!(matches!(writer.wait(TIMEOUT).unwrap(), Some(SaveStatus::Failed { .. })));
        assert_eq!(writer.drop_failed(), Some(5));
        assert!(writer.spare().is_some());
        send_result.send(Ok(())).unwrap();
        writer.begin(snapshot(9, None, 1.0), Duration::ZERO).unwrap();
        assert!(matches!(writer.wait(TIMEOUT).unwrap(), Some(SaveStatus::Saved { update: 9, .. })));
        writer.retry_if_due(Instant::now() + RETRY).unwrap();
        assert_eq!(writer.in_progress(), None);
    }

    #[test]
    fn a_thread_that_panics_or_hangs_is_an_error() {
        let mut writer = CheckpointWriter::start(None, |_| panic!("on purpose")).unwrap();
        writer.begin(snapshot(5, None, 1.0), Duration::ZERO).unwrap();
        assert!(writer.wait(TIMEOUT).err().unwrap().to_string().contains("panicked"));
        let (_send_result, results) = channel();
        let mut writer = self::writer(results);
        writer.begin(snapshot(5, None, 1.0), Duration::ZERO).unwrap();
        assert!(writer.wait(Duration::from_millis(50)).err().unwrap().to_string().contains("within 0.05 s"));
        assert!(writer.wait(TIMEOUT).unwrap().is_none());
    }
}
