//! How ranks find each other: from "rank 2 of 4, tcp://alpha:2900" to a mesh of connected links.
//!
//! 1. Rank 0 listens, either at an address that all ranks know (`fixed.rs`) or at one that it
//!    writes into a shared directory (`directory.rs`). The other ranks dial it, prove that they
//!    know the secret (`auth.rs`) and send a hello. Rank 0 checks that all ranks run the same thing
//!    (`rank0.rs`, `membership.rs`). It refuses one that does not (`mismatch.rs`), and waits for the
//!    right one until the deadline.
//! 2. When all ranks are there, rank 0 sends the member list with a new generation. The peers
//!    (`peer.rs`) connect pairwise: the higher rank dials the lower (`pairing.rs`). Connections to
//!    rank 0 are reused.
//! 3. Every peer reports ready and rank 0 sends start. From then on the connections carry frames of
//!    the group.
//!
//! Once the group exists, each rank has a door (`door.rs`), where processes wait that want to join it
//! while it trains (`newcomer.rs`). What unauthenticated connections can use is bounded
//! (`acceptor.rs`, `limits.rs`), and rejections are logged (`reject_log.rs`). Called by `Group::join`.

mod acceptor;
mod auth;
mod card;
mod directory;
mod door;
mod fixed;
mod handshake;
mod leader_search;
mod limits;
mod membership;
mod mismatch;
mod newcomer;
mod notice;
mod pairing;
mod peer;
mod rank0;
mod refusal;
mod reject_log;

pub(crate) use card::{MemberCard, MembersFile};
pub use door::Candidate;
pub(crate) use door::{Arrival, Door, Roster};
pub(crate) use handshake::Welcome;
#[cfg(feature = "mpi")]
pub(crate) use mismatch::differences_from_rank0;
pub(crate) use newcomer::Entered;
pub use newcomer::RunningGroup;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fixed::FixedAddress;

use crate::connection::Connection;
use crate::error::{CommError, shown_line};
use crate::heartbeat_timing::HeartbeatTiming;
use crate::identity::Identity;
use crate::mesh::Mesh;
use crate::options::Options;
use crate::rank_env::{RankEnv, Rendezvous};
use crate::secret::{Credentials, Secret};
use crate::{socket, stream};

/// Timeout for auth and hello on a new connection; a silent connection is closed then.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for connecting all ranks to each other, once all are known.
const PAIRING_TIMEOUT: Duration = Duration::from_secs(30);
/// How much longer than rank 0 the peers wait, so that rank 0's explanation reaches them.
const GRACE: Duration = Duration::from_secs(5);
/// How often listeners and connections are polled. Joining happens once per run, so a wake-up
/// mechanism would gain nothing.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// What this process knows while it joins; used on rank 0 and on peers.
struct JoinContext<'a> {
    /// `None` if rank 0 assigns the rank.
    rank: Option<usize>,
    world: usize,
    /// The rendezvous as the user wrote it.
    rendezvous: String,
    /// This rank's name in messages.
    name: String,
    /// Of this rank alone.
    timing: HeartbeatTiming,
    identity: &'a Identity,
    options: &'a Options,
    started: Instant,
}

impl JoinContext<'_> {
    /// The number of ranks with which a group starts.
    fn start_with(&self) -> usize {
        let least = self.options.newcomers.as_ref().and_then(|newcomers| newcomers.start_with);
        least.unwrap_or(self.world).clamp(1, self.world.max(1))
    }

    /// Time left until all ranks must have joined.
    fn time_left(&self) -> Duration {
        self.options.join.saturating_sub(self.started.elapsed())
    }
}

/// The result of joining: all ranks, and a connection to each.
struct Joined {
    rank: usize,
    generation: u64,
    names: Vec<String>,
    /// Combined over all ranks.
    timing: HeartbeatTiming,
    connections: Vec<Option<Connection>>,
    /// The door with its addresses; on rank 0 only.
    door: Option<(Door, Vec<SocketAddr>)>,
    credentials: Credentials,
}

/// The result of looking for the other ranks.
enum Found {
    Joined(Joined),
    Running(RunningGroup),
}

/// What the ranks of a new group keep besides their links.
pub(crate) struct Lobby {
    /// None if it could not be opened.
    pub(crate) door: Option<Door>,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) credentials: Credentials,
}

/// The result of [`join`].
pub(crate) enum Outcome {
    Started(Mesh, Lobby),
    /// A group of the same run trains already.
    Running(RunningGroup),
    /// A single process without a rendezvous.
    Alone,
}

/// Joins the other ranks, or finds their group. Returns once all are connected to each other.
pub(crate) fn join(rank_env: &RankEnv, identity: &Identity, options: &Options) -> Result<Outcome, CommError> {
    let name = shown_line(&options.shown_name(), handshake::NAME_LIMIT_BYTES);
    let RankEnv { rank, world, .. } = *rank_env;
    let rendezvous = rank_env.rendezvous.to_string();
    let timing = HeartbeatTiming::new(options.silence);
    let context = JoinContext { rank, world, rendezvous, name, timing, identity, options, started: Instant::now() };
    if options.encrypt && matches!(options.secret, Secret::None) {
        let what = "encryption needs a secret to derive its keys from".to_owned();
        return Err(CommError::Misuse { operation: "join", what });
    }
    if let Some(newcomers) = &options.newcomers
        && let Some(running) = newcomer::find(&context, newcomers)?
    {
        return Ok(Outcome::Running(running));
    }
    if world == 1 {
        return Ok(Outcome::Alone);
    }
    let found = match &rank_env.rendezvous {
        Rendezvous::Tcp { host, port } => FixedAddress { context: &context, host, port: *port }.join()?,
        Rendezvous::Directory(dir) => directory::join(&context, dir)?,
        Rendezvous::Alone | Rendezvous::Mpi => {
            let problem = format!("a world of {world} ranks needs a rendezvous ({})", rank_env.source);
            return Err(CommError::RankEnv { problem });
        }
    };
    match found {
        Found::Running(running) => Ok(Outcome::Running(running)),
        Found::Joined(joined) => start(&context, joined),
    }
}

fn start(context: &JoinContext<'_>, joined: Joined) -> Result<Outcome, CommError> {
    let JoinContext { options, identity, .. } = *context;
    let Joined { rank, generation, names, timing, connections, door, credentials } = joined;
    let world = names.len();
    connections.iter().flatten().for_each(|connection| prepare(connection, timing, options));
    let mesh = stream::mesh(rank, generation, names, connections, timing, options)?;
    let (door, addresses) = match door {
        Some((door, addresses)) => (Some(door), addresses),
        None if options.newcomers.is_none() => (None, Vec::new()),
        None => match newcomer::open_door(&context.name, identity, options, &credentials, world) {
            Ok((door, addresses)) => (Some(door), addresses),
            Err(error) => {
                tracing::warn!("other processes cannot join the run through this rank: {error}");
                (None, Vec::new())
            }
        },
    };
    tracing::info!("rank {rank} of {world}: all ranks are connected");
    Ok(Outcome::Started(mesh, Lobby { door, addresses, credentials }))
}

/// Sets the options of a connection that becomes a link.
pub(crate) fn prepare(connection: &Connection, timing: HeartbeatTiming, options: &Options) {
    let silence = timing.give_up_after(options.silence);
    socket::set_user_timeout(&connection.socket, options.progress.max(silence));
    socket::avoid_pacing_on_one_machine(&connection.socket);
}

/// Decides when to log that this rank still waits: after two seconds, then every ten.
struct Reminder {
    next: Instant,
}

impl Reminder {
    fn new(now: Instant) -> Reminder {
        Reminder { next: now + Duration::from_secs(2) }
    }

    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.next;
        if is_due {
            self.next = now + Duration::from_secs(10);
        }
        is_due
    }
}

#[cfg(test)]
pub(crate) mod fuzz_handshake;
#[cfg(test)]
mod tests;
