//! Early stopping: all ranks end after the same update, the run is finished and saved, and the
//! reason is logged.

use crate::cluster::{Job, codes};
use crate::reference::shipped;
use crate::run_dir::RunDir;

/// Two ranks of different speeds that record which samples they computed.
fn two_ranks(dir: &RunDir, updates: u64) -> Job {
    shipped(dir, updates).ranks(2).set("emulate.slowdown", "[1, 2]").set("debug.audit", true)
}

/// Requires that all ranks succeed and stop after `update` because of `rule`, with a checkpoint.
fn assert_ended(job: &Job, dir: &RunDir, update: u64, rule: &str) {
    let ended = job.run();
    assert_eq!(codes(&ended), [Some(0); 2], "{ended:#?}");
    let message = format!("stopping early after update {update}: ");
    assert!(ended[0].stderr.contains(&message) && ended[0].stderr.contains(rule), "{}", ended[0].stderr);
    assert_eq!(dir.end(), (update, "finished".to_owned()));
    assert_eq!(dir.early_stops().last(), Some(&(update, rule.to_owned())));
    assert!(dir.losses().keys().copied().eq(1..=update));
    assert_eq!(dir.link("last"), format!("step-{update}"));
    for rank in 0..2 {
        assert_eq!(dir.audit(rank).last().unwrap().0, update, "rank {rank}");
    }
}

#[test]
fn a_run_stops_when_the_learning_rate_of_an_epoch_is_too_small() {
    let dir = RunDir::new();
    let job = |updates| {
        let job = two_ranks(&dir, updates).set("optim.schedule", "epochs").set("run.stop_min_lr", 1e-4);
        job.set("optim.lr", "[0.005, 0.002, 0.0001]")
    };
    assert_ended(&job(60), &dir, 30, "run.stop_min_lr");
    let expected = |update| if update <= 15 { 0.005 } else { 0.002 };
    assert!(dir.learning_rates().into_iter().all(|(update, rate)| rate == expected(update)));
    // The same command ends at once and does not change the checkpoint.
    assert_ended(&job(60), &dir, 30, "run.stop_min_lr");
    assert_eq!(dir.starts(), [(2, 0), (2, 30)]);
    job(33).set("run.stop_min_lr", 1e-5).succeed();
    assert_eq!(dir.end(), (33, "finished".to_owned()));
    assert_eq!(dir.learning_rates()[&31], 1e-4);
}

#[test]
fn a_run_that_stops_within_an_epoch_is_validated() {
    let dir = RunDir::new();
    let schedule = "{ kind = \"polynomial\", warmup_updates = 2, total_updates = 20 }";
    // The eighteenth update would be at 0.005 * 3 / 18.
    let job = two_ranks(&dir, 60).set("optim.schedule", schedule).set("run.stop_min_lr", 0.001);
    assert_ended(&job, &dir, 17, "run.stop_min_lr");
    assert!(dir.validations().keys().copied().eq([15, 17]));
}

#[test]
fn patience_counts_across_a_resume() {
    let dir = RunDir::new();
    // Without learning, no validation is better than the first.
    let job = |updates| {
        let job = two_ranks(&dir, updates).set("optim.lr", 0).set("valid.every", "2 updates");
        job.set("valid.patience", 3)
    };
    job(5).succeed();
    assert_eq!(dir.early_stops(), []);
    assert!(dir.validations().keys().copied().eq([2, 4, 5]));
    assert_ended(&job(40), &dir, 6, "valid.patience");
    assert_eq!(dir.link("best"), "step-2");
    assert_ended(&job(40), &dir, 6, "valid.patience");
    job(40).set("valid.patience", 4).succeed();
    assert_eq!(dir.end(), (8, "finished".to_owned()));
}
