//! `tcp://host:port`: rank 0 listens at an address that all ranks know, and the peers dial it.
//!
//! Before a rank has the member list, an error may be temporary (a machine that boots, a port not
//! yet open, a secret that rank 0 is about to replace). Above all, until the other side has proven
//! that it knows the secret, it may be an earlier run that is just ending, or another program. So
//! the rank retries until the deadline, whatever the answer was. A refusal by the authenticated rank
//! 0 is final, with the exceptions in `is_temporary`. Called by `mod.rs`.

use std::net::{IpAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::auth::{self, LocalParty};
use super::door::TempFiles;
use super::handshake::{Handshake, HandshakeError};
use super::newcomer::RunningGroup;
use super::peer::{self, JoinFailure, TakenRetry};
use super::rank0::{self, Listening};
use super::refusal::Refusal;
use super::{Found, HANDSHAKE_TIMEOUT, JoinContext, Reminder};
use crate::error::CommError;
use crate::secret::{Credentials, Secret, SecretKey};
use crate::secret_file::{self, SecretFile};
use crate::socket;

/// The pause between two attempts to reach rank 0, and the timeout of one attempt.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after rank 0 answered but refused this rank: the reason does not go away quickly.
const REFUSED_PAUSE: Duration = Duration::from_millis(500);

/// A rendezvous at a fixed address.
pub(super) struct FixedAddress<'a> {
    pub(super) context: &'a JoinContext<'a>,
    pub(super) host: &'a str,
    pub(super) port: u16,
}

impl FixedAddress<'_> {
    /// Waits for the peers as rank 0, or joins rank 0 as a peer.
    pub(super) fn join(&self) -> Result<Found, CommError> {
        let ip = socket::chosen_ip(self.context.options)?;
        if self.context.rank != Some(0) {
            return self.join_rank0(ip);
        }
        let listener = socket::listen_at(ip, self.port)?;
        // After the port is bound: a second rank 0 must not replace the secret of the first.
        let (credentials, files) = self.issue_secret()?;
        let listening = Listening { listener, generation: 0, credentials, files };
        let joined = rank0::join(self.context, listening, &mut || None)?.ok_or_else(|| CommError::Rendezvous {
            with: self.context.rendezvous.clone(),
            detail: "it was interrupted".to_owned(),
        })?;
        Ok(Found::Joined(joined))
    }

    fn join_rank0(&self, ip: Option<IpAddr>) -> Result<Found, CommError> {
        let mut reminder = Reminder::new(Instant::now());
        let (mut taken, mut warned, mut last_refusal) = (TakenRetry::default(), None, None);
        loop {
            let mut credentials = self.find_secret()?;
            let error = match self.connect(&mut credentials, ip) {
                Ok(handshake) => match peer::join(self.context, handshake, &credentials, ip) {
                    Ok(joined) => return Ok(Found::Joined(joined)),
                    Err(JoinFailure::Final(error)) => return Err(error),
                    Err(JoinFailure::Running(running)) => {
                        match RunningGroup::of(self.context, &running, &credentials) {
                            Ok(running) => return Ok(Found::Running(running)),
                            Err(error @ HandshakeError::RefusedUs(Refusal::Mismatch(_))) => {
                                return Err(error.into_error(&self.rank_0()));
                            }
                            Err(error) => error,
                        }
                    }
                    Err(JoinFailure::Early(error)) if !is_temporary(&error, &mut taken) => {
                        return Err(error.into_error(&self.rank_0()));
                    }
                    Err(JoinFailure::Early(error)) => error,
                },
                Err(error) => error,
            };
            let pause = if is_unreachable(&error) { RETRY_PAUSE } else { REFUSED_PAUSE };
            if self.context.time_left() <= pause {
                return Err(self.timeout_error(error, &credentials, last_refusal));
            }
            if !is_unreachable(&error) {
                last_refusal = Some(error.to_string());
            }
            let hint = retry_hint(&error, &credentials);
            if let Some(hint) = hint.filter(|_| warned != Some(error.kind())) {
                warned = Some(error.kind());
                tracing::warn!("cannot join {}: {error}; trying again, {hint}", self.rank_0());
            } else if reminder.is_due(Instant::now()) {
                tracing::info!("waiting for {}: {}", self.rank_0(), detail(&error, &credentials));
            }
            std::thread::sleep(pause);
        }
    }

    /// Dials rank 0 once and authenticates. Rank 0 answers only after it has written its secret, so
    /// the file is read again after the answer: before it, there was none, or that of an earlier run,
    /// and rank 0 would report a stranger.
    fn connect(&self, credentials: &mut Credentials, ip: Option<IpAddr>) -> Result<Handshake, HandshakeError> {
        let addresses = (self.host, self.port).to_socket_addrs().map_err(HandshakeError::Io)?;
        let time_left = self.context.time_left();
        let mut failure = std::io::Error::other("the name has no address");
        for address in addresses {
            match socket::dial(address, ip, time_left.min(ATTEMPT_TIMEOUT)) {
                Ok(stream) => {
                    let timeout = time_left.clamp(Duration::from_millis(1), HANDSHAKE_TIMEOUT);
                    let mut handshake = Handshake::new(stream, timeout)?;
                    let (rank, encrypt) = (self.context.rank, self.context.options.encrypt);
                    let party = LocalParty { rank, generation: 0, credentials, encrypt };
                    let requests = auth::exchange_requests(&mut handshake, &party, 0)?;
                    if let Ok(current) = self.find_secret() {
                        *credentials = current;
                    }
                    let party = LocalParty { rank, generation: 0, credentials, encrypt };
                    auth::prove(&mut handshake, &party, requests)?;
                    return Ok(handshake);
                }
                Err(error) => failure = error,
            }
        }
        Err(HandshakeError::Io(failure))
    }

    /// Returns rank 0's credentials; writes the secret to a file if the peers read it from there.
    fn issue_secret(&self) -> Result<(Credentials, TempFiles), CommError> {
        let Some(path) = self.secret_file() else { return Ok((self.find_secret()?, TempFiles::Nothing)) };
        let cannot = |reason| CommError::SecretFile { path: path.display().to_string(), reason };
        let file = SecretFile::create(&path).map_err(cannot)?;
        Ok((Credentials::File(Ok(SecretKey::new(file.secret()))), TempFiles::Secret(file)))
    }

    /// Returns a peer's credentials. Read at each attempt: rank 0 may replace its file at any time.
    fn find_secret(&self) -> Result<Credentials, CommError> {
        if let Some(path) = self.secret_file() {
            return Ok(Credentials::File(secret_file::read(&path).map(|secret| SecretKey::new(&secret))));
        }
        match &self.context.options.secret {
            Secret::Given(secret) => Credentials::given(secret),
            Secret::None | Secret::InDirectory(_) => Ok(Credentials::None),
        }
    }

    /// The path of the secret. It contains the port, so that an evaluation beside a training in the
    /// same directory has a different secret.
    fn secret_file(&self) -> Option<PathBuf> {
        match &self.context.options.secret {
            Secret::InDirectory(dir) => Some(dir.join(format!(".secret-{}", self.port))),
            Secret::None | Secret::Given(_) => None,
        }
    }

    fn rank_0(&self) -> String {
        format!("rank 0 at {}", self.context.rendezvous)
    }

    /// The error to report when the deadline has passed; `error` is that of the last attempt, and
    /// `refusal` that of the last attempt before it that got an answer.
    fn timeout_error(&self, error: HandshakeError, credentials: &Credentials, refusal: Option<String>) -> CommError {
        let waited = self.context.options.join;
        let no_secret = |reason: &str| {
            let path = self.secret_file().unwrap_or_default().display().to_string();
            CommError::NoSecret { path, reason: reason.to_owned(), waited }
        };
        match (error, credentials) {
            (HandshakeError::WeRefused(Refusal::NoSecretYet), Credentials::File(Err(why))) => no_secret(why),
            (
                HandshakeError::WeRefused(Refusal::SecretWrong) | HandshakeError::RefusedUs(Refusal::SecretWrong),
                Credentials::File(_),
            ) => no_secret("its content is not the secret of that rank 0"),
            (error @ (HandshakeError::RefusedUs(_) | HandshakeError::WeRefused(_)), _) => {
                error.into_error(&self.rank_0())
            }
            (error, _) => CommError::Unreachable {
                what: "rank 0".to_owned(),
                address: self.context.rendezvous.clone(),
                waited,
                // Without an answer to the last attempt, an earlier one may say more.
                detail: match refusal.filter(|_| is_unreachable(&error)) {
                    Some(refusal) => format!("{error}; before that: {refusal}"),
                    None => error.to_string(),
                },
            },
        }
    }
}

fn is_unreachable(error: &HandshakeError) -> bool {
    matches!(error, HandshakeError::Io(_) | HandshakeError::Closed | HandshakeError::TimedOut)
}

/// Whether the next attempt may succeed although the authenticated rank 0 did not accept this rank.
fn is_temporary(error: &HandshakeError, taken: &mut TakenRetry) -> bool {
    taken.may_retry(error, Instant::now())
        || is_unreachable(error)
        // A run may be ending because it lost this very rank, and start again.
        || matches!(error, HandshakeError::RefusedUs(Refusal::AlreadyStarted { .. }))
}

/// Why this rank retries, if the user should know at once: without a change of settings, it may
/// retry in vain until the deadline.
fn retry_hint(error: &HandshakeError, credentials: &Credentials) -> Option<&'static str> {
    match error {
        HandshakeError::RefusedUs(refusal) | HandshakeError::WeRefused(refusal) => match refusal {
            Refusal::RankTaken { .. } => Some("in case that process is about to end"),
            // The file may be that of an earlier start, or not exist yet. That is usual.
            Refusal::SecretWrong | Refusal::NoSecretYet if matches!(credentials, Credentials::File(_)) => None,
            Refusal::AlreadyStarted { .. } => None,
            _ => Some("in case that is an earlier run which is about to end"),
        },
        error if is_unreachable(error) => None,
        _ => Some("in case that is another program which is about to end"),
    }
}

/// The error's text, with the part that only this rank knows.
fn detail(error: &HandshakeError, credentials: &Credentials) -> String {
    match (error, credentials) {
        (HandshakeError::WeRefused(Refusal::NoSecretYet), Credentials::File(Err(why))) => {
            format!("{error} (the file here: {why})")
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use tempfile::TempDir;

    use super::*;
    use crate::heartbeat_timing::HeartbeatTiming;
    use crate::identity::Identity;
    use crate::options::Options;

    /// All ranks start at once: a peer reaches the port of rank 0 before rank 0 has replaced the
    /// secret of an earlier run, or written the first one.
    #[test]
    fn a_peer_that_is_faster_than_the_secret_is_no_stranger() {
        for has_old_secret in [false, true] {
            let dir = TempDir::new().unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            let identity = Identity::new();
            let options = Options { secret: Secret::InDirectory(dir.path().to_owned()), ..Options::default() };
            let context = JoinContext {
                rank: Some(1),
                world: 2,
                rendezvous: format!("tcp://127.0.0.1:{port}"),
                name: "alpha".to_owned(),
                timing: HeartbeatTiming::new(options.silence),
                identity: &identity,
                options: &options,
                started: Instant::now(),
            };
            let peer = FixedAddress { context: &context, host: "127.0.0.1", port };
            let path = peer.secret_file().unwrap();
            let old = has_old_secret.then(|| SecretFile::create(&path).unwrap());
            let mut credentials = peer.find_secret().unwrap();
            std::thread::scope(|scope| {
                let rank_0 = scope.spawn(|| {
                    let (stream, _) = listener.accept().unwrap();
                    // Only now, though the peer has connected.
                    let file = SecretFile::create(&path).unwrap();
                    let credentials = Credentials::File(Ok(SecretKey::new(file.secret())));
                    let party = LocalParty { rank: Some(0), generation: 0, credentials: &credentials, encrypt: false };
                    let handshake = Handshake::new(stream, HANDSHAKE_TIMEOUT).unwrap();
                    auth::answer(handshake, &party).map(|(_, rank)| rank).map_err(|error| error.to_string())
                });
                assert!(peer.connect(&mut credentials, None).is_ok());
                assert_eq!(rank_0.join().unwrap(), Ok(Some(1)));
            });
            drop(old);
        }
    }
}
