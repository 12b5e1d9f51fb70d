//! Keeps rank 0's listener open during the run, only to refuse ranks that join late.
//!
//! An authenticated rank that comes too late gets the reason that the run has started. Other
//! connections are rejected as before, and logged. The threads sleep until a connection comes, and
//! what a flood can use is small (`AcceptLimits::AFTER_START`). Created by `rank0.rs`; lives as
//! long as the group.

use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::acceptor::{AcceptEvent, Acceptor, AcceptorHandle};
use super::handshake::{Handshake, Hello};
use super::limits::AcceptLimits;
use super::notice::PostedNotice;
use super::refusal::Refusal;
use super::reject_log::RejectLog;
use crate::error::CommError;
use crate::secret_file::SecretFile;

/// How long to wait for an event when no summary is scheduled.
const IDLE: Duration = Duration::from_secs(3600);

/// Files that rank 0 wrote for the peers. Kept as long as the listener, so that a late rank is
/// refused with a reason instead of searching in vain; removed on drop.
pub(super) enum TempFiles {
    Nothing,
    Secret(#[expect(dead_code, reason = "its drop removes the file")] SecretFile),
    Notice(#[expect(dead_code, reason = "its drop removes the file")] Arc<PostedNotice>),
}

/// Refuses late ranks until dropped, which closes the listener and removes the files.
pub(crate) struct LateJoin {
    handle: Arc<AcceptorHandle>,
    thread: Option<JoinHandle<()>>,
    _files: TempFiles,
}

impl LateJoin {
    pub(super) fn start(
        acceptor: Acceptor<(Handshake, Hello)>,
        reject_log: RejectLog,
        world: usize,
        files: TempFiles,
    ) -> Result<LateJoin, CommError> {
        acceptor.set_limits(AcceptLimits::AFTER_START);
        let handle = acceptor.handle();
        let started = Instant::now();
        let run = move || refuse_late_ranks(&acceptor, reject_log, world, started);
        let thread = std::thread::Builder::new().name("hetseq-latejoin".to_owned()).spawn(run);
        let thread = thread.map_err(|source| CommError::System { what: "start a thread", reason: source })?;
        Ok(LateJoin { handle, thread: Some(thread), _files: files })
    }
}

impl Drop for LateJoin {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // The run does not depend on this thread, so a panic in it is ignored.
            let _ = thread.join();
        }
    }
}

fn refuse_late_ranks(
    acceptor: &Acceptor<(Handshake, Hello)>,
    mut reject_log: RejectLog,
    world: usize,
    started: Instant,
) {
    loop {
        let now = Instant::now();
        let timeout = reject_log.next_summary().map_or(IDLE, |next| next.saturating_duration_since(now));
        let (address, reason) = match acceptor.next(timeout) {
            Ok(AcceptEvent::Rejected { address, reason }) => (address, reason),
            Ok(AcceptEvent::Accepted((handshake, _))) => {
                let seconds_ago = started.elapsed().as_secs();
                let refusal = Refusal::AlreadyStarted { seconds_ago, world: world as u64 };
                (handshake.peer(), handshake.refuse(refusal))
            }
            Err(RecvTimeoutError::Timeout) => {
                log(reject_log.summary(Instant::now()));
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        };
        log(reject_log.note(now, address, &reason));
        log(reject_log.summary(now));
    }
    log(reject_log.final_summary());
}

fn log(line: Option<String>) {
    if let Some(line) = line {
        tracing::warn!("{line}");
    }
}
