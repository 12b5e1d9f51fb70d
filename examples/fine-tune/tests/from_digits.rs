//! A network that has learned ten digits is fine-tuned for even ones: only the last layer is new,
//! and the task's own metrics are reported.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in test functions only, not in their helpers

use std::path::Path;
use std::process::Command;

/// Runs the example in `dir`; returns standard error.
fn run(dir: &Path, args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_fine-tune")).args(args).current_dir(dir).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {text}");
    text
}

/// The first and the last F1 of a run.
fn f1(dir: &Path) -> (f64, f64) {
    let text = std::fs::read_to_string(dir.join("metrics.jsonl")).unwrap();
    let f1 = |line: &str| line.split("\"f1\":").nth(1)?.split([',', '}']).next()?.parse().ok();
    let values: Vec<f64> = text.lines().filter_map(f1).collect();
    (values[0], values[values.len() - 1])
}

#[test]
fn a_pretrained_start_learns_faster() {
    let dir = tempfile::tempdir().unwrap();
    let (dir, root) = (dir.path(), Path::new(env!("CARGO_MANIFEST_DIR")));
    run(dir, &["prep", "digits", "--out", "data/mnist", "--train", "2000", "--test", "500"]);
    let digits = root.join("../../configs/mnist.toml").display().to_string();
    run(dir, &["train", &digits, "--set", "run.max_updates=200", "--set", "batch.split=\"equal\""]);

    let config = root.join("even.toml").display().to_string();
    let train = ["train", &config, "--set", "batch.split=\"equal\"", "--set"];
    let log = run(dir, &[&train[..], &["run.dir=\"tuned\""]].concat());
    assert!(log.contains("missing tensors, initialized at random: fc2.weight, fc2.bias"), "{log}");
    let text = std::fs::read_to_string(root.join("even.toml")).unwrap();
    std::fs::write(dir.join("scratch.toml"), text.replace("init = ", "# init = ")).unwrap();
    run(dir, &["train", "scratch.toml", "--set", "batch.split=\"equal\"", "--set", "run.dir=\"scratch\""]);
    let (tuned, scratch) = (f1(&dir.join("tuned")), f1(&dir.join("scratch")));
    assert!(tuned.0 > scratch.0 && tuned.1 > 0.95, "fine-tuned {tuned:?}, from scratch {scratch:?}");
}
