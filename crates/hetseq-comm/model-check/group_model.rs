//! The adversary and the properties: all schedules of a group with a limited number of faults.

use std::time::{Duration, Instant};

use stateright::{Checker, Model, Property};

use crate::group_state::{GroupState, Node, Status, Violation};
use crate::regroup::{Arbiter, RankSet};

/// The size of one check.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub world: usize,
    /// Crashes, cut links and failures of the run directory, in total.
    pub faults: usize,
    /// Whether the run directory decides.
    pub directory: bool,
    /// Whether to model updates, too.
    pub updates: bool,
    /// Ids below and from here are cut off from each other at the start; 0 for no partition.
    pub partition: usize,
    pub min_workers: usize,
    /// Whether ranks leave by agreement: any of them, but not all.
    pub leaves: bool,
    /// Whether the members want to admit a newcomer.
    pub newcomer: bool,
}

impl Limits {
    /// All processes.
    fn ids(&self) -> usize {
        self.world + usize::from(self.newcomer)
    }
}

/// The result of a check without a counterexample.
#[derive(Debug)]
pub struct Checked {
    pub unique_states: usize,
    pub depth: usize,
    pub time: Duration,
}

/// Visits all states; panics with a counterexample if a property does not hold.
pub fn check(limits: Limits) -> Checked {
    let start = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let checker = GroupModel(limits).checker().threads(threads).spawn_bfs().join();
    for (name, path) in checker.discoveries() {
        if ![CONTINUES, THIRD_GENERATION, ADMITTED].contains(&name) {
            panic!("{name}: {:?}\n{:?}", path.last_state().clone(), path.into_actions());
        }
    }
    checker.assert_properties();
    Checked { unique_states: checker.unique_state_count(), depth: checker.max_depth(), time: start.elapsed() }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Crash(usize),
    Cut(usize, usize),
    FailDirectory(usize),
    Begin(usize),
    Notice { at: usize, peer: usize },
    Deliver { from: usize, to: usize },
    Arbitrate(usize),
    Resume(usize),
    Apply(usize),
    Admit(usize),
}

const CONTINUES: &str = "a group continues after a fault";
const THIRD_GENERATION: &str = "a group continues twice";
const ADMITTED: &str = "a newcomer is admitted and gets the state";

/// All schedules within the limits.
#[derive(Clone, Copy, Debug)]
struct GroupModel(Limits);

impl GroupModel {
    fn faults(&self, state: &GroupState, actions: &mut Vec<Action>) {
        let present = || (0..self.0.ids()).filter(|&id| state.is_present(id));
        actions.extend(present().map(Action::Crash));
        let asking = present().filter(|&id| state.nodes[id].asking.is_some());
        actions.extend(asking.map(Action::FailDirectory));
        for a in present() {
            let peers = present().filter(|&b| a < b && state.is_connected(a, b));
            actions.extend(peers.map(|b| Action::Cut(a, b)));
        }
    }

    fn is_terminal(&self, state: &GroupState) -> bool {
        let mut actions = Vec::new();
        self.events(state, &mut actions);
        actions.is_empty()
    }

    /// Everything that happens sooner or later without further faults.
    fn events(&self, state: &GroupState, actions: &mut Vec<Action>) {
        for at in (0..self.0.ids()).filter(|&id| state.is_running(id)) {
            for peer in 0..self.0.ids() {
                if state.can_deliver(peer, at) {
                    actions.push(Action::Deliver { from: peer, to: at });
                }
                if state.can_notice(at, peer) {
                    actions.push(Action::Notice { at, peer });
                }
            }
            if state.can_begin(at) {
                actions.push(Action::Begin(at));
            }
            if state.nodes[at].asking.is_some() {
                actions.push(Action::Arbitrate(at));
            }
            if self.0.updates && state.can_resume(at) {
                actions.push(Action::Resume(at));
            }
            if self.0.updates && state.can_apply(at) {
                actions.push(Action::Apply(at));
            }
            if state.can_admit(at) {
                actions.push(Action::Admit(at));
            }
        }
    }

    /// Returns whether every rank has stopped or trains in a complete and connected generation.
    fn has_settled(&self, state: &GroupState) -> bool {
        let is_member = |&id: &usize| state.is_running(id) && !state.nodes[id].is_waiting;
        (0..self.0.ids()).filter(is_member).all(|id| {
            let node = &state.nodes[id];
            let in_step = |peer| state.is_running(peer) && state.nodes[peer].generation == node.generation;
            let connected = |peer| peer == id || state.is_connected(id, peer);
            let resumed = !self.0.updates || node.has_resumed;
            node.machine.is_none() && resumed && state.members(id).iter().all(|peer| in_step(peer) && connected(peer))
        })
    }
}

impl Model for GroupModel {
    type State = GroupState;
    type Action = Action;

    fn init_states(&self) -> Vec<GroupState> {
        let arbiter = if self.0.directory { Arbiter::Directory } else { Arbiter::Quorum };
        let all = 1 << self.0.world;
        let subset = |bits: usize| -> RankSet { (0..self.0.world).filter(|id| bits >> id & 1 == 1).collect() };
        let (applied, leaving) =
            (if self.0.updates { 0..all } else { 0..1 }, if self.0.leaves { 1..all - 1 } else { 0..1 });
        let starts = applied.flat_map(|applied| leaving.clone().map(move |leaving| (applied, leaving)));
        let states = starts.map(|(applied, leaving)| {
            let mut state = GroupState::new(&self.0, arbiter, &subset(applied), &subset(leaving));
            for a in 0..self.0.partition {
                (self.0.partition..self.0.world).for_each(|b| state.cut(a, b));
            }
            state.faults = self.0.faults;
            state
        });
        states.collect()
    }

    fn actions(&self, state: &GroupState, actions: &mut Vec<Action>) {
        self.events(state, actions);
        if state.faults > 0 {
            self.faults(state, actions);
        }
    }

    fn next_state(&self, state: &GroupState, action: Action) -> Option<GroupState> {
        let mut next = state.clone();
        if let Action::Crash(_) | Action::Cut(..) | Action::FailDirectory(_) = action {
            next.faults -= 1;
            next.has_only_cuts &= matches!(action, Action::Cut(..));
        }
        match action {
            Action::Crash(id) => next.leave(id, Status::Crashed),
            Action::Cut(a, b) => next.cut(a, b),
            Action::FailDirectory(id) => next.fail_directory(id),
            Action::Begin(id) => next.begin(id),
            Action::Notice { at, peer } => next.notice(at, peer),
            Action::Deliver { from, to } => next.deliver(from, to),
            Action::Arbitrate(id) => next.arbitrate(id),
            Action::Resume(id) => next.resume(id),
            Action::Apply(id) => next.apply(id),
            Action::Admit(id) => next.admit(id),
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            // The lead is the lowest member, so this is also one lead per generation.
            Property::always("one membership per generation", |_, state: &GroupState| {
                state.violation != Some(Violation::TwoMemberships)
            }),
            Property::always("no message before the Install of its generation", |_, state: &GroupState| {
                state.violation != Some(Violation::FrameOfLaterGeneration)
            }),
            Property::always("no message over a lost link", |_, state: &GroupState| {
                state.violation != Some(Violation::UsedLostLink)
            }),
            Property::always("crashes stop no other rank while enough are left", |_, state: &GroupState| {
                state.violation != Some(Violation::NeedlessStop)
            }),
            Property::always("a rank that leaves is left out", |_, state: &GroupState| {
                state.violation != Some(Violation::KeptLeaver)
            }),
            Property::always(
                "without a fault, all but the leaving ranks continue",
                |model: &GroupModel, state: &GroupState| {
                    let continues =
                        |node: &Node| node.leaves || (node.status == Status::Running && node.generation == 1);
                    let is_undisturbed = state.has_leave() && state.faults == model.0.faults && model.0.partition == 0;
                    !(is_undisturbed && model.is_terminal(state)) || state.nodes.iter().all(continues)
                },
            ),
            Property::always("one lineage of updates", |_, state: &GroupState| {
                state.violation != Some(Violation::TwoLineages)
            }),
            Property::always("published updates stay", |_, state: &GroupState| {
                state.violation != Some(Violation::LostPublished)
            }),
            Property::always("every rank settles", |model: &GroupModel, state: &GroupState| {
                !model.is_terminal(state) || model.has_settled(state)
            }),
            // In quorum mode, two faults can: an accepted set must be installed, and if its lead is
            // lost by then, the others of that set may be too few.
            Property::always(
                "neither one fault nor cut links stop everyone",
                |model: &GroupModel, state: &GroupState| {
                    let has_stopped = |node: &Node| node.status == Status::Stopped || node.is_waiting;
                    let all_stopped = state.nodes.iter().all(has_stopped);
                    let is_whole = !model.0.directory && model.0.partition == 0;
                    let few_faults = is_whole && model.0.faults - state.faults <= 1;
                    let has_survivor = few_faults || model.0.directory && state.has_only_cuts;
                    !(all_stopped && has_survivor && model.0.min_workers == 1)
                },
            ),
            Property::sometimes(ADMITTED, |model: &GroupModel, state: &GroupState| {
                let is_in = |id: usize| state.nodes.get(id).is_some_and(|node| node.generation > 0 && node.has_resumed);
                !model.0.newcomer || !model.0.updates || is_in(model.0.world)
            }),
            Property::sometimes(CONTINUES, |_, state: &GroupState| state.generations.len() > 1),
            Property::sometimes(THIRD_GENERATION, |model: &GroupModel, state: &GroupState| {
                state.generations.len() > 2 || model.0.faults < 2 || model.0.min_workers > 1
            }),
        ]
    }
}
