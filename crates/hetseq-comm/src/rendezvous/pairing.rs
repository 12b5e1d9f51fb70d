//! Connects the ranks above 0 to each other, once the member list is known: the higher rank dials
//! the lower.
//!
//! Each rank first dials all lower ranks, then accepts the higher ones. That cannot deadlock: rank
//! 1 dials no rank and so accepts at once, then rank 2 can, and so on. Called by `peer.rs`.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use super::acceptor::{AcceptEvent, Acceptor};
use super::auth::{self, LocalParty};
use super::handshake::{Handshake, HandshakeError, MemberList, Message, unexpected};
use super::limits::AcceptLimits;
use super::refusal::Refusal;
use super::reject_log::RejectLog;
use super::{HANDSHAKE_TIMEOUT, JoinContext, PAIRING_TIMEOUT, POLL_INTERVAL};
use crate::connection::Connection;
use crate::error::{CommError, named_ranks};
use crate::secret::Credentials;
use crate::socket;

/// The pause between two attempts to reach a rank, and the timeout of one attempt.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// What one rank needs for pairing.
pub(super) struct Pairing<'a> {
    pub(super) context: &'a JoinContext<'a>,
    pub(super) rank: usize,
    pub(super) member_list: &'a MemberList,
    pub(super) credentials: &'a Credentials,
    pub(super) ip: Option<IpAddr>,
}

/// Returns a connection to each rank above 0 except this one. `rank0` is the handshake with rank 0:
/// a message from it during pairing means that the run is cancelled.
pub(super) fn pair(
    pairing: &Pairing<'_>,
    listener: Option<TcpListener>,
    rank0: &mut Handshake,
) -> Result<Vec<Option<Connection>>, CommError> {
    let Pairing { context, rank, member_list, .. } = *pairing;
    let deadline = Instant::now() + PAIRING_TIMEOUT;
    let world = member_list.members.len();
    let mut connections: Vec<Option<Connection>> = (0..world).map(|_| None).collect();
    for (lower, connection) in connections.iter_mut().enumerate().take(rank).skip(1) {
        *connection = Some(dial_lower(pairing, lower, rank0, deadline)?);
    }
    if let Some(listener) = listener {
        let (rank, generation, encrypt) = (Some(rank), member_list.generation, context.options.encrypt);
        let credentials = pairing.credentials.clone();
        let handler = move |handshake| {
            auth::answer(handshake, &LocalParty { rank, generation, credentials: &credentials, encrypt })
        };
        let acceptor = Acceptor::open(listener, AcceptLimits::while_joining(world), handler)?;
        let higher = accept_higher(pairing, &acceptor, rank0, deadline)?;
        connections.iter_mut().zip(higher).for_each(|(connection, handshake)| {
            *connection = connection.take().or(handshake.map(Handshake::into_connection));
        });
    }
    Ok(connections)
}

fn dial_lower(
    pairing: &Pairing<'_>,
    lower: usize,
    rank0: &mut Handshake,
    deadline: Instant,
) -> Result<Connection, CommError> {
    let Pairing { context, rank, member_list, credentials, ip } = *pairing;
    let member = &member_list.members[lower];
    let what = format!("rank {lower} ({})", member.name);
    let Some(announced) = member.listener else {
        let detail = "it announced no address".to_owned();
        return Err(CommError::Rendezvous { with: what, detail });
    };
    let local = rank0.local().map_err(|error| error.into_error(&what))?;
    let address = reachable(announced, local.ip(), rank0.peer().ip());
    loop {
        let time_left = deadline.saturating_duration_since(Instant::now());
        let dialed = socket::dial(address, ip, time_left.min(ATTEMPT_TIMEOUT)).map_err(HandshakeError::Io);
        let connected = dialed.and_then(|stream| {
            let timeout = time_left.clamp(Duration::from_millis(1), HANDSHAKE_TIMEOUT);
            let mut handshake = Handshake::new(stream, timeout)?;
            let (rank, generation, encrypt) = (Some(rank), member_list.generation, context.options.encrypt);
            auth::dial(&mut handshake, &LocalParty { rank, generation, credentials, encrypt }, lower)?;
            match handshake.receive()? {
                Message::Accepted => Ok(handshake.into_connection()),
                other => Err(unexpected("accepted", &other)),
            }
        });
        let detail = match connected {
            Ok(connection) => return Ok(connection),
            Err(HandshakeError::Io(error)) => error.to_string(),
            Err(error @ (HandshakeError::Closed | HandshakeError::TimedOut)) => error.to_string(),
            Err(error) => return Err(error.into_error(&what)),
        };
        check_rank0(context, rank0)?;
        if Instant::now() + RETRY_PAUSE >= deadline {
            let address = address.to_string();
            return Err(CommError::Unreachable { what, address, waited: PAIRING_TIMEOUT, detail });
        }
        std::thread::sleep(RETRY_PAUSE);
    }
}

/// Translates a loopback address for other machines. A rank that announced one reached rank 0 over
/// loopback, so it is on rank 0's machine, which is at the address where this rank reaches rank 0.
fn reachable(announced: SocketAddr, local: IpAddr, rank0: IpAddr) -> SocketAddr {
    if announced.ip().is_loopback() && !local.is_loopback() {
        SocketAddr::new(rank0, announced.port())
    } else {
        announced
    }
}

/// Accepts a connection from each higher rank; the result is indexed by rank.
fn accept_higher(
    pairing: &Pairing<'_>,
    acceptor: &Acceptor<(Handshake, Option<u64>)>,
    rank0: &mut Handshake,
    deadline: Instant,
) -> Result<Vec<Option<Handshake>>, CommError> {
    let Pairing { context, member_list, .. } = *pairing;
    let world = member_list.members.len();
    let higher = pairing.rank + 1..world;
    let mut handshakes: Vec<Option<Handshake>> = (0..world).map(|_| None).collect();
    let mut reject_log = RejectLog::default();
    loop {
        let missing: Vec<usize> = higher.clone().filter(|rank| handshakes[*rank].is_none()).collect();
        if missing.is_empty() {
            return Ok(handshakes);
        }
        if Instant::now() >= deadline {
            let names: Vec<&str> = missing.iter().map(|rank| member_list.members[*rank].name.as_str()).collect();
            return Err(CommError::Rendezvous {
                with: format!("{} ({})", named_ranks(&missing), names.join(", ")),
                detail: format!(
                    "no connection received within {} s; check the firewall, comm.ports and, \
                     with several networks, comm.interface",
                    PAIRING_TIMEOUT.as_secs()
                ),
            });
        }
        for event in acceptor.poll(POLL_INTERVAL) {
            match event {
                AcceptEvent::Rejected { address, reason } => {
                    if let Some(line) = reject_log.note(Instant::now(), address, &reason) {
                        tracing::warn!("{line}");
                    }
                }
                AcceptEvent::Accepted((handshake, rank)) => {
                    let entry =
                        higher.clone().find(|higher| Some(*higher as u64) == rank).map(|rank| &mut handshakes[rank]);
                    // A rank that closed its connection, perhaps because our answer was late, dials
                    // again.
                    match entry.filter(|entry| entry.as_ref().is_none_or(Handshake::is_closed)) {
                        Some(entry) => *entry = accept(handshake),
                        None => reject(context, handshake, rank),
                    }
                }
            }
        }
        check_rank0(context, rank0)?;
    }
}

fn accept(mut handshake: Handshake) -> Option<Handshake> {
    // If this fails, the peer has closed the connection and dials again.
    handshake.send(&Message::Accepted).ok().map(|()| handshake)
}

fn reject(context: &JoinContext<'_>, handshake: Handshake, rank: Option<u64>) {
    let address = handshake.peer();
    let rank = rank.unwrap_or(u64::MAX);
    let taken = Refusal::RankTaken { rank, name: context.name.clone(), address: address.to_string() };
    let reason = handshake.refuse(taken);
    tracing::warn!("rejected {address}: {reason}");
}

/// Fails if rank 0 has sent a message: during pairing that means that the run is cancelled.
fn check_rank0(context: &JoinContext<'_>, rank0: &mut Handshake) -> Result<(), CommError> {
    if !rank0.is_readable() {
        return Ok(());
    }
    let with = format!("rank 0 at {}", context.rendezvous);
    match rank0.receive() {
        Ok(message) => Err(unexpected("refused", &message).into_error(&with)),
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
