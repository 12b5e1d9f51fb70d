//! Searches the notices in a shared directory for a leader that answers, and remembers the
//! outcomes.
//!
//! `directory.rs` uses this; it explains which leader is preferred and why.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::auth::{self, LocalParty};
use super::handshake::{Handshake, HandshakeError, Message};
use super::notice::{self, LeaderPriority, Notice};
use super::peer::{self, TakenRetry};
use super::refusal::Refusal;
use super::{HANDSHAKE_TIMEOUT, JoinContext};
use crate::error::CommError;
use crate::secret::{Credentials, Secret, SecretKey};
use crate::socket;

/// Timeouts for connecting to one address of a leader, and to all of them together: for the first
/// attempt, and for later ones.
const FIRST_TIMEOUTS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];
const RETRY_TIMEOUTS: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(10)];
/// Timeout for a leader's authentication; a suspended process does not answer.
const AUTH_TIMEOUT: Duration = Duration::from_secs(3);
/// Pause before a leader that did not answer is tried again; it doubles up to the limit.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
const RETRY_PAUSE_LIMIT: Duration = Duration::from_secs(5);

/// A leader that has answered.
pub(super) struct FoundLeader {
    pub(super) notice: Notice,
    pub(super) handshake: Handshake,
    pub(super) credentials: Credentials,
}

/// A search for leaders, with the outcomes so far.
#[derive(Clone)]
pub(super) struct LeaderSearch {
    pub(super) dir: PathBuf,
    rank: Option<usize>,
    encrypt: bool,
    ip: Option<IpAddr>,
    /// The secret given to all ranks; without one, each notice has its secret.
    pub(super) given: Option<Credentials>,
    hello: Message,
    /// Leaders to skip: their run has started without this rank (with the reason), or it is this
    /// process itself.
    skipped: BTreeMap<u64, Option<String>>,
    failed: BTreeMap<u64, FailedLeader>,
    taken: TakenRetry,
    /// What was wrong in the last scan.
    problems: Vec<String>,
}

/// A leader that did not answer.
#[derive(Clone)]
struct FailedLeader {
    attempts: u32,
    retry_at: Instant,
    reason: String,
}

impl LeaderSearch {
    pub(super) fn new(context: &JoinContext<'_>, dir: &Path, ip: Option<IpAddr>) -> Result<LeaderSearch, CommError> {
        let given = match &context.options.secret {
            Secret::Given(secret) => Some(Credentials::given(secret)?),
            Secret::None | Secret::InDirectory(_) => None,
        };
        Ok(LeaderSearch {
            dir: dir.to_owned(),
            rank: context.rank,
            encrypt: context.options.encrypt,
            ip,
            given,
            hello: peer::hello(context, None),
            skipped: BTreeMap::new(),
            failed: BTreeMap::new(),
            taken: TakenRetry::default(),
            problems: Vec::new(),
        })
    }

    /// Returns the first leader that answers; with `own`, only among those of higher priority.
    /// One with incompatible settings does not count: it may belong to a run that is just ending.
    pub(super) fn find(&mut self, own: Option<LeaderPriority>) -> Option<FoundLeader> {
        let (notices, mut problems) = notice::list(&self.dir);
        for notice in notices {
            // Before the priority is checked: a run that started without this rank may be all there
            // is to report, even if its leader has lower priority.
            if let Some(reason) = self.skipped.get(&notice.id) {
                problems.extend(reason.clone());
                continue;
            }
            if own.is_some_and(|own| notice.priority() >= own) {
                continue;
            }
            let attempts = match self.failed.get(&notice.id) {
                Some(failed) if Instant::now() < failed.retry_at => {
                    problems.push(failed.reason.clone());
                    continue;
                }
                Some(failed) => failed.attempts,
                None => 0,
            };
            let credentials = self.credentials_for(&notice);
            match self.connect(&notice, &credentials, if attempts == 0 { FIRST_TIMEOUTS } else { RETRY_TIMEOUTS }) {
                Ok(handshake) => {
                    self.failed.remove(&notice.id);
                    self.problems = problems;
                    return Some(FoundLeader { notice, handshake, credentials });
                }
                Err(error) => {
                    let reason = format!("{}: {error}", notice.shown());
                    if attempts == 0 && is_incompatible(&error) {
                        tracing::warn!("cannot join {reason}; trying again, in case it belongs to an earlier run");
                    }
                    let pause = (RETRY_PAUSE * 2u32.saturating_pow(attempts)).min(RETRY_PAUSE_LIMIT);
                    let (attempts, retry_at) = (attempts.saturating_add(1), Instant::now() + pause);
                    problems.push(reason.clone());
                    self.failed.insert(notice.id, FailedLeader { attempts, retry_at, reason });
                }
            }
        }
        self.problems = problems;
        None
    }

    fn credentials_for(&self, notice: &Notice) -> Credentials {
        self.given.clone().unwrap_or_else(|| {
            Credentials::File(notice.secret.as_deref().map(SecretKey::new).ok_or_else(|| "it has no secret".to_owned()))
        })
    }

    fn connect(
        &self,
        notice: &Notice,
        credentials: &Credentials,
        timeouts: [Duration; 2],
    ) -> Result<Handshake, HandshakeError> {
        let [per_address, total] = timeouts;
        let start = Instant::now();
        let mut failure = HandshakeError::Io(std::io::Error::other("its notice has no address"));
        for address in &notice.addresses {
            let time_left = total.saturating_sub(start.elapsed());
            if time_left.is_zero() {
                break;
            }
            let dialed = socket::dial(*address, self.ip, per_address.min(time_left)).map_err(HandshakeError::Io);
            let authenticated = dialed.and_then(|stream| {
                let mut handshake = Handshake::new(stream, AUTH_TIMEOUT)?;
                let LeaderSearch { rank, encrypt, .. } = *self;
                auth::dial(&mut handshake, &LocalParty { rank, generation: notice.id, credentials, encrypt }, 0)?;
                Ok(handshake)
            });
            match authenticated {
                Ok(mut handshake) => {
                    handshake.set_timeout(HANDSHAKE_TIMEOUT);
                    return Ok(handshake);
                }
                // The leader did answer, so its other addresses lead to it as well.
                Err(error) if is_incompatible(&error) => return Err(error),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Records that a leader refused this rank or closed the connection. Returns an error if
    /// retrying cannot help.
    pub(super) fn join_failed(&mut self, notice: &Notice, error: HandshakeError) -> Result<(), CommError> {
        let problem = format!("{}: {error}", notice.shown());
        let may_retry_taken = self.taken.may_retry(&error, Instant::now());
        match &error {
            HandshakeError::RefusedUs(Refusal::AlreadyStarted { .. }) => {
                self.skipped.insert(notice.id, Some(problem));
            }
            _ if may_retry_taken => self.problems.push(problem),
            HandshakeError::RefusedUs(Refusal::Moved)
            | HandshakeError::Io(_)
            | HandshakeError::Closed
            | HandshakeError::TimedOut => {}
            _ => return Err(error.into_error(&notice.shown())),
        }
        Ok(())
    }

    pub(super) fn problems(&self) -> Vec<String> {
        self.problems.clone()
    }

    /// The problems of the last scan, as one line.
    pub(super) fn detail(&self) -> String {
        if self.problems.is_empty() {
            "no rank 0 has posted a notice there".to_owned()
        } else {
            self.problems.join("; ")
        }
    }

    /// Whether this process was started as rank 0.
    pub(super) fn is_rank_0(&self) -> bool {
        self.rank == Some(0)
    }

    /// Skips the notice that this process posted itself.
    pub(super) fn skip(&mut self, own: u64) {
        self.skipped.insert(own, None);
    }

    /// On a process that was started as rank 0: checks whether a leader of higher priority is a
    /// second rank 0. Returns the error to report in that case.
    pub(super) fn check_second_rank_0(&mut self, found: FoundLeader) -> Option<CommError> {
        let FoundLeader { notice, mut handshake, .. } = found;
        match handshake.send(&self.hello).and_then(|()| handshake.receive()) {
            Err(error @ HandshakeError::RefusedUs(Refusal::RankTaken { .. })) => {
                Some(error.into_error(&notice.shown()))
            }
            Err(error @ HandshakeError::RefusedUs(Refusal::AlreadyStarted { .. })) => {
                self.skipped.insert(notice.id, Some(format!("{}: {error}", notice.shown())));
                None
            }
            // The next scan tries it again.
            _ => None,
        }
    }

    /// Removes the notices of leaders that do not answer.
    pub(super) fn clean_up(&mut self) {
        // One last scan, up to the first leader that answers. Notices after that one stay for the
        // next run to clean up.
        _ = self.find(None);
        for id in self.failed.keys() {
            notice::remove(&self.dir, *id);
        }
    }
}

/// Whether the leader answers but has different settings.
fn is_incompatible(error: &HandshakeError) -> bool {
    let (HandshakeError::RefusedUs(refusal) | HandshakeError::WeRefused(refusal)) = error else { return false };
    matches!(
        refusal,
        Refusal::Encryption { .. } | Refusal::Protocol { .. } | Refusal::SecretKind { .. } | Refusal::SecretWrong
    )
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::super::notice::PostedNotice;
    use super::*;
    use crate::heartbeat_timing::HeartbeatTiming;
    use crate::identity::Identity;
    use crate::options::Options;

    /// A leader's id is random, so either of the two may have the higher priority.
    #[test]
    fn a_leader_reports_a_started_run_of_any_priority() {
        let dir = TempDir::new().unwrap();
        let (identity, options) = (Identity::new(), Options::default());
        let context = JoinContext {
            rank: None,
            world: 2,
            rendezvous: "file:///shared".to_owned(),
            name: "alpha".to_owned(),
            timing: HeartbeatTiming::new(options.silence),
            identity: &identity,
            options: &options,
            started: Instant::now(),
        };
        let notice = Notice { id: 5, is_rank_0: false, host: "beta".to_owned(), addresses: Vec::new(), secret: None };
        let _posted = PostedNotice::post(dir.path(), &notice).unwrap();
        let mut search = LeaderSearch::new(&context, dir.path(), None).unwrap();
        let started = Refusal::AlreadyStarted { seconds_ago: 9, world: 2 };
        search.join_failed(&notice, HandshakeError::RefusedUs(started)).unwrap();
        for own in [(true, 3), (true, 7)] {
            assert!(search.find(Some(own)).is_none());
            assert!(search.detail().contains("this run has already started"), "{own:?}: {}", search.detail());
        }
    }
}
