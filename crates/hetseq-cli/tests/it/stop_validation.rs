//! A signal during a validation: all ranks drop the validation, save and exit with code 75, and the
//! resume repeats it. What decides on the best checkpoint and on early stopping stays as if the run
//! had never been stopped. Also: the end names the command that resumes, and a pause of the whole
//! process is no failure.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use fs_err as fs;

use crate::cluster::{Cluster, Job, codes};
use crate::run_dir::RunDir;

const SOON: Duration = Duration::from_secs(60);

/// A network so slow that a validation takes some seconds and an update much less. Nothing is
/// measured before the first update, and nothing is learned, so no validation beats the first.
fn slow_validation(dir: &RunDir, updates: u64) -> Job {
    let job = Job::mnist("train", dir.path()).set("task.model", "resnet18").set("task.width", 24);
    let job = job.set("run.max_updates", updates).set("batch.global", 4).set("batch.probe_s", 0);
    job.set("optim.lr", 0).set("valid.every", "1 updates").within(SOON * 4)
}

/// Waits until the validation after `update` has begun.
fn wait_for_validation(cluster: &mut Cluster, dir: &RunDir, update: u64) {
    // Ranks agree on a stop before an update is reported, so a signal after the report meets the
    // validation.
    cluster.wait_for_update(dir, update);
    sleep(Duration::from_millis(300));
    assert!(!dir.validations().contains_key(&update), "the validation was too fast for this test");
}

fn state(dir: &RunDir) -> serde_json::Value {
    serde_json::from_slice(&fs::read(dir.checkpoint("last").join("trainer/state.json")).unwrap()).unwrap()
}

#[test]
fn a_stopped_validation_is_repeated_by_the_printed_command() {
    let dir = RunDir::new();
    let mut cluster = slow_validation(&dir, 1).start();
    wait_for_validation(&mut cluster, &dir, 1);
    cluster.signal(0, "INT");
    let ended = cluster.wait(SOON).remove(0);
    assert_eq!(ended.code(), Some(75), "{ended:#?}");
    assert_eq!((dir.end(), dir.validations().len()), ((1, "stopped".to_owned()), 0));
    assert_eq!(state(&dir)["unfinished_validation"], 0, "the run stopped in its first epoch");
    let command = ended.stderr.lines().find_map(|line| line.split_once("resume with: ")).unwrap().1;
    // Stopped again while it validates: still nothing is lost.
    let mut again = slow_validation(&dir, 1).start();
    again.wait_for_message("0 updates to go");
    sleep(Duration::from_millis(500));
    again.signal(0, "TERM");
    assert_eq!(codes(&again.wait(SOON)), [Some(75)]);
    assert_eq!((dir.end(), dir.validations().len()), ((1, "stopped".to_owned()), 0));
    let resumed = Command::new("sh").args(["-c", command]).output().unwrap();
    assert!(resumed.status.success(), "{command}: {}", String::from_utf8_lossy(&resumed.stderr));
    assert_eq!(dir.end(), (1, "finished".to_owned()));
    assert!(dir.validations().keys().copied().eq([1]) && dir.losses().len() == 1);
    assert_eq!((dir.link("best"), state(&dir).get("unfinished_validation")), ("step-1".to_owned(), None));
    assert_eq!(state(&dir)["best"]["update"], 1);
    // The run is complete: the same command does not validate again.
    let finished = Command::new("sh").args(["-c", command]).output().unwrap();
    assert!(String::from_utf8_lossy(&finished.stderr).contains("this run already ended"));
    assert!(dir.validations().len() == 1);
}

#[test]
fn two_ranks_drop_a_validation_together_and_patience_counts_it_once() {
    let dir = RunDir::new();
    let job = slow_validation(&dir, 9).set("valid.patience", 2).ranks(2);
    let mut cluster = job.start();
    wait_for_validation(&mut cluster, &dir, 2);
    cluster.signal(1, "INT");
    let ended = cluster.wait(SOON);
    assert_eq!(codes(&ended), [Some(75); 2], "{ended:#?}");
    assert!(ended[1].stderr.contains("Ctrl-C (SIGINT): stopping"), "{ended:#?}");
    assert!(
        ended[0].stderr.contains("rank 1 (")
            && ended[0].stderr.contains(") was asked to stop by Ctrl-C (SIGINT): saving after update 2"),
        "{ended:#?}"
    );
    assert!(ended[1].stderr.contains("): stopped after update 2 in"), "{ended:#?}");
    assert!(ended.iter().all(|rank| rank.stderr.contains("resume with, on each rank as before: ")), "{ended:#?}");
    assert!(dir.validations().keys().copied().eq([1]) && dir.end() == (2, "stopped".to_owned()));
    job.succeed();
    // The first is the best, and the two after it are not better.
    assert_eq!(dir.early_stops(), [(3, "valid.patience".to_owned())]);
    assert!(dir.validations().keys().copied().eq([1, 2, 3]) && dir.losses().keys().copied().eq([1, 2, 3]));
    assert_eq!((dir.link("best"), dir.end()), ("step-1".to_owned(), (3, "finished".to_owned())));
}

#[test]
fn a_run_continues_after_a_pause_longer_than_a_device_may_hang() {
    let dir = RunDir::new();
    let job = slow_validation(&dir, 12).set("valid.every", "never").set("batch.global", 16);
    // A device hangs after a third of this.
    let mut cluster = job.set("comm.progress_s", 45).start();
    cluster.wait_for_update(&dir, 1);
    cluster.signal(0, "STOP");
    sleep(Duration::from_secs(17));
    cluster.signal(0, "CONT");
    let ended = cluster.wait(SOON * 2).remove(0);
    assert_eq!(ended.code(), Some(0), "{ended:#?}");
    assert!(!ended.stderr.contains("hangs"), "{ended:#?}");
    assert_eq!(dir.end(), (12, "finished".to_owned()));
}
