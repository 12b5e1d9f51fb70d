//! A run that has had enough ends on all ranks after the same update: finished, saved, and saying why.

use crate::cluster::{Job, codes};
use crate::reference::shipped;
use crate::run_dir::RunDir;

/// Two ranks of different speed that write down what they computed.
fn two_ranks(dir: &RunDir, updates: u64) -> Job {
    shipped(dir, updates).ranks(2).set("emulate.slowdown", "[1, 2]").set("debug.audit", true)
}

/// All ranks ended well after `update`, which is saved, for the reason `rule`.
fn assert_ended(job: &Job, dir: &RunDir, update: u64, rule: &str) {
    let ended = job.run();
    assert_eq!(codes(&ended), [Some(0); 2], "{ended:#?}");
    let said = format!("ending early, after update {update}: ");
    assert!(ended[0].stderr.contains(&said) && ended[0].stderr.contains(rule), "{}", ended[0].stderr);
    assert_eq!(dir.end(), (update, "finished".to_owned()));
    assert_eq!(dir.early_stops().last(), Some(&(update, rule.to_owned())));
    assert!(dir.losses().keys().copied().eq(1..=update));
    assert_eq!(dir.link("last"), format!("step-{update}"));
    for rank in 0..2 {
        assert_eq!(dir.audit(rank).last().unwrap().0, update, "rank {rank}");
    }
}

#[test]
fn when_the_rate_of_an_epoch_is_too_small() {
    let dir = RunDir::new();
    let job = |updates| {
        let job = two_ranks(&dir, updates).set("optim.schedule", "epochs").set("run.stop_min_lr", 1e-4);
        job.set("optim.lr", "[0.005, 0.002, 0.0001]")
    };
    assert_ended(&job(60), &dir, 30, "run.stop_min_lr");
    let expected = |update| if update <= 15 { 0.005 } else { 0.002 };
    assert!(dir.learning_rates().into_iter().all(|(update, rate)| rate == expected(update)));
    // The same again is over at once, and leaves the checkpoint as it is.
    assert_ended(&job(60), &dir, 30, "run.stop_min_lr");
    assert_eq!(dir.starts(), [(2, 0), (2, 30)]);
    job(33).set("run.stop_min_lr", 1e-5).succeed();
    assert_eq!(dir.end(), (33, "finished".to_owned()));
    assert_eq!(dir.learning_rates()[&31], 1e-4);
}

#[test]
fn in_the_middle_of_an_epoch_it_is_validated_too() {
    let dir = RunDir::new();
    let schedule = "{ kind = \"polynomial\", warmup_updates = 2, total_updates = 20 }";
    // The eighteenth update would be at 0.005 * 3 / 18.
    let job = two_ranks(&dir, 60).set("optim.schedule", schedule).set("run.stop_min_lr", 0.001);
    assert_ended(&job, &dir, 17, "run.stop_min_lr");
    assert!(dir.validations().keys().copied().eq([15, 17]));
}

#[test]
fn when_patience_has_run_out_also_over_a_resume() {
    let dir = RunDir::new();
    // Nothing is learnt, so that nothing improves on the first validation.
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
