//! How ranks find each other: from "rank 2 of 4, tcp://alpha:2900" to a mesh of connected links.
//!
//! 1. Rank 0 listens, at an address that all know (`fixed.rs`) or that it writes into a shared directory
//!    (`directory.rs`); the others dial it, greet and prove the secret (`greeting.rs`), and say who they are. Rank 0
//!    checks that all run the same thing (`host.rs`, `table.rs`).
//! 2. When all are there, rank 0 hands out the roster with a new generation; the others (`guest.rs`) connect
//!    pairwise, the higher rank dialling the lower (`pairing.rs`). Connections to rank 0 are kept.
//! 3. Everybody reports, rank 0 says start: from then on the connections carry frames of the group.
//!
//! Once the group exists nobody else can join it: the listeners between ranks are closed, and rank 0's stays open only
//! to say so (`doorkeeper.rs`). What strangers may do meanwhile is bounded (`reception.rs`, `admission.rs`) and logged
//! (`strangers.rs`). Called by `Group::join`.

mod admission;
mod directory;
mod doorkeeper;
mod fixed;
mod greeting;
mod guest;
mod host;
mod notice;
mod pairing;
mod reception;
mod refusal;
mod seeker;
mod strangers;
mod table;
mod talk;

pub(crate) use doorkeeper::Doorkeeper;

use std::time::{Duration, Instant};

use fixed::Fixed;

use crate::connection::Connection;
use crate::error::{CommError, shown_line};
use crate::identity::Identity;
use crate::mesh::Mesh;
use crate::options::Options;
use crate::pace::Pace;
use crate::place::{Place, Rendezvous};
use crate::secret::Secret;

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
    /// `None` for one that takes whatever number is left.
    rank: Option<usize>,
    world: usize,
    /// The rendezvous as the user wrote it.
    at: String,
    /// What this rank is called.
    name: String,
    /// Of this rank alone.
    pace: Pace,
    identity: &'a Identity,
    options: &'a Options,
    began: Instant,
}

impl Meeting<'_> {
    /// How much of the time for all to come is left.
    fn left(&self) -> Duration {
        self.options.join.saturating_sub(self.began.elapsed())
    }
}

/// The result of a meeting: who is there, and a connection to each.
struct Met {
    rank: usize,
    generation: u64,
    names: Vec<String>,
    /// Of all ranks together.
    pace: Pace,
    connections: Vec<Option<Connection>>,
    /// On rank 0.
    keeper: Option<Doorkeeper>,
}

/// Meets the other ranks.
pub(crate) fn meet(
    place: &Place,
    identity: &Identity,
    options: &Options,
) -> Result<(Mesh, Option<Doorkeeper>), CommError> {
    let name = shown_line(&options.shown_name(), talk::NAME_LIMIT_BYTES);
    let Place { rank, world, .. } = *place;
    let at = place.rendezvous.to_string();
    let pace = Pace::new(options.silence);
    let meeting = Meeting { rank, world, at, name, pace, identity, options, began: Instant::now() };
    let met = match &place.rendezvous {
        Rendezvous::Tcp { .. } if options.encrypt && matches!(options.secret, Secret::None) => {
            let what = "encryption needs a secret, from which its keys are made".to_owned();
            return Err(CommError::Misuse { operation: "join", what });
        }
        Rendezvous::Tcp { host, port } => Fixed { meeting: &meeting, host, port: *port }.meet()?,
        Rendezvous::Directory(dir) => directory::meet(&meeting, dir)?,
        Rendezvous::Alone => {
            let problem = format!("a world of {world} ranks needs a rendezvous ({})", place.source);
            return Err(CommError::Place { problem });
        }
    };
    let mesh = Mesh::over_wires(met.rank, met.generation, met.names, met.connections, met.pace, options)?;
    tracing::info!("rank {} of {world}: all are connected", met.rank);
    Ok((mesh, met.keeper))
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
pub(crate) mod fuzz;
#[cfg(test)]
mod tests;
