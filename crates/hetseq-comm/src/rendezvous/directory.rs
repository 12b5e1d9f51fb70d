//! `file:///shared/dir`: ranks that share a directory, and perhaps have no numbers, find each other
//! through it.
//!
//! **Design.** The directory only says where a leader listens. Everything else uses the network as
//! with a fixed address, authenticated, and the leader becomes rank 0 and assigns the ranks. A
//! leader listens on a free port and posts a notice (`notice.rs`): a random id, its addresses and,
//! unless a secret was given to all ranks, the secret.
//!
//! - A process with a rank other than 0 joins the first notice, in order of priority, whose leader
//!   answers.
//! - The process with rank 0 leads, at once.
//! - A process without a rank joins the first leader that answers; if there is none, it leads.
//!
//! **No election is needed, and no lock.** A group starts only when *all* ranks of the world have
//! joined one leader, so two groups can never both start, whatever the processes see of the
//! directory and when. It only remains to make sure that all processes end up at the same leader.
//! While it waits, a leader watches the directory. As soon as a leader of higher priority answers,
//! it refuses its peers, which search again, and joins that leader itself. The priority is a fixed
//! order (assigned rank 0 first, then the lowest id), so one leader remains, and all processes join
//! it.
//!
//! **Whether a leader is alive is decided over the network, never by a file**: it must answer the
//! authenticated handshake for the id in its notice. A killed run leaves a notice whose address
//! leads to nothing, to another program, or to a rank 0 with another id. Such a notice is skipped,
//! and removed by the next leader that succeeds. A leader with another secret or other encryption
//! is skipped, too: one process with a wrong setting must not stop the others. A leader whose
//! notice was removed in error (a process could not reach it) posts it again. So nothing depends on
//! clocks, leases or modification times, on locks that NFS may not keep, or on how soon a client
//! sees a new file: seeing it late costs time, not correctness. If a peer is killed, its rank
//! becomes free; if a leader is killed, its peers search again.
//!
//! One directory serves one run at a time: two runs would mix up their processes.

use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use super::door::TempFiles;
use super::leader_search::{FoundLeader, LeaderSearch};
use super::newcomer::RunningGroup;
use super::notice::{LeaderPriority, Notice, PostedNotice};
use super::peer::{self, JoinFailure};
use super::rank0::{self, Interruption, Listening};
use super::{Found, JoinContext, Joined, Reminder};
use crate::error::CommError;
use crate::lock::locked;
use crate::secret::{Credentials, SecretKey, random};
use crate::secret_file::hex;
use crate::socket;

/// How often the directory is scanned: often in the first seconds, when all ranks start together.
const SCAN_INTERVAL: Duration = Duration::from_millis(200);
const SLOW_SCAN_INTERVAL: Duration = Duration::from_secs(1);
const FAST_SCAN_PHASE: Duration = Duration::from_secs(10);

/// Joins the ranks that share `dir`.
pub(super) fn join(context: &JoinContext<'_>, dir: &Path) -> Result<Found, CommError> {
    let cannot = |error: std::io::Error| unusable(dir, &error.to_string());
    std::fs::create_dir_all(dir).map_err(cannot)?;
    // Otherwise two groups of the same world could start.
    if 2 * context.start_with() <= context.world {
        let (least, world) = (context.start_with(), context.world);
        let problem =
            format!("with file://, a start with {least} of {world} ranks is not safe: it needs more than half of them");
        return Err(CommError::RankEnv { problem });
    }
    let ip = socket::chosen_ip(context.options)?;
    let mut search = LeaderSearch::new(context, dir, ip)?;
    let may_lead = context.rank.is_none_or(|rank| rank == 0);
    let mut reminder = Reminder::new(Instant::now());
    let mut found = None;
    loop {
        if found.is_none() && context.rank != Some(0) {
            found = search.find(None);
        }
        match found.take() {
            Some(FoundLeader { notice, handshake, credentials }) => {
                match peer::join(context, handshake, &credentials, ip) {
                    Ok(joined) => return Ok(Found::Joined(joined)),
                    Err(JoinFailure::Final(error)) => return Err(error),
                    Err(JoinFailure::Running(running)) => match RunningGroup::of(context, &running, &credentials) {
                        Ok(running) => return Ok(Found::Running(running)),
                        Err(error) => search.join_failed(&notice, error)?,
                    },
                    Err(JoinFailure::Early(error)) => search.join_failed(&notice, error)?,
                }
            }
            None if may_lead => match lead(context, &search, ip)? {
                LeadOutcome::Joined(joined) => return Ok(Found::Joined(joined)),
                LeadOutcome::OtherLeader(other) => {
                    found = other;
                    continue;
                }
            },
            None => {}
        }
        if context.time_left().is_zero() {
            let (at, waited) = (context.rendezvous.clone(), context.options.join);
            return Err(CommError::NoRank0 { at, waited, detail: search.detail() });
        }
        if reminder.is_due(Instant::now()) {
            tracing::info!("waiting for rank 0 at {}: {}", context.rendezvous, search.detail());
        }
        std::thread::sleep(SCAN_INTERVAL.min(context.time_left()));
    }
}

fn unusable(dir: &Path, reason: &str) -> CommError {
    CommError::Directory { path: dir.display().to_string(), reason: reason.to_owned() }
}

enum LeadOutcome {
    Joined(Joined),
    /// A leader of higher priority; join this one.
    OtherLeader(Option<FoundLeader>),
}

/// Leads until all ranks have joined or a leader of higher priority is found.
fn lead(context: &JoinContext<'_>, search: &LeaderSearch, ip: Option<IpAddr>) -> Result<LeadOutcome, CommError> {
    let system = |what| move |source| CommError::System { what, reason: source };
    let listener = socket::listen_anywhere(ip, context.options)?;
    let port = listener.local_addr().map_err(system("read the port of a listener"))?.port();
    let addresses = socket::own_addresses(ip, port)?;
    let id = u64::from_le_bytes(random().map_err(system("provide random numbers"))?).max(1);
    let (credentials, secret) = match &search.given {
        Some(given) => (given.clone(), None),
        None => {
            let secret = hex(&random::<32>().map_err(system("provide random numbers"))?);
            (Credentials::File(Ok(SecretKey::new(&secret))), Some(secret))
        }
    };
    let is_rank_0 = context.rank == Some(0);
    let notice = Notice { id, is_rank_0, host: context.name.clone(), addresses, secret };
    // Posted after the port is open, so that a process that sees the notice can connect.
    let posted = PostedNotice::post(&search.dir, &notice).map_err(|reason| unusable(&search.dir, &reason))?;
    let posted = Arc::new(posted);
    let watch = Watch::start(search.clone(), &notice, &posted)?;
    let listening = Listening { listener, generation: id, credentials, files: TempFiles::Notice(posted) };
    match rank0::join(context, listening, &mut || watch.interruption()) {
        Ok(Some(joined)) => {
            watch.0.has_joined.store(true, Ordering::Release);
            Ok(LeadOutcome::Joined(joined))
        }
        Ok(None) => Ok(LeadOutcome::OtherLeader(watch.0.findings().leader.take())),
        Err(mut error) => {
            if let CommError::Missing { rejections, .. } = &mut error {
                rejections.notes.append(&mut watch.0.findings().problems);
            }
            Err(error)
        }
    }
}

/// A leader's watch on the directory, in a separate thread: a scan may take seconds, and peers must
/// not wait for it.
struct Watch(Arc<WatchState>);

#[derive(Default)]
struct WatchState {
    /// Joining has ended, with or without success.
    is_over: AtomicBool,
    has_joined: AtomicBool,
    findings: Mutex<Findings>,
}

/// The result of the last scan.
#[derive(Default)]
struct Findings {
    leader: Option<FoundLeader>,
    error: Option<CommError>,
    problems: Vec<String>,
}

impl Watch {
    fn start(mut search: LeaderSearch, own: &Notice, posted: &Arc<PostedNotice>) -> Result<Watch, CommError> {
        let shared = Arc::<WatchState>::default();
        search.skip(own.id);
        let (state, own, posted) = (shared.clone(), own.priority(), Arc::downgrade(posted));
        let run = move || watch(search, own, &posted, &state);
        let thread = std::thread::Builder::new().name("hetseq-watch".to_owned()).spawn(run);
        thread.map_err(|source| CommError::System { what: "start a thread", reason: source })?;
        Ok(Watch(shared))
    }

    fn interruption(&self) -> Option<Interruption> {
        let mut findings = self.0.findings();
        match (findings.error.take(), &findings.leader) {
            (Some(error), _) => Some(Interruption::Fail(error)),
            (None, Some(_)) => Some(Interruption::OtherLeader),
            (None, None) => None,
        }
    }
}

impl WatchState {
    fn findings(&self) -> MutexGuard<'_, Findings> {
        locked(&self.findings)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Release);
    }
}

fn watch(mut search: LeaderSearch, own: LeaderPriority, posted: &Weak<PostedNotice>, state: &WatchState) {
    let start = Instant::now();
    while !state.is_over.load(Ordering::Acquire) {
        let Some(notice) = posted.upgrade() else { return };
        notice.restore();
        drop(notice);
        let (leader, error) = match search.find(Some(own)) {
            Some(leader) if search.is_rank_0() => (None, search.check_second_rank_0(leader)),
            leader => (leader, None),
        };
        let mut findings = state.findings();
        *findings = Findings { leader, error, problems: search.problems() };
        if findings.leader.is_some() || findings.error.is_some() {
            return;
        }
        drop(findings);
        std::thread::sleep(if start.elapsed() < FAST_SCAN_PHASE { SCAN_INTERVAL } else { SLOW_SCAN_INTERVAL });
    }
    if state.has_joined.load(Ordering::Acquire) {
        search.clean_up();
    }
}
