//! The public interface: the group of ranks and its collectives.
//!
//! Checks arguments and delegates: joining to `rendezvous/`, collectives to `reduce/`, waiting and
//! failures to `mesh.rs`. The trainer owns one group and calls it from one thread.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::codec::WireFormat;
use crate::connection::Connection;
use crate::error::CommError;
use crate::heartbeat_timing::HeartbeatTiming;
use crate::identity::Identity;
use crate::link_speeds::LinkSpeed;
use crate::mesh::Mesh;
use crate::options::{Options, TransportKind};
use crate::rank_env::RankEnv;
use crate::reduce::{self, ALL_GATHER_LIMIT_BYTES, Algorithm, Contribution, MESSAGE_LIMIT_BYTES, SumBuffers, Summed};
use crate::regrouping::{Intent, RegroupRules, Regrouped};
use crate::rendezvous::{
    Candidate, Door, Entered, Lobby, MemberCard, MembersFile, Outcome, Roster, RunningGroup, Welcome,
};
use crate::secret::{Credentials, random};
use crate::shards::Shards;
use crate::signal::Waker;
use crate::transport::LinkEnd;
use crate::{connection, measure, rendezvous, stream};

/// The ranks that train together. Their membership changes only in [`Group::regroup`].
///
/// Every rank makes the same calls in the same order, from one thread. After an error the group is
/// unusable until it has regrouped. A group dropped without [`Group::close`] counts as a failed rank for the others.
pub struct Group {
    mesh: Mesh,
    rules: RegroupRules,
    buffers: SumBuffers,
    /// Of all ranks; empty if no process can join.
    cards: Vec<MemberCard>,
    /// Where processes wait that want to join. On all ranks if some can, else at most on rank 0.
    door: Option<Door>,
    /// `members.json`, and what it says about the secret.
    members_file: Option<(PathBuf, Credentials)>,
}

/// How a process has found the other ranks.
#[derive(Debug)]
pub enum Joining {
    Started(Group),
    /// A group of this run trains already. See [`Group::enter`].
    Running(RunningGroup),
}

impl std::fmt::Debug for Group {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Group(rank {} of {}, generation {:016x})", self.rank(), self.world(), self.generation())
    }
}

impl Group {
    /// A group of one rank: every collective returns at once, without sockets or threads.
    pub fn alone() -> Result<Group, CommError> {
        Group::in_process(0, vec![None], &Options::default())
    }

    /// A group whose ranks are threads of this process, in rank order, connected by socketpairs;
    /// for tests and demonstrations. Heartbeats and limits are those of any group.
    pub fn local(world: usize, options: &Options) -> Result<Vec<Group>, CommError> {
        let connections = connection::between_threads(world)?.into_iter().enumerate();
        connections.map(|(rank, connections)| Group::in_process(rank, connections, &options.bounded())).collect()
    }

    fn in_process(rank: usize, connections: Vec<Option<Connection>>, options: &Options) -> Result<Group, CommError> {
        let hosts = vec![options.shown_name(); connections.len()];
        // A socketpair loses nothing that would have to be repeated.
        let timing = HeartbeatTiming::of(options.silence, Duration::ZERO);
        let mesh = stream::mesh(rank, 0, hosts, connections, timing, options)?;
        Ok(Group::new(mesh))
    }

    fn new(mesh: Mesh) -> Group {
        let (rules, buffers) = (RegroupRules::default(), SumBuffers::default());
        Group { mesh, rules, buffers, cards: Vec::new(), door: None, members_file: None }
    }

    /// Joins the other ranks and returns when all are connected to all.
    ///
    /// Over MPI, the rank and the world size are those of MPI, which can be joined once per process;
    /// only the calling thread may use the group. Over TCP it blocks for at most about `options.join` until rank 0 is reached and, if rank 0 started late,
    /// for as long again until all ranks have joined, plus the time to connect the ranks to each
    /// other.
    pub fn join(rank_env: &RankEnv, identity: &Identity, options: &Options) -> Result<Group, CommError> {
        match Group::join_or_find(rank_env, identity, &Options { newcomers: None, ..options.clone() })? {
            Joining::Started(group) => Ok(group),
            Joining::Running(_) => Err(CommError::Refused {
                by: "the group that trains".to_owned(),
                reason: "this process cannot join it now: wait until it ends".to_owned(),
            }),
        }
    }

    /// Like [`Group::join`], unless a group of this run trains already, by `options.newcomers`.
    pub fn join_or_find(rank_env: &RankEnv, identity: &Identity, options: &Options) -> Result<Joining, CommError> {
        let RankEnv { rank, world, source, .. } = rank_env;
        if options.transport == TransportKind::Mpi {
            return Group::join_over_mpi(rank_env, identity, options).map(Joining::Started);
        }
        if let Some(rank) = rank.filter(|rank| rank >= world) {
            let problem = format!("rank {rank} is not below the world size {world} ({source})");
            return Err(CommError::RankEnv { problem });
        }
        tracing::debug!(?rank_env, "joining the other ranks");
        let options = options.bounded();
        let (mesh, lobby) = match rendezvous::join(rank_env, identity, &options)? {
            Outcome::Started(mesh, lobby) => (mesh, lobby),
            Outcome::Running(running) => return Ok(Joining::Running(running)),
            Outcome::Alone => return Group::alone().map(Joining::Started),
        };
        let Lobby { door, addresses, credentials } = lobby;
        let mut group = Group { door, ..Group::new(mesh) };
        if let Some(newcomers) = &options.newcomers {
            group.exchange_cards(addresses)?;
            group.members_file = Some((newcomers.members_file.clone(), credentials));
        }
        Ok(Joining::Started(group))
    }

    /// Tells all ranks where each can be reached. A collective.
    fn exchange_cards(&mut self, addresses: Vec<SocketAddr>) -> Result<(), CommError> {
        let random = random().map_err(|reason| CommError::System { what: "provide random numbers", reason })?;
        let (id, host) = (u64::from_le_bytes(random).max(1), self.host(self.rank()).to_owned());
        let own = MemberCard { id, host, addresses };
        // Cannot fail: numbers and names into memory.
        let bytes = postcard::to_stdvec(&own).unwrap_or_default();
        let all = self.all_gather_bytes(&bytes)?;
        let card = |(rank, bytes): (usize, &Vec<u8>)| {
            postcard::from_bytes::<MemberCard>(bytes).map(MemberCard::checked).map_err(|error| CommError::Rendezvous {
                with: format!("rank {rank}"),
                detail: format!("its addresses cannot be read: {error}"),
            })
        };
        self.cards = all.iter().enumerate().map(card).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Joins a group that trains: waits until it admits this process, as its last rank, or until
    /// `is_cancelled`. `rules` are those of the others, with the run directory of this machine, which
    /// counts if all see the same.
    pub fn enter(
        running: RunningGroup,
        rules: RegroupRules,
        members_file: PathBuf,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Group, CommError> {
        let directory = rules.directory.clone().unwrap_or_default();
        let Entered { welcome, connections, door, credentials, options } = running.enter(&directory, is_cancelled)?;
        let Welcome { generation, first_generation, members, timing, has_directory } = welcome;
        connections.iter().flatten().for_each(|connection| rendezvous::prepare(connection, timing, &options));
        let hosts = members.iter().map(|card| card.host.clone()).collect();
        let rank = connections.len().saturating_sub(1);
        let mut mesh = stream::mesh(rank, generation, hosts, connections, timing, &options)?;
        mesh.first_generation = first_generation;
        let rules = RegroupRules { directory: rules.directory.filter(|_| has_directory), ..rules };
        let members_file = Some((members_file, credentials));
        let group = Group { rules, cards: members, door, members_file, ..Group::new(mesh) };
        group.open_door();
        Ok(group)
    }

    #[cfg(feature = "mpi")]
    fn join_over_mpi(rank_env: &RankEnv, identity: &Identity, options: &Options) -> Result<Group, CommError> {
        let mesh = crate::mpi::join(rank_env, identity, &options.bounded())?;
        mesh.map_or_else(Group::alone, |mesh| Ok(Group::new(mesh)))
    }

    #[cfg(not(feature = "mpi"))]
    fn join_over_mpi(_: &RankEnv, _: &Identity, _: &Options) -> Result<Group, CommError> {
        Err(CommError::WithoutMpi)
    }

    /// Returns this rank's number, from 0.
    pub fn rank(&self) -> usize {
        self.mesh.rank
    }

    /// Returns the number of ranks.
    pub fn world(&self) -> usize {
        self.mesh.world()
    }

    /// Returns the random identifier of this membership, equal on all ranks; 0 without a network.
    pub fn generation(&self) -> u64 {
        self.mesh.generation
    }

    /// Returns the name of the machine of `rank`, for messages.
    pub fn host(&self, rank: usize) -> &str {
        self.mesh.hosts.get(rank).map_or("unknown", String::as_str)
    }

    /// Sets what later error messages say after "at", such as `update 8,412`.
    pub fn at(&mut self, context: impl Into<String>) {
        self.mesh.context = context.into();
    }

    /// Returns the bytes of every rank, in rank order. For small data such as the update header;
    /// the limit is 64 MiB.
    pub fn all_gather_bytes(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        self.check_bytes("all_gather_bytes", bytes.len(), ALL_GATHER_LIMIT_BYTES)?;
        reduce::all_gather_bytes(&mut self.mesh, bytes)
    }

    /// Sums over ranks and returns the sum on all of them, equal bit for bit. `shards` says which
    /// rank adds which part: a rank with a slow link should own little or nothing. All ranks must
    /// pass the same `shards`, `wire_format` and `algorithm`.
    ///
    /// A rank may call this while it still computes its contribution. It waits inside this call, so
    /// that the exchange of the others continues while it computes. `contribution` is called
    /// whenever something may have changed (frames arrived, [`Waker::wake`]; at least once per
    /// second) until it returns this rank's contribution. It must not block for long. An error from
    /// it ends the call, and the group counts as failed: call [`Group::abort`] with a reason.
    ///
    /// Contributions of other ranks to this rank's part are buffered until then, in memory that is
    /// kept for the next sum: at most `world - 1` times that part. The contribution itself is kept,
    /// too ([`Group::take_contribution`]). On return this rank has
    /// everything it needs. What slow links have not sent yet, at most the result of its own part,
    /// is sent during the next collective, between collectives, or in [`Group::close`]. The
    /// progress limit starts when this rank has contributed; a peer that dies is reported before
    /// that, too.
    ///
    /// All this holds for the direct algorithm. The ring first waits for the contributions of all
    /// ranks.
    pub fn all_reduce<E: From<CommError>>(
        &mut self,
        shards: &Shards,
        wire_format: WireFormat,
        algorithm: Algorithm,
        contribution: impl FnMut() -> Result<Option<Contribution>, E>,
    ) -> Result<Summed, E> {
        if shards.world() != self.world() {
            let what = format!("shards for {} ranks in a world of {}", shards.world(), self.world());
            return Err(CommError::Misuse { operation: "all_reduce", what }.into());
        }
        reduce::all_reduce(&mut self.mesh, shards, wire_format, algorithm, &mut self.buffers, contribution)
    }

    /// Returns whether this is the only rank, and no process can join it.
    pub fn is_alone(&self) -> bool {
        self.world() == 1 && self.door.is_none()
    }

    /// Returns whether a shared directory decides who continues when ranks are lost.
    pub fn shares_directory(&self) -> bool {
        self.rules.directory.is_some()
    }

    /// This rank's contribution to the last sum; see [`Group::take_contribution`].
    pub fn contribution(&self) -> Option<&[f32]> {
        self.buffers.own.as_ref().map(|own| own.as_slice())
    }

    /// Takes this rank's contribution to the last sum, if it has contributed: also to one that
    /// failed. It is kept until the next sum, which uses its memory. `None` for a single rank, whose
    /// contribution is the sum.
    pub fn take_contribution(&mut self) -> Option<Vec<f32>> {
        self.buffers.own.take().map(Arc::unwrap_or_clone)
    }

    /// Returns a handle that wakes this rank in [`Group::all_reduce`], from any thread.
    pub fn waker(&self) -> Waker {
        self.mesh.waker()
    }

    /// Copies the values of `root` to all ranks; the lengths must be equal.
    pub fn broadcast(&mut self, root: usize, data: &mut [f32]) -> Result<(), CommError> {
        self.check_root("broadcast", root)?;
        reduce::broadcast(&mut self.mesh, root, data)
    }

    /// Returns the bytes of `root` on all ranks; the data of the others is ignored. Up to 16 GiB.
    pub fn broadcast_bytes(&mut self, root: usize, data: Vec<u8>) -> Result<Vec<u8>, CommError> {
        self.check_root("broadcast_bytes", root)?;
        if root == self.rank() {
            self.check_bytes("broadcast_bytes", data.len(), MESSAGE_LIMIT_BYTES)?;
        }
        reduce::broadcast_bytes(&mut self.mesh, root, data)
    }

    /// Measures the link of each rank; returns the speeds in rank order, equal on all ranks. Pairs
    /// of ranks exchange blocks of up to 16 MiB, each rank with up to 8 others in turn, for about
    /// `budget` in total. Every pair exchanges at least one block of 256 KiB, however long that
    /// takes.
    pub fn measure_links(&mut self, budget: Duration) -> Result<Vec<LinkSpeed>, CommError> {
        measure::measure_links(&mut self.mesh, budget)
    }

    /// Returns once every rank has called it.
    pub fn barrier(&mut self) -> Result<(), CommError> {
        reduce::barrier(&mut self.mesh)
    }

    /// Stops the run and sends the reason to the others, which report "rank 2 (host) stopped:
    /// reason". The group cannot be used after it.
    pub fn abort(&mut self, reason: &str) {
        self.mesh.leave(LinkEnd::Aborted(reason.to_owned()));
    }

    /// Leaves because of a failure of this rank alone: the others report "rank 2 (host) failed:
    /// reason" and may continue by [`Group::regroup`]. The group cannot be used after it.
    pub fn fail(&mut self, reason: &str) {
        self.mesh.leave(LinkEnd::Failed(reason.to_owned()));
    }

    /// Sets how ranks decide who continues when some are lost. Must be equal on all ranks. From now on
    /// processes can wait to be admitted.
    pub fn set_regroup_rules(&mut self, rules: RegroupRules) {
        self.rules = rules;
        self.open_door();
    }

    /// Tells newcomers who is in the group now, and writes `members.json`.
    fn open_door(&self) {
        if self.cards.len() != self.world() {
            return;
        }
        let (group, rank) = (self.mesh.first_generation, self.rank());
        if let Some(door) = &self.door {
            let (members, directory) = (self.cards.clone(), self.rules.directory.clone());
            door.set_roster(Some(Roster { group, rank, members, directory }));
        }
        if let Some((path, credentials)) = &self.members_file
            && let Err(reason) = MembersFile::new(group, &self.cards, credentials).write(path)
        {
            let path = path.display();
            tracing::warn!("cannot write {path}: {reason}. If this process ends, its next start may not find the run");
        }
    }

    /// Addresses of the other members, at which a process can join the group.
    pub fn addresses(&self) -> Vec<String> {
        let others = self.cards.iter().enumerate().filter(|(rank, _)| *rank != self.rank());
        others.flat_map(|(_, card)| &card.addresses).map(SocketAddr::to_string).collect()
    }

    /// Admits no more processes: the run is about to end.
    pub fn close_door(&self) {
        if let Some(door) = &self.door {
            door.set_roster(None);
        }
    }

    /// On rank 0: a newcomer that can be admitted. Announce it to all ranks, which then call
    /// [`Group::admit`] at the same point.
    pub fn candidate(&self) -> Option<Candidate> {
        self.door.as_ref().and_then(Door::candidate)
    }

    /// Admits a newcomer, in a new generation of the group. A collective, and at the same time a
    /// [`Group::regroup`]: ranks may be lost meanwhile, and then the newcomer may stay outside.
    pub fn admit(&mut self, candidate: Candidate) -> Result<Regrouped, CommError> {
        reduce::report_to_lead(&mut self.mesh)?;
        let arrival = self.door.as_ref().and_then(|door| door.take(candidate));
        self.regroup_with(
            arrival.map_or(Intent::Continue, |arrival| Intent::Admit(Box::new(arrival))),
            candidate.sees_directory,
        )
    }

    fn regroup_with(&mut self, intent: Intent, sees_directory: bool) -> Result<Regrouped, CommError> {
        let mut next = self.rules.clone();
        if matches!(intent, Intent::Admit(_)) && !sees_directory {
            next.directory = None;
        }
        let regrouped = self.mesh.regroup(&self.rules, &next, &mut self.cards, intent)?;
        if regrouped.newcomer.is_some() {
            // A member that does not see the directory cannot ask it.
            self.rules = next;
        }
        self.open_door();
        Ok(regrouped)
    }

    /// After an error for which [`CommError::is_lost_rank`] holds: agrees with the ranks that are
    /// left on a new membership, and continues with it as the next generation. Survivors keep their
    /// order, so their numbers may become smaller.
    ///
    /// All collectives that were under way on any rank are cancelled: some survivors may have
    /// finished the last one and others not. The caller finds out who has what.
    ///
    /// If this rank must not continue, returns an error for which [`CommError::is_cut_off`] holds.
    pub fn regroup(&mut self) -> Result<Regrouped, CommError> {
        if !self.mesh.transport.can_regroup() {
            let what = "ranks over MPI cannot continue without lost ones".to_owned();
            return Err(CommError::Misuse { operation: "regroup", what });
        }
        self.regroup_with(Intent::Continue, false)
    }

    /// Leaves by agreement, while the others [`Group::regroup`]: all ranks must have agreed on who
    /// leaves, and must know that all others know it. This rank still votes on who continues, so any
    /// number of ranks may leave at the same time.
    ///
    /// Returns once the others continue without this rank. If they do not, because others were lost
    /// at the same time, returns an error for which [`CommError::is_cut_off`] holds.
    pub fn leave(&mut self) -> Result<(), CommError> {
        match self.regroup_with(Intent::Leave, false) {
            Err(CommError::Excluded { .. }) => Ok(()),
            result => result.map(drop),
        }
    }

    /// Leaves after the last collective: the others do not see it as a failure.
    pub fn close(mut self) {
        self.mesh.leave(LinkEnd::Goodbye);
    }

    fn check_root(&self, operation: &'static str, root: usize) -> Result<(), CommError> {
        if root < self.world() {
            return Ok(());
        }
        let what = format!("root rank {root} does not exist in a world of {}", self.world());
        Err(CommError::Misuse { operation, what })
    }

    fn check_bytes(&self, operation: &'static str, bytes: usize, limit_bytes: usize) -> Result<(), CommError> {
        if bytes <= limit_bytes {
            return Ok(());
        }
        let what = format!("{bytes} bytes exceed the limit of {limit_bytes}");
        Err(CommError::Misuse { operation, what })
    }
}
