//! `hetseq migrate`: a converted command line of the original HetSeq trains.

use fs_err as fs;

use crate::cluster::Job;
use crate::run_dir::RunDir;

/// The documented command of the original HetSeq for MNIST on one machine, with two epochs and the
/// data of this test.
fn line() -> String {
    include_str!("../fixtures/original-mnist.sh").replace("--max-epoch 20", "--max-epoch 2").replace("~/hetseq", ".")
}

fn convert(dir: &RunDir, options: &[&str], line: &str) -> Job {
    Job::new([&["migrate"], options, &[line]].concat()).in_dir(dir.path())
}

#[test]
fn the_written_config_trains_with_the_printed_command() {
    let dir = RunDir::new();
    Job::new(["prep", "digits", "--out", "MNIST/raw", "--train", "2000", "--test", "300"]).in_dir(dir.path()).succeed();
    let output = convert(&dir, &[], &line()).succeed();
    assert!(output.contains("task.data = \"MNIST/raw\""), "{output}");
    let command = output.lines().last().unwrap().trim();
    let words = command.strip_prefix("hetseq ").unwrap().split_whitespace();
    Job::new(words).arg("--set").arg("run.devices=cpu:1").in_dir(dir.path()).succeed();
    let scores =
        Job::new(["eval", "run.toml", "--json"]).arg("--set").arg("run.devices=cpu:1").in_dir(dir.path()).succeed();
    let scores: serde_json::Value = serde_json::from_str(&scores).unwrap();
    assert!(scores["checkpoint"].as_str().unwrap().contains("mnist_single_node/checkpoints/step-64"), "{scores}");
    assert!(scores["accuracy"].as_f64().unwrap() > 0.5, "{scores}");
}

#[test]
fn an_existing_file_is_replaced_only_with_overwrite() {
    let dir = RunDir::new();
    let path = dir.path().join("run.toml");
    fs::write(&path, "mine").unwrap();
    let refused = convert(&dir, &[], &line()).run().remove(0);
    assert_eq!(refused.code(), Some(2), "{refused:#?}");
    assert!(refused.stderr.contains("run.toml already exists"), "{}", refused.stderr);
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    convert(&dir, &["--overwrite"], &line()).succeed();
    assert!(fs::read_to_string(&path).unwrap().contains("[optim]"));
    convert(&dir, &["--out", "other.toml"], &line()).succeed();
    assert_eq!(fs::read(dir.path().join("other.toml")).unwrap(), fs::read(&path).unwrap());
    // With `-`, standard output has only the file.
    assert_eq!(convert(&dir, &["--out", "-"], &line()).succeed(), fs::read_to_string(&path).unwrap());
}

#[test]
fn invalid_command_lines_are_refused() {
    let dir = RunDir::new();
    for (line, part) in [("ls -l", "found no training command"), ("train.py --lr '1", "a quote is not closed")] {
        let refused = convert(&dir, &[], line).run().remove(0);
        assert_eq!(refused.code(), Some(2), "{line}: {refused:#?}");
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
    }
    assert!(dir.contents().is_empty());
}

#[test]
fn settings_that_train_would_reject_are_reported() {
    let dir = RunDir::new();
    let output = convert(&dir, &[], &format!("{} --min-lr 5", line().trim_end())).succeed();
    let part = "will reject this file: run.stop_min_lr = 5 is not below optim.lr = 1.01";
    assert!(output.contains(part), "{output}");
    let refused = Job::new(["train", "run.toml"]).in_dir(dir.path()).run().remove(0);
    assert_eq!(refused.code(), Some(2), "{refused:#?}");
    assert!(!convert(&dir, &["--overwrite"], &line()).succeed().contains("will reject"));
}

#[test]
fn the_command_can_be_given_without_quotes() {
    let dir = RunDir::new();
    let words = [
        "migrate",
        "python3",
        "train.py",
        "--task",
        "mnist",
        "--data",
        "my data",
        "--max-sentences",
        "8",
        "--max-epoch",
        "1",
    ];
    let text = Job::new(words).in_dir(dir.path()).succeed();
    assert!(text.contains("task.data = \"my data/MNIST/raw\""), "{text}");
}

#[test]
fn the_old_flag_still_works_and_names_the_new_command() {
    let dir = RunDir::new();
    let new = convert(&dir, &["--out", "new.toml"], &line()).succeed();
    let old = Job::new(["train", "--from-flags", &line(), "--output", "old.toml"]).in_dir(dir.path()).run().remove(0);
    assert_eq!(old.code(), Some(0), "{old:#?}");
    assert!(old.stderr.contains("`hetseq train --from-flags` is now `hetseq migrate`"), "{}", old.stderr);
    assert_eq!(old.stdout, new.replace("new.toml", "old.toml"));
    let both = Job::new(["train", "run.toml", "--from-flags", &line()]).in_dir(dir.path()).run().remove(0);
    assert_eq!(both.code(), Some(2), "{both:#?}");
}
