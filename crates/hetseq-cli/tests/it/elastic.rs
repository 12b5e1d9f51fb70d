//! Ranks are lost while training, and the others continue: the same losses, each update and each
//! sample once, whichever rank is lost and however.

use std::time::Duration;

use hetseq_metrics::Event;

use crate::cluster::{Cluster, Ended, Job, codes};
use crate::reference::{Reference, shipped};
use crate::run_dir::RunDir;

const SOON: Duration = Duration::from_secs(60);
pub(crate) const UPDATES: u64 = 40;

/// Slowed down, so that a rank is lost long before the end. Checks after every update that all
/// replicas are equal.
fn job(dir: &RunDir, world: usize) -> Job {
    let slowdown = vec!["8"; world].join(", ");
    shipped(dir, UPDATES)
        .ranks(world)
        .set("emulate.slowdown", format!("[{slowdown}]"))
        .set("batch.probe_s", 0)
        // So that ranks are often lost while others save, or have just saved.
        .set("checkpoint.every", "1 update")
        .set("run.checksum_every", 1)
        .set("debug.audit", true)
}

pub(crate) fn start(job: &Job, dir: &RunDir, update: u64) -> Cluster {
    let mut cluster = job.start();
    cluster.wait_for_update(dir, update);
    cluster
}

/// Requires a finished run with the losses of the undisturbed one, and each sample once.
pub(crate) fn assert_undisturbed(dir: &RunDir, ranks: usize, who: &str) {
    assert_eq!(dir.end(), (UPDATES, "finished".to_owned()), "{who}");
    Reference::shipped().assert_losses(dir, UPDATES, who);
    let mut samples: Vec<(u64, u32)> = Vec::new();
    for rank in 0..ranks {
        samples
            .extend(dir.audit(rank).into_iter().flat_map(|(_, epoch, ids)| ids.into_iter().map(move |id| (epoch, id))));
    }
    let count = samples.len();
    samples.sort_unstable();
    samples.dedup();
    assert_eq!((samples.len(), count), (count, dir.samples()), "{who}: each sample once");
    assert_eq!(dir.link("last"), format!("step-{UPDATES}"), "{who}");
}

pub(crate) fn survivors(ended: &[Ended]) -> Vec<usize> {
    (0..ended.len()).filter(|&rank| ended[rank].code() == Some(0)).collect()
}

#[test]
fn the_others_continue_without_a_killed_rank() {
    for lost in [2, 0] {
        let dir = RunDir::new();
        let cluster = start(&job(&dir, 3), &dir, 5);
        cluster.signal(lost, "KILL");
        let ended = cluster.wait(SOON);
        assert_eq!(survivors(&ended), (0..3).filter(|&rank| rank != lost).collect::<Vec<_>>(), "{ended:#?}");
        assert_undisturbed(&dir, 3, &format!("rank {lost} killed"));
        let events = dir.membership_events();
        let expected = if lost == 0 { &["lead", "lost 0", "regrouped 2"][..] } else { &["lost 2", "regrouped 2"] };
        assert_eq!(events, expected);
    }
}

#[test]
fn a_single_rank_is_left_at_the_end() {
    let dir = RunDir::new();
    let mut cluster = start(&job(&dir, 3), &dir, 4);
    cluster.signal(0, "KILL");
    cluster.wait_until_after_losses("update 12", || dir.losses().contains_key(&12));
    cluster.signal(1, "KILL");
    let ended = cluster.wait(SOON);
    assert_eq!(survivors(&ended), [2], "{ended:#?}");
    assert_undisturbed(&dir, 3, "two ranks killed");
}

/// Long after the others have noticed: it joins them again, by itself.
#[test]
fn a_stopped_lead_that_wakes_up_returns() {
    let dir = RunDir::new();
    let slow = job(&dir, 3).set("comm.silence_s", 1).set("emulate.slowdown", "[30, 30, 30]");
    let mut cluster = start(&slow, &dir, 5);
    cluster.signal(0, "STOP");
    cluster.wait_until_after_losses("the loss", || dir.membership_events().contains(&"regrouped 2".to_owned()));
    cluster.signal(0, "CONT");
    let ended = cluster.wait(SOON);
    assert_eq!(codes(&ended), [Some(0); 3], "{ended:#?}");
    assert!(ended[0].stderr.contains("the other ranks continue without this one"), "{ended:#?}");
    assert_eq!(dir.membership_events(), ["lead", "lost 0", "regrouped 2", "joined 0"], "{ended:#?}");
    assert_undisturbed(&dir, 3, "rank 0 stopped and continued");
}

/// After the end of the run there is none to join.
#[test]
fn a_lead_that_wakes_up_too_late_disturbs_nothing() {
    let dir = RunDir::new();
    let mut cluster = start(&job(&dir, 3).set("comm.silence_s", 1), &dir, 12);
    cluster.signal(0, "STOP");
    cluster.wait_for(2, SOON);
    cluster.signal(0, "CONT");
    let ended = cluster.wait(SOON);
    assert_eq!(codes(&ended), [Some(75), Some(0), Some(0)], "{ended:#?}");
    assert_undisturbed(&dir, 3, "rank 0 stopped and continued");
    // What a resume loads is of the ranks that continued.
    shipped(&dir, UPDATES + 5).ranks(2).succeed();
    Reference::shipped().assert_losses(&dir, UPDATES + 5, "resumed after that");
}

#[test]
fn without_a_majority_all_save_and_stop() {
    // Each rank has its own run directory.
    let dirs = [RunDir::new(), RunDir::new(), RunDir::new()];
    let own = |job: Job| {
        let job = (0..3).fold(job, |job, rank| job.env_on(rank, "HETSEQ_SECRET", "hunter2-hunter2-2"));
        let set = |job: Job, rank: usize| job.set_on(rank, "run.dir", &dirs[rank].path().display().to_string());
        set(set(job, 1), 2)
    };
    let mut cluster = start(&own(job(&dirs[0], 3)), &dirs[0], 5);
    cluster.signal(0, "KILL");
    // Two of three continue, and the new rank 0 writes to its own directory.
    cluster.wait_until_after_losses("update 14", || dirs[1].losses().contains_key(&14));
    assert!(!dirs[0].losses().contains_key(&14));
    cluster.signal(1, "KILL");
    let ended = cluster.wait(SOON);
    assert_eq!(ended[2].code(), Some(75), "{ended:#?}");
    assert!(ended[2].stderr.contains("1 of 2, which is no majority"), "{ended:#?}");
    let [saved] = &dirs[2].checkpoints()[..] else { panic!("{ended:#?}") };
    assert!(ended[2].stderr.contains(&format!("{saved}: the same command resumes from there")), "{ended:#?}");
    let saved: u64 = saved.strip_prefix("step-").unwrap().parse().unwrap();
    // A start from that directory continues with the losses of the undisturbed run.
    let job = shipped(&dirs[2], UPDATES);
    job.succeed();
    let losses = dirs[2].losses();
    assert!(losses.keys().copied().eq(saved + 1..=UPDATES), "{losses:?}");
    Reference::shipped().assert_some_losses(&losses, "resumed by the last rank");
}

#[test]
fn a_rank_whose_last_device_fails_leaves() {
    let dir = RunDir::new();
    let job = job(&dir, 3).set("emulate.lost", "[{ rank = 1, device = \"cpu:0\", update = 7 }]");
    let ended = job.run();
    assert_eq!(codes(&ended), [Some(0), Some(1), Some(0)], "{ended:#?}");
    assert!(ended[1].stderr.contains("cpu:0 failed while computing gradients: device lost"), "{ended:#?}");
    assert_undisturbed(&dir, 3, "a device failed");
    assert!(ended[0].stderr.contains("it failed: cpu:0 failed"), "{ended:#?}");
}

#[test]
fn fewer_ranks_than_asked_for_stop() {
    let dir = RunDir::new();
    let cluster = start(&job(&dir, 3).set("elastic.min_workers", 3), &dir, 5);
    cluster.signal(2, "KILL");
    let ended = cluster.wait(SOON);
    assert_eq!(codes(&ended)[..2], [Some(75), Some(75)], "{ended:#?}");
    assert!(ended[0].stderr.contains("2 of 3 ranks are left, and elastic.min_workers = 3"), "{ended:#?}");
    job(&dir, 2).succeed();
    assert_eq!(dir.end(), (UPDATES, "finished".to_owned()));
    Reference::shipped().assert_losses(&dir, UPDATES, "stopped by min_workers, resumed");
}

#[test]
fn a_loss_while_validating_repeats_the_validation() {
    let dir = RunDir::new();
    let job = job(&dir, 3).set("valid.every", "6 updates");
    let mut cluster = job.start();
    // Lost somewhere around the validation after update 6.
    cluster.wait_for_update(&dir, 6);
    cluster.signal(1, "KILL");
    let ended = cluster.wait(SOON);
    assert_eq!(survivors(&ended), [0, 2], "{ended:#?}");
    assert_undisturbed(&dir, 3, "killed while validating");
    let valid = |event| if let Event::Valid { update, .. } = event { Some(update) } else { None };
    let valids: Vec<u64> = dir.events().into_iter().filter_map(valid).collect();
    assert_eq!(valids, [6, 12, 18, 24, 30, 36, 40]);
}
