//! `tcp://host:port`: rank 0 listens at an address that all ranks were told, and the others dial it.
//!
//! Until a rank has the roster, what goes wrong may be right in a moment (a machine that boots, a port not yet open, an
//! earlier run that is just ending, a secret that rank 0 is about to replace), so it tries again until the deadline.

use std::net::{IpAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::doorkeeper::Left;
use super::greeting::{self, Party};
use super::guest::{self, Setback};
use super::host::{self, Venue};
use super::refusal::Refusal;
use super::talk::{Talk, TalkError};
use super::{HANDSHAKE, Meeting, Met, Reminder};
use crate::error::CommError;
use crate::secret::{Credentials, Key, Secret};
use crate::secret_file::{self, SecretFile};
use crate::socket;

/// The pause between two attempts to reach rank 0, and the longest that one attempt may take.
const RETRY: Duration = Duration::from_millis(100);
const ATTEMPT: Duration = Duration::from_secs(5);
/// The pause after rank 0 answered but would not have us: it does not change its mind so soon.
const REFUSED_RETRY: Duration = Duration::from_millis(500);

/// The address, and what depends on it.
pub(super) struct Fixed<'a> {
    pub(super) meeting: &'a Meeting<'a>,
    pub(super) host: &'a str,
    pub(super) port: u16,
}

impl Fixed<'_> {
    /// Gathers the ranks as rank 0, or joins them.
    pub(super) fn meet(&self) -> Result<Met, CommError> {
        let ip = socket::chosen_ip(self.meeting.options)?;
        if self.meeting.rank != Some(0) {
            return self.visit(ip);
        }
        let listener = socket::listen_at(ip, self.port)?;
        // Now that the port is ours: a second rank 0 must not replace the secret of the first.
        let (credentials, left) = self.issue_secret()?;
        let venue = Venue { listener, generation: 0, credentials, left };
        host::host(self.meeting, venue, &mut || None)?.ok_or_else(|| CommError::Rendezvous {
            with: self.meeting.at.clone(),
            detail: "it was given up".to_owned(),
        })
    }

    fn visit(&self, ip: Option<IpAddr>) -> Result<Met, CommError> {
        let mut reminder = Reminder::new(Instant::now());
        loop {
            let credentials = self.find_secret()?;
            let reached = self.greet_zero(&credentials, ip).map_err(Setback::Early);
            let error = match reached.and_then(|home| guest::stay(self.meeting, home, &credentials, ip)) {
                Ok(met) => return Ok(met),
                Err(Setback::Final(error)) => return Err(error),
                Err(Setback::Early(error)) => error,
            };
            let Some(pause) = pause_after(&error, &credentials) else {
                return Err(error.into_error(&self.rank_0()));
            };
            if self.meeting.left() <= pause {
                return Err(self.given_up(error, &credentials));
            }
            if reminder.is_due(Instant::now()) {
                tracing::info!("waiting for {}: {}", self.rank_0(), detail(&error, &credentials));
            }
            std::thread::sleep(pause);
        }
    }

    /// Dials rank 0 once.
    fn greet_zero(&self, credentials: &Credentials, ip: Option<IpAddr>) -> Result<Talk, TalkError> {
        let addresses = (self.host, self.port).to_socket_addrs().map_err(TalkError::Io)?;
        let left = self.meeting.left();
        let mut failure = std::io::Error::other("the name has no address");
        for address in addresses {
            match socket::dial(address, ip, left.min(ATTEMPT)) {
                Ok(stream) => {
                    let mut talk = Talk::new(stream, left.clamp(Duration::from_millis(1), HANDSHAKE))?;
                    let (rank, encrypt) = (self.meeting.rank, self.meeting.options.encrypt);
                    greeting::dial(&mut talk, &Party { rank, generation: 0, credentials, encrypt }, 0)?;
                    return Ok(talk);
                }
                Err(error) => failure = error,
            }
        }
        Err(TalkError::Io(failure))
    }

    /// Rank 0's: with a file for the others, if that is where they look for it.
    fn issue_secret(&self) -> Result<(Credentials, Left), CommError> {
        let Some(path) = self.secret_file() else { return Ok((self.find_secret()?, Left::Nothing)) };
        let cannot = |reason| CommError::SecretFile { path: path.display().to_string(), reason };
        let file = SecretFile::make(&path).map_err(cannot)?;
        Ok((Credentials::File(Ok(Key::new(file.secret()))), Left::Secret(file)))
    }

    /// The others', as it is now: rank 0 may replace its file at any time.
    fn find_secret(&self) -> Result<Credentials, CommError> {
        if let Some(path) = self.secret_file() {
            return Ok(Credentials::File(secret_file::read(&path).map(|secret| Key::new(&secret))));
        }
        match &self.meeting.options.secret {
            Secret::Given(secret) => Credentials::given(secret),
            Secret::None | Secret::InDirectory(_) => Ok(Credentials::None),
        }
    }

    /// By the port, so that an evaluation beside a training in the same directory has a secret of its own.
    fn secret_file(&self) -> Option<PathBuf> {
        match &self.meeting.options.secret {
            Secret::InDirectory(dir) => Some(dir.join(format!(".secret-{}", self.port))),
            Secret::None | Secret::Given(_) => None,
        }
    }

    fn rank_0(&self) -> String {
        format!("rank 0 at {}", self.meeting.at)
    }

    /// The deadline has passed, and this was the last attempt.
    fn given_up(&self, error: TalkError, credentials: &Credentials) -> CommError {
        let waited = self.meeting.options.join;
        let no_secret = |reason: &str| {
            let path = self.secret_file().unwrap_or_default().display().to_string();
            CommError::NoSecret { path, reason: reason.to_owned(), waited }
        };
        match (error, credentials) {
            (TalkError::WeRefused(Refusal::NoSecretYet), Credentials::File(Err(why))) => no_secret(why),
            (TalkError::WeRefused(Refusal::SecretWrong) | TalkError::RefusedUs(Refusal::SecretWrong), _) => {
                no_secret("what is in it is not the secret of that rank 0")
            }
            (error @ (TalkError::RefusedUs(_) | TalkError::WeRefused(_)), _) => error.into_error(&self.rank_0()),
            (error, _) => CommError::Unreachable {
                what: "rank 0".to_owned(),
                address: self.meeting.at.clone(),
                waited,
                detail: error.to_string(),
            },
        }
    }
}

/// How long to wait before the next attempt; `None` if it would fail the same way.
fn pause_after(error: &TalkError, credentials: &Credentials) -> Option<Duration> {
    let is_file = matches!(credentials, Credentials::File(_));
    match error {
        TalkError::Io(_) | TalkError::Closed | TalkError::TimedOut => Some(RETRY),
        TalkError::RefusedUs(refusal) | TalkError::WeRefused(refusal) => match refusal {
            // The file may be of an earlier start, or not be there yet.
            Refusal::SecretWrong | Refusal::NoSecretYet if is_file => Some(REFUSED_RETRY),
            // A run may be ending because it lost this very rank, and start again.
            Refusal::UnderWay { .. } => Some(REFUSED_RETRY),
            _ => None,
        },
        _ => None,
    }
}

/// What is wrong, with the part that only this rank knows.
fn detail(error: &TalkError, credentials: &Credentials) -> String {
    match (error, credentials) {
        (TalkError::WeRefused(Refusal::NoSecretYet), Credentials::File(Err(why))) => {
            format!("{error} (the file here: {why})")
        }
        _ => error.to_string(),
    }
}
