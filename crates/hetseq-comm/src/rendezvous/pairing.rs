//! Connecting the ranks above 0 to each other, once the roster is known: the higher dials the lower.
//!
//! Each rank first dials all lower ones, then lets the higher ones in. That cannot lock up: rank 1
//! dials nobody and so answers at once, then rank 2 can, and so on. Called by `guest.rs`.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use super::admission::Limits;
use super::greeting::{self, Party};
use super::reception::{Arrival, Reception};
use super::refusal::Refusal;
use super::strangers::Strangers;
use super::talk::{Message, Roster, Talk, TalkError, unexpected};
use super::{HANDSHAKE, Meeting, PAIRING, POLL};
use crate::connection::Connection;
use crate::error::{CommError, named_ranks};
use crate::secret::Credentials;
use crate::socket;

/// The pause between two attempts to reach a rank, and the longest that one attempt may take.
const RETRY: Duration = Duration::from_millis(200);
const ATTEMPT: Duration = Duration::from_secs(5);

/// One rank's view of the pairing.
pub(super) struct Pairing<'a> {
    pub(super) meeting: &'a Meeting<'a>,
    pub(super) rank: usize,
    pub(super) roster: &'a Roster,
    pub(super) credentials: &'a Credentials,
    pub(super) ip: Option<IpAddr>,
}

/// A connection to each rank above 0 but this one. `home` is the talk with rank 0: a word from it before
/// this is done means that the run is called off.
pub(super) fn pair(
    this: &Pairing<'_>,
    listener: Option<TcpListener>,
    home: &mut Talk,
) -> Result<Vec<Option<Connection>>, CommError> {
    let Pairing { meeting, rank, roster, .. } = *this;
    let deadline = Instant::now() + PAIRING;
    let mut connections: Vec<Option<Connection>> = (0..meeting.world).map(|_| None).collect();
    for (lower, connection) in connections.iter_mut().enumerate().take(rank).skip(1) {
        *connection = Some(dial(this, lower, home, deadline)?);
    }
    if let Some(listener) = listener {
        let (rank, generation, encrypt) = (Some(rank), roster.generation, meeting.options.encrypt);
        let credentials = this.credentials.clone();
        let greet = move |talk| greeting::answer(talk, &Party { rank, generation, credentials: &credentials, encrypt });
        let door = Reception::open(listener, Limits::gathering(meeting.world), greet)?;
        let higher = admit(this, &door, home, deadline)?;
        connections.iter_mut().zip(higher).for_each(|(connection, talk)| {
            *connection = connection.take().or(talk.map(Talk::into_connection));
        });
    }
    Ok(connections)
}

fn dial(this: &Pairing<'_>, lower: usize, home: &mut Talk, deadline: Instant) -> Result<Connection, CommError> {
    let Pairing { meeting, rank, roster, credentials, ip } = *this;
    let member = &roster.members[lower];
    let what = format!("rank {lower} ({})", member.name);
    let Some(announced) = member.listener else {
        let detail = "it announced no address".to_owned();
        return Err(CommError::Rendezvous { with: what, detail });
    };
    let here = home.local().map_err(|error| error.into_error(&what))?;
    let address = reachable(announced, here.ip(), home.peer().ip());
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let attempt = socket::dial(address, ip, left.min(ATTEMPT)).map_err(TalkError::Io);
        let greeted = attempt.and_then(|stream| {
            let mut talk = Talk::new(stream, left.clamp(Duration::from_millis(1), HANDSHAKE))?;
            let (rank, generation, encrypt) = (Some(rank), roster.generation, meeting.options.encrypt);
            greeting::dial(&mut talk, &Party { rank, generation, credentials, encrypt }, lower)?;
            match talk.receive()? {
                Message::Accepted => Ok(talk.into_connection()),
                other => Err(unexpected("accepted", &other)),
            }
        });
        let detail = match greeted {
            Ok(connection) => return Ok(connection),
            Err(TalkError::Io(error)) => error.to_string(),
            Err(error @ (TalkError::Closed | TalkError::TimedOut)) => error.to_string(),
            Err(error) => return Err(error.into_error(&what)),
        };
        check_home(meeting, home)?;
        if Instant::now() + RETRY >= deadline {
            let address = address.to_string();
            return Err(CommError::Unreachable { what, address, waited: PAIRING, detail });
        }
        std::thread::sleep(RETRY);
    }
}

/// A rank that announced a loopback address reached rank 0 over loopback, so it is on rank 0's machine.
/// Seen from elsewhere, that machine is where this rank reaches rank 0.
fn reachable(announced: SocketAddr, here: IpAddr, zero: IpAddr) -> SocketAddr {
    if announced.ip().is_loopback() && !here.is_loopback() {
        SocketAddr::new(zero, announced.port())
    } else {
        announced
    }
}

/// Lets the higher ranks in; by rank.
fn admit(
    this: &Pairing<'_>,
    door: &Reception<(Talk, Option<u64>)>,
    home: &mut Talk,
    deadline: Instant,
) -> Result<Vec<Option<Talk>>, CommError> {
    let Pairing { meeting, roster, .. } = *this;
    let higher = this.rank + 1..meeting.world;
    let mut talks: Vec<Option<Talk>> = (0..meeting.world).map(|_| None).collect();
    let mut strangers = Strangers::default();
    loop {
        let missing: Vec<usize> = higher.clone().filter(|rank| talks[*rank].is_none()).collect();
        if missing.is_empty() {
            return Ok(talks);
        }
        if Instant::now() >= deadline {
            let names: Vec<&str> = missing.iter().map(|rank| roster.members[*rank].name.as_str()).collect();
            return Err(CommError::Rendezvous {
                with: format!("{} ({})", named_ranks(&missing), names.join(", ")),
                detail: format!(
                    "no connection from there within {} s; check the firewall, comm.ports and, \
                     with several networks, comm.interface",
                    PAIRING.as_secs()
                ),
            });
        }
        for arrival in door.poll(POLL) {
            match arrival {
                Arrival::TurnedAway { address, why } => {
                    if let Some(line) = strangers.note(Instant::now(), address, &why) {
                        tracing::warn!("{line}");
                    }
                }
                Arrival::Came((talk, rank)) => {
                    let seat = higher.clone().find(|higher| Some(*higher as u64) == rank).map(|rank| &mut talks[rank]);
                    // One that gave up its connection, perhaps because our answer was late, dials again.
                    match seat.filter(|seat| seat.as_ref().is_none_or(Talk::is_gone)) {
                        Some(seat) => *seat = accept(talk),
                        None => turn_away(meeting, talk, rank),
                    }
                }
            }
        }
        check_home(meeting, home)?;
    }
}

fn accept(mut talk: Talk) -> Option<Talk> {
    // If that fails, it went away meanwhile and dials again.
    talk.send(&Message::Accepted).ok().map(|()| talk)
}

fn turn_away(meeting: &Meeting<'_>, talk: Talk, rank: Option<u64>) {
    let address = talk.peer();
    let rank = rank.unwrap_or(u64::MAX);
    let taken = Refusal::Taken { rank, name: meeting.name.clone(), address: address.to_string() };
    let why = talk.refuse(taken);
    tracing::warn!("turned away {address}: {why}");
}

/// Rank 0 speaks up only to call the run off.
fn check_home(meeting: &Meeting<'_>, home: &mut Talk) -> Result<(), CommError> {
    if !home.has_news() {
        return Ok(());
    }
    let with = format!("rank 0 at {}", meeting.at);
    match home.receive() {
        Ok(message) => Err(unexpected("refusal", &message).into_error(&with)),
        Err(error) => Err(error.into_error(&with)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loopback_address_is_translated_for_other_machines() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let announced = at("127.0.1.1:700");
        assert_eq!(reachable(announced, ip("10.0.0.2"), ip("10.0.0.1")), at("10.0.0.1:700"));
        assert_eq!(reachable(announced, ip("127.0.0.1"), ip("127.0.0.1")), announced);
        let remote = at("10.0.0.3:700");
        assert_eq!(reachable(remote, ip("127.0.0.1"), ip("127.0.0.1")), remote);
    }
}
