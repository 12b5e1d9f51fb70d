//! Rank 0's saves, written by a thread of their own while training goes on: one at a time. What could not be written is
//! held and tried again, until it is written or a newer one takes its place.
//!
//! What to tell whom, and whether to go on, is for the trainer (`trainer/saving.rs`). It calls at update boundaries;
//! time and the writing itself are arguments.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use super::{Saved, Snapshot, Trouble};
use crate::error::TrainError;

/// A save that failed is tried again after so long, if the next one is not due earlier.
pub(crate) const RETRY: Duration = Duration::from_secs(120);

pub(crate) struct Saver {
    orders: Sender<Snapshot>,
    written: Receiver<Written>,
    /// The save under way.
    under_way: Option<UnderWay>,
    /// What could not be written, since when, and how often it was tried.
    held: Option<(Snapshot, Instant, u32)>,
    /// Buffers for the next one.
    spare: Option<Snapshot>,
    /// The update of the newest complete checkpoint.
    saved: Option<u64>,
}

struct UnderWay {
    update: u64,
    paused: Duration,
    earlier_tries: u32,
}

/// What comes back from the thread.
struct Written {
    snapshot: Snapshot,
    result: Result<Saved, Trouble>,
    took: Duration,
}

/// How a save ended.
pub(crate) enum News {
    Saved {
        update: u64,
        saved: Saved,
        is_best: bool,
        /// To write it, in the background.
        took: Duration,
        /// How long training stood still for it.
        paused: Duration,
    },
    Failed {
        update: u64,
        /// Epochs that were over then.
        epoch: u64,
        trouble: Trouble,
        /// This one included.
        tries: u32,
    },
}

impl Saver {
    /// `save` writes one snapshot, on the new thread; `saved` is the checkpoint that the run goes on from.
    pub(crate) fn start(
        saved: Option<u64>,
        save: impl Fn(&Snapshot) -> Result<Saved, Trouble> + Send + 'static,
    ) -> Result<Self, TrainError> {
        let (orders, inbox) = channel::<Snapshot>();
        let (outbox, written) = channel();
        let work = move || {
            for snapshot in inbox {
                let started = Instant::now();
                let result = save(&snapshot);
                if outbox.send(Written { snapshot, result, took: started.elapsed() }).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new()
            .name("checkpoints".to_owned())
            .spawn(work)
            .map_err(TrainError::io("starting the thread that writes checkpoints"))?;
        Ok(Saver { orders, written, under_way: None, held: None, spare: None, saved })
    }

    /// The update of the newest complete checkpoint.
    pub(crate) fn saved(&self) -> Option<u64> {
        self.saved
    }

    /// The update whose checkpoint is being written.
    pub(crate) fn under_way(&self) -> Option<u64> {
        self.under_way.as_ref().map(|under_way| under_way.update)
    }

    /// The update whose checkpoint could not be written and is waiting to be tried again.
    pub(crate) fn held(&self) -> Option<u64> {
        self.held.as_ref().map(|(snapshot, _, _)| snapshot.update())
    }

    /// The save under way, if it has ended.
    pub(crate) fn poll(&mut self, now: Instant) -> Result<Option<News>, TrainError> {
        if self.under_way.is_none() {
            return Ok(None);
        }
        match self.written.try_recv() {
            Ok(written) => Ok(Some(self.take_in(written, now))),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(broken("it panicked (see above)".to_owned())),
        }
    }

    /// The save under way, when it has ended; none if there is none.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<Option<News>, TrainError> {
        if self.under_way.is_none() {
            return Ok(None);
        }
        let reason = match self.written.recv_timeout(limit) {
            Ok(written) => return Ok(Some(self.take_in(written, Instant::now()))),
            Err(RecvTimeoutError::Disconnected) => "it panicked (see above)".to_owned(),
            Err(RecvTimeoutError::Timeout) => {
                format!("it did not end within {} s (comm.progress_s)", limit.as_secs_f64())
            }
        };
        // Nobody shall wait for it a second time.
        self.under_way = None;
        Err(broken(reason))
    }

    fn take_in(&mut self, Written { snapshot, result, took }: Written, now: Instant) -> News {
        let update = snapshot.update();
        let (paused, tries) =
            self.under_way.take().map_or((Duration::ZERO, 1), |one| (one.paused, 1 + one.earlier_tries));
        match result {
            Ok(saved) => {
                let is_best = snapshot.is_best();
                self.spare = Some(snapshot);
                self.saved = Some(update);
                News::Saved { update, saved, is_best, took, paused }
            }
            Err(trouble) => {
                let epoch = snapshot.state.cursor.epoch;
                self.held = Some((snapshot, now, tries));
                News::Failed { update, epoch, trouble, tries }
            }
        }
    }

    /// Try again what failed, if that was long enough ago.
    pub(crate) fn retry_if_due(&mut self, now: Instant) -> Result<(), TrainError> {
        match self.held.take_if(|(_, since, _)| now.duration_since(*since) >= RETRY) {
            Some((snapshot, _, tries)) => self.send(snapshot, Duration::ZERO, tries),
            None => Ok(()),
        }
    }

    /// Before a newer one is saved: give up what could not be written. Returns its update.
    pub(crate) fn give_up(&mut self) -> Option<u64> {
        let (snapshot, _, _) = self.held.take()?;
        let update = snapshot.update();
        self.spare = Some(snapshot);
        Some(update)
    }

    /// Buffers to take the next snapshot with.
    pub(crate) fn spare(&mut self) -> Option<Snapshot> {
        self.spare.take()
    }

    /// Write `snapshot`; call after [`Saver::wait`] and [`Saver::give_up`]. `paused`: how long training stood still.
    pub(crate) fn begin(&mut self, snapshot: Snapshot, paused: Duration) -> Result<(), TrainError> {
        self.send(snapshot, paused, 0)
    }

    fn send(&mut self, snapshot: Snapshot, paused: Duration, earlier_tries: u32) -> Result<(), TrainError> {
        self.under_way = Some(UnderWay { update: snapshot.update(), paused, earlier_tries });
        self.orders.send(snapshot).map_err(|_| broken("it panicked (see above)".to_owned()))
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

    const SOON: Duration = Duration::from_secs(20);

    /// Does what the test says, one word a save.
    fn saver(words: Receiver<Result<(), i32>>) -> Saver {
        let words = Mutex::new(words);
        let save = move |snapshot: &Snapshot| match words.lock().unwrap().recv_timeout(SOON).unwrap_or(Err(5)) {
            Ok(()) => Ok(Saved { path: PathBuf::from(format!("step-{}", snapshot.update())), remarks: Vec::new() }),
            Err(code) => Err(Trouble::new(Path::new("/x/step"), io::Error::from_raw_os_error(code), 1)),
        };
        Saver::start(Some(3), save).unwrap()
    }

    #[test]
    fn training_goes_on_while_one_is_written() {
        let (say, words) = channel();
        let mut saver = saver(words);
        saver.begin(snapshot(5, Some(5), 1.0), Duration::from_millis(7)).unwrap();
        assert!(saver.poll(Instant::now()).unwrap().is_none());
        assert_eq!((saver.saved(), saver.under_way()), (Some(3), Some(5)));
        say.send(Ok(())).unwrap();
        let Some(News::Saved { update: 5, saved, is_best: true, paused, .. }) = saver.wait(SOON).unwrap() else {
            panic!("not saved")
        };
        assert_eq!((saved.path, paused), (PathBuf::from("step-5"), Duration::from_millis(7)));
        assert_eq!((saver.saved(), saver.under_way()), (Some(5), None));
        assert_eq!(saver.spare().map(|spare| spare.update()), Some(5));
        assert!(saver.wait(SOON).unwrap().is_none());
    }

    #[test]
    fn what_failed_is_tried_again_after_a_while() {
        let (say, words) = channel();
        let mut saver = saver(words);
        saver.begin(snapshot(5, None, 1.0), Duration::ZERO).unwrap();
        for tries in 1..=2 {
            say.send(Err(28)).unwrap();
            let Some(News::Failed { update: 5, tries: counted, trouble, .. }) = saver.wait(SOON).unwrap() else {
                panic!("not failed")
            };
            assert_eq!(counted, tries);
            assert!(trouble.to_string().contains("No space left"));
            assert_eq!((saver.saved(), saver.held()), (Some(3), Some(5)));
            saver.retry_if_due(Instant::now()).unwrap();
            assert_eq!(saver.under_way(), None, "too early");
            saver.retry_if_due(Instant::now() + RETRY).unwrap();
            assert_eq!(saver.under_way(), Some(5));
        }
        say.send(Ok(())).unwrap();
        assert!(matches!(saver.wait(SOON).unwrap(), Some(News::Saved { update: 5, .. })));
        assert_eq!(saver.give_up(), None);
    }

    #[test]
    fn a_newer_one_takes_the_place_of_what_failed() {
        let (say, words) = channel();
        let mut saver = saver(words);
        say.send(Err(5)).unwrap();
        saver.begin(snapshot(5, None, 1.0), Duration::ZERO).unwrap();
        assert!(matches!(saver.wait(SOON).unwrap(), Some(News::Failed { .. })));
        assert_eq!(saver.give_up(), Some(5));
        assert!(saver.spare().is_some());
        say.send(Ok(())).unwrap();
        saver.begin(snapshot(9, None, 1.0), Duration::ZERO).unwrap();
        assert!(matches!(saver.wait(SOON).unwrap(), Some(News::Saved { update: 9, .. })));
        saver.retry_if_due(Instant::now() + RETRY).unwrap();
        assert_eq!(saver.under_way(), None);
    }

    #[test]
    fn a_thread_that_panics_or_hangs_is_an_error() {
        let mut saver = Saver::start(None, |_| panic!("on purpose")).unwrap();
        saver.begin(snapshot(5, None, 1.0), Duration::ZERO).unwrap();
        assert!(saver.wait(SOON).err().unwrap().to_string().contains("panicked"));
        let (_say, words) = channel();
        let mut saver = self::saver(words);
        saver.begin(snapshot(5, None, 1.0), Duration::ZERO).unwrap();
        assert!(saver.wait(Duration::from_millis(50)).err().unwrap().to_string().contains("within 0.05 s"));
        assert!(saver.wait(SOON).unwrap().is_none());
    }
}
