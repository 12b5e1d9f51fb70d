//! Property tests of the regroup machine: arbitrary input, and random schedules of whole groups.
//!
//! `model_check` visits all schedules of small groups; these visit some of larger ones.

use std::collections::{BTreeMap, VecDeque};

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

use super::quorum::{broken_links, clique, is_quorum};
use super::*;

fn rank_sets(world: usize) -> impl Strategy<Value = RankSet> {
    btree_set(0..world, 0..=world).prop_map(|ranks| ranks.into_iter().collect())
}

/// Sets of which some contain ranks that do not exist.
fn any_set() -> impl Strategy<Value = RankSet> {
    prop_oneof![8 => rank_sets(5), 1 => rank_sets(9), 1 => Just(RankSet::from([usize::MAX]))]
}

fn any_message() -> impl Strategy<Value = RegroupMessage> {
    let accepted = || proptest::option::of((0..9_usize, any_set()));
    prop_oneof![
        any_set().prop_map(|lost| RegroupMessage::Suspect { lost }),
        Just(RegroupMessage::Prepare),
        (any_set(), any::<bool>(), accepted(), any::<bool>()).prop_map(|(lost, has_newcomer, accepted, leaves)| {
            let accepted = accepted.map(|(ballot, members)| Accepted { ballot, members });
            RegroupMessage::Promise { lost, has_newcomer, accepted, leaves }
        }),
        any_set().prop_map(|members| RegroupMessage::Propose { members }),
        Just(RegroupMessage::Accept),
        any_set().prop_map(|members| RegroupMessage::Install { members }),
    ]
}

fn any_input() -> impl Strategy<Value = Input> {
    prop_oneof![
        1 => (0..7_usize).prop_map(Input::LinkLost),
        6 => (0..7_usize, any_message()).prop_map(|(from, message)| Input::Received { from, message }),
        1 => any_set().prop_map(|members| Input::Arbitrated(Ok(members))),
        1 => Just(Input::Arbitrated(Err("no".to_owned()))),
    ]
}

fn any_arbiter() -> impl Strategy<Value = Arbiter> {
    prop_oneof![Just(Arbiter::Quorum), Just(Arbiter::Directory)]
}

/// A group whose schedule comes from a list of numbers.
struct Group {
    setup: RegroupSetup,
    /// The ranks that leave.
    leaving: RankSet,
    /// The ranks that are connected to a newcomer.
    connected: RankSet,
    machines: Vec<Option<Regroup>>,
    /// The last output of each rank.
    results: Vec<Option<Output>>,
    /// Messages in flight by (from, to).
    links: BTreeMap<(usize, usize), VecDeque<RegroupMessage>>,
    /// Links that ended, by (rank that has not noticed yet, peer).
    endings: Vec<(usize, usize)>,
    directory: Option<RankSet>,
}

impl Group {
    fn new(world: usize, arbiter: Arbiter, leaving: RankSet) -> Group {
        Group {
            setup: RegroupSetup { rank: 0, world, arbiter, min_workers: 1, leaves: false, has_newcomer: false },
            leaving,
            connected: RankSet::new(),
            machines: vec![None; world],
            results: vec![None; world],
            links: BTreeMap::new(),
            endings: Vec::new(),
            directory: None,
        }
    }

    fn cut(&mut self, a: usize, b: usize) {
        if a != b {
            self.endings.extend([(a, b), (b, a)]);
        }
    }

    fn leave(&mut self, rank: usize) {
        (0..self.setup.world).filter(|&peer| peer != rank).for_each(|peer| self.endings.push((peer, rank)));
    }

    /// Starts the machine of a rank that has none yet. If it `admits`, it wants to admit the newcomer.
    fn start(&mut self, rank: usize, admits: bool) {
        if self.machines[rank].is_none() && self.results[rank].is_none() {
            let leaves = self.leaving.contains(rank);
            let has_newcomer = admits && self.connected.contains(rank);
            let setup = RegroupSetup { rank, leaves, has_newcomer, ..self.setup };
            let (machine, outputs) = Regroup::start(setup, &RankSet::new());
            self.machines[rank] = Some(machine);
            self.carry_out(rank, outputs);
        }
    }

    fn input(&mut self, rank: usize, input: Input) {
        self.start(rank, false);
        if self.results[rank].is_none() {
            let outputs = self.machines[rank].as_mut().unwrap().step(input);
            self.carry_out(rank, outputs);
        }
    }

    fn carry_out(&mut self, rank: usize, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Send { to, message } => self.links.entry((rank, to)).or_default().push_back(message),
                Output::AskDirectory { members, .. } => {
                    let answer = self.directory.get_or_insert(members).clone();
                    self.input(rank, Input::Arbitrated(Ok(answer)));
                }
                Output::Stop(_) => {
                    self.results[rank] = Some(output);
                    self.leave(rank);
                }
                Output::Install { .. } => self.results[rank] = Some(output),
            }
        }
    }

    /// Runs one event, chosen by `choice`; returns whether there was one.
    fn event(&mut self, choice: usize) -> bool {
        self.links.retain(|_, messages| !messages.is_empty());
        let events = self.links.len() + self.endings.len();
        if events == 0 {
            return false;
        }
        let choice = choice % events;
        if choice < self.links.len() {
            let (&(from, to), messages) = self.links.iter_mut().nth(choice).unwrap();
            let message = messages.pop_front().unwrap();
            self.input(to, Input::Received { from, message });
        } else {
            let (rank, peer) = self.endings.swap_remove(choice - self.links.len());
            self.links.remove(&(peer, rank));
            self.input(rank, Input::LinkLost(peer));
        }
        true
    }
}

proptest! {
    #[test]
    fn any_input_is_safe(
        rank in 0..5_usize,
        arbiter in any_arbiter(),
        has_newcomer in any::<bool>(),
        lost in any_set(),
        inputs in vec(any_input(), 0..40),
    ) {
        let setup = RegroupSetup { rank, world: 5, arbiter, min_workers: 2, leaves: false, has_newcomer };
        let (mut machine, mut outputs) = Regroup::start(setup, &lost);
        let fits = |members: &RankSet| members.fits(6) && (has_newcomer || !members.contains(5));
        for input in inputs {
            prop_assert!(!machine.waiting_for().to_string().is_empty());
            outputs.extend(machine.step(input));
        }
        let ends = outputs.iter().filter(|output| matches!(output, Output::Install { .. } | Output::Stop(_)));
        prop_assert!(ends.count() <= 1);
        for output in &outputs {
            match output {
                Output::Send { to, .. } => prop_assert!(*to < 5 && *to != rank),
                Output::Install { members } => prop_assert!(members.contains(rank) && fits(members)),
                Output::AskDirectory { members, .. } => prop_assert!(members.contains(rank) && fits(members)),
                Output::Stop(_) => {}
            }
        }
        let accepts = outputs.iter().filter_map(|output| match output {
            Output::Send { to, message: RegroupMessage::Accept } => Some(*to),
            _ => None,
        });
        prop_assert!(accepts.is_sorted_by(|a, b| a < b), "ballots only grow");
    }

    #[test]
    fn messages_survive_the_wire(message in any_message()) {
        let bytes = postcard::to_stdvec(&message).unwrap();
        prop_assert_eq!(postcard::from_bytes::<RegroupMessage>(&bytes).unwrap(), message);
    }

    #[test]
    fn two_quorums_intersect(world in 1..12_usize, a in rank_sets(12), b in rank_sets(12)) {
        let a: RankSet = a.iter().filter(|&rank| rank < world).collect();
        let b: RankSet = b.iter().filter(|&rank| rank < world).collect();
        let both = is_quorum(&a, world) && is_quorum(&b, world);
        prop_assert!(!both || a.iter().any(|rank| b.contains(rank)));
        prop_assert!(!is_quorum(&RankSet::new(), world));
    }

    #[test]
    fn a_clique_is_connected_and_cannot_grow(proposer in 0..8_usize, lost in vec(rank_sets(8), 8)) {
        let mut lost = lost;
        lost[proposer] = RankSet::new();
        lost.iter_mut().for_each(|peers| *peers = peers.iter().filter(|&peer| peer != proposer).collect());
        let connected = |a: usize, b: usize| !lost[a].contains(b) && !lost[b].contains(a);
        let members = clique(proposer, &broken_links(&lost.iter().enumerate().collect()));
        prop_assert!(members.contains(proposer));
        for rank in 0..8 {
            let fits = members.iter().all(|member| member == rank || connected(member, rank));
            prop_assert_eq!(members.contains(rank), fits);
        }
    }

    #[test]
    fn groups_agree_and_finish(
        world in 2..9_usize,
        arbiter in any_arbiter(),
        crashes in btree_set(0..9_usize, 0..3),
        cuts in vec((0..9_usize, 0..9_usize), 0..4),
        leaving in rank_sets(9),
        faults_at in vec(0..40_usize, 8),
        connected in rank_sets(9),
        admitted_at in vec(0..20_usize, 9),
        choices in vec(any::<usize>(), 400),
    ) {
        let leaving: RankSet = leaving.iter().filter(|&rank| rank < world).collect();
        let mut group = Group::new(world, arbiter, leaving.clone());
        group.connected = connected.clone();
        if !leaving.is_empty() {
            // By agreement.
            (0..world).for_each(|rank| group.start(rank, true));
        }
        let mut faults: Vec<(usize, usize, usize)> = Vec::new();
        let mut times = faults_at.into_iter();
        faults.extend(crashes.iter().map(|rank| rank % world).zip(&mut times).map(|(rank, at)| (at, rank, rank)));
        faults.extend(cuts.iter().zip(&mut times).map(|((a, b), at)| (at, a % world, b % world)));
        let mut choices = choices.into_iter().chain(std::iter::repeat(0));
        let mut crashed = RankSet::new();
        for time in 0.. {
            for &(_, a, b) in faults.iter().filter(|(at, ..)| *at == time) {
                if a == b {
                    crashed.insert(a);
                    group.results[a].get_or_insert(Output::Install { members: RankSet::new() });
                    group.leave(a);
                } else {
                    group.cut(a, b);
                }
            }
            (0..world).filter(|&rank| admitted_at[rank] == time).for_each(|rank| group.start(rank, true));
            let idle = !group.event(choices.next().unwrap());
            if idle && time > 40 {
                break;
            }
        }
        let mut installed = group.results.iter().enumerate().filter(|(rank, _)| !crashed.contains(*rank));
        let mut sets: Vec<&RankSet> = Vec::new();
        prop_assert!(installed.all(|(rank, result)| {
            if let Some(Output::Install { members }) = result {
                sets.push(members);
            }
            // A group that lost nothing never starts.
            result.is_some() || group.machines[rank].is_none()
        }), "{:?} {:?}", group.results, group.machines);
        sets.dedup();
        prop_assert!(sets.len() <= 1, "{:?}", group.results);
        let is_left = |rank| sets.iter().all(|members| !members.contains(rank));
        prop_assert!(leaving.iter().all(is_left), "{:?}", group.results);
        if crashes.is_empty() && cuts.is_empty() && !leaving.is_empty() && leaving.len() < world {
            let stay: RankSet = (0..world).filter(|&rank| !leaving.contains(rank)).collect();
            prop_assert!(sets.iter().all(|members| members.below(world) == stay), "{:?}", group.results);
        }
        for members in sets.iter().filter(|members| members.contains(world)) {
            prop_assert!(members.below(world).is_subset(&connected), "{:?}", group.results);
        }
    }
}
