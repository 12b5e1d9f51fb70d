//! A group of ranks over its generations: machines, links, and the run directory.
//!
//! This plays the driver of `regroup/`. Links are ordered and lossless until they end. When a link
//! ends (a fault, or the other side has closed it), each side notices at its own time and loses
//! what has not arrived by then. Ranks of generation 0 are called ids here, because ranks change. A
//! newcomer has the last id. It waits, connected to all, until a member tells it that it is one, too.

use crate::group_model::Limits;
use crate::regroup::{Arbiter, Input, Output, RankSet, Regroup, RegroupMessage, RegroupSetup, StopReason};
use crate::updates::{Applied, Updates};

/// A rule that was broken on the way to a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Violation {
    /// Two ranks installed different sets as the same generation.
    TwoMemberships,
    /// A message arrived before the `Install` of its generation.
    FrameOfLaterGeneration,
    /// The machine sent something over a link that it had lost.
    UsedLostLink,
    /// A rank has stopped although ranks have only crashed and enough are left.
    NeedlessStop,
    /// Two members of a generation have applied different sums as the same update.
    TwoLineages,
    /// A rank that leaves is a member of the next generation.
    KeptLeaver,
    /// A generation resumes before a published update, or with another sum of it.
    LostPublished,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Status {
    Running,
    Crashed,
    Stopped,
    /// It has left by agreement, and keeps its links until the others close them.
    Left,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    pub(crate) status: Status,
    pub(crate) generation: usize,
    /// It leaves generation 0.
    pub(crate) leaves: bool,
    /// Absent while the rank trains.
    pub(crate) machine: Option<Regroup>,
    /// The proposal that is on its way to the run directory.
    pub(crate) asking: Option<RankSet>,
    pub(crate) applied: Applied,
    /// It is a newcomer that is no member yet.
    pub(crate) is_waiting: bool,
    /// Whether it has the state of the run, which a newcomer gets from the others.
    pub(crate) has_state: bool,
    /// Whether it knows the update from which its generation resumes.
    pub(crate) has_resumed: bool,
}

/// A message with its generation, as in a frame's header.
type Envelope = (usize, RegroupMessage);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GroupState {
    arbiter: Arbiter,
    min_workers: usize,
    /// The number of members of generation 0.
    voters: usize,
    pub(crate) nodes: Vec<Node>,
    /// Messages in flight, by `from * n + to`.
    links: Vec<Vec<Envelope>>,
    /// Links that ended without that side having noticed, by `at * n + peer`.
    ended: Vec<bool>,
    /// Links that one side uses no more, by `at * n + peer`.
    closed: Vec<bool>,
    pub(crate) faults: usize,
    pub(crate) has_cuts: bool,
    pub(crate) has_only_cuts: bool,
    /// The ids of each installed generation.
    pub(crate) generations: Vec<RankSet>,
    /// The files `membership/<g+1>` by g, with ranks of g.
    directory: Vec<Option<RankSet>>,
    pub(crate) updates: Updates,
    pub(crate) violation: Option<Violation>,
}

impl GroupState {
    /// A group in generation 0 in which `applied` ids have applied the update under way, and perhaps a
    /// newcomer. All have agreed that the ids `leaving` leave it.
    pub(crate) fn new(limits: &Limits, arbiter: Arbiter, applied: &RankSet, leaving: &RankSet) -> GroupState {
        let (voters, min_workers) = (limits.world, limits.min_workers);
        let world = voters + usize::from(limits.newcomer);
        let node = |id| Node {
            status: Status::Running,
            generation: 0,
            leaves: leaving.contains(id),
            machine: None,
            asking: None,
            applied: if applied.contains(id) { vec![0] } else { Vec::new() },
            is_waiting: id == voters,
            has_state: id < voters,
            has_resumed: true,
        };
        GroupState {
            arbiter,
            min_workers,
            voters,
            nodes: (0..world).map(node).collect(),
            links: vec![Vec::new(); world * world],
            ended: vec![false; world * world],
            closed: vec![false; world * world],
            faults: 0,
            has_cuts: false,
            has_only_cuts: true,
            generations: vec![(0..voters).collect()],
            directory: Vec::new(),
            updates: Updates::new(voters, applied),
            violation: None,
        }
    }

    pub(crate) fn world(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn is_running(&self, id: usize) -> bool {
        self.nodes[id].status == Status::Running
    }

    /// Whether a fault can change anything about it.
    pub(crate) fn is_present(&self, id: usize) -> bool {
        matches!(self.nodes[id].status, Status::Running | Status::Left)
    }

    pub(crate) fn members(&self, id: usize) -> &RankSet {
        &self.generations[self.nodes[id].generation]
    }

    fn link(&self, from: usize, to: usize) -> usize {
        from * self.world() + to
    }

    pub(crate) fn is_connected(&self, a: usize, b: usize) -> bool {
        let unused = |link: usize| self.closed[link] || self.ended[link];
        !unused(self.link(a, b)) && !unused(self.link(b, a))
    }

    /// A member reads nothing from the newcomer before both are members.
    pub(crate) fn can_deliver(&self, from: usize, to: usize) -> bool {
        let is_before = from == self.voters && self.nodes[to].generation == 0;
        !is_before && !self.links[self.link(from, to)].is_empty()
    }

    pub(crate) fn can_notice(&self, at: usize, peer: usize) -> bool {
        self.ended[self.link(at, peer)]
    }

    pub(crate) fn cut(&mut self, a: usize, b: usize) {
        self.has_cuts = true;
        self.end_link(a, b);
        self.end_link(b, a);
    }

    /// Lets `at` notice that the link to `peer` has ended, some time from now.
    fn end_link(&mut self, at: usize, peer: usize) {
        let link = self.link(at, peer);
        self.ended[link] = self.is_running(at) && !self.closed[link];
    }

    /// Stops using the link to `peer`, which the peer notices some time from now.
    fn close_link(&mut self, at: usize, peer: usize) {
        let (link, incoming) = (self.link(at, peer), self.link(peer, at));
        self.closed[link] = true;
        self.ended[link] = false;
        self.links[incoming].clear();
        self.end_link(peer, at);
    }

    /// Whether a leave was agreed on, and this rank has not begun with it.
    pub(crate) fn can_begin(&self, id: usize) -> bool {
        let node = &self.nodes[id];
        node.generation == 0 && node.machine.is_none() && self.has_leave()
    }

    pub(crate) fn has_leave(&self) -> bool {
        self.nodes.iter().any(|node| node.leaves)
    }

    pub(crate) fn begin(&mut self, id: usize) {
        self.start(id, &RankSet::new(), false);
    }

    pub(crate) fn leave(&mut self, id: usize, status: Status) {
        let node = &mut self.nodes[id];
        node.status = status;
        (node.machine, node.asking) = (None, None);
        for peer in (0..self.world()).filter(|&peer| peer != id) {
            self.close_link(id, peer);
        }
    }

    pub(crate) fn notice(&mut self, at: usize, peer: usize) {
        self.close_link(at, peer);
        if self.nodes[at].is_waiting {
            if (0..self.voters).all(|id| self.closed[self.link(at, id)]) {
                self.leave(at, Status::Stopped);
            }
            return;
        }
        if let Some(rank) = self.members(at).position(peer) {
            if self.nodes[at].machine.is_some() {
                self.input(at, Input::LinkLost(rank));
            } else {
                self.start(at, &[rank].into(), false);
            }
        }
    }

    /// Returns whether this member may want to admit the newcomer now.
    pub(crate) fn can_admit(&self, id: usize) -> bool {
        let node = &self.nodes[id];
        self.voters < self.world() && id < self.voters && node.generation == 0 && node.machine.is_none()
    }

    pub(crate) fn admit(&mut self, id: usize) {
        self.start(id, &RankSet::new(), true);
    }

    /// The newcomer learns from a member that it is one, too.
    fn enter(&mut self, members: &RankSet) {
        let id = self.voters;
        let members = self.ids_of(0, members);
        self.nodes[id].is_waiting = false;
        self.continue_with(id, members, &RankSet::new());
    }

    /// The ids of `ranks` of a generation. The number after its last rank is the newcomer.
    fn ids_of(&self, generation: usize, ranks: &RankSet) -> RankSet {
        let ids: Vec<usize> = self.generations[generation].iter().collect();
        ranks.iter().map(|rank| ids.get(rank).copied().unwrap_or(self.voters)).collect()
    }

    pub(crate) fn deliver(&mut self, from: usize, to: usize) {
        let link = self.link(from, to);
        let (generation, message) = self.links[link].remove(0);
        if self.nodes[to].is_waiting {
            return match message {
                RegroupMessage::Install { members } if generation == 0 => self.enter(&members),
                _ => self.violation = Some(Violation::FrameOfLaterGeneration),
            };
        }
        if generation > self.nodes[to].generation {
            self.violation = Some(Violation::FrameOfLaterGeneration);
        }
        if generation != self.nodes[to].generation {
            return;
        }
        let Some(rank) = self.members(to).position(from) else { return };
        if self.nodes[to].machine.is_none() {
            self.start(to, &RankSet::new(), false);
        }
        self.input(to, Input::Received { from: rank, message });
    }

    /// The run directory answers: the first proposal for a generation wins.
    pub(crate) fn arbitrate(&mut self, id: usize) {
        let generation = self.nodes[id].generation;
        self.directory.resize(self.directory.len().max(generation + 1), None);
        if let Some(proposal) = self.nodes[id].asking.take() {
            let decided = self.directory[generation].get_or_insert(proposal).clone();
            self.input(id, Input::Arbitrated(Ok(decided)));
        }
    }

    pub(crate) fn fail_directory(&mut self, id: usize) {
        self.nodes[id].asking = None;
        self.input(id, Input::Arbitrated(Err(String::new())));
    }

    fn start(&mut self, id: usize, lost: &RankSet, admits: bool) {
        let members = self.members(id);
        let rank = members.position(id).expect("a member of its generation");
        let (arbiter, min_workers) = (self.arbiter, self.min_workers);
        let leaves = self.nodes[id].leaves;
        let has_newcomer = admits && !self.closed[self.link(id, self.voters)];
        let setup = RegroupSetup { rank, world: members.len(), arbiter, min_workers, leaves, has_newcomer };
        let (machine, outputs) = Regroup::start(setup, lost);
        self.nodes[id].machine = Some(machine);
        self.carry_out(id, outputs);
    }

    fn input(&mut self, id: usize, input: Input) {
        // Absent if its start has ended it.
        if let Some(machine) = &mut self.nodes[id].machine {
            let outputs = machine.step(input);
            self.carry_out(id, outputs);
        }
    }

    fn carry_out(&mut self, id: usize, outputs: Vec<Output>) {
        let generation = self.nodes[id].generation;
        let ids: Vec<usize> = self.members(id).iter().collect();
        for output in outputs {
            match output {
                Output::Send { to, message } => {
                    let (link, back) = (self.link(id, ids[to]), self.link(ids[to], id));
                    if self.closed[link] {
                        self.violation = Some(Violation::UsedLostLink);
                    }
                    // A closed link is not read.
                    if !self.closed[back] {
                        self.links[link].push((generation, message));
                    }
                }
                Output::AskDirectory { members, .. } => self.nodes[id].asking = Some(members),
                Output::Install { members } => self.install(id, members),
                Output::Stop(reason) => {
                    let is_polite = self.nodes[id].leaves && matches!(reason, StopReason::Excluded { .. });
                    if is_polite {
                        let node = &mut self.nodes[id];
                        (node.status, node.machine, node.asking) = (Status::Left, None, None);
                    } else {
                        self.check_stop(id, &reason);
                        self.leave(id, Status::Stopped);
                    }
                }
            }
        }
    }

    fn check_stop(&mut self, id: usize, reason: &StopReason) {
        let alive = (0..self.voters).filter(|&id| self.is_running(id) && !self.nodes[id].leaves).count();
        let is_quorum = 2 * alive > self.voters || 2 * alive == self.voters && self.is_running(0);
        // A newcomer may have made the group larger.
        let members = self.members(id);
        let (of, reached) = (members.len(), members.iter().filter(|&id| self.is_running(id)).count());
        let has_lead = members.iter().next().is_some_and(|lead| self.is_running(lead));
        let is_quorum = is_quorum && (2 * reached > of || 2 * reached == of && has_lead);
        let is_enough = self.arbiter == Arbiter::Directory || is_quorum;
        let is_fault = matches!(reason, StopReason::DirectoryFailed(_));
        if !self.has_cuts && is_enough && alive >= self.min_workers && !is_fault && !self.nodes[id].leaves {
            self.violation = Some(Violation::NeedlessStop);
        }
    }

    fn install(&mut self, id: usize, ranks: RankSet) {
        let members = self.ids_of(self.nodes[id].generation, &ranks);
        let lost = self.nodes[id].machine.take().map(|machine| machine.lost().clone()).unwrap_or_default();
        let lost = self.ids_of(self.nodes[id].generation, &lost);
        let newcomer = self.voters;
        if newcomer < self.world() && self.nodes[id].generation == 0 {
            let (link, back) = (self.link(id, newcomer), self.link(newcomer, id));
            if members.contains(newcomer) && !self.closed[link] && !self.closed[back] {
                self.links[link].push((0, RegroupMessage::Install { members: ranks }));
            } else if !members.contains(newcomer) {
                self.close_link(id, newcomer);
            }
        }
        self.continue_with(id, members, &lost);
    }

    /// Continues as a member of the next generation. `lost` ids are lost already.
    fn continue_with(&mut self, id: usize, members: RankSet, lost: &RankSet) {
        let old_ids = self.members(id).clone();
        let node = &mut self.nodes[id];
        node.generation += 1;
        if node.leaves {
            self.violation = Some(Violation::KeptLeaver);
        }
        let node = &mut self.nodes[id];
        node.asking = None;
        node.has_resumed = false;
        match self.generations.get(node.generation) {
            None => self.generations.push(members.clone()),
            Some(installed) if *installed == members => {}
            Some(_) => self.violation = Some(Violation::TwoMemberships),
        }
        self.updates.report(node.generation, id, node.has_state.then_some(&node.applied));
        for peer in old_ids.iter().filter(|&peer| !members.contains(peer)) {
            self.close_link(id, peer);
        }
        // Links between members and the newcomer may have been lost before.
        let unconnected = members.iter().filter(|&peer| peer != id && self.closed[self.link(id, peer)]);
        let lost = lost.iter().chain(unconnected);
        // As ranks of the new generation.
        let lost: RankSet = lost.filter_map(|peer| members.position(peer)).collect();
        if !lost.is_empty() {
            self.start(id, &lost, false);
        }
    }
}
