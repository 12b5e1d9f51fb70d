//! How ranks find each other: from "rank 2 of 4, tcp://alpha:2900" to a mesh of connected links.
//!
//! 1. Rank 0 listens (`host.rs`), the others dial it (`guest.rs`), greet, prove the secret and say who
//!    they are. Rank 0 checks that all run the same thing.
//! 2. When all are there, rank 0 hands out the roster with a new generation; the others connect
//!    pairwise, the higher rank dialling the lower (`pairing.rs`). Connections to rank 0 are kept.
//! 3. Everybody reports, rank 0 says start: from then on the connections carry frames of the group.
//!
//! It is over once the group exists: the listeners are closed and a newcomer needs a new group. Called
//! by `Group::join`.

mod greeting;
mod guest;
mod host;
mod pairing;
mod reception;
mod refusal;
mod talk;

use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::error::CommError;
use crate::identity::Identity;
use crate::mesh::Mesh;
use crate::options::Options;
use crate::secret::Key;

/// How long a connection may take to greet, prove and say hello; a silent stranger is dropped then.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long connecting all ranks to each other may take, once all are known.
const PAIRING: Duration = Duration::from_secs(30);
/// How much longer than rank 0 the others wait, so that its explanation reaches them.
const GRACE: Duration = Duration::from_secs(5);
/// How often listeners and connections are looked at. Joining happens once per run, so a wake-up
/// mechanism would buy nothing.
const POLL: Duration = Duration::from_millis(10);

/// What rank 0 and the others have in common while they meet.
struct Meeting<'a> {
    rank: usize,
    world: usize,
    host: &'a str,
    port: u16,
    /// What this rank is called.
    name: String,
    key: Option<Key>,
    identity: &'a Identity,
    options: &'a Options,
}

/// The result of a meeting: who is there, and a connection to each.
struct Met {
    generation: u64,
    names: Vec<String>,
    streams: Vec<Option<TcpStream>>,
}

/// Meets the other ranks.
pub(crate) fn meet(
    rank: usize,
    world: usize,
    host: &str,
    port: u16,
    identity: &Identity,
    options: &Options,
) -> Result<Mesh, CommError> {
    let key = Key::from_secret(options.secret.as_deref())?;
    let name = crate::error::shown(&options.shown_name(), talk::NAME_LIMIT_BYTES);
    let meeting = Meeting { rank, world, host, port, name, key, identity, options };
    let met = if rank == 0 { host::host(&meeting)? } else { guest::visit(&meeting)? };
    let mesh = Mesh::over_wires(rank, met.generation, met.names, met.streams, options)?;
    tracing::info!("rank {rank} of {world}: all are connected");
    Ok(mesh)
}

impl Meeting<'_> {
    /// The rendezvous as the user wrote it.
    fn address(&self) -> String {
        let host = self.host;
        if host.contains(':') { format!("tcp://[{host}]:{}", self.port) } else { format!("tcp://{host}:{}", self.port) }
    }
}

/// Says when to tell the user that we still wait: after two seconds, then every ten.
struct Reminder {
    due: Instant,
}

impl Reminder {
    fn new(now: Instant) -> Reminder {
        Reminder { due: now + Duration::from_secs(2) }
    }

    fn is_due(&mut self, now: Instant) -> bool {
        let due = now >= self.due;
        if due {
            self.due = now + Duration::from_secs(10);
        }
        due
    }
}

#[cfg(test)]
mod tests;
