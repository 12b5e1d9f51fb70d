//! Looks through the notices of a shared directory for a leader that answers, and remembers what came of it.
//!
//! Which leader to prefer and what to do about it is explained in `directory.rs`, which uses this.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::greeting::{self, Party};
use super::notice::{self, Notice, Precedence};
use super::refusal::Refusal;
use super::talk::{Message, Talk, TalkError};
use super::{HANDSHAKE, Meeting, guest};
use crate::error::CommError;
use crate::secret::{Credentials, Key, Secret};
use crate::socket;

/// How long one address may take to connect, and all of a leader's, at the first attempt and later.
const FIRST: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];
const LATER: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(10)];
/// How long a leader may take to answer the greeting; one that was stopped does not.
const ANSWER: Duration = Duration::from_secs(3);
/// A leader that did not answer is tried again after this, and ever later up to the limit.
const AGAIN: Duration = Duration::from_millis(500);
const AGAIN_LIMIT: Duration = Duration::from_secs(5);

/// A leader that has answered.
pub(super) struct Found {
    pub(super) notice: Notice,
    pub(super) home: Talk,
    pub(super) credentials: Credentials,
}

/// Looks for leaders, and remembers what came of it.
#[derive(Clone)]
pub(super) struct Seeker {
    pub(super) dir: PathBuf,
    rank: Option<usize>,
    encrypt: bool,
    ip: Option<IpAddr>,
    /// The secret that all were given; else that of each notice counts.
    pub(super) given: Option<Credentials>,
    hello: Message,
    /// Leaders to leave out, and why: their run has begun without us, or they are ourselves.
    closed: BTreeMap<u64, Option<String>>,
    misses: BTreeMap<u64, Miss>,
    /// What was wrong when it last looked.
    troubles: Vec<String>,
}

/// A leader that did not answer.
#[derive(Clone)]
struct Miss {
    times: u32,
    again: Instant,
    why: String,
}

impl Seeker {
    pub(super) fn new(meeting: &Meeting<'_>, dir: &Path, ip: Option<IpAddr>) -> Result<Seeker, CommError> {
        let given = match &meeting.options.secret {
            Secret::Given(secret) => Some(Credentials::given(secret)?),
            Secret::None | Secret::InDirectory(_) => None,
        };
        Ok(Seeker {
            dir: dir.to_owned(),
            rank: meeting.rank,
            encrypt: meeting.options.encrypt,
            ip,
            given,
            hello: guest::hello(meeting, None),
            closed: BTreeMap::new(),
            misses: BTreeMap::new(),
            troubles: Vec::new(),
        })
    }

    /// The first leader that answers, of those that precede `own` if that is given. An error if one answers that is set
    /// up differently.
    pub(super) fn find(&mut self, own: Option<Precedence>) -> Result<Option<Found>, CommError> {
        let (notices, mut troubles) = notice::list(&self.dir);
        for notice in notices {
            // Also of those that come after us: one that has begun without us may be all there is to tell.
            if let Some(why) = self.closed.get(&notice.id) {
                troubles.extend(why.clone());
                continue;
            }
            if own.is_some_and(|own| notice.precedence() >= own) {
                continue;
            }
            let times = match self.misses.get(&notice.id) {
                Some(miss) if Instant::now() < miss.again => {
                    troubles.push(miss.why.clone());
                    continue;
                }
                Some(miss) => miss.times,
                None => 0,
            };
            let credentials = self.credentials_for(&notice);
            match self.greet(&notice, &credentials, if times == 0 { FIRST } else { LATER }) {
                Ok(home) => {
                    self.misses.remove(&notice.id);
                    self.troubles = troubles;
                    return Ok(Some(Found { notice, home, credentials }));
                }
                Err(error) if is_difference(&error) => return Err(error.into_error(&notice.shown())),
                Err(error) => {
                    let why = format!("{}: {error}", notice.shown());
                    let again = Instant::now() + (AGAIN * 2u32.saturating_pow(times)).min(AGAIN_LIMIT);
                    troubles.push(why.clone());
                    self.misses.insert(notice.id, Miss { times: times.saturating_add(1), again, why });
                }
            }
        }
        self.troubles = troubles;
        Ok(None)
    }

    fn credentials_for(&self, notice: &Notice) -> Credentials {
        self.given.clone().unwrap_or_else(|| {
            Credentials::File(notice.secret.as_deref().map(Key::new).ok_or_else(|| "it has no secret".to_owned()))
        })
    }

    fn greet(&self, notice: &Notice, credentials: &Credentials, limits: [Duration; 2]) -> Result<Talk, TalkError> {
        let [each, all] = limits;
        let start = Instant::now();
        let mut failure = TalkError::Io(std::io::Error::other("it gives no address"));
        for address in &notice.addresses {
            let left = all.saturating_sub(start.elapsed());
            if left.is_zero() {
                break;
            }
            let greeted = socket::dial(*address, self.ip, each.min(left)).map_err(TalkError::Io).and_then(|stream| {
                let mut talk = Talk::new(stream, ANSWER)?;
                let Seeker { rank, encrypt, .. } = *self;
                greeting::dial(&mut talk, &Party { rank, generation: notice.id, credentials, encrypt }, 0)?;
                Ok(talk)
            });
            match greeted {
                Ok(mut talk) => {
                    talk.allow(HANDSHAKE);
                    return Ok(talk);
                }
                // It was there, so its other addresses lead to it as well.
                Err(error) if is_difference(&error) => return Err(error),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// A leader has sent us away, or is gone. An error if trying again is of no use.
    pub(super) fn came_back(&mut self, notice: &Notice, error: TalkError) -> Result<(), CommError> {
        match &error {
            TalkError::RefusedUs(Refusal::UnderWay { .. }) => {
                self.closed.insert(notice.id, Some(format!("{}: {error}", notice.shown())));
            }
            TalkError::RefusedUs(Refusal::Moved) | TalkError::Io(_) | TalkError::Closed | TalkError::TimedOut => {}
            _ => return Err(error.into_error(&notice.shown())),
        }
        Ok(())
    }

    pub(super) fn troubles(&self) -> Vec<String> {
        self.troubles.clone()
    }

    /// What was wrong when it last looked.
    pub(super) fn detail(&self) -> String {
        if self.troubles.is_empty() { "nobody leads a meeting there".to_owned() } else { self.troubles.join("; ") }
    }

    pub(super) fn is_told_to_lead(&self) -> bool {
        self.rank == Some(0)
    }

    /// Leaves out the notice that this process put up itself.
    pub(super) fn pass_over(&mut self, own: u64) {
        self.closed.insert(own, None);
    }

    /// Whether a leader that precedes us answers to being rank 0 itself, when we were told to be that too.
    pub(super) fn twin(&mut self, found: Found) -> Option<CommError> {
        let Found { notice, mut home, .. } = found;
        match home.send(&self.hello).and_then(|()| home.receive()) {
            Err(error @ TalkError::RefusedUs(Refusal::Taken { .. })) => Some(error.into_error(&notice.shown())),
            Err(error @ TalkError::RefusedUs(Refusal::UnderWay { .. })) => {
                self.closed.insert(notice.id, Some(format!("{}: {error}", notice.shown())));
                None
            }
            // It is tried again at the next look.
            _ => None,
        }
    }

    /// Removes the notices of those that do not answer.
    pub(super) fn clean_up(&mut self) {
        // A last look, up to the first that does answer; what comes after that one stays for the next run to clean up.
        _ = self.find(None);
        for id in self.misses.keys() {
            notice::remove(&self.dir, *id);
        }
    }
}

/// Whether the leader is there and set up otherwise, which waiting does not change.
fn is_difference(error: &TalkError) -> bool {
    let (TalkError::RefusedUs(refusal) | TalkError::WeRefused(refusal)) = error else { return false };
    matches!(
        refusal,
        Refusal::Encryption { .. } | Refusal::Protocol { .. } | Refusal::SecretKind { .. } | Refusal::SecretWrong
    )
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::super::notice::Posted;
    use super::*;
    use crate::identity::Identity;
    use crate::options::Options;
    use crate::pace::Pace;

    /// A leader's own number is drawn, so which of the two comes first is a matter of chance.
    #[test]
    fn a_leader_knows_of_a_run_under_way_whichever_comes_first() {
        let dir = TempDir::new().unwrap();
        let (identity, options) = (Identity::new(), Options::default());
        let meeting = Meeting {
            rank: None,
            world: 2,
            at: "file:///shared".to_owned(),
            name: "alpha".to_owned(),
            pace: Pace::new(options.silence),
            identity: &identity,
            options: &options,
            began: Instant::now(),
        };
        let notice = Notice { id: 5, is_rank_0: false, host: "beta".to_owned(), addresses: Vec::new(), secret: None };
        let _posted = Posted::post(dir.path(), &notice).unwrap();
        let mut seeker = Seeker::new(&meeting, dir.path(), None).unwrap();
        let under_way = Refusal::UnderWay { seconds_ago: 9, world: 2 };
        seeker.came_back(&notice, TalkError::RefusedUs(under_way)).unwrap();
        for own in [(true, 3), (true, 7)] {
            assert!(seeker.find(Some(own)).unwrap().is_none());
            assert!(seeker.detail().contains("this run is under way"), "{own:?}: {}", seeker.detail());
        }
    }
}
