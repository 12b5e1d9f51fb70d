//! The join of every rank but 0, once it is authenticated with rank 0: send the hello, receive the
//! member list, connect to the other ranks, wait for the start.
//!
//! `fixed.rs` and `directory.rs` find rank 0, call this, and decide whether to retry.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use super::handshake::{Handshake, HandshakeError, Hello, MemberList, Message, Running, shown_name, unexpected};
use super::pairing::{self, Pairing};
use super::refusal::Refusal;
use super::{GRACE, JoinContext, Joined, PAIRING_TIMEOUT};
use crate::error::{CommError, shown_line};
use crate::secret::Credentials;
use crate::socket;

/// How long a rank retries if another process has its number: perhaps its own previous process,
/// whose connection rank 0 still takes for alive.
const TAKEN_LIMIT: Duration = Duration::from_secs(5);
/// The longest text of rank 0 that is logged.
const WAITING_LIMIT_BYTES: usize = 1 << 14;

/// How joining failed.
pub(super) enum JoinFailure {
    /// Before the member list: nothing depends on this rank yet, and it may retry.
    Early(HandshakeError),
    Final(CommError),
    /// The group of rank 0 trains already.
    Running(Running),
}

impl From<CommError> for JoinFailure {
    fn from(error: CommError) -> JoinFailure {
        JoinFailure::Final(error)
    }
}

/// Joins over `rank0`, the authenticated handshake with rank 0. Returns when rank 0 starts the
/// group.
pub(super) fn join(
    context: &JoinContext<'_>,
    mut rank0: Handshake,
    credentials: &Credentials,
    ip: Option<IpAddr>,
) -> Result<Joined, JoinFailure> {
    let options = context.options;
    // Open before rank 0 sends the address to others, so that they can connect at once. No rank
    // dials the highest.
    let is_highest = context.rank.is_some_and(|rank| rank + 1 == context.world);
    let listener = if is_highest { None } else { Some(socket::listen_anywhere(ip, options)?) };
    let announced = match &listener {
        Some(listener) => Some(announced_address(listener, ip, &rank0).map_err(JoinFailure::Early)?),
        None => None,
    };
    rank0.send(&hello(context, announced)).map_err(JoinFailure::Early)?;
    tracing::info!("reached rank 0 ({}); waiting for the other ranks", rank0.peer());
    rank0.set_timeout(options.join + GRACE);
    let member_list = loop {
        match rank0.receive().map_err(JoinFailure::Early)? {
            Message::MemberList(list) => break checked(list, context).map_err(JoinFailure::Early)?,
            Message::Running(running) => return Err(JoinFailure::Running(running)),
            Message::Waiting(why) => {
                tracing::warn!("rank 0 rejected a process: {}", shown_line(&why, WAITING_LIMIT_BYTES));
            }
            other => return Err(JoinFailure::Early(unexpected("member list", &other))),
        }
    };
    Ok(pair_and_start(context, rank0, member_list, listener, credentials, ip)?)
}

/// Decides whether a rank whose number is taken retries. Time is an argument.
#[derive(Clone, Default)]
pub(super) struct TakenRetry {
    since: Option<Instant>,
}

impl TakenRetry {
    /// Whether `error` says that the number is taken, and it has not been for long.
    pub(super) fn may_retry(&mut self, error: &HandshakeError, now: Instant) -> bool {
        if !matches!(error, HandshakeError::RefusedUs(Refusal::RankTaken { .. })) {
            self.since = None;
            return false;
        }
        now.duration_since(*self.since.get_or_insert(now)) < TAKEN_LIMIT
    }
}

pub(super) fn hello(context: &JoinContext<'_>, listener: Option<SocketAddr>) -> Message {
    Message::Hello(Hello {
        rank: context.rank.map(|rank| rank as u64),
        world: context.world as u64,
        name: context.name.clone(),
        listener,
        timing: context.timing,
        identity: context.identity.clone(),
    })
}

/// After the member list all ranks depend on this one, so a failure is a failure of the run.
fn pair_and_start(
    context: &JoinContext<'_>,
    mut rank0: Handshake,
    member_list: MemberList,
    listener: Option<TcpListener>,
    credentials: &Credentials,
    ip: Option<IpAddr>,
) -> Result<Joined, CommError> {
    let failed = |error: HandshakeError| error.into_error(&format!("rank 0 at {}", context.rendezvous));
    let rank = member_list.your_rank as usize;
    // Rank 0 waits one `GRACE` longer than pairing may take; its report on a failed rank needs a
    // little more.
    rank0.set_timeout(PAIRING_TIMEOUT + 2 * GRACE);
    let pairing = Pairing { context, rank, member_list: &member_list, credentials, ip };
    let mut connections = match pairing::pair(&pairing, listener, &mut rank0) {
        Ok(connections) => connections,
        Err(error) => {
            // Rank 0 forwards it, so that no rank waits for this one. If sending fails, rank 0 is
            // gone.
            let _ = rank0.send(&Message::Failed(error.to_string()));
            return Err(error);
        }
    };
    rank0.send(&Message::Ready).map_err(failed)?;
    match rank0.receive().map_err(failed)? {
        Message::Start => {}
        other => return Err(failed(unexpected("start", &other))),
    }
    connections[0] = Some(rank0.into_connection());
    let timing = member_list.timing(context.timing);
    let generation = member_list.generation;
    let names = member_list.members.into_iter().map(|member| member.name).collect();
    Ok(Joined { rank, generation, names, timing, connections, door: None, credentials: credentials.clone() })
}

/// Where others reach our listener: the chosen address, else the one that leads to rank 0.
fn announced_address(
    listener: &TcpListener,
    ip: Option<IpAddr>,
    rank0: &Handshake,
) -> Result<SocketAddr, HandshakeError> {
    let port = listener.local_addr().map_err(HandshakeError::Io)?.port();
    let ip = match ip.filter(|ip| !ip.is_unspecified()) {
        Some(ip) => ip,
        None => rank0.local()?.ip(),
    };
    Ok(SocketAddr::new(ip, port))
}

/// Checks that the list fits the world and this rank, and makes its names safe to show.
fn checked(mut list: MemberList, context: &JoinContext<'_>) -> Result<MemberList, HandshakeError> {
    let (rank, world) = (list.your_rank as usize, list.members.len());
    let is_world = (context.start_with()..=context.world).contains(&world);
    // If ranks are missing, those behind them have moved up.
    let is_own = |own: usize| own == rank || (world < context.world && rank < own);
    if !is_world || !(1..world).contains(&rank) || !context.rank.is_none_or(is_own) {
        return Err(HandshakeError::Unexpected { expected: "full member list", got: "member list of another world" });
    }
    for member in &mut list.members {
        member.name = shown_name(&member.name);
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_number_is_retried_for_a_few_seconds() {
        let taken = || {
            let (name, address) = ("beta".to_owned(), "10.0.0.1:9".to_owned());
            HandshakeError::RefusedUs(Refusal::RankTaken { rank: 1, name, address })
        };
        let (start, mut retry) = (Instant::now(), TakenRetry::default());
        let mut after = |error, seconds| retry.may_retry(&error, start + Duration::from_secs(seconds));
        assert_eq!([0, 4, 5, 60].map(|seconds| after(taken(), seconds)), [true, true, false, false]);
        // After another outcome the time counts again.
        assert!(!after(HandshakeError::Closed, 70));
        assert!(after(taken(), 80));
    }
}
