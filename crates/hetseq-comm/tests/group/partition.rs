//! Ranks in network namespaces whose network is split: one part continues at most, and the others
//! stop. Each case with both ways to decide: by a quorum, and by a shared directory. Needs root and
//! `ip` (iproute2), so these tests are ignored by default; `./test` runs them where it can.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use hetseq_comm::{Algorithm, CommError, Group, RegroupRules, Shards, WireFormat};

use crate::network::Network;
use crate::ranks::all_reduce;

/// A silent peer is given up after twice this long and two heartbeats.
const SILENCE: Duration = Duration::from_secs(1);
/// Longer than any test: no rank may need it.
const PROGRESS: Duration = Duration::from_secs(60);
/// From a split until each rank has continued or stopped. Much more than needed: the machine may be
/// busy.
const DECISION_LIMIT: Duration = Duration::from_secs(12);
/// A rank that has not returned by then hangs.
const TEST_LIMIT: Duration = Duration::from_secs(50);
/// How long the others train after the network is back, to notice a rank that disturbs them.
const AFTER_HEALING: Duration = Duration::from_millis(1_500);

/// The end of one rank.
#[derive(Clone, Debug, PartialEq)]
enum End {
    /// Trained to the end, with these ranks of the first generation.
    Continued {
        members: Vec<usize>,
        generation: u64,
    },
    Stopped(String),
}

/// Shared by the ranks and the events of a test.
#[derive(Default)]
struct Run {
    /// The number of ranks that have started to train.
    started: AtomicUsize,
    /// The number of ranks that have stopped, or have a sum of a later generation.
    decided: AtomicUsize,
    is_over: AtomicBool,
}

impl Run {
    /// Trains until the run is over, and regroups whenever ranks are lost.
    fn train(&self, mut group: Group, rules: &RegroupRules) -> End {
        let (own, first_generation) = (group.rank(), group.generation());
        let mut members: Vec<usize> = (0..group.world()).collect();
        let mut is_decided = false;
        group.set_regroup_rules(rules.clone());
        self.started.fetch_add(1, Ordering::AcqRel);
        loop {
            match self.update(&mut group, own, &members) {
                Ok(true) => {
                    let generation = group.generation();
                    group.close();
                    return End::Continued { members, generation };
                }
                Ok(false) => {
                    if group.generation() > first_generation && !std::mem::replace(&mut is_decided, true) {
                        self.decided.fetch_add(1, Ordering::AcqRel);
                    }
                }
                Err(error) => {
                    assert!(error.is_lost_rank(), "rank {own}: {error}");
                    match group.regroup() {
                        Ok(regrouped) => members = regrouped.survivors.iter().map(|&rank| members[rank]).collect(),
                        Err(error) => {
                            assert!(error.is_cut_off(), "rank {own}: {error}");
                            self.decided.fetch_add(usize::from(!is_decided), Ordering::AcqRel);
                            return End::Stopped(error.to_string());
                        }
                    }
                }
            }
        }
    }

    /// One sum, of which some frames are large; returns whether it was the last.
    fn update(&self, group: &mut Group, own: usize, members: &[usize]) -> Result<bool, CommError> {
        let power = |rank: usize| (1 << rank) as f32;
        let is_over = u8::from(self.is_over.load(Ordering::Acquire));
        let is_last = group.all_gather_bytes(&[is_over])?[0] == [1];
        let shards = Shards::even(200_000, group.world());
        let summed = all_reduce(group, vec![power(own); 200_000], &shards, (WireFormat::F32, Algorithm::Auto))?;
        let expected: f32 = members.iter().map(|&rank| power(rank)).sum();
        assert!(summed.iter().all(|&sum| sum == expected), "rank {own} of {members:?}: {}", summed[0]);
        Ok(is_last)
    }

    /// Waits until `count` is `world`; returns how long it took.
    fn wait_for(count: &AtomicUsize, world: usize) -> Duration {
        let start = Instant::now();
        while count.load(Ordering::Acquire) < world {
            assert!(start.elapsed() < DECISION_LIMIT, "only {} of {world} ranks", count.load(Ordering::Acquire));
            sleep(Duration::from_millis(10));
        }
        start.elapsed()
    }
}

/// Runs `world` ranks whose network `disturb` splits, and heals it `heal_after` that, or when all
/// have decided. Panics if a rank hangs.
fn ends(
    world: usize,
    directory: Option<&Path>,
    disturb: impl Fn(&Network) + Send + Sync + 'static,
    heal_after: Option<Duration>,
) -> Vec<End> {
    let rules = RegroupRules { directory: directory.map(Path::to_owned), min_workers: 1 };
    let mode = if directory.is_some() { "directory" } else { "quorum" };
    let (sender, receiver) = mpsc::channel();
    // In a thread of its own, because a rank that hangs cannot be joined.
    let test = spawn(move || {
        let (network, run) = (Network::new(world), Run::default());
        let events = || {
            Run::wait_for(&run.started, world);
            sleep(Duration::from_millis(300));
            disturb(&network);
            match heal_after {
                Some(outage) => sleep(outage),
                None => {
                    let took = Run::wait_for(&run.decided, world);
                    eprintln!("{world} ranks, {mode}: decided {:.1} s after the split", took.as_secs_f64());
                }
            }
            network.heal();
            sleep(AFTER_HEALING);
            if heal_after.is_some() {
                // Ranks that have noticed the outage need some more time, if there are any.
                sleep(2 * SILENCE);
            }
            run.is_over.store(true, Ordering::Release);
        };
        let ends = network.ranks((SILENCE, PROGRESS), events, |group| run.train(group, &rules));
        sender.send(ends).unwrap();
    });
    match receiver.recv_timeout(TEST_LIMIT) {
        Ok(ends) => {
            // The network is removed.
            test.join().unwrap();
            ends
        }
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("a rank hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match test.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("it has sent its result"),
        },
    }
}

/// Returns the ranks that continued, after checking that they agree and that all others stopped.
fn continued(ends: &[End]) -> Vec<usize> {
    let mut groups = ends.iter().filter_map(|end| match end {
        End::Continued { members, generation } => Some((members.clone(), *generation)),
        End::Stopped(_) => None,
    });
    let Some((members, generation)) = groups.next() else { return Vec::new() };
    assert!(groups.all(|group| group == (members.clone(), generation)), "two groups: {ends:?}");
    for (rank, end) in ends.iter().enumerate() {
        assert_eq!(matches!(end, End::Continued { .. }), members.contains(&rank), "rank {rank}: {ends:?}");
    }
    members
}

/// Checks which ranks continue after a disturbance: those in `by_quorum`, and with a directory one
/// of `by_directory`.
fn check(
    world: usize,
    disturb: impl Fn(&Network) + Clone + Send + Sync + 'static,
    by_quorum: &[usize],
    by_directory: &[&[usize]],
) {
    let ends_by_quorum = ends(world, None, disturb.clone(), None);
    assert_eq!(continued(&ends_by_quorum), by_quorum, "{ends_by_quorum:?}");
    let dir = tempfile::tempdir().unwrap();
    let ends_by_directory = ends(world, Some(dir.path()), disturb, None);
    assert!(by_directory.contains(&&continued(&ends_by_directory)[..]), "{ends_by_directory:?}");
}

#[test]
#[ignore = "needs root and iproute2"]
fn three_ranks_split_into_two_and_one() {
    check(3, |network| network.split(&[&[0, 1], &[2]]), &[0, 1], &[&[0, 1]]);
    check(3, |network| network.split(&[&[0], &[1, 2]]), &[1, 2], &[&[1, 2]]);
}

#[test]
#[ignore = "needs root and iproute2"]
fn four_ranks_split_into_halves() {
    check(4, |network| network.split(&[&[0, 2], &[1, 3]]), &[0, 2], &[&[0, 2]]);
}

#[test]
#[ignore = "needs root and iproute2"]
fn no_part_has_a_quorum() {
    let parts: [&[usize]; 3] = [&[0], &[1, 2], &[3]];
    check(4, move |network| network.split(&parts), &[], &parts);
}

#[test]
#[ignore = "needs root and iproute2"]
fn one_pair_of_four_ranks_is_cut() {
    // One of the two has to go.
    check(4, |network| network.cut(1, 2), &[0, 1, 3], &[&[0, 1, 3]]);
    check(4, |network| network.cut(0, 1), &[0, 2, 3], &[&[0, 2, 3]]);
}

#[test]
#[ignore = "needs root and iproute2"]
fn packets_are_lost_in_one_direction() {
    check(4, |network| network.block(0, 1), &[0, 2, 3], &[&[0, 2, 3]]);
    check(4, |network| network.block(1, 0), &[0, 2, 3], &[&[0, 2, 3]]);
    check(4, |network| network.block(3, 1), &[0, 1, 2], &[&[0, 1, 2]]);
}

/// Some ranks have given others up by then, and others have not: any part may continue, also all.
#[test]
#[ignore = "needs root and iproute2"]
fn the_network_is_back_before_all_have_decided() {
    for outage in [2_050, 2_200, 2_350].map(Duration::from_millis) {
        for directory in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let disturb = |network: &Network| network.split(&[&[0, 3], &[1, 2]]);
            let ends = ends(4, directory.then(|| dir.path()), disturb, Some(outage));
            let members = continued(&ends);
            eprintln!("outage of {outage:?}, directory {directory}: ranks {members:?} continue");
            assert!(!directory || !members.is_empty(), "{ends:?}");
        }
    }
}
