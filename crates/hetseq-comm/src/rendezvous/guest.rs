//! The part of every rank but 0, once it has greeted rank 0: say who we are, wait for the roster, connect to the others,
//! wait for the start.
//!
//! How rank 0 is found is in `fixed.rs` and `directory.rs`, which also decide whether to try again.

use std::net::{IpAddr, SocketAddr, TcpListener};

use super::pairing::{self, Pairing};
use super::talk::{Hello, Message, Roster, Talk, TalkError, shown_name, unexpected};
use super::{GRACE, Meeting, Met, PAIRING};
use crate::error::CommError;
use crate::secret::Credentials;
use crate::socket;

/// How a visit failed.
pub(super) enum Setback {
    /// Before the roster: nothing depends on this rank yet, and it may try again.
    Early(TalkError),
    Final(CommError),
}

impl From<CommError> for Setback {
    fn from(error: CommError) -> Setback {
        Setback::Final(error)
    }
}

/// Sits at rank 0's table until the start.
pub(super) fn stay(
    meeting: &Meeting<'_>,
    mut home: Talk,
    credentials: &Credentials,
    ip: Option<IpAddr>,
) -> Result<Met, Setback> {
    let options = meeting.options;
    // Open before rank 0 tells anybody, so that nobody can knock too early. Nobody dials the highest.
    let is_highest = meeting.rank.is_some_and(|rank| rank + 1 == meeting.world);
    let listener = if is_highest { None } else { Some(socket::listen_anywhere(ip, options)?) };
    let announced = match &listener {
        Some(listener) => Some(announced(listener, ip, &home).map_err(Setback::Early)?),
        None => None,
    };
    home.send(&hello(meeting, announced)).map_err(Setback::Early)?;
    tracing::info!("reached rank 0 ({}); waiting for the other ranks", home.peer());
    home.allow(options.join + GRACE);
    let roster = match home.receive().map_err(Setback::Early)? {
        Message::Roster(roster) => checked(roster, meeting).map_err(Setback::Early)?,
        other => return Err(Setback::Early(unexpected("roster", &other))),
    };
    Ok(pair_and_start(meeting, home, roster, listener, credentials, ip)?)
}

pub(super) fn hello(meeting: &Meeting<'_>, listener: Option<SocketAddr>) -> Message {
    Message::Hello(Hello {
        rank: meeting.rank.map(|rank| rank as u64),
        world: meeting.world as u64,
        name: meeting.name.clone(),
        listener,
        pace: meeting.pace,
        identity: meeting.identity.clone(),
    })
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
    let failed = |error: TalkError| error.into_error(&format!("rank 0 at {}", meeting.at));
    let rank = roster.you as usize;
    // Rank 0 waits for one `GRACE` longer than the pairing may take; its word on who failed needs a moment more.
    home.allow(PAIRING + 2 * GRACE);
    let pairing = Pairing { meeting, rank, roster: &roster, credentials, ip };
    let mut connections = match pairing::pair(&pairing, listener, &mut home) {
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
    let pace = roster.pace(meeting.pace);
    let names = roster.members.into_iter().map(|member| member.name).collect();
    Ok(Met { rank, generation: roster.generation, names, pace, connections, keeper: None })
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
    let you = roster.you as usize;
    let is_ours = (1..meeting.world).contains(&you) && meeting.rank.is_none_or(|rank| rank == you);
    if roster.members.len() != meeting.world || !is_ours {
        return Err(TalkError::Unexpected { expected: "full roster", got: "roster of others" });
    }
    for member in &mut roster.members {
        member.name = shown_name(&member.name);
    }
    Ok(roster)
}
