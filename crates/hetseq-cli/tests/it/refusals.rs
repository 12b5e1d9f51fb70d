//! Runs that cannot work are refused with a clear message and the right exit code (2: wrong usage,
//! 1: failure), in time and before training. The other ranks name a rank that is lost during a run.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use fs_err as fs;
use hetseq_data::source::digits;
use tempfile::TempDir;

use crate::cluster::{Cluster, Ended, Job, MNIST, codes};
use crate::data::{self, scratch};
use crate::run_dir::RunDir;

/// Far more than any of these tests needs, far less than the default timeouts.
const SOON: Duration = Duration::from_secs(15);

fn train(dir: &RunDir) -> Job {
    Job::mnist("train", dir.path()).set("run.max_epochs", 1000)
}

fn assert_failed(ended: &Ended, code: i32, parts: &[&str]) {
    assert_eq!(ended.code(), Some(code), "{ended:#?}");
    for part in parts {
        assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
    }
    assert_eq!(ended.stdout, "");
}

/// Requires that one process fails and that the others succeed after `start_missing`. Returns the
/// others.
fn assert_finished_without_one(
    mut cluster: Cluster,
    code: i32,
    parts: &[&str],
    start_missing: impl Fn(&mut Cluster),
) -> Vec<Ended> {
    let (failed, ended) = cluster.wait_for(1, SOON).remove(0);
    assert_failed(&ended, code, parts);
    start_missing(&mut cluster);
    let mut others = cluster.wait(SOON);
    others.remove(failed);
    assert!(others.iter().all(|rank| rank.code() == Some(0)), "{others:#?}");
    others
}

/// Requires that a single process is refused before it trains, with a message that does not repeat
/// itself.
fn assert_refused(job: &Job, code: i32, parts: &[&str]) {
    let ended = job.start().wait(SOON).remove(0);
    assert_failed(&ended, code, parts);
    let mut parts: Vec<&str> = ended.stderr.trim_end().split(": ").collect();
    parts.sort_unstable();
    assert!(parts.windows(2).all(|pair| pair[0] != pair[1]), "repeated text: {}", ended.stderr);
    assert!(!ended.stderr.contains("parameters,"), "training started: {}", ended.stderr);
}

#[test]
fn an_unknown_key_is_reported_with_its_line_and_the_nearest_key() {
    let dir = RunDir::new();
    let path = dir.path().join("wrong.toml");
    let text = fs::read_to_string(MNIST).unwrap().replace("clip_norm", "clip_nrom");
    let line = 1 + text.lines().position(|line| line.starts_with("clip_nrom")).unwrap();
    fs::write(&path, text).unwrap();
    let message = format!("{}:{line}: unknown key `clip_nrom`. Did you mean `clip_norm`?", path.display());
    assert_refused(&Job::new([Path::new("train"), &path]), 2, &[&message]);
    let message = "--set optim.lrr=1: unknown key `lrr`. Did you mean `lr`?";
    assert_refused(&train(&dir).set("optim.lrr", 1), 2, &[message]);
    assert_refused(&Job::new(["train", "nowhere.toml"]), 2, &["`nowhere.toml`"]);
}

#[test]
fn an_invalid_value_is_reported_with_the_valid_ones() {
    let dir = RunDir::new();
    assert_refused(
        &train(&dir).set("run.task", "imges"),
        2,
        &["run.task = \"imges\" is unknown. Did you mean `images`? Available tasks: images"],
    );
    assert_refused(&train(&dir).set("run.devices", "tpu:0"), 2, &["run.devices: unknown device `tpu:0`: use `all`"]);
    let best = "checkpoint.best = \"acuracy\": this task measures accuracy, top5_accuracy, loss";
    assert_refused(&train(&dir).set("checkpoint.best", "acuracy"), 2, &[best]);
    assert_refused(&train(&dir).set("optim.lr", -1), 2, &["optim.lr = -1 must be zero or more"]);
    assert_refused(&train(&dir).set("optim.name", "adm"), 2, &["unknown value `adm`. Did you mean `adam`?"]);
    let list = "`lr` is a list, but it must be one number for this schedule";
    assert_refused(&train(&dir).set("optim.lr", "[0.1, 0.2]"), 2, &[list]);
    let foreign = "optimizer adam: `rho` is set, but it must be left out: it belongs to adadelta";
    assert_refused(&train(&dir).set("optim.rho", 0.9), 2, &[foreign]);
    assert_refused(&train(&dir).set("valid.patience", 0), 2, &["valid.patience must be at least 1"]);
    let at_once = "run.stop_min_lr = 1 is not below optim.lr = 0.005";
    assert_refused(&train(&dir).set("run.stop_min_lr", 1), 2, &[at_once]);
    assert!(dir.contents().is_empty(), "a refused run has left files");
}

#[test]
fn a_missing_data_directory_is_refused() {
    let dir = RunDir::new();
    assert_refused(&train(&dir).set("task.data", "/nowhere"), 2, &["there is no data directory /nowhere"]);
}

#[test]
fn a_damaged_gzip_file_is_refused() {
    let (dir, data) = (RunDir::new(), TempDir::new_in(scratch()).unwrap());
    data::write(data.path(), "t10k", &digits::draw(1, 20, 28).unwrap());
    data::write(data.path(), "train", &digits::draw(2, 20, 28).unwrap());
    let path = data.path().join("train-images-idx3-ubyte.gz");
    let whole = fs::read(&path).unwrap();
    let mut changed = whole.clone();
    changed[whole.len() / 2] ^= 0xff;
    let message = format!("{} is a damaged or truncated gzip file", path.display());
    for damaged in [&whole[..whole.len() / 2], &changed] {
        fs::write(&path, damaged).unwrap();
        assert_refused(&train(&dir).set("task.data", data.path().display()), 2, &[&message]);
    }
}

#[test]
fn labels_that_do_not_match_the_images_are_refused() {
    let (dir, data) = (RunDir::new(), TempDir::new_in(scratch()).unwrap());
    data::write(data.path(), "t10k", &digits::draw(1, 20, 28).unwrap());
    let mut train_samples = digits::draw(2, 20, 28).unwrap();
    train_samples.labels.pop();
    data::write(data.path(), "train", &train_samples);
    let job = train(&dir).set("task.data", data.path().display());
    assert_refused(&job, 2, &["holds 20 images but", "holds 19 labels; the two files do not belong together"]);
}

#[test]
fn a_run_directory_that_cannot_be_written_is_refused() {
    let dir = RunDir::new();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    for path in [file.join("run"), "/proc/hetseq".into()] {
        let message = format!("opening the run directory {} (set run.dir to one that can be written)", path.display());
        assert_refused(&Job::mnist("train", &path), 1, &[&message]);
    }
}

#[test]
fn a_run_directory_in_use_is_refused() {
    let dir = RunDir::new();
    let mut first = train(&dir).start();
    first.wait_for_update(&dir, 1);
    assert_refused(&train(&dir), 2, &["another process is training in", "set another run.dir"]);
    first.kill();
}

#[test]
fn a_weight_without_effect_is_refused() {
    let dir = RunDir::new();
    assert_refused(&train(&dir).arg("--weight").arg("2"), 2, &["--weight needs batch.split"]);
}

#[test]
fn a_missing_checkpoint_is_refused() {
    let dir = RunDir::new();
    assert_refused(
        &train(&dir).arg("--resume").arg("nope"),
        2,
        &["there is no checkpoint at nope; this run has: none"],
    );
    assert_refused(&Job::mnist("eval", dir.path()), 2, &["holds no checkpoint; train first"]);
}

#[test]
fn a_weak_secret_is_refused() {
    let dir = RunDir::new();
    assert_refused(&train(&dir).env_on(0, "HETSEQ_SECRET", ""), 2, &["HETSEQ_SECRET is set but empty"]);
    let words = ["HETSEQ_SECRET has 9 characters and needs at least 16", "openssl rand -hex 16"];
    assert_refused(&train(&dir).env_on(0, "HETSEQ_SECRET", "swordfish"), 2, &words);
}

#[test]
fn a_rank_with_another_config_is_refused() {
    let dir = RunDir::new();
    let job = train(&dir).ranks(3).set("comm.join_s", 3);
    let ended = job.set_on(2, "optim.lr", "0.004").start().wait(SOON);
    // Only the refused rank fails at once. The others wait for the right one until the deadline.
    for (rank, code, parts) in [
        (0, 1, ["rank 2 of 3 did not join at", "optim.lr: 0.005 here, 0.004 on rank 2", "same configuration"]),
        (1, 1, ["rank 2 of 3 did not join at", "optim.lr: 0.005 on rank 0", "0.004 on rank 2"]),
        (2, 2, ["refused this rank", "optim.lr: 0.004 here, 0.005 on rank 0", "same configuration"]),
    ] {
        assert_failed(&ended[rank], code, &parts);
    }
    assert!(dir.contents().is_empty(), "a refused run has left files");
}

#[test]
fn a_refused_rank_may_join_with_the_right_config() {
    let dir = RunDir::new();
    let job = train(&dir).ranks(3).set("run.max_updates", 2);
    let mut cluster = job.start_ranks([0, 1]);
    job.clone().set_on(2, "optim.lr", "0.004").start_rank(2, &mut cluster);
    let parts = ["optim.lr: 0.004 here, 0.005 on rank 0", "then start this rank again"];
    let ended = assert_finished_without_one(cluster, 2, &parts, |cluster| job.start_rank(2, cluster));
    assert_eq!(ended.len(), 3);
    for part in ["rejected 127.0.0.1:", "differs from rank 0: optim.lr: 0.005 here, 0.004 on rank 2", "waiting up to"] {
        assert!(ended[0].stderr.contains(part), "{part}: {}", ended[0].stderr);
    }
    assert_eq!(dir.end(), (2, "finished".to_owned()));
}

#[test]
fn a_rank_with_another_build_is_refused() {
    let version = Job::new(["--version"]).succeed();
    let build = version.split_once("build ").unwrap().1.trim_end_matches(")\n");
    // The same program with another build name. Only half of the name, because compilers split
    // strings into words.
    let mut program = fs::read(env!("CARGO_BIN_EXE_hetseq")).unwrap();
    let places: Vec<usize> = program
        .windows(8)
        .enumerate()
        .filter(|(_, bytes)| *bytes == &build.as_bytes()[..8])
        .map(|(at, _)| at)
        .collect();
    places.iter().for_each(|&at| program[at..at + 8].copy_from_slice(b"deadbeef"));
    let elsewhere = TempDir::new_in(scratch()).unwrap();
    let other = elsewhere.path().join("hetseq");
    fs::write(&other, program).unwrap();
    fs::set_permissions(&other, Permissions::from_mode(0o755)).unwrap();

    let dir = RunDir::new();
    let job = train(&dir).ranks(2).set("comm.join_s", 3);
    let mut cluster = job.start_ranks([0]);
    let instead = ["/bin/sh", "-c", "shift; exec \"$0\" \"$@\"", other.to_str().unwrap()];
    job.under(&instead).start_rank(1, &mut cluster);
    let ended = cluster.wait(SOON);
    let theirs = format!("deadbeef{}", &build[8..]);
    let advice = "install the same build of hetseq on all machines";
    assert_failed(&ended[0], 1, &[&format!("build: {build} here, {theirs} on rank 1 ("), advice]);
    assert_failed(&ended[1], 2, &[&format!("build: {theirs} here, {build} on rank 0 ("), advice]);
}

#[test]
fn a_rank_that_never_joins_is_reported() {
    let dir = RunDir::new();
    let job = train(&dir).ranks(3).set("comm.join_s", 2);
    for ended in job.start_ranks([0, 1]).wait(SOON) {
        assert_failed(&ended, 1, &["rank 2 of 3 did not join at", "within 2 s"]);
    }
    assert_failed(&job.start_ranks([2]).wait(SOON)[0], 1, &["cannot reach rank 0 at", "within 2 s"]);
    assert!(dir.contents().is_empty(), "a run that did not start has left files");
}

#[test]
fn only_one_of_two_processes_with_rank_0_gets_the_address() {
    let dir = RunDir::new();
    let job = train(&dir).ranks(2).set("run.max_updates", 2);
    let cluster = job.start_ranks([0, 0]);
    let parts = ["is already in use", "another rank 0"];
    let ended = assert_finished_without_one(cluster, 1, &parts, |cluster| job.start_rank(1, cluster));
    assert_eq!(ended.len(), 2);
    assert_eq!(dir.end(), (2, "finished".to_owned()));
}

#[test]
fn a_wrong_secret_is_refused() {
    let dir = RunDir::new();
    let job = train(&dir).ranks(2).set("comm.join_s", 2).set("run.max_updates", 1);
    for (secrets, reason) in [
        (["hunter2-hunter2-2", "swordfish-swordfish"], "the shared secrets differ"),
        (["hunter2-hunter2-2", ""], "HETSEQ_SECRET is set on the rank it connects to but not on the connecting rank"),
        (["", "swordfish-swordfish"], "HETSEQ_SECRET is set on the connecting rank but not on the rank it connects to"),
    ] {
        let set = |job: Job, rank: usize| match secrets[rank] {
            "" => job,
            secret => job.env_on(rank, "HETSEQ_SECRET", secret),
        };
        let ended = set(set(job.clone(), 0), 1).start().wait(SOON);
        assert_failed(&ended[0], 1, &["rank 1 of 2 did not join", "Rejected while waiting", reason]);
        assert_failed(&ended[1], 1, &[reason]);
        assert!(ended.iter().all(|rank| !rank.stderr.contains("hunter2") && !rank.stderr.contains("swordfish")));
    }
    let job = job.env_on(0, "HETSEQ_SECRET", "hunter2-hunter2-2").env_on(1, "HETSEQ_SECRET", "hunter2-hunter2-2");
    job.succeed();
}

#[test]
fn a_rank_that_does_not_share_the_run_directory_is_refused() {
    let (dir, elsewhere) = (RunDir::new(), RunDir::new());
    let job = train(&dir).ranks(2).set("comm.join_s", 2).set("run.max_updates", 1);
    let job = job.set_on(1, "run.dir", &elsewhere.path().display().to_string());
    let ended = job.start().wait(SOON);
    let advice = "set HETSEQ_SECRET to the same value on all ranks; export HETSEQ_SECRET=$(openssl rand -hex 16)";
    assert_failed(&ended[0], 1, &["rank 1 of 2 did not join", "does not see the file with this run's secret", advice]);
    let path = elsewhere.path().join(".secret-").display().to_string();
    assert_failed(&ended[1], 1, &[&path, "it does not exist", advice]);
    assert!(dir.contents().is_empty() && elsewhere.contents().is_empty(), "a run that did not start has left files");
    // The advice in the message works.
    job.env_on(0, "HETSEQ_SECRET", "hunter2-hunter2-2").env_on(1, "HETSEQ_SECRET", "hunter2-hunter2-2").succeed();
    let left: Vec<_> = elsewhere.contents().into_keys().collect();
    assert_eq!(left, [elsewhere.path().join("members.json")], "rank 1 has left other files than that of its return");
}

#[test]
fn the_other_ranks_name_a_killed_rank() {
    let dir = RunDir::new();
    let mut cluster = train(&dir).ranks(3).set("elastic.enabled", false).start();
    cluster.wait_for_update(&dir, 3);
    cluster.signal(2, "KILL");
    let ended = cluster.wait(SOON);
    assert_eq!(codes(&ended), [Some(1), Some(1), None], "{ended:#?}");
    for rank in &ended[..2] {
        assert_failed(rank, 1, &["rank 2 (", "update ", "resume from the last checkpoint"]);
    }
}

#[test]
fn the_other_ranks_name_a_silent_rank() {
    let dir = RunDir::new();
    let mut cluster = train(&dir).ranks(3).set("elastic.enabled", false).set("comm.silence_s", 3).start();
    cluster.wait_for_update(&dir, 3);
    cluster.signal(1, "STOP");
    for (rank, ended) in cluster.wait_for(2, SOON) {
        assert_ne!(rank, 1);
        assert_failed(&ended, 1, &["rank 1 (", "sent nothing for ", "resume from the last checkpoint"]);
    }
}
