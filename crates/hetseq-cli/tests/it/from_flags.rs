//! A command line of the original HetSeq becomes a run that trains.

use fs_err as fs;

use crate::cluster::Job;
use crate::run_dir::RunDir;

/// The line that the original documents for MNIST on one machine, for two epochs and with the data here.
fn line() -> String {
    include_str!("../fixtures/original-mnist.sh").replace("--max-epoch 20", "--max-epoch 2").replace("~/hetseq", ".")
}

fn convert(dir: &RunDir, line: &str) -> Job {
    Job::new(["train", "--from-flags", line]).in_dir(dir.path())
}

#[test]
fn what_it_writes_trains_with_the_command_it_prints() {
    let dir = RunDir::new();
    Job::new(["prep", "digits", "MNIST/raw", "--train", "2000", "--test", "300"]).in_dir(dir.path()).succeed();
    let told = convert(&dir, &line()).succeed();
    assert!(told.contains("task.data = \"MNIST/raw\""), "{told}");
    let command = told.lines().last().unwrap().trim();
    let words = command.strip_prefix("hetseq ").unwrap().split_whitespace();
    Job::new(words).arg("--set").arg("run.devices=cpu:1").in_dir(dir.path()).succeed();
    let scored =
        Job::new(["eval", "run.toml", "--json"]).arg("--set").arg("run.devices=cpu:1").in_dir(dir.path()).succeed();
    let scored: serde_json::Value = serde_json::from_str(&scored).unwrap();
    assert!(scored["checkpoint"].as_str().unwrap().contains("mnist_single_node/checkpoints/step-64"), "{scored}");
    assert!(scored["accuracy"].as_f64().unwrap() > 0.5, "{scored}");
}

#[test]
fn a_file_that_is_there_is_left_alone_unless_told() {
    let dir = RunDir::new();
    let path = dir.path().join("run.toml");
    fs::write(&path, "mine").unwrap();
    let refused = convert(&dir, &line()).run().remove(0);
    assert_eq!(refused.code(), Some(2), "{refused:#?}");
    assert!(refused.stderr.contains("run.toml is there already"), "{}", refused.stderr);
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    convert(&dir, &line()).arg("--overwrite").succeed();
    assert!(fs::read_to_string(&path).unwrap().contains("[optim]"));
    convert(&dir, &line()).arg("--output").arg("other.toml").succeed();
    assert_eq!(fs::read(dir.path().join("other.toml")).unwrap(), fs::read(&path).unwrap());
    // On standard output there is the file and nothing else.
    assert_eq!(convert(&dir, &line()).arg("--output").arg("-").succeed(), fs::read_to_string(&path).unwrap());
}

#[test]
fn what_cannot_be_read_is_usage() {
    let dir = RunDir::new();
    for (line, part) in [("ls -l", "there is no training command"), ("train.py --lr '1", "is opened and not closed")] {
        let refused = convert(&dir, line).run().remove(0);
        assert_eq!(refused.code(), Some(2), "{line}: {refused:#?}");
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
    }
    // None of these would have an effect.
    for more in [
        &["--resume", "never"][..],
        &["--reset", "data"],
        &["--weight", "2"],
        &["--optimizer-overrides", "lr=1"],
        &["--distributed-rank", "0"],
        &["--distributed-init-method", "tcp://a:1"],
        &["--set", "optim.lr=1"],
    ] {
        let refused = more.iter().fold(convert(&dir, &line()), Job::arg).run().remove(0);
        assert_eq!(refused.code(), Some(2), "{more:?}: {refused:#?}");
        assert!(refused.stderr.contains(more[0]), "{more:?}: {}", refused.stderr);
    }
    let both = Job::new(["train", "run.toml", "--from-flags", &line()]).in_dir(dir.path()).run().remove(0);
    assert_eq!(both.code(), Some(2), "{both:#?}");
    assert!(dir.contents().is_empty());
}

#[test]
fn what_train_would_refuse_is_told_at_once() {
    let dir = RunDir::new();
    let told = convert(&dir, &format!("{} --min-lr 5", line().trim_end())).succeed();
    let part = "will refuse it as it is: run.stop_min_lr = 5 is not below optim.lr = 1.01";
    assert!(told.contains(part), "{told}");
    let refused = Job::new(["train", "run.toml"]).in_dir(dir.path()).run().remove(0);
    assert_eq!(refused.code(), Some(2), "{refused:#?}");
    assert!(!convert(&dir, &line()).arg("--overwrite").succeed().contains("will refuse"));
}
