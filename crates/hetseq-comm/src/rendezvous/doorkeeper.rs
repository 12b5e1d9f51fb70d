//! Rank 0's door while the run is under way: nobody is let in any more, and everybody is told why.
//!
//! A proper rank that comes too late learns that the run has begun; strangers are refused as before, and logged. Its
//! threads sleep until somebody knocks, and what a crowd may take up is little (`Limits::UNDER_WAY`). It lives as long as
//! the group; made by `host.rs`.

use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::admission::Limits;
use super::notice::Posted;
use super::reception::{Arrival, Door, Reception};
use super::refusal::Refusal;
use super::strangers::Strangers;
use super::talk::{Hello, Talk};
use crate::error::CommError;
use crate::secret_file::SecretFile;

/// Without anything to do.
const IDLE: Duration = Duration::from_secs(3600);

/// What rank 0 left in the file system for the others to find. It stays as long as the door, so that one who comes late
/// is told so instead of searching in vain, and goes when this is dropped.
pub(super) enum Left {
    Nothing,
    Secret(#[expect(dead_code, reason = "its drop removes the file")] SecretFile),
    Notice(#[expect(dead_code, reason = "its drop removes the file")] Arc<Posted>),
}

/// Closes the door when dropped.
pub(crate) struct Doorkeeper {
    door: Arc<Door>,
    thread: Option<JoinHandle<()>>,
    _left: Left,
}

impl Doorkeeper {
    pub(super) fn start(
        reception: Reception<(Talk, Hello)>,
        strangers: Strangers,
        world: usize,
        left: Left,
    ) -> Result<Doorkeeper, CommError> {
        reception.limit(Limits::UNDER_WAY);
        let door = reception.door();
        let began = Instant::now();
        let run = move || keep(&reception, strangers, world, began);
        let thread = std::thread::Builder::new().name("hetseq-keeper".to_owned()).spawn(run);
        let thread = thread.map_err(|source| CommError::System { what: "start a thread", reason: source })?;
        Ok(Doorkeeper { door, thread: Some(thread), _left: left })
    }
}

impl Drop for Doorkeeper {
    fn drop(&mut self) {
        self.door.close();
        if let Some(thread) = self.thread.take() {
            // Were it to panic, the run would have gone on without it.
            let _ = thread.join();
        }
    }
}

fn keep(reception: &Reception<(Talk, Hello)>, mut strangers: Strangers, world: usize, began: Instant) {
    loop {
        let now = Instant::now();
        let patience = strangers.summary_due().map_or(IDLE, |due| due.saturating_duration_since(now));
        let (address, why) = match reception.next(patience) {
            Ok(Arrival::TurnedAway { address, why }) => (address, why),
            Ok(Arrival::Came((talk, _))) => {
                let seconds_ago = began.elapsed().as_secs();
                (talk.peer(), talk.refuse(Refusal::UnderWay { seconds_ago, world: world as u64 }))
            }
            Err(RecvTimeoutError::Timeout) => {
                log(strangers.summary(Instant::now()));
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        };
        log(strangers.note(now, address, &why));
        log(strangers.summary(now));
    }
    log(strangers.last_words());
}

fn log(line: Option<String>) {
    if let Some(line) = line {
        tracing::warn!("{line}");
    }
}
