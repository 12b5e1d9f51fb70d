//! Ranks are lost and the others continue: over TCP, with each kind of loss.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use hetseq_comm::{Algorithm, CommError, Contribution, Group, Options, RegroupRules, Shards, WireFormat};

use crate::ranks::{Transport, groups, on_each};

const SILENCE: Duration = Duration::from_millis(600);

fn joined(world: usize) -> Vec<Group> {
    let options = |rank| Options { silence: SILENCE, ..crate::ranks::options(rank) };
    groups(Transport::Tcp, world, options)
}

fn rules() -> RegroupRules {
    RegroupRules { directory: None, min_workers: 1 }
}

/// The sum of one value per rank.
fn sum(group: &mut Group, value: f32) -> Result<f32, CommError> {
    let shards = Shards::even(1000, group.world());
    let mut own = Some(Contribution::Both { note: vec![group.rank() as u8], data: vec![value; 1000] });
    let summed = group.all_reduce(&shards, WireFormat::F32, Algorithm::Direct, || Ok::<_, CommError>(own.take()))?;
    assert_eq!(summed.notes.len(), group.world());
    Ok(summed.data[999])
}

/// Runs `lost` on the ranks in `lose` and lets the others regroup until they have a sum. Returns the
/// result of each survivor: its new rank, the old numbers of all survivors, and the sum of the old
/// ranks.
fn survivors(world: usize, lose: &[usize], rules: &RegroupRules, lost: impl Fn(Group) + Sync) -> Vec<Outcome> {
    // A rank may have the first sum before it has sent the others all of it.
    let all_have_the_sum = Barrier::new(world);
    let outcomes = on_each(joined(world), |mut group| {
        let rank = group.rank();
        group.set_regroup_rules(rules.clone());
        let first = sum(&mut group, rank as f32);
        all_have_the_sum.wait();
        assert_eq!(first.unwrap(), (0..world).sum::<usize>() as f32);
        if lose.contains(&rank) {
            lost(group);
            return None;
        }
        Some(continue_after_loss(group))
    });
    outcomes.into_iter().flatten().collect()
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Continued { rank: usize, survivors: Vec<usize>, sum: f32 },
    Stopped(String),
}

fn continue_after_loss(mut group: Group) -> Outcome {
    let rank = group.rank();
    let mut survivors: Vec<usize> = (0..group.world()).collect();
    loop {
        match sum(&mut group, rank as f32) {
            Ok(sum) => {
                let rank = group.rank();
                group.close();
                return Outcome::Continued { rank, survivors, sum };
            }
            Err(error) => {
                assert!(error.is_lost_rank(), "{error}");
                match group.regroup() {
                    Ok(regrouped) => {
                        assert!(
                            !regrouped.lost.is_empty() && regrouped.lost.iter().all(|lost| !lost.reason.is_empty())
                        );
                        survivors = regrouped.survivors.iter().map(|&old| survivors[old]).collect();
                    }
                    Err(error) => {
                        assert!(error.is_cut_off(), "{error}");
                        return Outcome::Stopped(error.to_string());
                    }
                }
            }
        }
    }
}

fn assert_continued(outcomes: &[Outcome], expected: &[usize]) {
    let total: usize = expected.iter().sum();
    for (index, outcome) in outcomes.iter().enumerate() {
        let continued = Outcome::Continued { rank: index, survivors: expected.to_vec(), sum: total as f32 };
        assert_eq!(*outcome, continued);
    }
    assert_eq!(outcomes.len(), expected.len());
}

#[test]
fn the_others_continue_without_a_rank_whose_connections_close() {
    for lost in 0..4 {
        let left: Vec<usize> = (0..4).filter(|&rank| rank != lost).collect();
        assert_continued(&survivors(4, &[lost], &rules(), drop), &left);
    }
}

#[test]
fn a_rank_that_fails_says_why() {
    let outcomes = survivors(4, &[2], &rules(), |mut group| group.fail("its last device failed"));
    assert_continued(&outcomes, &[0, 1, 3]);
}

/// Ranks leave by agreement, whichever and how many: also the lead, and also a majority.
#[test]
fn ranks_leave_politely() {
    let dir = tempfile::tempdir().unwrap();
    let by_directory = RegroupRules { directory: Some(dir.path().to_owned()), ..rules() };
    for rules in [rules(), by_directory] {
        for leaving in [&[1][..], &[0], &[0, 1], &[3, 0, 2]] {
            let outcomes = on_each(joined(4), |mut group| {
                let rank = group.rank();
                group.set_regroup_rules(rules.clone());
                // After it, each knows who leaves; after the barrier, each knows that all know.
                assert_eq!(sum(&mut group, rank as f32).unwrap(), 6.0);
                if let Err(error) = group.barrier() {
                    assert!(matches!(error, CommError::Regrouping { .. }), "{error}");
                }
                if leaving.contains(&rank) {
                    group.leave().unwrap();
                    group.close();
                    return None;
                }
                let survivors = group.regroup().unwrap().survivors;
                let sum = sum(&mut group, rank as f32).unwrap();
                let rank = group.rank();
                group.close();
                Some(Outcome::Continued { rank, survivors, sum })
            });
            let outcomes: Vec<Outcome> = outcomes.into_iter().flatten().collect();
            let stay: Vec<usize> = (0..4).filter(|rank| !leaving.contains(rank)).collect();
            assert_continued(&outcomes, &stay);
        }
    }
}

#[test]
fn a_rank_that_ends_the_run_ends_it_for_all() {
    on_each(joined(3), |mut group| {
        if group.rank() == 1 {
            return group.abort("the disk is full");
        }
        let error = sum(&mut group, 1.0).unwrap_err();
        assert!(!error.is_lost_rank() && error.to_string().contains("the disk is full"), "{error}");
    });
}

#[test]
fn two_ranks_lost_at_once_and_one_after_the_other() {
    assert_continued(&survivors(5, &[0, 3], &rules(), drop), &[1, 2, 4]);
    // The second is lost while the others agree on the first.
    let outcomes = survivors(5, &[1, 4], &rules(), |mut group| {
        if group.rank() == 4 {
            let error = sum(&mut group, 4.0).unwrap_err();
            assert!(error.is_lost_rank());
        }
    });
    assert_continued(&outcomes, &[0, 2, 3]);
}

#[test]
fn without_a_quorum_the_rest_stops() {
    let outcomes = survivors(4, &[0, 2], &rules(), drop);
    assert_eq!(outcomes.len(), 2);
    for outcome in outcomes {
        let Outcome::Stopped(reason) = outcome else { panic!("{outcome:?}") };
        // The other one may have stopped before this one has counted.
        let is_expected =
            ["1 of 4", "2 of 4"].iter().any(|left| reason.contains(&format!("{left}, which is no majority")));
        assert!(is_expected, "{reason}");
    }
    // Half of the ranks, with the lead.
    assert_continued(&survivors(4, &[1, 3], &rules(), drop), &[0, 2]);
}

#[test]
fn with_a_shared_directory_a_single_rank_continues() {
    let dir = tempfile::tempdir().unwrap();
    let rules = RegroupRules { directory: Some(dir.path().to_owned()), min_workers: 1 };
    assert_continued(&survivors(4, &[0, 1, 3], &rules, drop), &[2]);
    let rules = RegroupRules { min_workers: 2, ..rules };
    let outcomes = survivors(4, &[0, 1, 3], &rules, drop);
    let [Outcome::Stopped(reason)] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert!(reason.contains("1 of 4 ranks are left, and elastic.min_workers = 2"), "{reason}");
}

#[test]
fn a_contribution_survives_the_sum_that_fails() {
    let all_have_the_sum = Barrier::new(3);
    on_each(joined(3), |mut group| {
        let rank = group.rank();
        let first = sum(&mut group, rank as f32);
        all_have_the_sum.wait();
        assert_eq!(first.unwrap(), 3.0);
        assert_eq!(group.take_contribution(), Some(vec![rank as f32; 1000]));
        if rank == 2 {
            return;
        }
        sum(&mut group, 10.0).unwrap_err();
        assert_eq!(group.take_contribution(), Some(vec![10.0; 1000]));
        group.regroup().unwrap();
        assert_eq!(sum(&mut group, 10.0).unwrap(), 20.0);
        group.close();
    });
}

#[test]
fn a_contribution_survives_if_a_rank_is_lost_before_a_ring_has_begun() {
    on_each(joined(3), |mut group| {
        if group.rank() == 2 {
            return;
        }
        // The values are ready, the note never is.
        let mut own = Some(Contribution::Data(vec![3.0; 1000]));
        let next = || Ok::<_, CommError>(own.take());
        let shards = Shards::even(1000, 3);
        group.all_reduce(&shards, WireFormat::F32, Algorithm::Ring, next).unwrap_err();
        assert_eq!(group.take_contribution(), Some(vec![3.0; 1000]));
    });
}

#[test]
fn a_loss_is_noticed_while_the_others_compute() {
    let started = Instant::now();
    let sums = on_each(joined(3), |mut group| {
        if group.rank() == 2 {
            return None;
        }
        // A contribution that would take a minute.
        let shards = Shards::even(10, 3);
        let never = || Ok::<Option<Contribution>, CommError>(None);
        let error = group.all_reduce(&shards, WireFormat::F32, Algorithm::Direct, never).unwrap_err();
        assert!(error.is_lost_rank());
        assert_eq!(group.take_contribution(), None);
        group.regroup().unwrap();
        let sum = sum(&mut group, 1.0).unwrap();
        group.close();
        Some(sum)
    });
    assert_eq!(sums, [Some(2.0), Some(2.0), None]);
    assert!(started.elapsed() < Duration::from_secs(20));
}

/// The others must not give each other up while they wait for it.
#[test]
fn a_rank_that_does_not_answer_is_left_out() {
    let options = Options { progress: Duration::from_millis(700), ..crate::ranks::options(0) };
    let mut groups = Group::local(4, &options).unwrap();
    let stuck = groups.pop().unwrap();
    let outcomes = on_each(groups, |mut group| {
        group.set_regroup_rules(rules());
        continue_after_loss(group)
    });
    assert_continued(&outcomes, &[0, 1, 2]);
    drop(stuck);
}
