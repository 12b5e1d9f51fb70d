//! `hetseq eval` gives the results of the validation during training, on one rank and on two.

use fs_err as fs;

use crate::cluster::Job;
use crate::reference::shipped;
use crate::run_dir::RunDir;

#[test]
fn scores_are_those_of_the_validation_during_training() {
    let dir = RunDir::new();
    shipped(&dir, 20).set("valid.every", "10 updates").succeed();
    let validations = dir.validations();
    assert!(validations.keys().copied().eq([10, 20]), "{validations:?}");
    for ranks in [1, 2] {
        let job = Job::mnist("eval", dir.path()).ranks(ranks).arg("--json");
        // The best checkpoint is the default.
        assert_scores(&job.succeed(), &dir.link("best"), &validations);
        for update in [10, 20] {
            let checkpoint = format!("step-{update}");
            let job = job.clone().arg("--checkpoint").arg(dir.checkpoint(&checkpoint));
            assert_scores(&job.succeed(), &checkpoint, &validations);
        }
    }
}

fn assert_scores(printed: &str, checkpoint: &str, validations: &std::collections::BTreeMap<u64, (f64, f64)>) {
    let scores: serde_json::Value = serde_json::from_str(printed).unwrap();
    let path = scores["checkpoint"].as_str().unwrap();
    assert!(path.ends_with(checkpoint), "{path} is not {checkpoint}");
    assert_eq!(scores["samples"], 300);
    let (loss, accuracy) = validations[&checkpoint.strip_prefix("step-").unwrap().parse().unwrap()];
    for (name, expected) in [("loss", loss), ("accuracy", accuracy)] {
        let found = scores[name].as_f64().unwrap();
        assert!((found - expected).abs() <= 1e-6 * expected, "{name}: {found} instead of {expected}");
    }
}

#[test]
fn only_rank_0_prints() {
    let dir = RunDir::new();
    shipped(&dir, 3).succeed();
    let (loss, accuracy) = dir.validations()[&3];
    let ended = Job::mnist("eval", dir.path()).ranks(2).run();
    let lines: Vec<Vec<&str>> = ended[0].stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    let names: Vec<&str> = lines.iter().map(|words| words[0]).collect();
    assert_eq!(names, ["checkpoint", "samples", "loss", "accuracy", "top5_accuracy"], "{ended:#?}");
    assert!(lines[0][1].ends_with("checkpoints/step-3"));
    assert_eq!(lines[1][1], "300");
    for (words, expected) in lines[2..4].iter().zip([loss, accuracy]) {
        assert!((words[1].parse::<f64>().unwrap() - expected).abs() < 2e-6, "{words:?} instead of {expected}");
    }
    assert_eq!(ended[1].stdout, "");
}

#[test]
fn a_model_in_several_files_is_evaluated() {
    let dir = RunDir::new();
    shipped(&dir, 3).succeed();
    let parts = dir.path().join("parts");
    fs::create_dir(&parts).unwrap();
    fs::copy(dir.checkpoint("step-3").join("model.safetensors"), parts.join("part-1.safetensors")).unwrap();
    let index = r#"{"weight_map": {"fc2.bias": "part-1.safetensors"}}"#;
    fs::write(parts.join("model.safetensors.index.json"), index).unwrap();
    let printed = Job::mnist("eval", dir.path()).arg("--json").arg("--checkpoint").arg(&parts).succeed();
    let scores: serde_json::Value = serde_json::from_str(&printed).unwrap();
    let expected = dir.validations()[&3].0;
    assert!((scores["loss"].as_f64().unwrap() - expected).abs() <= 1e-6 * expected, "{printed}");
}

#[test]
fn a_run_without_checkpoints_is_refused() {
    let dir = RunDir::new();
    let ended = Job::mnist("eval", dir.path()).run().remove(0);
    assert_eq!(ended.code(), Some(2));
    assert!(ended.stderr.contains("holds no checkpoint; train first"), "{}", ended.stderr);
}
