//! Unit tests of the regroup machine: one short story per rule.

use super::*;

fn set<const N: usize>(ranks: [usize; N]) -> RankSet {
    ranks.into()
}

fn start(rank: usize, world: usize, lost: &[usize]) -> (Regroup, Vec<Output>) {
    let arbiter = Arbiter::Quorum;
    let setup = RegroupSetup { rank, world, arbiter, min_workers: 1, leaves: false, has_newcomer: false };
    Regroup::start(setup, &lost.iter().copied().collect())
}

fn start_with_directory(rank: usize, world: usize, min_workers: usize, lost: &[usize]) -> (Regroup, Vec<Output>) {
    let arbiter = Arbiter::Directory;
    let setup = RegroupSetup { rank, world, arbiter, min_workers, leaves: false, has_newcomer: false };
    Regroup::start(setup, &lost.iter().copied().collect())
}

fn from(from: usize, message: RegroupMessage) -> Input {
    Input::Received { from, message }
}

fn to(to: usize, message: RegroupMessage) -> Output {
    Output::Send { to, message }
}

fn promise<const N: usize>(lost: [usize; N]) -> RegroupMessage {
    RegroupMessage::Promise { lost: set(lost), has_newcomer: false, accepted: None, leaves: false }
}

fn promise_with<const N: usize>(ballot: usize, members: [usize; N]) -> RegroupMessage {
    let accepted = Some(Accepted { ballot, members: set(members) });
    RegroupMessage::Promise { lost: set([]), has_newcomer: false, accepted, leaves: false }
}

fn suspect<const N: usize>(lost: [usize; N]) -> RegroupMessage {
    RegroupMessage::Suspect { lost: set(lost) }
}

fn propose<const N: usize>(members: [usize; N]) -> RegroupMessage {
    RegroupMessage::Propose { members: set(members) }
}

fn install<const N: usize>(members: [usize; N]) -> RegroupMessage {
    RegroupMessage::Install { members: set(members) }
}

/// The promise of a rank that leaves.
fn farewell<const N: usize>(lost: [usize; N]) -> RegroupMessage {
    RegroupMessage::Promise { lost: set(lost), has_newcomer: false, accepted: None, leaves: true }
}

const PREPARE: RegroupMessage = RegroupMessage::Prepare;
const ACCEPT: RegroupMessage = RegroupMessage::Accept;

#[test]
fn a_lost_worker_is_left_out() {
    let (mut lead, outputs) = start(0, 4, &[2]);
    assert_eq!(outputs, [to(1, PREPARE), to(3, PREPARE)]);
    assert_eq!(lead.waiting_for().to_string(), "waiting for the answers of ranks 1, 3");
    assert_eq!(lead.step(from(1, promise([2]))), []);
    let proposal = [to(1, propose([0, 1, 3])), to(3, propose([0, 1, 3]))];
    assert_eq!(lead.step(from(3, promise([]))), proposal);
    assert_eq!(lead.waiting_for().to_string(), "waiting for ranks 1, 3 to accept the new group");
    // Half of the ranks including rank 0 is a quorum.
    let members = set([0, 1, 3]);
    let decision = [to(1, install([0, 1, 3])), to(3, install([0, 1, 3])), Output::Install { members }];
    assert_eq!(lead.step(from(1, ACCEPT)), decision);
    assert_eq!(lead.step(from(3, ACCEPT)), []);
    assert_eq!(lead.waiting_for(), Waiting::Nothing);
}

#[test]
fn a_follower_answers_and_passes_the_decision_on() {
    let (mut follower, outputs) = start(2, 4, &[3]);
    assert_eq!(outputs, [to(0, suspect([3]))]);
    assert_eq!(follower.waiting_for().to_string(), "waiting for the proposal of rank 0");
    assert_eq!(follower.step(from(0, PREPARE)), [to(0, promise([3]))]);
    assert_eq!(follower.step(from(0, propose([0, 1, 2]))), [to(0, ACCEPT)]);
    let members = set([0, 1, 2]);
    let outputs = follower.step(from(0, install([0, 1, 2])));
    assert_eq!(outputs, [to(1, install([0, 1, 2])), Output::Install { members }]);
}

/// A rank that wants to admit a newcomer to which it is connected.
fn start_admission(rank: usize, world: usize) -> (Regroup, Vec<Output>) {
    let arbiter = Arbiter::Quorum;
    let setup = RegroupSetup { rank, world, arbiter, min_workers: 1, leaves: false, has_newcomer: true };
    Regroup::start(setup, &set([]))
}

fn promise_newcomer() -> RegroupMessage {
    RegroupMessage::Promise { lost: set([]), has_newcomer: true, accepted: None, leaves: false }
}

#[test]
fn a_newcomer_that_all_reach_is_admitted() {
    let (mut lead, outputs) = start_admission(0, 3);
    assert_eq!(outputs, [to(1, PREPARE), to(2, PREPARE)]);
    lead.step(from(1, promise_newcomer()));
    let proposal = [to(1, propose([0, 1, 2, 3])), to(2, propose([0, 1, 2, 3]))];
    assert_eq!(lead.step(from(2, promise_newcomer())), proposal);
    let members = set([0, 1, 2, 3]);
    assert_eq!(lead.step(from(1, ACCEPT)).last(), Some(&Output::Install { members: members.clone() }));
    let (mut follower, _) = start_admission(2, 3);
    assert_eq!(follower.step(from(0, PREPARE)), [to(0, promise_newcomer())]);
    assert_eq!(follower.step(from(0, propose([0, 1, 2, 3]))), [to(0, ACCEPT)]);
    let outputs = follower.step(from(0, install([0, 1, 2, 3])));
    assert_eq!(outputs, [to(1, install([0, 1, 2, 3])), Output::Install { members }]);
}

#[test]
fn a_newcomer_that_one_does_not_reach_stays_outside() {
    let (mut lead, _) = start_admission(0, 3);
    lead.step(from(1, promise_newcomer()));
    assert_eq!(lead.step(from(2, promise([])))[0], to(1, propose([0, 1, 2])));
    // A member without it accepts nothing else.
    let (mut follower, _) = start(1, 3, &[]);
    follower.step(from(0, PREPARE));
    assert_eq!(follower.step(from(0, propose([0, 1, 2, 3]))), []);
    assert_eq!(follower.step(from(0, install([0, 1, 2, 3]))), []);
    // Its vote does not count.
    let (mut lead, _) = start_admission(0, 5);
    (3..5).for_each(|rank| drop(lead.step(Input::LinkLost(rank))));
    lead.step(from(1, promise_newcomer()));
    assert_eq!(lead.step(from(2, promise_newcomer()))[0], to(1, propose([0, 1, 2, 5])));
}

#[test]
fn a_message_alone_starts_a_member() {
    let (mut lead, outputs) = start(0, 3, &[]);
    assert_eq!(outputs, [to(1, PREPARE), to(2, PREPARE)]);
    assert_eq!(lead.step(from(1, suspect([2]))), []);
    let (_, outputs) = start(2, 3, &[]);
    assert_eq!(outputs, [to(0, suspect([]))]);
}

#[test]
fn a_new_loss_is_reported_after_the_promise() {
    let (mut follower, _) = start(1, 5, &[4]);
    assert_eq!(follower.step(from(0, PREPARE)), [to(0, promise([4]))]);
    assert_eq!(follower.step(Input::LinkLost(3)), [to(0, suspect([3, 4]))]);
    assert_eq!(follower.step(Input::LinkLost(3)), []);
    assert_eq!(follower.lost(), &set([3, 4]));

    let (mut lead, _) = start(0, 5, &[4]);
    lead.step(from(1, promise([4])));
    lead.step(from(1, suspect([3, 4])));
    lead.step(from(2, promise([])));
    lead.step(from(3, promise([])));
    lead.step(from(1, promise([3, 4])));
    assert_eq!(lead.step(from(3, promise([])))[0], to(1, propose([0, 1, 2])));
}

#[test]
fn a_prepare_is_answered_when_all_lower_ranks_are_lost() {
    let (mut follower, _) = start(2, 5, &[]);
    assert_eq!(follower.step(from(1, PREPARE)), []);
    assert_eq!(follower.step(from(0, PREPARE)), [to(0, promise([]))]);
    assert_eq!(follower.step(from(1, propose([1, 2, 3]))), []);
    assert_eq!(follower.step(Input::LinkLost(0)), [to(1, promise([0]))]);
    assert_eq!(follower.step(from(0, propose([0, 2, 3]))), [], "rank 0 is lost");
    assert_eq!(follower.step(from(1, propose([1, 2, 3]))), [to(1, ACCEPT)]);
}

#[test]
fn an_accepted_proposal_survives_its_proposer() {
    let (mut next, _) = start(1, 5, &[]);
    next.step(from(0, PREPARE));
    // Another member has accepted what rank 0 proposed, without rank 1.
    let prepare = [to(2, PREPARE), to(3, PREPARE), to(4, PREPARE)];
    assert_eq!(next.step(Input::LinkLost(0)), prepare);
    next.step(from(2, promise([0])));
    next.step(from(3, promise_with(0, [0, 2, 3, 4])));
    assert_eq!(next.step(from(4, promise([])))[0], to(2, propose([0, 2, 3, 4])));
    next.step(from(2, ACCEPT));
    let outputs = next.step(from(4, ACCEPT));
    let members = set([0, 2, 3, 4]);
    assert_eq!(outputs.last(), Some(&Output::Stop(StopReason::Excluded { members })));
    assert_eq!(outputs.len(), 4, "the others get the decision first");
}

#[test]
fn the_highest_accepted_ballot_wins() {
    let (mut proposer, _) = start(2, 5, &[0, 1]);
    proposer.step(from(3, promise_with(0, [0, 1, 2])));
    let outputs = proposer.step(from(4, promise_with(1, [1, 3, 4])));
    assert_eq!(outputs[0], to(3, propose([1, 3, 4])));
}

#[test]
fn ranks_that_lost_each_other_do_not_both_continue() {
    let (mut lead, _) = start(0, 3, &[]);
    lead.step(from(1, promise([2])));
    assert_eq!(lead.step(from(2, promise([]))), [to(1, PREPARE), to(2, PREPARE)]);
    assert_eq!(lead.step(from(2, promise([1]))), []);
    assert_eq!(lead.step(from(1, promise([2])))[0], to(1, propose([0, 1])));
    // Rank 1 has lost most of the others; in plain rank order it would displace them.
    let (mut lead, _) = start(0, 6, &[]);
    lead.step(from(1, promise([3, 4, 5])));
    (2..6).for_each(|rank| drop(lead.step(from(rank, promise([])))));
    lead.step(from(1, promise([3, 4, 5])));
    (3..5).for_each(|rank| drop(lead.step(from(rank, promise([1])))));
    assert_eq!(lead.step(from(5, promise([1])))[0], to(1, propose([0, 2, 3, 4, 5])));
}

/// Rank 3 knows that rank 1 has crashed, rank 0 does not, and rank 1 has promised before.
#[test]
fn a_crashed_rank_does_not_displace_a_living_one() {
    let (mut lead, _) = start(0, 4, &[2]);
    lead.step(from(1, promise([2])));
    assert_eq!(lead.step(from(3, promise([1, 2]))), [to(1, PREPARE), to(3, PREPARE)]);
    assert_eq!(lead.step(from(3, promise([1, 2]))), []);
    assert_eq!(lead.waiting_for().to_string(), "waiting for the answers of ranks 1");
    assert_eq!(lead.step(Input::LinkLost(1)), [to(3, propose([0, 3]))]);
}

#[test]
fn a_repeated_prepare_is_answered_again() {
    let (mut follower, _) = start(2, 4, &[]);
    assert_eq!(follower.step(from(0, PREPARE)), [to(0, promise([]))]);
    assert_eq!(follower.step(Input::LinkLost(3)), [to(0, suspect([3]))]);
    assert_eq!(follower.step(from(0, PREPARE)), [to(0, promise([3]))]);
}

#[test]
fn an_excluded_rank_passes_the_decision_on_before_it_stops() {
    let (mut follower, _) = start(3, 4, &[2]);
    let members = set([0, 1, 2]);
    let outputs = follower.step(from(0, install([0, 1, 2])));
    assert_eq!(outputs, [to(1, install([0, 1, 2])), Output::Stop(StopReason::Excluded { members })]);
}

#[test]
fn a_minority_stops() {
    let stop = |reachable, needed, world| Output::Stop(StopReason::NoQuorum { reachable, needed, world });
    assert_eq!(start(2, 3, &[0, 1]).1, [stop(1, 2, 3)]);
    assert_eq!(start(1, 4, &[0, 2]).1, [stop(2, 3, 4)]);
    assert_eq!(start(1, 2, &[0]).1, [stop(1, 2, 2)]);
    assert_eq!(start(0, 5, &[1, 2, 3]).1, [stop(2, 3, 5)]);
    // Half with rank 0 continues, also alone.
    assert_eq!(start(0, 2, &[1]).1, [Output::Install { members: set([0]) }]);
    assert_eq!(start(0, 1, &[]).1, [Output::Install { members: set([0]) }]);
}

#[test]
fn a_group_without_a_large_enough_clique_stops() {
    let (mut lead, _) = start(0, 5, &[]);
    let answers = [promise([2, 3]), promise([4]), promise([4, 2]), promise([1])];
    let mut answer = || {
        let inputs = (1..5).zip(answers.clone()).map(|(rank, answer)| from(rank, answer));
        inputs.flat_map(|input| lead.step(input)).collect::<Vec<_>>()
    };
    assert_eq!(answer(), [to(1, PREPARE), to(2, PREPARE), to(3, PREPARE), to(4, PREPARE)]);
    assert_eq!(answer(), [Output::Stop(StopReason::NoQuorum { reachable: 2, needed: 3, world: 5 })]);
}

#[test]
fn the_directory_decides_for_a_single_survivor() {
    let (mut survivor, outputs) = start_with_directory(1, 2, 1, &[0]);
    assert_eq!(outputs, [Output::AskDirectory { members: set([1]), has_quorum: false }]);
    assert_eq!(survivor.waiting_for(), Waiting::Directory);
    let outputs = survivor.step(Input::Arbitrated(Ok(set([1]))));
    assert_eq!(outputs, [Output::Install { members: set([1]) }]);
    // The other half was first.
    let (mut survivor, _) = start_with_directory(1, 2, 1, &[0]);
    let outputs = survivor.step(Input::Arbitrated(Ok(set([0]))));
    assert_eq!(outputs, [Output::Stop(StopReason::Excluded { members: set([0]) })]);
}

#[test]
fn the_directory_decides_for_a_majority() {
    let (mut lead, _) = start_with_directory(0, 3, 1, &[2]);
    let outputs = lead.step(from(1, promise([])));
    assert_eq!(outputs, [Output::AskDirectory { members: set([0, 1]), has_quorum: true }]);
    let excluded = Output::Stop(StopReason::Excluded { members: set([2]) });
    assert_eq!(lead.step(Input::Arbitrated(Ok(set([2])))), [to(1, install([2])), excluded]);
}

#[test]
fn a_directory_that_fails_stops_the_rank() {
    let stops = |answer: Result<RankSet, String>| {
        let (mut survivor, _) = start_with_directory(0, 2, 1, &[1]);
        let outputs = survivor.step(Input::Arbitrated(answer));
        assert!(matches!(outputs[..], [Output::Stop(StopReason::DirectoryFailed(_))]), "{outputs:?}");
    };
    stops(Err("permission denied".to_owned()));
    stops(Ok(set([])));
    stops(Ok(set([0, 7])));
    let reason = StopReason::DirectoryFailed("permission denied".to_owned());
    assert_eq!(reason.to_string(), "cannot decide the next membership in the run directory: permission denied");
}

/// A set below `min_workers` in the directory would exclude a half that is large enough.
#[test]
fn too_few_ranks_stop_without_asking_the_directory() {
    let stop = Output::Stop(StopReason::TooFew { left: 1, min_workers: 2 });
    assert_eq!(start_with_directory(3, 4, 2, &[0, 1, 2]).1, [stop]);
}

#[test]
fn a_decided_set_below_min_workers_stops_its_members() {
    let (mut follower, _) = start_with_directory(1, 4, 3, &[]);
    let stop = Output::Stop(StopReason::TooFew { left: 2, min_workers: 3 });
    let outputs = follower.step(from(0, install([0, 1])));
    assert_eq!(outputs, [to(2, install([0, 1])), to(3, install([0, 1])), stop]);
}

#[test]
fn a_rank_that_leaves_votes_but_is_no_member() {
    let (mut lead, _) = start(0, 3, &[]);
    lead.step(from(1, farewell([])));
    let outputs = lead.step(from(2, promise([])));
    assert_eq!(outputs, [to(1, propose([0, 2])), to(2, propose([0, 2]))]);
    let members = set([0, 2]);
    let decision = [to(2, install([0, 2])), to(1, install([0, 2])), Output::Install { members }];
    assert_eq!(lead.step(from(1, ACCEPT)), decision);
}

#[test]
fn a_lead_that_leaves_proposes_the_others() {
    let setup = |arbiter, min_workers| RegroupSetup {
        rank: 0,
        world: 3,
        arbiter,
        min_workers,
        leaves: true,
        has_newcomer: false,
    };
    let (mut lead, _) = Regroup::start(setup(Arbiter::Quorum, 1), &set([]));
    // Rank 1 leaves, too. What is left is no quorum, but a quorum has decided it.
    lead.step(from(1, farewell([2])));
    let outputs = lead.step(from(2, promise([1])));
    assert_eq!(outputs, [to(1, propose([2])), to(2, propose([2]))], "links of a rank that leaves do not matter");
    let excluded = || Output::Stop(StopReason::Excluded { members: set([2]) });
    assert_eq!(lead.step(from(1, ACCEPT)), [to(2, install([2])), to(1, install([2])), excluded()]);
    let (mut last, _) = start(2, 3, &[]);
    last.step(from(0, PREPARE));
    assert_eq!(last.step(from(0, propose([2]))), [to(0, ACCEPT)]);
    let outputs = last.step(from(0, install([2])));
    assert_eq!(outputs, [to(1, install([2])), Output::Install { members: set([2]) }]);
    // The directory is asked at once: all ranks agree.
    let (mut lead, _) = Regroup::start(setup(Arbiter::Directory, 1), &set([]));
    lead.step(from(1, farewell([])));
    let outputs = lead.step(from(2, promise([])));
    assert_eq!(outputs, [Output::AskDirectory { members: set([2]), has_quorum: true }]);
}

#[test]
fn a_loss_beside_a_leave_may_leave_too_few() {
    let arbiter = Arbiter::Quorum;
    let setup = RegroupSetup { rank: 0, world: 3, arbiter, min_workers: 0, leaves: true, has_newcomer: false };
    let (mut lead, _) = Regroup::start(setup, &set([2]));
    let stop = Output::Stop(StopReason::TooFew { left: 0, min_workers: 1 });
    assert_eq!(lead.step(from(1, farewell([2]))), [stop]);
}

#[test]
fn nonsense_is_ignored() {
    let (mut lead, _) = start(0, 4, &[3]);
    let before = lead.clone();
    let nonsense = [
        from(0, install([0, 1, 2])),
        from(3, promise([])),
        from(9, PREPARE),
        from(1, ACCEPT),
        from(1, install([])),
        from(1, install([0, 1, 4])),
        from(1, install([0, usize::MAX])),
        from(1, promise_with(0, [0, 1, 2])),
        from(1, promise_with(1, [0, 9])),
        from(2, propose([0, 1, 2])),
        Input::LinkLost(0),
        Input::LinkLost(4),
        Input::Arbitrated(Ok(set([0, 1, 2]))),
    ];
    for input in nonsense {
        assert_eq!(lead.step(input.clone()), [], "{input:?}");
        assert_eq!(lead, before, "{input:?}");
    }
}

#[test]
fn sets_print_and_renumber() {
    assert_eq!(set([]).to_string(), "");
    assert_eq!(set([0, 1, 2, 5, 7, 8]).to_string(), "0-2, 5, 7, 8");
    assert_eq!(set([0, 2, 5]).position(5), Some(2));
    assert_eq!(set([0, 2, 5]).position(1), None);
}
