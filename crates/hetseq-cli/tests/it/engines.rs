//! Engines: a Python task trains on PyTorch as a plain loop does, on any mix of workers; engines and
//! tasks that fail are reported clearly, and the run continues where it can.
//!
//! These tests need a Python with PyTorch, whose path is in `HETSEQ_TEST_PYTHON`. `./test` installs one.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::cluster::{Cluster, Ended, Job, codes, send};
use crate::reference::Reference;
use crate::run_dir::RunDir;

const UPDATES: u64 = 50;
const SOON: Duration = Duration::from_secs(120);

fn python() -> String {
    std::env::var("HETSEQ_TEST_PYTHON").unwrap_or_else(|_| panic!("set HETSEQ_TEST_PYTHON to a Python that has torch"))
}

fn files() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/engines")
}

fn job(dir: &RunDir) -> Job {
    Job::train("waves.toml", &files(), dir, UPDATES).set("run.python", format!("{:?}", python())).within(SOON)
}

fn with_dropout(dir: &RunDir) -> Job {
    job(dir).set("task.dropout", 0.1)
}

/// One worker, undisturbed.
fn reference() -> Reference {
    let dir = RunDir::new();
    with_dropout(&dir).succeed();
    Reference::of(dir, UPDATES)
}

fn assert_equal(reference: &Reference, dir: &RunDir, who: &str) {
    reference.assert_losses_within(&[(1..=UPDATES, 1e-5)], dir, UPDATES, who);
}

/// A job whose engines run a line of Python first.
fn changed(dir: &RunDir, line: &str) -> Job {
    let shell = files().join("changed-python");
    let job = job(dir).set("run.python", format!("{:?}", shell.display()));
    job.env_on(0, "PYTHON", &python()).env_on(0, "FIRST_LINE", line)
}

fn failed(job: &Job) -> String {
    let ended: Vec<Ended> = job.run();
    assert!(ended[0].code() != Some(0), "{ended:#?}");
    assert!(!ended[0].stderr.contains("panicked"), "{ended:#?}");
    ended[0].stderr.clone()
}

/// The engine processes of a rank, by role.
fn engine_pids(cluster: &Cluster, rank: usize) -> Vec<u32> {
    let threads = cluster.all_children(rank);
    assert!(!threads.is_empty(), "rank {rank} has no engine");
    threads
}

#[test]
#[ignore = "needs HETSEQ_TEST_PYTHON"]
fn losses_are_those_of_a_plain_pytorch_loop() {
    let dir = RunDir::new();
    job(&dir).set("run.seed", 3).set("debug.audit", true).succeed();
    let audit = dir.path().join("audit-rank-0.jsonl");
    let output = Command::new(python())
        .arg(files().join("plain.py"))
        .arg(audit)
        .args(["3", "1e-2"])
        .env("PYTHONPATH", Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let plain: Vec<f64> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(plain.len() as u64, UPDATES, "{}", String::from_utf8_lossy(&output.stderr));
    let ours: Vec<f64> = dir.losses().into_values().collect();
    let worst = ours.iter().zip(&plain).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    eprintln!("losses from {:.4} to {:.4} differ by at most {worst:.1e}", plain[0], plain[plain.len() - 1]);
    assert!(worst <= 1e-5 && plain[plain.len() - 1] < plain[0] / 2.0, "{worst}: {ours:?} {plain:?}");
}

#[test]
#[ignore = "needs HETSEQ_TEST_PYTHON"]
fn three_unequal_workers_train_like_one() {
    let dir = RunDir::new();
    with_dropout(&dir).weights(&[7, 2, 1]).set("run.checksum_every", 1).succeed();
    assert_equal(&reference(), &dir, "weights 7, 2, 1");
}

#[test]
#[ignore = "needs HETSEQ_TEST_PYTHON"]
fn all_killed_resume_with_another_number_of_workers() {
    let dir = RunDir::new();
    let slow = with_dropout(&dir).ranks(3).set("checkpoint.every", "10 updates").set("task.pause", 0.02);
    let mut cluster = slow.start();
    cluster.wait_for_update(&dir, 25);
    cluster.kill();
    with_dropout(&dir).ranks(2).set("task.pause", 0.02).succeed();
    assert_equal(&reference(), &dir, "3 workers, then 2");
}

#[test]
#[ignore = "needs HETSEQ_TEST_PYTHON"]
fn the_run_continues_without_an_engine_that_is_killed_or_stopped() {
    let reference = reference();
    for (signal, reasons) in [("KILL", &["its process ended"][..]), ("STOP", &["it hangs", "did not answer"])] {
        let dir = RunDir::new();
        let two = with_dropout(&dir).set("run.devices", "torch:cpu:2x1").set("batch.split", "equal");
        let mut cluster = two.set("task.pause", 0.02).set("comm.progress_s", 30).start();
        cluster.wait_for_update(&dir, 20);
        // Data processes are started first.
        let engine = *engine_pids(&cluster, 0).last().unwrap();
        send(signal, engine);
        let ended = cluster.wait(SOON);
        assert_eq!(codes(&ended), [Some(0)], "{ended:#?}");
        assert!(reasons.iter().any(|reason| ended[0].stderr.contains(reason)), "{ended:#?}");
        assert_equal(&reference, &dir, signal);
    }
}

#[test]
#[ignore = "needs HETSEQ_TEST_PYTHON"]
fn the_others_continue_without_a_rank_whose_engine_is_killed() {
    let dir = RunDir::new();
    let mut cluster = with_dropout(&dir).ranks(3).set("batch.split", "equal").set("task.pause", 0.05).start();
    cluster.wait_for_update(&dir, 20);
    send("KILL", *engine_pids(&cluster, 1).last().unwrap());
    let ended = cluster.wait(SOON);
    assert_eq!(codes(&ended), [Some(0), Some(1), Some(0)], "{ended:#?}");
    assert!(
        ended[1].stderr.contains("torch:cpu:0 failed while") && ended[1].stderr.contains("its process ended"),
        "{ended:#?}"
    );
    assert_equal(&reference(), &dir, "one of three lost");
}

#[test]
#[ignore = "needs HETSEQ_TEST_PYTHON"]
fn no_engine_outlives_its_rank() {
    let dir = RunDir::new();
    let mut cluster = job(&dir).set("task.pause", 0.05).start();
    cluster.wait_for_update(&dir, 3);
    let engines = engine_pids(&cluster, 0);
    assert!(engines.len() >= 2, "{engines:?}");
    cluster.kill();
    let is_alive = |pid: &u32| Path::new(&format!("/proc/{pid}")).exists();
    for _ in 0..200 {
        if !engines.iter().any(is_alive) {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("still running: {engines:?}");
}

#[test]
#[ignore = "needs HETSEQ_TEST_PYTHON"]
fn errors_of_the_users_code_name_its_file_and_line() {
    for (fault, expected) in [
        ("exception", &["waves.py:58, in loss", "this batch is wrong"][..]),
        ("mean", &["is a mean", "Return the sum"]),
        ("count", &["waves.py", "counts() returned"]),
        ("shrink", &["waves.py", "is gone"]),
        ("batch-norm", &["BatchNorm", "freeze_batch_norm"]),
        ("nan", &["not finite"]),
    ] {
        let dir = RunDir::new();
        let message = failed(&job(&dir).set("task.fault", format!("{fault:?}")));
        let last = message.lines().rev().find(|line| line.contains("error: ")).unwrap_or_default();
        assert!(expected.iter().all(|part| last.contains(part)), "{fault}: {message}");
        eprintln!("{fault}: {last}");
    }
}

#[test]
#[ignore = "needs HETSEQ_TEST_PYTHON"]
fn output_of_the_users_code_goes_to_the_log() {
    let dir = RunDir::new();
    let ended = job(&dir).set("task.fault", "\"print\"").run();
    assert_eq!(codes(&ended), [Some(0)], "{ended:#?}");
    assert!(ended[0].stderr.contains("torch:cpu:0: \0") || ended[0].stderr.contains("not a message"), "{ended:#?}");
}

#[test]
#[ignore = "needs HETSEQ_TEST_PYTHON"]
fn what_is_missing_is_named() {
    let dir = RunDir::new();
    let message = failed(&job(&dir).env_on(0, "HETSEQ_TEST_FAULT", "import"));
    assert!(message.contains("a_module_that_is_missing") && message.contains("waves.py"), "{message}");
    let message = failed(&job(&dir).set("run.python", "\"/no/such/python\""));
    assert!(message.contains("cannot start") && message.contains("run.python"), "{message}");
    let message = failed(&job(&dir).set("task.file", "\"missing.py\""));
    assert!(message.contains("task.file") && message.contains("missing.py"), "{message}");
    let message = failed(&job(&dir).set("run.devices", "cpu:1"));
    assert!(message.contains("torch:cpu"), "{message}");
    let message = failed(&job(&dir).set("run.devices", "torch:cuda:7"));
    assert!(message.contains("torch:cuda:7"), "{message}");
}

#[test]
#[ignore = "needs HETSEQ_TEST_PYTHON"]
fn a_python_without_torch_says_so() {
    let dir = RunDir::new();
    let message = failed(&changed(&dir, "sys.modules['torch'] = None"));
    assert!(message.contains("cannot import torch") && message.contains("Install PyTorch"), "{message}");
}

#[test]
#[ignore = "needs HETSEQ_TEST_PYTHON"]
fn a_package_of_another_version_is_refused() {
    let dir = RunDir::new();
    let message = failed(&changed(&dir, "import hetseq; hetseq.__version__ = '0.0.9'"));
    assert!(message.contains("0.0.9") && message.contains(env!("CARGO_PKG_VERSION")), "{message}");
}

#[test]
#[ignore = "needs HETSEQ_TEST_PYTHON"]
fn evaluation_has_the_metrics_of_the_task() {
    let dir = RunDir::new();
    job(&dir).set("valid.every", "\"25 updates\"").succeed();
    let eval = Job::new(["eval", "waves.toml"])
        .in_dir(&files())
        .set("run.dir", dir.path().display())
        .set("run.max_updates", UPDATES)
        .set("run.python", format!("{:?}", python()));
    assert!(eval.succeed().contains("rmse"));
}
