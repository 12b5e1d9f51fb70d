//! A run resumes where it stopped, whatever ended it and with any number of ranks. Incompatible
//! changes are refused, and nothing is overwritten.

use fs_err as fs;

use crate::cluster::{Job, MNIST, codes};
use crate::reference::{Reference, shipped};
use crate::run_dir::RunDir;

#[test]
fn two_ranks_resume_a_run_of_three_killed_ranks() {
    let dir = RunDir::new();
    let job = |updates| shipped(&dir, updates).set("checkpoint.every", "5 updates");
    // Slowed down, so that the kill comes before the next checkpoint.
    let mut cluster = job(40).ranks(3).set("emulate.slowdown", "[15, 15, 15]").start();
    cluster.wait_for_update(&dir, 17);
    cluster.kill();
    let newest = dir.checkpoints().iter().filter_map(|name| name.strip_prefix("step-")?.parse().ok()).max();
    let newest: u64 = newest.unwrap();
    assert!((15..40).contains(&newest), "{newest}");
    job(40).ranks(2).succeed();
    assert_eq!(dir.starts(), [(3, 0), (2, newest)]);
    assert_eq!(dir.end(), (40, "finished".to_owned()));
    Reference::shipped().assert_losses(&dir, 40, "killed at 17, resumed on two ranks");
}

#[test]
fn resume_never_moves_the_previous_run_aside() {
    let dir = RunDir::new();
    shipped(&dir, 4).succeed();
    let metrics = fs::read(dir.path().join("metrics.jsonl")).unwrap();
    shipped(&dir, 3).arg("--resume").arg("never").succeed();
    assert_eq!(dir.starts(), [(1, 0)]);
    assert_eq!(dir.checkpoints(), ["step-3"]);
    Reference::shipped().assert_losses(&dir, 3, "started over");
    let before = dir.path().join("before-1");
    assert_eq!(fs::read(before.join("metrics.jsonl")).unwrap(), metrics);
    assert!(before.join("checkpoints/step-4/model.safetensors").is_file());
}

#[test]
fn another_batch_needs_a_reset_of_the_data() {
    let dir = RunDir::new();
    shipped(&dir, 4).succeed();
    let before = dir.contents();
    let changed = shipped(&dir, 6).set("batch.global", 50);
    let refused = changed.run().remove(0);
    assert_eq!(refused.code(), Some(2), "{refused:?}");
    for part in ["step-4", "batch.global was 100 sequences and is 50 sequences now", "--reset data"] {
        assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
    }
    assert_eq!(dir.contents(), before);
    changed.arg("--reset").arg("data").set("debug.audit", true).succeed();
    assert_eq!(dir.starts(), [(1, 0), (1, 4)]);
    assert!(dir.losses().keys().copied().eq(1..=6));
    let again: Vec<_> =
        dir.audit(0).into_iter().map(|(update, epoch, samples)| (update, epoch, samples.len())).collect();
    assert_eq!(again, [(5, 1, 50), (6, 1, 50)]);
}

#[test]
fn a_damaged_checkpoint_is_reported_and_not_changed() {
    let dir = RunDir::new();
    shipped(&dir, 2).succeed();
    for file in ["model.safetensors", "trainer/optimizer.safetensors", "trainer/state.json"] {
        let path = dir.checkpoint("step-2").join(file);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        let damaged = dir.contents();
        // Both ranks must report it.
        let ended = shipped(&dir, 4).ranks(2).run();
        assert_eq!(codes(&ended), [Some(1), Some(1)], "{ended:#?}");
        for rank in ended {
            assert!(rank.stderr.contains("step-2") && rank.stderr.contains(file), "{}", rank.stderr);
        }
        assert_eq!(dir.contents(), damaged, "{file}");
        fs::write(&path, whole).unwrap();
    }
    shipped(&dir, 4).ranks(2).succeed();
    assert_eq!(dir.starts(), [(1, 0), (2, 2)]);
}

#[test]
fn the_newest_and_the_best_are_kept_and_linked() {
    let dir = RunDir::new();
    // A learning rate at which the best is not always the newest.
    let job = |updates| -> Job {
        let job = shipped(&dir, updates).set("checkpoint.every", "2 updates").set("valid.every", "2 updates");
        job.set("checkpoint.keep", 2).set("checkpoint.best", "loss").set("optim.lr", 0.05)
    };
    for (updates, newest) in [(14, ["step-12", "step-14"]), (24, ["step-22", "step-24"])] {
        job(updates).succeed();
        let validations = dir.validations();
        let (best, _) = validations.iter().min_by(|a, b| a.1.0.total_cmp(&b.1.0)).unwrap();
        let best = format!("step-{best}");
        let mut kept = newest.map(str::to_owned).to_vec();
        kept.push(best.clone());
        kept.sort();
        kept.dedup();
        assert_eq!(dir.checkpoints(), kept, "{validations:?}");
        assert_eq!((dir.link("last"), dir.link("best")), (newest[1].to_owned(), best));
    }
}

#[test]
fn a_resume_from_an_earlier_checkpoint_moves_later_ones_aside() {
    let dir = RunDir::new();
    let job = |updates| shipped(&dir, updates).set("checkpoint.every", "2 updates");
    job(8).succeed();
    job(5).arg("--resume").arg(dir.checkpoint("step-4")).succeed();
    assert_eq!(dir.checkpoints(), ["step-4", "step-5"]);
    assert_eq!(dir.link("last"), "step-5");
    let abandoned = dir.path().join("before-1/checkpoints");
    assert!(abandoned.join("step-6/model.safetensors").is_file() && abandoned.join("step-8").is_dir());
    // A run directory as the path means its newest checkpoint.
    job(7).arg("--resume").arg(dir.path()).succeed();
    assert_eq!(dir.starts(), [(1, 0), (1, 4), (1, 5)]);
    assert!(dir.losses().keys().copied().eq(1..=7));
    Reference::shipped().assert_losses(&dir, 7, "resumed from update 4");
}

#[test]
fn a_run_resumes_from_any_working_directory() {
    let (dir, elsewhere) = (RunDir::new(), RunDir::new());
    // Relative paths, as users write them.
    let data = crate::data::digits();
    let job = Job::new(["train", MNIST]).in_dir(dir.path()).set("run.devices", "cpu:1").set("run.max_updates", 3);
    fs_err::os::unix::fs::symlink(data, dir.path().join("digits")).unwrap();
    job.set("task.data", "digits").set("run.dir", ".").set("optim.schedule.total_updates", 150).succeed();
    let job = Job::new(["train"]).arg(dir.path()).in_dir(elsewhere.path()).set("run.max_updates", 5);
    job.succeed();
    assert_eq!(dir.starts(), [(1, 0), (1, 3)]);
    assert!(elsewhere.contents().is_empty());
    Reference::shipped().assert_losses(&dir, 5, "resumed in another directory");
}

#[test]
fn only_rank_0_decides_what_to_reset() {
    let dir = RunDir::new();
    shipped(&dir, 4).succeed();
    // Ranks compare checksums after every update.
    shipped(&dir, 8).ranks(2).arg_on(1, "--reset").arg_on(1, "optimizer").succeed();
    Reference::shipped().assert_losses(&dir, 8, "reset only on rank 1");
    shipped(&dir, 12).ranks(2).arg_on(0, "--reset").arg_on(0, "optimizer").succeed();
    assert_eq!(dir.end(), (12, "finished".to_owned()));
}

#[test]
fn a_start_that_is_refused_late_moves_nothing() {
    let dir = RunDir::new();
    let job = |updates| shipped(&dir, updates).set("optim.name", "sgd").set("checkpoint.every", "2 updates");
    job(6).set("optim.momentum", 0.9).succeed();
    let before = dir.contents();
    // Without momentum the moments of the checkpoint do not fit. Only the optimizer can detect
    // that.
    let back = job(8).set("optim.momentum", 0).arg("--resume").arg(dir.checkpoint("step-2"));
    let refused = back.run().remove(0);
    assert_eq!(refused.code(), Some(2), "{refused:?}");
    assert_eq!(dir.contents(), before);
}
