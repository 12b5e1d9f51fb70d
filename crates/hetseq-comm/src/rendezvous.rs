//! How ranks find each other: from "rank 2 of 4, tcp://alpha:2900" to a mesh of connected links.
//!
//! 1. Rank 0 listens (`host.rs`), the others dial it (`guest.rs`), greet, prove the secret and say who
//!    they are. Rank 0 checks that all run the same thing.
//! 2. When all are there, rank 0 hands out the roster with a new generation; the others connect
//!    pairwise, the higher rank dialling the lower (`pairing.rs`). Connections to rank 0 are kept.
//! 3. Everybody reports, rank 0 says start: from then on the connections carry frames of the group.
//!
//! Once the group exists nobody else can join it: the listeners between ranks are closed, and rank 0's stays open only
//! to say so (`doorkeeper.rs`). What strangers may do meanwhile is bounded (`reception.rs`, `admission.rs`) and logged
//! (`strangers.rs`). Called by `Group::join`.

mod admission;
mod doorkeeper;
mod greeting;
mod guest;
mod host;
mod pairing;
mod reception;
mod refusal;
mod strangers;
mod talk;

pub(crate) use doorkeeper::Doorkeeper;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::connection::Connection;
use crate::error::CommError;
use crate::identity::Identity;
use crate::lane::Bell;
use crate::mesh::Mesh;
use crate::options::Options;
use crate::secret::{Credentials, Key, Secret};
use crate::secret_file::{self, SecretFile};
use crate::tcp;

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
    identity: &'a Identity,
    options: &'a Options,
}

/// The result of a meeting: who is there, and a connection to each.
struct Met {
    generation: u64,
    names: Vec<String>,
    connections: Vec<Option<Connection>>,
    /// On rank 0.
    keeper: Option<Doorkeeper>,
}

/// Meets the other ranks.
pub(crate) fn meet(
    rank: usize,
    world: usize,
    host: &str,
    port: u16,
    identity: &Identity,
    options: &Options,
) -> Result<(Mesh, Option<Doorkeeper>), CommError> {
    if options.encrypt && matches!(options.secret, Secret::None) {
        let what = "encryption needs a secret, from which its keys are made".to_owned();
        return Err(CommError::Misuse { operation: "join", what });
    }
    let name = crate::error::shown(&options.shown_name(), talk::NAME_LIMIT_BYTES);
    let meeting = Meeting { rank, world, host, port, name, identity, options };
    let met = if rank == 0 { host::host(&meeting)? } else { guest::visit(&meeting)? };
    let bell = Arc::<Bell>::default();
    let mut links = Vec::with_capacity(world);
    for connection in met.connections {
        links.push(match connection {
            Some(connection) => Some(tcp::link(connection, met.generation, &bell, options)?),
            None => None,
        });
    }
    tracing::info!("rank {rank} of {world}: all are connected");
    Ok((Mesh::new(rank, met.generation, met.names, links, bell, options), met.keeper))
}

impl Meeting<'_> {
    /// The rendezvous as the user wrote it.
    fn address(&self) -> String {
        let host = self.host;
        if host.contains(':') { format!("tcp://[{host}]:{}", self.port) } else { format!("tcp://{host}:{}", self.port) }
    }

    /// Rank 0's: with a file for the others, if that is where they look for it. Called when the port is ours, so that
    /// a second rank 0 does not replace the secret of the first.
    fn issue_secret(&self) -> Result<(Credentials, Option<SecretFile>), CommError> {
        let Some(path) = self.secret_file() else { return Ok((self.find_secret()?, None)) };
        let cannot = |reason| CommError::SecretFile { path: path.display().to_string(), reason };
        let file = SecretFile::make(&path).map_err(cannot)?;
        Ok((Credentials::File(Ok(Key::new(file.secret()))), Some(file)))
    }

    /// The others', as it is now: rank 0 may replace its file at any time.
    fn find_secret(&self) -> Result<Credentials, CommError> {
        if let Some(path) = self.secret_file() {
            return Ok(Credentials::File(secret_file::read(&path).map(|secret| Key::new(&secret))));
        }
        match &self.options.secret {
            Secret::Given(secret) => Credentials::given(secret),
            Secret::None | Secret::InDirectory(_) => Ok(Credentials::None),
        }
    }

    /// By the port, so that an evaluation beside a training in the same directory has a secret of its own.
    fn secret_file(&self) -> Option<PathBuf> {
        match &self.options.secret {
            Secret::InDirectory(dir) => Some(dir.join(format!(".secret-{}", self.port))),
            Secret::None | Secret::Given(_) => None,
        }
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
