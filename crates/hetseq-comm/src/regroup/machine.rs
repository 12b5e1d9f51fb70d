//! The state machine of one rank that decides the members of the next generation.
//!
//! Single-decree Paxos with two simplifications. A proposal's ballot is its proposer's rank, and a
//! rank proposes only after it has lost all lower ranks, so it proposes at most once. A member
//! promises only to the lowest rank that it still reaches, so proposers do not compete and there
//! are no refusals and no retries. Links never come back within a generation; therefore ballots
//! only grow and every wait ends with a message or with a lost link.
//!
//! No I/O, no clock, no randomness: the driver owns the links and calls [`Regroup::step`].

use std::collections::BTreeMap;

use super::event::{Accepted, Arbiter, Input, Output, RegroupMessage, StopReason};
use super::quorum::{broken_links, clique, is_quorum, needed};
use super::rank_set::RankSet;
use super::waiting::Waiting;

/// The rank that regroups and the rules of its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RegroupSetup {
    pub(crate) rank: usize,
    /// The number of ranks in the current generation.
    pub(crate) world: usize,
    pub(crate) arbiter: Arbiter,
    pub(crate) min_workers: usize,
    /// This rank votes for the last time: it wants to be no member of the next generation.
    pub(crate) leaves: bool,
    /// Whether this rank is connected to a process that may become a member. That one has the number
    /// `world`, and no vote.
    pub(crate) has_newcomer: bool,
}

/// One rank's part in choosing the next generation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Regroup {
    setup: RegroupSetup,
    /// Ranks whose links this rank has lost. Only grows.
    lost: RankSet,
    /// Ranks that sent `Prepare`.
    prepares: RankSet,
    /// The highest ballot that this rank has promised.
    promised: Option<usize>,
    /// The accepted proposal with the highest ballot.
    accepted: Option<Accepted>,
    role: Role,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Role {
    /// A lower rank is reachable and proposes, or waits for an even lower one.
    Follower,
    /// The proposer collects promises. Each comes with the lost links of its sender. `confirmed`
    /// holds the broken links for whose sake a rank was asked again.
    Preparing { promises: BTreeMap<usize, Promise>, confirmed: BTreeMap<usize, RankSet> },
    /// The proposer has sent its proposal and collects accepts.
    Proposing { members: RankSet, accepts: RankSet },
    /// The proposer has asked the run directory.
    AskingDirectory,
    /// Installed or stopped.
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Promise {
    lost: RankSet,
    has_newcomer: bool,
    accepted: Option<Accepted>,
    leaves: bool,
}

impl Regroup {
    /// Starts when this rank has lost the links to `lost`, or, with an empty set, when the first
    /// message of a peer has arrived, or when all ranks want to admit a newcomer. Pass that message
    /// to [`Regroup::step`] next.
    pub(crate) fn start(setup: RegroupSetup, lost: &RankSet) -> (Regroup, Vec<Output>) {
        let lost = lost.iter().filter(|&rank| rank < setup.world && rank != setup.rank).collect();
        let role = Role::Follower;
        let (prepares, promised, accepted) = (RankSet::new(), None, None);
        let mut machine = Regroup { setup, lost, prepares, promised, accepted, role };
        let mut outputs = Vec::new();
        machine.after_loss(&mut outputs);
        (machine, outputs)
    }

    /// Processes one event. After `Install` or `Stop` it returns nothing. Messages that make no
    /// sense are ignored.
    pub(crate) fn step(&mut self, input: Input) -> Vec<Output> {
        let mut outputs = Vec::new();
        match input {
            _ if self.role == Role::Done => {}
            Input::LinkLost(rank) => {
                if rank < self.setup.world && rank != self.setup.rank && self.lost.insert(rank) {
                    self.after_loss(&mut outputs);
                }
            }
            Input::Received { from, message } => {
                if self.reaches(from) && from != self.setup.rank {
                    self.receive(from, message, &mut outputs);
                }
            }
            Input::Arbitrated(answer) => self.arbitrated(answer, &mut outputs),
        }
        outputs
    }

    /// Returns the ranks whose links this rank has lost. Those of them that are members of the next
    /// generation are lost there, too.
    pub(crate) fn lost(&self) -> &RankSet {
        &self.lost
    }

    /// Returns what this rank waits for.
    pub(crate) fn waiting_for(&self) -> Waiting {
        let is_peer = |rank: &usize| *rank != self.setup.rank;
        let missing = |has: &dyn Fn(usize) -> bool| self.reached().filter(is_peer).filter(|&rank| !has(rank)).collect();
        match &self.role {
            Role::Follower => Waiting::Proposer(self.lowest()),
            Role::Preparing { promises, .. } => Waiting::Promises(missing(&|rank| promises.contains_key(&rank))),
            Role::Proposing { accepts, .. } => Waiting::Accepts(missing(&|rank| accepts.contains(rank))),
            Role::AskingDirectory => Waiting::Directory,
            Role::Done => Waiting::Nothing,
        }
    }

    fn reaches(&self, rank: usize) -> bool {
        rank < self.setup.world && !self.lost.contains(rank)
    }

    /// Returns the ranks that this rank has not lost, itself included.
    fn reached(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.setup.world).filter(|&rank| self.reaches(rank))
    }

    /// Returns the only rank to which this rank promises: the lowest that it reaches.
    fn lowest(&self) -> usize {
        self.reached().next().unwrap_or(self.setup.rank)
    }

    fn send_to_peers(&self, message: &RegroupMessage, outputs: &mut Vec<Output>) {
        let peers = self.reached().filter(|&rank| rank != self.setup.rank);
        outputs.extend(peers.map(|to| Output::Send { to, message: message.clone() }));
    }

    fn stop(&mut self, reason: StopReason, outputs: &mut Vec<Output>) {
        self.role = Role::Done;
        outputs.push(Output::Stop(reason));
    }

    fn after_loss(&mut self, outputs: &mut Vec<Output>) {
        let reached: RankSet = self.reached().collect();
        if let Some(reason) = self.too_small(&reached, &reached) {
            return self.stop(reason, outputs);
        }
        let lowest = self.lowest();
        match &mut self.role {
            Role::Follower if lowest == self.setup.rank => {
                self.promised = Some(lowest);
                self.role = Role::Preparing { promises: BTreeMap::new(), confirmed: BTreeMap::new() };
                self.send_to_peers(&RegroupMessage::Prepare, outputs);
            }
            Role::Follower if self.prepares.contains(lowest) && self.promised != Some(lowest) => {
                self.promise(lowest, outputs);
            }
            // To the lowest only, which wakes all others by its `Prepare` or wakes a lower one:
            // n messages per loss, and not n * n.
            Role::Follower => {
                let message = RegroupMessage::Suspect { lost: self.lost.clone() };
                outputs.push(Output::Send { to: lowest, message });
            }
            Role::Preparing { promises, .. } => promises.retain(|rank, _| !self.lost.contains(*rank)),
            Role::Proposing { .. } | Role::AskingDirectory | Role::Done => {}
        }
        self.advance(outputs);
    }

    /// Returns why `members` cannot be the next generation. `voters` are these and ranks that leave.
    fn too_small(&self, members: &RankSet, voters: &RankSet) -> Option<StopReason> {
        let RegroupSetup { world, arbiter, min_workers, .. } = self.setup;
        if arbiter == Arbiter::Quorum && !is_quorum(voters, world) {
            return Some(StopReason::NoQuorum { reachable: voters.len(), needed: needed(voters, world), world });
        }
        let (left, min_workers) = (members.len(), min_workers.max(1));
        (left < min_workers).then_some(StopReason::TooFew { left, min_workers })
    }

    fn promise(&mut self, to: usize, outputs: &mut Vec<Output>) {
        self.promised = Some(to);
        let (lost, accepted) = (self.lost.clone(), self.accepted.clone());
        let RegroupSetup { leaves, has_newcomer, .. } = self.setup;
        outputs.push(Output::Send { to, message: RegroupMessage::Promise { lost, has_newcomer, accepted, leaves } });
    }

    fn receive(&mut self, from: usize, message: RegroupMessage, outputs: &mut Vec<Output>) {
        match message {
            // Without a promise, the report is not needed: the promise repeats it.
            RegroupMessage::Suspect { lost } => {
                if let Role::Preparing { promises, .. } = &mut self.role
                    && let Some(promise) = promises.get_mut(&from)
                {
                    promise.lost = lost;
                }
            }
            // Of another rank than the lowest: answered when all lower ones are lost.
            RegroupMessage::Prepare => {
                self.prepares.insert(from);
                if from == self.lowest() {
                    self.promise(from, outputs);
                }
            }
            RegroupMessage::Promise { lost, has_newcomer, accepted, leaves } => {
                let is_valid = accepted.as_ref().is_none_or(|accepted| {
                    // With a directory, no rank accepts anything.
                    self.setup.arbiter == Arbiter::Quorum
                        && accepted.ballot < self.setup.rank
                        && self.can_be_decided(&accepted.members)
                });
                if let Role::Preparing { promises, .. } = &mut self.role
                    && is_valid
                {
                    promises.entry(from).or_insert(Promise { lost, has_newcomer, accepted, leaves });
                    self.advance(outputs);
                }
            }
            RegroupMessage::Propose { members } => self.accept(from, members, outputs),
            RegroupMessage::Accept => {
                if let Role::Proposing { accepts, .. } = &mut self.role {
                    accepts.insert(from);
                    self.advance(outputs);
                }
            }
            RegroupMessage::Install { members } => {
                if self.can_be_decided(&members) {
                    self.install(&members, Some(from), outputs);
                }
            }
        }
    }

    /// Returns whether the protocol can decide on this set. It may lack its proposer, which has
    /// adopted the proposal of a lower rank or leaves, and without ranks that leave it may be no
    /// quorum. Decisions are unique because a quorum accepts them. All members of a set with the
    /// newcomer are connected to it.
    fn can_be_decided(&self, members: &RankSet) -> bool {
        let RegroupSetup { rank, world, has_newcomer, .. } = self.setup;
        let is_connected = has_newcomer || !members.contains(world) || !members.contains(rank);
        !members.below(world).is_empty() && is_connected && members.fits(world + 1)
    }

    fn accept(&mut self, from: usize, members: RankSet, outputs: &mut Vec<Output>) {
        let is_new = self.accepted.as_ref().is_none_or(|accepted| accepted.ballot < from);
        if self.setup.arbiter == Arbiter::Quorum
            && self.promised == Some(from)
            && is_new
            && self.can_be_decided(&members)
        {
            self.accepted = Some(Accepted { ballot: from, members });
            outputs.push(Output::Send { to: from, message: RegroupMessage::Accept });
        }
    }

    fn arbitrated(&mut self, answer: Result<RankSet, String>, outputs: &mut Vec<Output>) {
        if self.role != Role::AskingDirectory {
            return;
        }
        match answer {
            Ok(members) if self.can_be_decided(&members) => self.install(&members, None, outputs),
            Ok(members) => {
                let detail = format!("ranks {members} are not members of this group of {}", self.setup.world);
                self.stop(StopReason::DirectoryFailed(detail), outputs);
            }
            Err(detail) => self.stop(StopReason::DirectoryFailed(detail), outputs),
        }
    }

    /// Does what a proposer can do now.
    fn advance(&mut self, outputs: &mut Vec<Output>) {
        if let Role::Preparing { promises, .. } = &self.role
            && self.reached().all(|peer| peer == self.setup.rank || promises.contains_key(&peer))
        {
            let accepted = promises.values().filter_map(|promise| promise.accepted.as_ref());
            let adopted = accepted.chain(&self.accepted).max_by_key(|accepted| accepted.ballot);
            if let Some(adopted) = adopted {
                let members = adopted.members.clone();
                self.propose(members, true, outputs);
            } else {
                self.choose(outputs);
            }
        }
        if let Role::Proposing { members, accepts } = &self.role
            && is_quorum(accepts, self.setup.world)
        {
            let members = members.clone();
            self.install(&members, None, outputs);
        }
    }

    /// Chooses the members to propose, once every reported loss is confirmed: if a rank crashes
    /// after its promise, its peers may report that before this rank notices, and one of the two
    /// ends of that link has to go. So both are asked again, and a crashed one does not answer.
    fn choose(&mut self, outputs: &mut Vec<Output>) {
        let RegroupSetup { rank, world, leaves, .. } = self.setup;
        let Role::Preparing { promises, confirmed } = &mut self.role else { return };
        let own = (rank, &self.lost, leaves);
        let reports = promises.iter().map(|(&peer, promise)| (peer, &promise.lost, promise.leaves)).chain([own]);
        let leaving: RankSet = reports.clone().filter(|(.., leaves)| *leaves).map(|(peer, ..)| peer).collect();
        let lost = reports.filter(|(.., leaves)| !leaves).map(|(peer, lost, _)| (peer, lost)).collect();
        let broken = broken_links(&lost);
        let is_confirmed = |peer, peers: &RankSet| confirmed.get(&peer).is_some_and(|known| peers.is_subset(known));
        let unconfirmed = broken.iter().filter(|&(&peer, peers)| !peers.is_empty() && !is_confirmed(peer, peers));
        let unconfirmed: Vec<usize> = unconfirmed.map(|(&peer, _)| peer).filter(|&peer| peer != rank).collect();
        for &peer in &unconfirmed {
            promises.remove(&peer);
            confirmed.entry(peer).or_default().extend(&broken[&peer]);
            outputs.push(Output::Send { to: peer, message: RegroupMessage::Prepare });
        }
        if !unconfirmed.is_empty() {
            return;
        }
        let mut members = clique(rank, &broken);
        let voters: RankSet = members.iter().chain(leaving.iter()).collect();
        let is_connected = |peer: usize| promises.get(&peer).is_some_and(|promise| promise.has_newcomer);
        let has_newcomer = self.setup.has_newcomer && members.iter().filter(|&peer| peer != rank).all(is_connected);
        // Alone, without a rank that stays, it has no state.
        if has_newcomer && !members.is_empty() {
            members.insert(world);
        }
        match self.too_small(&members, &voters) {
            // Not even proposed: another proposer may find a larger set.
            Some(reason) => self.stop(reason, outputs),
            None => self.propose(members, is_quorum(&voters, world), outputs),
        }
    }

    fn propose(&mut self, members: RankSet, has_quorum: bool, outputs: &mut Vec<Output>) {
        let RegroupSetup { rank, arbiter, .. } = self.setup;
        match arbiter {
            Arbiter::Directory => {
                self.role = Role::AskingDirectory;
                outputs.push(Output::AskDirectory { members, has_quorum });
            }
            Arbiter::Quorum => {
                self.accepted = Some(Accepted { ballot: rank, members: members.clone() });
                self.send_to_peers(&RegroupMessage::Propose { members: members.clone() }, outputs);
                self.role = Role::Proposing { members, accepts: [rank].into() };
            }
        }
    }

    /// Passes the decision on, then follows it. All reached ranks get it, excluded ones, too, which
    /// would otherwise wait for this rank; and excluded ones pass it on, because they may be the
    /// only ranks that a failed proposer has reached.
    fn install(&mut self, members: &RankSet, from: Option<usize>, outputs: &mut Vec<Output>) {
        let RegroupSetup { rank, min_workers, .. } = self.setup;
        let mut peers: Vec<usize> = self.reached().filter(|&peer| peer != rank && Some(peer) != from).collect();
        peers.sort_by_key(|&peer| !members.contains(peer));
        let message = RegroupMessage::Install { members: members.clone() };
        outputs.extend(peers.into_iter().map(|to| Output::Send { to, message: message.clone() }));
        self.role = Role::Done;
        outputs.push(if !members.contains(rank) {
            Output::Stop(StopReason::Excluded { members: members.clone() })
        } else if members.len() < min_workers {
            Output::Stop(StopReason::TooFew { left: members.len(), min_workers })
        } else {
            Output::Install { members: members.clone() }
        });
    }
}
