//! Storage errors during a run: the message, that the run continues or stops as configured, that
//! earlier checkpoints stay intact, and that the run recovers when the error is gone.

use std::process::Command;
use std::time::Duration;

use fs_err as fs;

use crate::cluster::{Ended, Job, codes};
use crate::reference::{Reference, shipped};
use crate::run_dir::RunDir;

const SOON: Duration = Duration::from_secs(60);

/// No file may grow beyond 600 kB: `model.safetensors` would be 0.8 MB.
const SMALL_FILES: [&str; 3] = ["bash", "-c", "ulimit -f 600; exec \"$0\" \"$@\""];

/// A checkpoint after every second update. The updates are slow enough for the test to act in
/// between.
fn slow(dir: &RunDir, updates: u64) -> Job {
    shipped(dir, updates).set("checkpoint.every", "2 updates").set("emulate.slowdown", "[15]")
}

fn assert_stderr(ended: &Ended, parts: &[&str]) {
    for part in parts {
        assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
    }
}

fn assert_evaluates(dir: &RunDir, checkpoint: &str) {
    let output = Job::mnist("eval", dir.path()).succeed();
    assert!(output.contains(&format!("checkpoints/{checkpoint}\n")), "{output}");
}

fn assert_no_partial_checkpoints(dir: &RunDir) {
    let names = dir.checkpoints();
    assert!(names.iter().all(|name| name.starts_with("step-")), "{names:?}");
}

fn has_save_warning(dir: &RunDir) -> bool {
    dir.warnings().iter().any(|warning| warning.starts_with("saving "))
}

#[test]
fn a_run_that_cannot_save_continues_and_fails_at_the_end() {
    let dir = RunDir::new();
    let job = shipped(&dir, 6).set("checkpoint.every", "2 updates");
    let ended = job.clone().under(&SMALL_FILES).run().remove(0);
    assert_eq!(ended.code(), Some(1), "{ended:#?}");
    let step = |update: u64| dir.checkpoint(&format!("step-{update}")).display().to_string();
    assert_stderr(
        &ended,
        &[
            &format!("warning: saving {}: ", step(2)),
            "File too large (os error 27). It needs 2.5 MB",
            "ulimit -f",
            "Training continues without a checkpoint later than the start",
            "until the next is due, after update 4",
            &format!("error: saving {}: ", step(6)),
            "This was the last checkpoint of the run",
            "failed after update 6",
        ],
    );
    assert!(dir.losses().keys().copied().eq(1..=6));
    assert_eq!(dir.end(), (6, "failed".to_owned()));
    assert_no_partial_checkpoints(&dir);
    // The same command without the limit.
    job.succeed();
    assert_eq!(dir.link("last"), "step-6");
    Reference::shipped().assert_losses(&dir, 6, "after a run that could not save");
}

#[test]
fn a_stop_by_signal_without_space_for_a_checkpoint_fails() {
    let dir = RunDir::new();
    let mut cluster = slow(&dir, 40).set("emulate.slowdown", "[15, 15]").ranks(2).under(&SMALL_FILES).start();
    cluster.wait_for_update(&dir, 3);
    cluster.signal(1, "INT");
    let ended = cluster.wait(SOON);
    assert_eq!(codes(&ended), [Some(1); 2], "{ended:#?}");
    assert_stderr(&ended[0], &["error: saving ", "This was the last checkpoint of the run"]);
    assert_stderr(&ended[1], &["rank 0 (", ") stopped: saving "]);
    assert_eq!(dir.end().1, "failed");
}

#[test]
fn with_on_error_stop_all_ranks_stop_and_resume_from_the_last_checkpoint() {
    let dir = RunDir::new();
    let job = |updates| shipped(&dir, updates).set("checkpoint.every", "2 updates").set("checkpoint.on_error", "stop");
    job(2).succeed();
    let ended = job(40).ranks(2).under(&SMALL_FILES).run();
    assert_eq!(codes(&ended), [Some(1); 2], "{ended:#?}");
    let last = dir.checkpoint("step-2").display().to_string();
    assert_stderr(&ended[0], &["File too large", "checkpoint.on_error = \"stop\" ends the run here", &last]);
    assert_stderr(
        &ended[1],
        &["rank 0 (", ") stopped: saving ", "File too large", "rank 0's checkpoint after update 2"],
    );
    let (update, outcome) = dir.end();
    assert!((4..8).contains(&update) && outcome == "failed", "{outcome} after {update}");
    assert_no_partial_checkpoints(&dir);
    assert_evaluates(&dir, "step-2");
    job(8).ranks(2).succeed();
    assert_eq!(dir.starts(), [(1, 0), (2, 2), (2, 2)]);
    Reference::shipped().assert_losses(&dir, 8, "after a run that stopped because it could not save");
}

#[test]
fn a_run_continues_until_its_directory_is_back() {
    let dir = RunDir::new();
    let mut cluster = slow(&dir, 20).start();
    cluster.wait_until("a checkpoint", || dir.saved().contains(&2));
    // As if a user had moved it and put something else in its place.
    let (checkpoints, away) = (dir.path().join("checkpoints"), dir.path().join("away"));
    fs::rename(&checkpoints, &away).unwrap();
    fs::write(&checkpoints, "").unwrap();
    cluster.wait_until("a warning", || has_save_warning(&dir));
    fs::remove_file(&checkpoints).unwrap();
    fs::rename(&away, &checkpoints).unwrap();
    let ended = cluster.wait(SOON).remove(0);
    assert_eq!(ended.code(), Some(0), "{ended:#?}");
    assert_stderr(&ended, &["Not a directory", "put it back, or set another run.dir"]);
    assert_eq!(dir.link("last"), "step-20");
    assert_no_partial_checkpoints(&dir);
    assert_evaluates(&dir, &dir.link("best"));
    Reference::shipped().assert_losses(&dir, 20, "without a directory for a while");
}

#[test]
fn best_is_the_best_checkpoint_on_disk() {
    let dir = RunDir::new();
    // The loss falls at each checkpoint, so each is the best so far. Those during the error are
    // lost.
    let job = slow(&dir, 24).set("valid.every", "2 updates").set("checkpoint.best", "loss").set("optim.lr", 0.001);
    let mut cluster = job.ranks(2).set("emulate.slowdown", "[15, 15]").start();
    cluster.wait_until("a checkpoint", || dir.saved().contains(&4));
    let (checkpoints, away) = (dir.path().join("checkpoints"), dir.path().join("away"));
    fs::rename(&checkpoints, &away).unwrap();
    fs::write(&checkpoints, "").unwrap();
    cluster
        .wait_until("two warnings", || dir.warnings().iter().filter(|text| text.starts_with("saving ")).count() >= 2);
    fs::remove_file(&checkpoints).unwrap();
    fs::rename(&away, &checkpoints).unwrap();
    let ended = cluster.wait(SOON);
    assert_eq!(codes(&ended), [Some(0); 2], "{ended:#?}");
    let (saved, validations) = (dir.saved(), dir.validations());
    assert!(saved.len() < validations.len(), "{saved:?}");
    let on_disk = validations.iter().filter(|(update, _)| saved.contains(update));
    let (best, _) = on_disk.min_by(|a, b| a.1.0.total_cmp(&b.1.0)).unwrap();
    assert_eq!(dir.link("best"), format!("step-{best}"), "{validations:?}");
    assert_evaluates(&dir, &format!("step-{best}"));
}

#[test]
fn patience_counts_even_if_the_best_could_not_be_saved() {
    let dir = RunDir::new();
    // Without learning, no validation is better than the first. Nothing can be saved.
    let job = shipped(&dir, 40).set("optim.lr", 0).set("valid.every", "2 updates").set("valid.patience", 2);
    let ended = job.ranks(2).under(&SMALL_FILES).run();
    assert_eq!(codes(&ended), [Some(1); 2], "{ended:#?}");
    assert!(dir.validations().keys().copied().eq([2, 4, 6]), "{:?}", dir.validations());
    assert_eq!(dir.end(), (6, "failed".to_owned()));
}

#[test]
fn a_removed_run_directory_is_created_again() {
    let dir = RunDir::new();
    let mut cluster = slow(&dir, 20).start();
    cluster.wait_until("a checkpoint", || dir.saved().contains(&2));
    fs::remove_dir_all(dir.path()).unwrap();
    let ended = cluster.wait(SOON).remove(0);
    assert_eq!(ended.code(), Some(0), "{ended:#?}");
    assert_stderr(
        &ended,
        &["checkpoints was missing and has been created again", "was removed: restoring config.toml"],
    );
    assert!(["config.toml", "env.json", ".lock"].iter().all(|name| dir.path().join(name).exists()));
    assert_eq!(dir.end(), (20, "finished".to_owned()));
    assert_eq!(dir.link("last"), "step-20");
    slow(&dir, 22).succeed();
}

#[test]
fn a_run_survives_lost_write_permission() {
    let dir = RunDir::new();
    // Root may write anywhere unless it drops that capability.
    let job = slow(&dir, 20);
    let id = Command::new("id").arg("-u").output().unwrap();
    let is_root = id.stdout.starts_with(b"0\n");
    let job = if is_root { job.under(&["setpriv", "--bounding-set=-dac_override,-dac_read_search"]) } else { job };
    let mut cluster = job.start();
    cluster.wait_until("a checkpoint", || dir.saved().contains(&2));
    let chmod = |mode: &str| {
        let done = Command::new("chmod").arg(mode).arg(dir.path().join("checkpoints")).status().unwrap();
        assert!(done.success());
    };
    chmod("555");
    cluster.wait_until("a warning", || has_save_warning(&dir));
    chmod("755");
    let ended = cluster.wait(SOON).remove(0);
    assert_eq!(ended.code(), Some(0), "{ended:#?}");
    assert_stderr(&ended, &["Permission denied", "Give this user write permission there"]);
    assert_eq!(dir.link("last"), "step-20");
    assert_no_partial_checkpoints(&dir);
}

#[test]
fn a_run_that_loses_a_rank_completes_the_current_checkpoint() {
    let dir = RunDir::new();
    let job = slow(&dir, 40).set("emulate.slowdown", "[5, 5]").set("elastic.enabled", false);
    let mut cluster = job.ranks(2).start();
    cluster.wait_for_update(&dir, 4);
    cluster.signal(1, "KILL");
    let ended = cluster.wait(SOON);
    assert_eq!(ended[0].code(), Some(1), "{ended:#?}");
    // Every started checkpoint is complete, and the message names the last one.
    let last = dir.saved().into_iter().max().unwrap();
    assert_stderr(
        &ended[0],
        &[&format!("The last checkpoint is {}", dir.checkpoint(&format!("step-{last}")).display())],
    );
    assert_eq!(dir.link("last"), format!("step-{last}"));
    assert_no_partial_checkpoints(&dir);
    slow(&dir, 12).ranks(2).succeed();
    assert_eq!(dir.starts(), [(2, 0), (2, last)]);
    Reference::shipped().assert_losses(&dir, 12, "after a rank was lost");
}

#[test]
fn complete_checkpoints_are_reported_in_time() {
    let dir = RunDir::new();
    shipped(&dir, 6).set("checkpoint.every", "2 updates").ranks(2).succeed();
    assert_eq!(dir.saved(), [2, 4, 6]);
    assert!(dir.warnings().iter().all(|warning| !warning.contains("checkpoint")), "{:?}", dir.warnings());
}

/// Small and read-only disks in memory. `./test` runs these tests if it may mount disks.
mod with_mounts {
    use std::path::{Path, PathBuf};

    use super::*;

    /// A file system in memory, unmounted on drop.
    struct Mount(PathBuf);

    impl Mount {
        fn new(at: &Path, kilobytes: u32) -> Self {
            fs::create_dir_all(at).unwrap();
            let mount = Mount(at.to_owned());
            mount.call("mount", &["-t", "tmpfs", "-o", &format!("size={kilobytes}k"), "tmpfs"]);
            mount
        }

        fn remount(&self, options: &str) {
            self.call("mount", &["-o", &format!("remount,{options}")]);
        }

        fn call(&self, program: &str, args: &[&str]) {
            let done = Command::new(program).args(args).arg(&self.0).status().unwrap();
            assert!(done.success(), "{program} {args:?}: these tests need root");
        }
    }

    impl Drop for Mount {
        fn drop(&mut self) {
            _ = Command::new("umount").arg("-l").arg(&self.0).status();
        }
    }

    /// Size of a checkpoint, rounded up.
    const CHECKPOINT_KB: u32 = 2600;

    /// A run directory whose checkpoints are on their own disk.
    fn checkpoints_on_disk_of(kilobytes: u32) -> (RunDir, Mount) {
        let dir = RunDir::new();
        let disk = Mount::new(&dir.path().join("checkpoints"), kilobytes);
        (dir, disk)
    }

    #[test]
    #[ignore = "needs root"]
    fn a_run_on_a_full_disk_fails_and_can_resume() {
        let (dir, disk) = checkpoints_on_disk_of(CHECKPOINT_KB * 3 / 2);
        let job = shipped(&dir, 6).set("checkpoint.every", "2 updates");
        let ended = job.run().remove(0);
        assert_eq!(ended.code(), Some(1), "{ended:#?}");
        assert_stderr(
            &ended,
            &[
                "No space left on device",
                "It needs 2.5 MB, 1.5 MB is free there. Free some space, lower checkpoint.keep, or set run.dir to a larger disk",
                "Training continues without a checkpoint later than",
                "This was the last checkpoint of the run",
            ],
        );
        assert!(dir.losses().keys().copied().eq(1..=6));
        // The intact checkpoint was never removed.
        assert_eq!((dir.checkpoints(), dir.link("last")), (vec!["step-2".to_owned()], "step-2".to_owned()));
        assert_evaluates(&dir, "step-2");
        // The warning comes before the first update too.
        assert_stderr(&job.run()[0], &["a checkpoint takes 2.5 MB and 1.5 MB is free in "]);
        disk.remount("size=40m");
        job.succeed();
        assert_eq!(dir.starts(), [(1, 0), (1, 2), (1, 2)]);
        Reference::shipped().assert_losses(&dir, 6, "resumed when there was space again");
    }

    #[test]
    #[ignore = "needs root"]
    fn a_run_recovers_when_a_full_disk_has_space_again() {
        let (dir, disk) = checkpoints_on_disk_of(CHECKPOINT_KB * 3 / 2);
        let mut cluster = slow(&dir, 20).set("emulate.slowdown", "[15, 15]").ranks(2).start();
        cluster.wait_until("a warning", || has_save_warning(&dir));
        disk.remount("size=40m");
        let ended = cluster.wait(SOON);
        assert_eq!(codes(&ended), [Some(0); 2], "{ended:#?}");
        assert_eq!(dir.link("last"), "step-20");
        assert_no_partial_checkpoints(&dir);
        Reference::shipped().assert_losses(&dir, 20, "with a disk that was full for a while");
    }

    #[test]
    #[ignore = "needs root"]
    fn a_full_disk_stops_all_ranks_if_configured() {
        let (dir, _disk) = checkpoints_on_disk_of(CHECKPOINT_KB * 3 / 2);
        let job = shipped(&dir, 40).set("checkpoint.every", "2 updates").set("checkpoint.on_error", "stop").ranks(2);
        let ended = job.run();
        assert_eq!(codes(&ended), [Some(1); 2], "{ended:#?}");
        assert_stderr(&ended[0], &["No space left on device", "checkpoint.on_error = \"stop\" ends the run here"]);
        assert_stderr(&ended[1], &["rank 0 (", ") stopped: saving ", "No space left on device"]);
        assert_eq!((dir.checkpoints(), dir.link("last")), (vec!["step-2".to_owned()], "step-2".to_owned()));
        assert_evaluates(&dir, "step-2");
    }

    /// Trains on a disk with space for two checkpoints, on which two are left. Returns the warnings.
    fn train_with_space_for_two(keep: usize) -> Vec<String> {
        let (dir, _disk) = checkpoints_on_disk_of(CHECKPOINT_KB * 5 / 2);
        let job = shipped(&dir, 10)
            .set("checkpoint.every", "2 updates")
            .set("checkpoint.keep", keep)
            .set("valid.every", "never");
        job.succeed();
        assert_eq!(dir.saved(), [2, 4, 6, 8, 10]);
        assert_eq!(dir.checkpoints(), ["step-10", "step-8"]);
        dir.warnings()
    }

    #[test]
    #[ignore = "needs root"]
    fn space_for_two_checkpoints_is_enough_to_keep_two() {
        let warnings = train_with_space_for_two(2);
        assert!(warnings.is_empty(), "{warnings:?}");
    }

    #[test]
    #[ignore = "needs root"]
    fn older_checkpoints_are_removed_if_space_is_short() {
        let warnings = train_with_space_for_two(3);
        assert!(warnings.len() == 1 && warnings[0].contains("too small for checkpoint.keep = 3"), "{warnings:?}");
    }

    #[test]
    #[ignore = "needs root"]
    fn a_run_survives_a_disk_that_turns_read_only() {
        let (dir, disk) = checkpoints_on_disk_of(40 << 10);
        let mut cluster = slow(&dir, 20).start();
        cluster.wait_until("a checkpoint", || dir.saved().contains(&2));
        disk.remount("ro");
        cluster.wait_until("a warning", || has_save_warning(&dir));
        disk.remount("rw");
        let ended = cluster.wait(SOON).remove(0);
        assert_eq!(ended.code(), Some(0), "{ended:#?}");
        assert_stderr(&ended, &["Read-only file system", "The disk is mounted read-only"]);
        assert_eq!(dir.link("last"), "step-20");
    }

    #[test]
    #[ignore = "needs root"]
    fn metrics_that_could_not_be_written_are_counted() {
        let dir = RunDir::new();
        // Only the run directory is on the small disk; checkpoints are elsewhere.
        let (run, elsewhere) = (dir.path().join("run"), dir.path().join("elsewhere"));
        let _disk = Mount::new(&run, 192);
        fs::create_dir_all(&elsewhere).unwrap();
        fs_err::os::unix::fs::symlink(&elsewhere, run.join("checkpoints")).unwrap();
        let text = || fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default();
        let job = shipped(&dir, 300).set("run.dir", run.display()).set("emulate.slowdown", "[2]");
        let mut cluster = job.start();
        cluster.wait_until("an update", || text().contains("\"update\":2,"));
        // Fails, since it fills the disk.
        _ = fs::write(run.join("ballast"), vec![0; 300_000]);
        cluster.wait_for_message("The run continues, but events are missing from metrics.jsonl");
        fs::remove_file(run.join("ballast")).unwrap();
        let ended = cluster.wait(SOON).remove(0);
        assert_eq!(ended.code(), Some(0), "{ended:#?}");
        assert_stderr(&ended, &["No space left on device", "events were not written to metrics.jsonl"]);
        assert_eq!(ended.stderr.matches("The run continues, but events are missing").count(), 1, "{}", ended.stderr);
        // All lines are complete, and the last one is the end of the run.
        let lines: Vec<serde_json::Value> = text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.last().unwrap()["outcome"], "finished");
        assert!(
            lines
                .iter()
                .any(|line| line["message"].as_str().is_some_and(|message| message.contains("were not written")))
        );
    }
}
