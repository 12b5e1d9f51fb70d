//! The part of every rank but 0: dial rank 0, say who we are, wait for the roster, connect to the
//! others, wait for the start.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::greeting::{self, Party};
use super::pairing;
use super::talk::{Hello, Message, Roster, Talk, TalkError, shown_name, unexpected};
use super::{GRACE, HANDSHAKE, Meeting, Met, PAIRING, Reminder};
use crate::error::CommError;
use crate::socket;

/// The pause between two attempts to reach rank 0, and the longest that one attempt may take.
const RETRY: Duration = Duration::from_millis(100);
const ATTEMPT: Duration = Duration::from_secs(5);

/// Joins the ranks at rank 0.
pub(super) fn visit(meeting: &Meeting<'_>) -> Result<Met, CommError> {
    let options = meeting.options;
    let ip = socket::chosen_ip(options)?;
    // Open before rank 0 tells anybody, so that nobody can knock too early. Nobody dials the highest.
    let is_highest = meeting.rank + 1 == meeting.world;
    let listener = if is_highest { None } else { Some(socket::listen_anywhere(ip, options)?) };
    let with = format!("rank 0 at {}", meeting.address());
    let failed = |error: TalkError| error.into_error(meeting.rank, &with);
    let mut home = reach_zero(meeting, ip)?;
    let announced = match &listener {
        Some(listener) => Some(announced(listener, ip, &home).map_err(failed)?),
        None => None,
    };
    home.send(&Message::Hello(Hello {
        rank: meeting.rank as u64,
        world: meeting.world as u64,
        name: meeting.name.clone(),
        listener: announced,
        identity: meeting.identity.clone(),
    }))
    .map_err(failed)?;
    tracing::info!(rank = meeting.rank, "reached rank 0; waiting for the other ranks");
    home.allow(options.join + GRACE);
    let roster = match home.receive() {
        Ok(Message::Roster(roster)) => checked(roster, meeting).map_err(failed)?,
        Ok(other) => return Err(failed(unexpected("roster", &other))),
        Err(error) => return Err(failed(error)),
    };
    home.allow(PAIRING + GRACE);
    let mut streams = match pairing::pair(meeting, &roster, listener, ip, &mut home) {
        Ok(streams) => streams,
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
    streams[0] = Some(home.into_stream());
    let names = roster.members.into_iter().map(|member| member.name).collect();
    Ok(Met { generation: roster.generation, names, streams })
}

/// Dials rank 0 until it answers; it may start later than we do.
fn reach_zero(meeting: &Meeting<'_>, ip: Option<std::net::IpAddr>) -> Result<Talk, CommError> {
    let start = Instant::now();
    let join = meeting.options.join;
    let mut reminder = Reminder::new(start);
    loop {
        let left = join.saturating_sub(start.elapsed());
        let detail = match greet_zero(meeting, ip, left) {
            Ok(talk) => return Ok(talk),
            // What may be different in a moment: a machine that boots, a port not yet open, an earlier
            // run that is just ending.
            Err(TalkError::Io(error)) => error.to_string(),
            Err(error @ (TalkError::Closed | TalkError::TimedOut)) => error.to_string(),
            Err(error) => {
                let with = format!("rank 0 at {}", meeting.address());
                return Err(error.into_error(meeting.rank, &with));
            }
        };
        if start.elapsed() + RETRY >= join {
            return Err(CommError::Unreachable {
                what: "rank 0".to_owned(),
                address: meeting.address(),
                waited: join,
                detail,
            });
        }
        if reminder.is_due(Instant::now()) {
            tracing::info!("waiting for rank 0 at {}: {detail}", meeting.address());
        }
        std::thread::sleep(RETRY);
    }
}

fn greet_zero(meeting: &Meeting<'_>, ip: Option<std::net::IpAddr>, left: Duration) -> Result<Talk, TalkError> {
    let addresses = (meeting.host, meeting.port).to_socket_addrs().map_err(TalkError::Io)?;
    let mut failure = std::io::Error::other("the name has no address");
    for address in addresses {
        match socket::dial(address, ip, left.min(ATTEMPT)) {
            Ok(stream) => {
                let mut talk = Talk::new(stream, left.clamp(Duration::from_millis(1), HANDSHAKE))?;
                let party = Party { rank: meeting.rank, generation: 0, key: meeting.key.as_ref() };
                greeting::dial(&mut talk, &party, 0)?;
                return Ok(talk);
            }
            Err(error) => failure = error,
        }
    }
    Err(TalkError::Io(failure))
}

/// Where others reach our listener: the chosen address, else the one that leads to rank 0.
fn announced(listener: &TcpListener, ip: Option<std::net::IpAddr>, home: &Talk) -> Result<SocketAddr, TalkError> {
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
