//! The door of a member: its listener while the group trains, for processes that want to join it.
//!
//! Every rank has one, so that the group is found after any loss. It answers an authenticated
//! process with the cards of all members. Rank 0 compares the process with itself and refuses one
//! that differs. A process that fits connects to the doors of all members and waits there, with the
//! connection that becomes its link, until the group admits it (`regrouping.rs`). The door decides
//! nothing else and touches no member: it works beside the training, in its own threads, and what a
//! flood of connections can use is small (`AcceptLimits::AFTER_START`).
//!
//! A group that admits no process (an evaluation, or `elastic.enabled = false`) has one on rank 0
//! only, which refuses late ranks with that reason.

use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::acceptor::{AcceptEvent, Acceptor, AcceptorHandle};
use super::card::MemberCard;
use super::handshake::{Enter, Handshake, HandshakeError, Hello, Message, Request, Running, Welcome, unexpected};
use super::limits::AcceptLimits;
use super::mismatch::{Mismatch, Reader};
use super::notice::PostedNotice;
use super::refusal::Refusal;
use super::reject_log::RejectLog;
use super::{HANDSHAKE_TIMEOUT, PAIRING_TIMEOUT};
use crate::connection::Connection;
use crate::error::CommError;
use crate::heartbeat_timing::HeartbeatTiming;
use crate::identity::Identity;
use crate::lock::locked;
use crate::secret_file::SecretFile;

/// How long to wait for an event when no summary is scheduled.
const IDLE: Duration = Duration::from_secs(3600);
/// How often newcomers are polled that connect to the other members.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How many newcomers may wait at a door.
const WAITING_LIMIT: usize = 64;
/// Timeout for telling a newcomer that it is a member. The message is small, and nothing was sent
/// before it.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(2);

/// Files that rank 0 wrote for the peers. Kept as long as the listener, so that a late rank is
/// refused with a reason instead of searching in vain; removed on drop.
pub(super) enum TempFiles {
    Nothing,
    Secret(#[expect(dead_code, reason = "its drop removes the file")] SecretFile),
    Notice(#[expect(dead_code, reason = "its drop removes the file")] Arc<PostedNotice>),
}

/// What newcomers are compared with.
#[derive(Clone)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) identity: Identity,
}

/// The group as newcomers see it.
#[derive(Clone, Debug)]
pub(crate) struct Roster {
    /// The generation in which the group started.
    pub(crate) group: u64,
    /// Of this member.
    pub(crate) rank: usize,
    /// In rank order.
    pub(crate) members: Vec<MemberCard>,
    /// The run directory, if it decides who continues.
    pub(crate) directory: Option<PathBuf>,
}

/// A newcomer that the group can admit, as rank 0 announces it to all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Candidate {
    /// Of its process.
    pub id: u64,
    /// Whether it sees the run directory that decides who continues, if one does.
    pub sees_directory: bool,
}

/// A newcomer that is connected to this member.
pub(crate) struct Arrival {
    handshake: Handshake,
    pub(crate) card: MemberCard,
    pub(crate) timing: HeartbeatTiming,
    pub(crate) sees_directory: bool,
}

impl Arrival {
    pub(crate) fn is_connected(&self) -> bool {
        !self.handshake.is_closed()
    }

    /// Tells the newcomer that it is a member. If that fails, the connection is closed, and the
    /// group notices in its first collective.
    pub(crate) fn welcome(mut self, welcome: Welcome) -> Connection {
        self.handshake.set_timeout(WELCOME_TIMEOUT);
        if let Err(error) = self.handshake.send(&Message::Welcome(welcome)) {
            tracing::debug!("{} cannot be told that it is a member: {error}", self.card.host);
        }
        self.handshake.into_connection()
    }
}

struct Waiting {
    arrival: Arrival,
    /// It is connected to all members, as far as it knows.
    is_ready: bool,
    /// Shows whether it sees the run directory; its drop removes it.
    _seen_file: Option<SeenFile>,
}

/// A file in the run directory; removed on drop.
struct SeenFile {
    path: PathBuf,
    name: String,
    content: String,
}

impl SeenFile {
    /// Writes a file with a name that no other has: the id of the newcomer is random.
    fn write(directory: &Path, id: u64) -> std::io::Result<SeenFile> {
        let name = format!("newcomer-{id:016x}.json");
        let path = directory.join("membership").join(&name);
        let content = format!("{{ \"newcomer\": \"{id:016x}\" }}\n");
        hetseq_fs::create_new(&path, content.as_bytes())?;
        Ok(SeenFile { path, name, content })
    }
}

impl Drop for SeenFile {
    fn drop(&mut self) {
        _ = std::fs::remove_file(&self.path);
    }
}

#[derive(Default)]
struct State {
    /// None if no process may join.
    roster: Option<Roster>,
    waiting: Vec<Waiting>,
}

/// An open door. Dropping it closes the listener and removes the files.
pub(crate) struct Door {
    handle: Arc<AcceptorHandle>,
    state: Arc<Mutex<State>>,
    thread: Option<JoinHandle<()>>,
    _files: TempFiles,
}

impl Door {
    pub(super) fn open(
        acceptor: Acceptor<(Handshake, Request)>,
        reject_log: RejectLog,
        world: usize,
        host: Host,
        files: TempFiles,
    ) -> Result<Door, CommError> {
        acceptor.set_limits(AcceptLimits::AFTER_START);
        let (handle, state) = (acceptor.handle(), Arc::<Mutex<State>>::default());
        let mut porter = Porter { acceptor, reject_log, world, host, state: state.clone(), started: Instant::now() };
        let thread = std::thread::Builder::new().name("hetseq-door".to_owned()).spawn(move || porter.run());
        let thread = thread.map_err(|source| CommError::System { what: "start a thread", reason: source })?;
        Ok(Door { handle, state, thread: Some(thread), _files: files })
    }

    /// Sets what newcomers are told. Those that wait have not heard of it, so they are sent away and
    /// come again.
    pub(crate) fn set_roster(&self, roster: Option<Roster>) {
        let mut state = locked(&self.state);
        state.roster = roster;
        state.waiting.clear();
    }

    /// On rank 0: the newcomer that has waited longest, of those that are ready.
    pub(crate) fn candidate(&self) -> Option<Candidate> {
        let mut state = locked(&self.state);
        if state.roster.as_ref().is_none_or(|roster| roster.rank > 0) {
            return None;
        }
        state.waiting.retain(|waiting| !waiting.is_ready || waiting.arrival.is_connected());
        let ready = state.waiting.iter().find(|waiting| waiting.is_ready)?;
        Some(Candidate { id: ready.arrival.card.id, sees_directory: ready.arrival.sees_directory })
    }

    /// Takes a newcomer that is connected to this member.
    pub(crate) fn take(&self, candidate: Candidate) -> Option<Arrival> {
        let mut state = locked(&self.state);
        let at = state.waiting.iter().position(|waiting| waiting.arrival.card.id == candidate.id)?;
        let Waiting { arrival, .. } = state.waiting.remove(at);
        Some(Arrival { sees_directory: candidate.sees_directory, ..arrival })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // The run does not depend on this thread, so a panic in it is ignored.
            let _ = thread.join();
        }
    }
}

/// The thread of a door.
struct Porter {
    acceptor: Acceptor<(Handshake, Request)>,
    reject_log: RejectLog,
    world: usize,
    host: Host,
    state: Arc<Mutex<State>>,
    started: Instant,
}

impl Porter {
    fn run(&mut self) {
        loop {
            let now = Instant::now();
            let summary = self.reject_log.next_summary().map_or(IDLE, |next| next.saturating_duration_since(now));
            let is_polling = locked(&self.state).waiting.iter().any(|waiting| !waiting.is_ready);
            match self.acceptor.next(if is_polling { POLL_INTERVAL } else { summary }) {
                Ok(AcceptEvent::Rejected { address, reason }) => log(self.reject_log.note(now, address, &reason)),
                Ok(AcceptEvent::Accepted((handshake, request))) => {
                    let address = handshake.peer();
                    if let Err(reason) = self.answer(handshake, request) {
                        log(self.reject_log.note(now, address, &reason));
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.poll_waiting();
            log(self.reject_log.summary(Instant::now()));
        }
        log(self.reject_log.final_summary());
    }

    fn answer(&self, mut handshake: Handshake, request: Request) -> Result<(), HandshakeError> {
        let Some(roster) = locked(&self.state).roster.clone() else {
            let seconds_ago = self.started.elapsed().as_secs();
            return Err(handshake.refuse(Refusal::AlreadyStarted { seconds_ago, world: self.world as u64 }));
        };
        match request {
            // It learns where the group is, and knocks there.
            Request::Hello(_) => handshake.send(&running(&roster, None)),
            Request::Knock(hello) => match self.mismatch(&roster, &hello) {
                Some(refusal) => Err(handshake.refuse(refusal)),
                None => handshake.send(&running(&roster, None)),
            },
            Request::Enter(enter) => match self.mismatch(&roster, &enter.hello) {
                Some(refusal) => Err(handshake.refuse(refusal)),
                None => self.let_wait(handshake, *enter, &roster),
            },
        }
    }

    /// Why a process cannot be a member, if this is rank 0.
    fn mismatch(&self, roster: &Roster, hello: &Hello) -> Option<Refusal> {
        let Host { name, identity } = &self.host;
        let mismatch = Mismatch::of_newcomer(name, identity, hello).filter(|_| roster.rank == 0)?;
        tracing::warn!("a process wants to join this run and cannot: {}", mismatch.summary());
        Some(Refusal::Mismatch(mismatch.for_reader(Reader::Other)))
    }

    fn let_wait(&self, mut handshake: Handshake, enter: Enter, roster: &Roster) -> Result<(), HandshakeError> {
        let card = enter.card.checked();
        let directory = roster.directory.as_deref().filter(|_| roster.rank == 0);
        let seen_file = directory.and_then(|directory| SeenFile::write(directory, card.id).ok());
        // Before the answer, after which rank 0 may admit it.
        handshake.set_timeout(HANDSHAKE_TIMEOUT);
        handshake.send(&running(roster, seen_file.as_ref()))?;
        handshake.set_timeout(PAIRING_TIMEOUT);
        let mut state = locked(&self.state);
        let is_current = state.roster.as_ref().is_some_and(|now| now.members == roster.members);
        if !is_current || state.waiting.len() >= WAITING_LIMIT {
            // Its connection closes, and it comes again.
            return Err(HandshakeError::Closing);
        }
        let is_ready = roster.rank > 0;
        // Its earlier attempt, if there is one, is over.
        state.waiting.retain(|waiting| waiting.arrival.card.id != card.id);
        let arrival = Arrival { handshake, card, timing: enter.hello.timing, sees_directory: false };
        state.waiting.push(Waiting { arrival, is_ready, _seen_file: seen_file });
        Ok(())
    }

    /// Learns which newcomers are connected to all members, and drops those that have left.
    fn poll_waiting(&self) {
        locked(&self.state).waiting.retain_mut(|waiting| {
            let Waiting { arrival, is_ready, .. } = waiting;
            if *is_ready {
                return arrival.is_connected();
            }
            if !arrival.handshake.is_readable() {
                return !arrival.handshake.is_timed_out();
            }
            match arrival.handshake.receive() {
                Ok(Message::Prepared { sees_directory }) => {
                    (*is_ready, arrival.sees_directory) = (true, sees_directory);
                    true
                }
                Ok(_) | Err(_) => false,
            }
        });
    }
}

fn running(roster: &Roster, seen_file: Option<&SeenFile>) -> Message {
    let Roster { group, rank, members, .. } = roster;
    let seen_file = seen_file.map(|file| (file.name.clone(), file.content.clone()));
    Message::Running(Running { group: *group, rank: *rank as u64, members: members.clone(), seen_file })
}

/// Receives what a process wants, after its authentication as `rank`.
pub(super) fn receive_request(handshake: &mut Handshake, rank: Option<u64>) -> Result<Request, HandshakeError> {
    match handshake.receive()? {
        Message::Hello(hello) if hello.rank == rank => Ok(Request::Hello(hello)),
        Message::Knock(hello) => Ok(Request::Knock(hello)),
        Message::Enter(enter) => Ok(Request::Enter(enter)),
        other => Err(unexpected("hello of the authenticated rank", &other)),
    }
}

fn log(line: Option<String>) {
    if let Some(line) = line {
        tracing::warn!("{line}");
    }
}
