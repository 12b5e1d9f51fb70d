//! The part of every rank but 0: dial rank 0, say who we are, wait for the roster, connect to the
//! others, wait for the start.
//!
//! Until the roster is there, what goes wrong may be right in a moment (a machine that boots, a port not yet open, an
//! earlier run that is just ending, a secret that rank 0 is about to replace), so it is tried again until the deadline.

use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::greeting::{self, Party};
use super::pairing;
use super::refusal::Refusal;
use super::talk::{Hello, Message, Roster, Talk, TalkError, shown_name, unexpected};
use super::{GRACE, HANDSHAKE, Meeting, Met, PAIRING, Reminder};
use crate::error::CommError;
use crate::secret::Credentials;
use crate::socket;

/// The pause between two attempts to reach rank 0, and the longest that one attempt may take.
const RETRY: Duration = Duration::from_millis(100);
const ATTEMPT: Duration = Duration::from_secs(5);
/// The pause after rank 0 answered but would not have us: it does not change its mind so soon.
const REFUSED_RETRY: Duration = Duration::from_millis(500);

/// How a visit failed.
enum Setback {
    /// Before the roster: nothing depends on this rank yet, and it may try again.
    Early(TalkError),
    Final(CommError),
}

impl From<CommError> for Setback {
    fn from(error: CommError) -> Setback {
        Setback::Final(error)
    }
}

/// Joins the ranks at rank 0.
pub(super) fn visit(meeting: &Meeting<'_>) -> Result<Met, CommError> {
    let ip = socket::chosen_ip(meeting.options)?;
    let start = Instant::now();
    let join = meeting.options.join;
    let mut reminder = Reminder::new(start);
    loop {
        let credentials = meeting.find_secret()?;
        let left = join.saturating_sub(start.elapsed());
        let reached = greet_zero(meeting, &credentials, ip, left).map_err(Setback::Early);
        let error = match reached.and_then(|home| stay(meeting, home, &credentials, ip)) {
            Ok(met) => return Ok(met),
            Err(Setback::Final(error)) => return Err(error),
            Err(Setback::Early(error)) => error,
        };
        let Some(pause) = pause_after(&error, &credentials) else {
            return Err(error.into_error(meeting.rank, &rank_0_of(meeting)));
        };
        if start.elapsed() + pause >= join {
            return Err(given_up(meeting, error, &credentials));
        }
        if reminder.is_due(Instant::now()) {
            tracing::info!("waiting for {}: {}", rank_0_of(meeting), detail(&error, &credentials));
        }
        std::thread::sleep(pause);
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

/// The deadline has passed, and this was the last attempt.
fn given_up(meeting: &Meeting<'_>, error: TalkError, credentials: &Credentials) -> CommError {
    let waited = meeting.options.join;
    let no_secret = |reason: &str| match meeting.secret_file() {
        Some(path) => CommError::NoSecret { path: path.display().to_string(), reason: reason.to_owned(), waited },
        None => CommError::Refused { by: rank_0_of(meeting), reason: reason.to_owned() },
    };
    match (error, credentials) {
        (TalkError::WeRefused(Refusal::NoSecretYet), Credentials::File(Err(why))) => no_secret(why),
        (TalkError::WeRefused(Refusal::SecretWrong) | TalkError::RefusedUs(Refusal::SecretWrong), _) => {
            no_secret("what is in it is not the secret of that rank 0")
        }
        (error @ (TalkError::RefusedUs(_) | TalkError::WeRefused(_)), _) => {
            error.into_error(meeting.rank, &rank_0_of(meeting))
        }
        (error, _) => CommError::Unreachable {
            what: "rank 0".to_owned(),
            address: meeting.address(),
            waited,
            detail: error.to_string(),
        },
    }
}

fn rank_0_of(meeting: &Meeting<'_>) -> String {
    format!("rank 0 at {}", meeting.address())
}

/// Dials rank 0 once.
fn greet_zero(
    meeting: &Meeting<'_>,
    credentials: &Credentials,
    ip: Option<IpAddr>,
    left: Duration,
) -> Result<Talk, TalkError> {
    let addresses = (meeting.host, meeting.port).to_socket_addrs().map_err(TalkError::Io)?;
    let mut failure = std::io::Error::other("the name has no address");
    for address in addresses {
        match socket::dial(address, ip, left.min(ATTEMPT)) {
            Ok(stream) => {
                let mut talk = Talk::new(stream, left.clamp(Duration::from_millis(1), HANDSHAKE))?;
                let (rank, encrypt) = (meeting.rank, meeting.options.encrypt);
                greeting::dial(&mut talk, &Party { rank, generation: 0, credentials, encrypt }, 0)?;
                return Ok(talk);
            }
            Err(error) => failure = error,
        }
    }
    Err(TalkError::Io(failure))
}

/// Sits at rank 0's table until the start.
fn stay(meeting: &Meeting<'_>, mut home: Talk, credentials: &Credentials, ip: Option<IpAddr>) -> Result<Met, Setback> {
    let options = meeting.options;
    // Open before rank 0 tells anybody, so that nobody can knock too early. Nobody dials the highest.
    let is_highest = meeting.rank + 1 == meeting.world;
    let listener = if is_highest { None } else { Some(socket::listen_anywhere(ip, options)?) };
    let announced = match &listener {
        Some(listener) => Some(announced(listener, ip, &home).map_err(Setback::Early)?),
        None => None,
    };
    home.send(&Message::Hello(Hello {
        rank: meeting.rank as u64,
        world: meeting.world as u64,
        name: meeting.name.clone(),
        listener: announced,
        identity: meeting.identity.clone(),
    }))
    .map_err(Setback::Early)?;
    tracing::info!(rank = meeting.rank, "reached rank 0; waiting for the other ranks");
    home.allow(options.join + GRACE);
    let roster = match home.receive().map_err(Setback::Early)? {
        Message::Roster(roster) => checked(roster, meeting).map_err(Setback::Early)?,
        other => return Err(Setback::Early(unexpected("roster", &other))),
    };
    Ok(pair_and_start(meeting, home, roster, listener, credentials, ip)?)
}

/// From the roster on everybody counts on this rank, and a failure is one of the run.
fn pair_and_start(
    meeting: &Meeting<'_>,
    mut home: Talk,
    roster: Roster,
    listener: Option<TcpListener>,
    credentials: &Credentials,
    ip: Option<IpAddr>,
) -> Result<Met, CommError> {
    let failed = |error: TalkError| error.into_error(meeting.rank, &rank_0_of(meeting));
    home.allow(PAIRING + GRACE);
    let mut connections = match pairing::pair(meeting, &roster, listener, credentials, ip, &mut home) {
        Ok(connections) => connections,
        Err(error) => {
            // Rank 0 passes it on, so that nobody waits for this rank. If that fails too, rank 0 is gone.
            let _ = home.send(&Message::Failed(error.to_string()));
            return Err(error);
        }
    };
    home.send(&Message::Ready).map_err(failed)?;
    match home.receive().map_err(failed)? {
        Message::Start => {}
        other => return Err(failed(unexpected("start", &other))),
    }
    connections[0] = Some(home.into_connection());
    let names = roster.members.into_iter().map(|member| member.name).collect();
    Ok(Met { generation: roster.generation, names, connections, keeper: None })
}

/// Where others reach our listener: the chosen address, else the one that leads to rank 0.
fn announced(listener: &TcpListener, ip: Option<IpAddr>, home: &Talk) -> Result<SocketAddr, TalkError> {
    let port = listener.local_addr().map_err(TalkError::Io)?.port();
    let ip = match ip.filter(|ip| !ip.is_unspecified()) {
        Some(ip) => ip,
        None => home.local()?.ip(),
    };
    Ok(SocketAddr::new(ip, port))
}

fn checked(mut roster: Roster, meeting: &Meeting<'_>) -> Result<Roster, TalkError> {
    if roster.members.len() != meeting.world {
        return Err(TalkError::Unexpected { expected: "full roster", got: "roster of another size" });
    }
    for member in &mut roster.members {
        member.name = shown_name(&member.name);
    }
    Ok(roster)
}
