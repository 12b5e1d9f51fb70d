//! The public face: the immutable group of ranks and its collectives.
//!
//! Checks arguments and delegates: joining to `rendezvous/`, collectives to `reduce.rs`, waiting and
//! failing to `mesh.rs`. The trainer owns one group and calls it from one thread.

use std::sync::Arc;
use std::time::Duration;

use crate::codec::Wire;
use crate::error::CommError;
use crate::identity::Identity;
use crate::lines::Line;
use crate::link::End;
use crate::mesh::Mesh;
use crate::options::Options;
use crate::place::Place;
use crate::reduce::{self, AGREE_LIMIT_BYTES, Contribution, MESSAGE_LIMIT_BYTES, Route, Summed};
use crate::rendezvous::Doorkeeper;
use crate::shards::Shards;
use crate::signal::Waker;
use crate::{local, measure, rendezvous};

/// The ranks that train together. Immutable: a change of membership is a new group.
///
/// Every rank makes the same calls in the same order, from one thread. After an error the group is
/// unusable. Dropping it without [`Group::close`] tells the others that this rank failed.
pub struct Group {
    mesh: Mesh,
    /// On rank 0 of a network, for as long as the group lives.
    _keeper: Option<Doorkeeper>,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Group(rank {} of {}, generation {:016x})", self.rank(), self.world(), self.generation())
    }
}

impl Group {
    /// A world of one: every collective returns at once, and there are no sockets or threads.
    pub fn alone() -> Group {
        let options = Options::default();
        let hosts = vec![options.shown_name()];
        Group { mesh: Mesh::new(0, 0, hosts, vec![None], Arc::default(), &options), _keeper: None }
    }

    /// The `local` engine: one group per thread of this process, in rank order.
    pub fn local(world: usize, options: &Options) -> Vec<Group> {
        local::meshes(world, &options.bounded()).into_iter().map(|mesh| Group { mesh, _keeper: None }).collect()
    }

    /// The `tcp` engine: meets the other ranks and returns when all are connected to all.
    ///
    /// Blocks for at most about `options.join` until rank 0 is reached and, if it came late, as long again until all have
    /// come, plus the time to connect the ranks to each other.
    pub fn join(place: &Place, identity: &Identity, options: &Options) -> Result<Group, CommError> {
        let Place { rank, world, source, .. } = place;
        if let Some(rank) = rank.filter(|rank| rank >= world) {
            let problem = format!("rank {rank} is not below the world size {world} ({source})");
            return Err(CommError::Place { problem });
        }
        if *world == 1 {
            return Ok(Group::alone());
        }
        tracing::debug!(?place, "joining the other ranks");
        let (mesh, keeper) = rendezvous::meet(place, identity, &options.bounded())?;
        Ok(Group { mesh, _keeper: keeper })
    }

    /// This rank's number, from 0.
    pub fn rank(&self) -> usize {
        self.mesh.rank
    }

    /// How many ranks there are.
    pub fn world(&self) -> usize {
        self.mesh.world()
    }

    /// Random identifier of this membership, equal on all ranks; 0 without a network.
    pub fn generation(&self) -> u64 {
        self.mesh.generation
    }

    /// What the machine of `rank` is called in messages.
    pub fn host(&self, rank: usize) -> &str {
        self.mesh.hosts.get(rank).map_or("unknown", String::as_str)
    }

    /// Sets what every error message from now on says after "at", such as `update 8,412`.
    pub fn at(&mut self, where_: impl Into<String>) {
        self.mesh.context = where_.into();
    }

    /// Gives everybody everybody's bytes, in rank order. For small things such as the update header;
    /// 64 MiB is the limit.
    pub fn agree(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        self.check_bytes("agree", mine.len(), AGREE_LIMIT_BYTES)?;
        reduce::agree(&mut self.mesh, mine)
    }

    /// Sums over ranks: afterwards `data` holds the sum on all of them, equal bit for bit. `shards` says who adds which
    /// part: a host with a slow line should own little or nothing. All ranks must say the same.
    pub fn all_reduce(&mut self, data: &mut [f32], shards: &Shards, wire: Wire, route: Route) -> Result<(), CommError> {
        self.check_shards("all_reduce", data.len(), shards)?;
        reduce::all_reduce(&mut self.mesh, data, shards, wire, route)
    }

    /// The sum of [`Group::all_reduce`], with the same bits, for a rank that still computes what it contributes: it waits
    /// inside, so that the others' exchange goes on while it computes. `mine` is asked again and again, whenever something
    /// may have changed (frames came, [`Waker::wake`]; after a second in any case), until it gives this rank's contribution;
    /// it must not block for long. Its error ends the call, and the group counts as failed: abort it with a reason.
    ///
    /// What the others contribute to this rank's part meanwhile is kept: at most `world - 1` times that part, in memory that
    /// stays for the next sum. On return this rank has everything; what slow lines have not taken yet, at most the result of
    /// its own part, leaves during the next collective, between them, or on [`Group::close`]. The limit on progress counts
    /// from when this rank's contribution was given; a peer that dies is reported before, too.
    ///
    /// All that is for the direct route: over the ring everybody's contribution is awaited first.
    pub fn all_reduce_late<E: From<CommError>>(
        &mut self,
        shards: &Shards,
        wire: Wire,
        route: Route,
        mine: impl FnMut() -> Result<Option<Contribution>, E>,
    ) -> Result<Summed, E> {
        self.check_shards("all_reduce_late", shards.len(), shards)?;
        reduce::all_reduce_late(&mut self.mesh, shards, wire, route, mine)
    }

    /// Ends this rank's sleep in [`Group::all_reduce_late`], from any thread.
    pub fn waker(&self) -> Waker {
        self.mesh.waker()
    }

    /// Sums over ranks: afterwards `data[shards.of(rank)]` holds the sum, added in rank order in f32.
    /// The other parts are unspecified.
    pub fn reduce_scatter(&mut self, data: &mut [f32], shards: &Shards) -> Result<(), CommError> {
        self.check_shards("reduce_scatter", data.len(), shards)?;
        reduce::reduce_scatter(&mut self.mesh, data, shards)
    }

    /// Gives everybody every owner's part of `data`.
    pub fn all_gather(&mut self, data: &mut [f32], shards: &Shards) -> Result<(), CommError> {
        self.check_shards("all_gather", data.len(), shards)?;
        reduce::all_gather(&mut self.mesh, data, shards)
    }

    /// Gives everybody the values of `root`; the lengths must be equal.
    pub fn broadcast(&mut self, root: usize, data: &mut [f32]) -> Result<(), CommError> {
        self.check_root("broadcast", root)?;
        reduce::broadcast(&mut self.mesh, root, data)
    }

    /// Gives everybody the bytes of `root`; what the others pass in is ignored. Up to 16 GiB.
    pub fn broadcast_bytes(&mut self, root: usize, data: Vec<u8>) -> Result<Vec<u8>, CommError> {
        self.check_root("broadcast_bytes", root)?;
        if root == self.rank() {
            self.check_bytes("broadcast_bytes", data.len(), MESSAGE_LIMIT_BYTES)?;
        }
        reduce::broadcast_bytes(&mut self.mesh, root, data)
    }

    /// How fast the line of each rank is, in rank order and equal on all ranks. Pairs swap blocks of up to 16 MiB, each rank
    /// with up to 8 others in turn, for about `budget` in all; at least one block of 256 KiB each, however long that takes.
    pub fn measure_lines(&mut self, budget: Duration) -> Result<Vec<Line>, CommError> {
        measure::measure_lines(&mut self.mesh, budget)
    }

    /// Returns once every rank has called it.
    pub fn barrier(&mut self) -> Result<(), CommError> {
        reduce::barrier(&mut self.mesh)
    }

    /// Stops, and tells the others why: they report "rank 2 (host) stopped: reason".
    pub fn abort(mut self, reason: &str) {
        self.mesh.part(End::Aborted(reason.to_owned()));
    }

    /// Leaves in an orderly way after the last collective: the others do not see it as a failure.
    pub fn close(mut self) {
        self.mesh.part(End::Goodbye);
    }

    fn check_shards(&self, operation: &'static str, len: usize, shards: &Shards) -> Result<(), CommError> {
        if (shards.len(), shards.world()) == (len, self.world()) {
            return Ok(());
        }
        let what = format!(
            "shards of {} values for {} ranks do not fit {len} values and {} ranks",
            shards.len(),
            shards.world(),
            self.world()
        );
        Err(CommError::Misuse { operation, what })
    }

    fn check_root(&self, operation: &'static str, root: usize) -> Result<(), CommError> {
        if root < self.world() {
            return Ok(());
        }
        let what = format!("there is no rank {root} in a world of {}", self.world());
        Err(CommError::Misuse { operation, what })
    }

    fn check_bytes(&self, operation: &'static str, bytes: usize, limit_bytes: usize) -> Result<(), CommError> {
        if bytes <= limit_bytes {
            return Ok(());
        }
        let what = format!("{bytes} bytes are more than its limit of {limit_bytes}");
        Err(CommError::Misuse { operation, what })
    }
}
