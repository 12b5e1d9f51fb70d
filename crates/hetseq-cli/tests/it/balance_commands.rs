//! `hetseq plan`, `simulate` and `report`. Only one test trains: all three commands read its run.

use std::path::{Path, PathBuf};

use fs_err as fs;
use serde_json::Value;
use tempfile::TempDir;

use crate::cluster::{Ended, Job, MNIST};
use crate::data::scratch;
use crate::run_dir::RunDir;

const MIXED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/profiles/mixed-8.json");

fn dir() -> TempDir {
    TempDir::new_in(scratch()).unwrap()
}

/// A hand-written profile of two machines, one four times as fast. A sample of 100 tokens takes 1
/// ms and 4 ms.
fn hand_written_profile(dir: &Path) -> PathBuf {
    let path = dir.join("hand-written.json");
    let text = r#"{"ranks": [
        {"host": "quick", "devices": [{"name": "gpu:0", "tokens_per_s": 100000}]},
        {"host": "tardy", "devices": [{"name": "cpu:0", "tokens_per_s": 25000}]}]}"#;
    fs::write(&path, text).unwrap();
    path
}

fn assert_refused(job: &Job, parts: &[&str]) -> Ended {
    let ended = job.run().remove(0);
    assert_eq!((ended.code(), ended.stdout.as_str()), (Some(2), ""), "{ended:#?}");
    for part in parts {
        assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
    }
    ended
}

fn json(job: &Job) -> Value {
    serde_json::from_str(&job.succeed()).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

fn plan(dir: &Path) -> Job {
    Job::new(["plan", MNIST, "--tokens-per-sample", "100"]).set("batch.global", 50).set("run.dir", dir.display())
}

/// Simulates `updates` updates of 200 samples on the hand-written profile.
fn simulate(dir: &Path, updates: &str) -> Job {
    let job = Job::new(["simulate", "--global-batch", "200", "--updates", updates, "--tokens-per-sample", "100"]);
    job.arg("--profile").arg(hand_written_profile(dir))
}

#[test]
fn a_plan_of_too_many_samples_is_refused() {
    let dir = dir();
    let job = plan(dir.path()).arg("--profile").arg(hand_written_profile(dir.path()));
    let too_many = "plan computes at most 10,000,000";
    for global in ["4294967296", "18446744073709551615", "\"99999999999 tokens\""] {
        assert_refused(&job.clone().set("batch.global", global), &[too_many, "batch.global"]);
    }
    let output = json(&job.set("batch.global", 10_000_000).arg("--json"));
    assert_eq!(output["samples"].as_u64(), Some(10_000_000));
}

#[test]
fn a_plan_splits_by_speed_and_shows_what_each_rank_contributes() {
    let dir = dir();
    let job = plan(dir.path()).arg("--profile").arg(hand_written_profile(dir.path()));
    let output = json(&job.clone().arg("--json"));
    assert_eq!(
        (output["devices"][0]["samples"].as_u64(), output["devices"][1]["samples"].as_u64()),
        (Some(40), Some(10))
    );
    assert!((number(&output["update_s"]) - 0.040).abs() < 1e-6, "{output}");
    assert!((number(&output["equal_s"]) - 0.100).abs() < 1e-6, "{output}");
    assert!((number(&output["ranks"][0]["without"]) - 4.0).abs() < 1e-6, "{output}");
    let text = job.succeed();
    for part in ["2.50 times as fast", "quick", "tardy", "80.0 %", "+400.0 %", "+25.0 %"] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    // A batch in tokens has as many samples as fit.
    let output = json(&job.clone().set("batch.global", "\"5000 tokens\"").arg("--json"));
    assert_eq!(output["samples"].as_u64(), Some(50));
    let output = json(&job.set("batch.split", "equal").arg("--json"));
    assert_eq!((output["split"].as_str(), output["devices"][0]["samples"].as_u64()), (Some("equal"), Some(25)));
}

#[test]
fn a_plan_without_a_profile_explains_how_to_get_one() {
    let dir = dir();
    let missing = dir.path().join("profile.json").display().to_string();
    let ended = assert_refused(&plan(dir.path()), &[&missing, "hetseq train", "--profile", "tokens_per_s"]);
    // The printed example is a valid profile.
    let example = ended.stderr.split_once("--profile:\n").unwrap().1.rsplit_once("\n(").unwrap().0;
    fs::write(dir.path().join("profile.json"), example).unwrap();
    assert!(plan(dir.path()).succeed().contains("node-b"));
    assert_refused(&plan(dir.path()).set("batch.globl", 1), &["Did you mean `global`?"]);
    fs::write(dir.path().join("profile.json"), example.replace("host", "hots")).unwrap();
    assert_refused(&plan(dir.path()), &["profile.json:4: unknown key `hots`. Did you mean `host`?"]);
    fs::write(dir.path().join("profile.json"), "{").unwrap();
    assert_refused(&plan(dir.path()), &["profile.json:1"]);
}

#[test]
fn a_simulation_predicts_the_effect_of_scaling() {
    let dir = dir();
    let job = simulate(dir.path(), "20");
    let output = json(&job.clone().arg("--jitter=0").arg("--scale=1,2").arg("--json"));
    let cases = output.as_array().unwrap();
    assert_eq!(cases.len(), 4);
    let get = |at: usize, key: &str| number(&cases[at][key]);
    let splits: Vec<&str> = cases.iter().map(|case| case["split"].as_str().unwrap()).collect();
    assert_eq!(splits, ["measured", "equal", "measured", "equal"]);
    assert_eq!((get(0, "workers"), get(2, "workers"), get(0, "samples")), (2.0, 4.0, 4000.0));
    assert!((get(0, "median_update_s") - 0.160).abs() < 1e-6 && (get(1, "median_update_s") - 0.400).abs() < 1e-6);
    assert!((get(2, "median_update_s") - 0.080).abs() < 1e-6, "{}", cases[2]);
    assert!(get(0, "efficiency") > 0.999 && (get(1, "efficiency") - 0.4).abs() < 1e-3);
    let text = job.clone().arg("--scale=1,2").succeed();
    assert!(text.contains("samples/s") && text.contains("evenly") && text.lines().count() == 5, "{text}");
    // The same seed gives the same output.
    assert_eq!(text, job.clone().arg("--scale=1,2").succeed());
    assert_ne!(text, job.clone().arg("--scale=1,2").arg("--seed=2").succeed());
    // The ranks of the profile are repeated, and the batch grows with them.
    let output = json(&job.arg("--workers=1,3").arg("--grow-batch").arg("--split=measured").arg("--json"));
    assert_eq!((output[0]["global_batch"].as_u64(), output[1]["global_batch"].as_u64()), (Some(100), Some(300)));
    assert_eq!(output[1]["ranks"].as_array().map(Vec::len), Some(3));
}

#[test]
fn a_slower_network_reduces_efficiency() {
    let job = Job::new(["simulate", "--profile", MIXED, "--global-batch", "4096", "--updates", "10"]);
    let output = json(&job.clone().arg("--link-gbit=1,10").arg("--split=measured").arg("--json"));
    let [slow, fast] = [0, 1].map(|at| number(&output[at]["efficiency"]));
    assert!(slow < 0.6 && fast > 0.75, "{slow} and {fast}");
    let text = job.arg("--link-gbit=1,10").succeed();
    assert!(text.contains("links of 1 Gbit/s") && text.contains("links of 10 Gbit/s"), "{text}");
}

#[test]
fn disturbances_and_failures_are_simulated() {
    let dir = dir();
    let job = simulate(dir.path(), "60");
    let calm = json(&job.clone().arg("--json"));
    let disturbed = json(&job.clone().args(["--disturb", "0:10-40:3", "--json"]));
    assert!(number(&disturbed[0]["seconds"]) > 1.2 * number(&calm[0]["seconds"]));
    assert!(
        number(&disturbed[0]["seconds"]) < number(&disturbed[1]["seconds"]),
        "a plan follows, an even split does not"
    );
    let failed = json(&job.clone().args(["--fail", "0:10-20", "--pause", "7", "--json"]));
    assert_eq!((number(&failed[0]["paused_s"]), number(&failed[0]["samples"])), (14.0, 12_000.0));
    let text = job.clone().args(["--fail", "0:10-20"]).succeed();
    assert!(text.contains("2 min 00 s") && text.contains("away"), "{text}");

    assert_refused(&job.clone().args(["--disturb", "0:10:3"]), &["2:50-100:3"]);
    assert_refused(&job.clone().args(["--disturb", "5:10-20:3"]), &["rank 5", "ranks 0 to 1"]);
    assert_refused(&job.clone().args(["--fail", "0:5", "--fail", "1:5"]), &["no rank is left to compute update 5"]);
    assert_refused(&job.clone().args(["--jitter", "1.5"]), &["the jitter is 1.5"]);
    assert_refused(&job.clone().args(["--split", "mesured"]), &["measured"]);
    assert_refused(
        &Job::new(["simulate", "--profile", "nowhere.json", "--global-batch", "8"]),
        &["nowhere.json", "tokens_per_s"],
    );
}

#[test]
fn ten_thousand_ranks_can_be_simulated() {
    let job = Job::new(["simulate", "--profile", MIXED, "--global-batch", "160000", "--workers", "10000"]);
    let text = job.args(["--updates", "20", "--link-gbit", "100"]).succeed();
    assert!(text.contains("10,000") && text.contains("160,000"), "{text}");
}

/// Metrics of a run with two ranks that was resumed once and re-planned once. The last lines are
/// unknown or incomplete.
const METRICS: &str = r#"
{"event":"start","version":"0.1.0","task":"bert-pretrain","seed":1,"world":2,"devices":2,"parameters":1000,"train_samples":90,"valid_samples":9,"updates_per_epoch":9,"total_updates":9,"resumed_at":0}
{"event":"plan","update":1,"predicted_s":1.0,"samples":[80,20],"factors":[1.0,1.0]}
{"event":"update","update":1,"epoch":1,"loss":2.0,"terms":{},"samples":100,"grad_norm":1.0,"lr":0.1,"seconds":1.0,"data_wait_s":0.0,"predicted_s":1.0}
{"event":"update","update":2,"epoch":1,"loss":2.0,"terms":{},"samples":100,"grad_norm":1.0,"lr":0.1,"seconds":2.0,"data_wait_s":0.0,"predicted_s":1.0}
{"event":"plan","update":3,"predicted_s":1.25,"before_s":2.0,"gain":0.375,"samples":[90,10],"factors":[1.0,2.0]}
{"event":"update","update":3,"epoch":1,"loss":2.0,"terms":{},"samples":100,"grad_norm":1.0,"lr":0.1,"seconds":1.25,"data_wait_s":0.0,"predicted_s":1.25}
{"event":"workers","update":3,"updates":3,"wall_s":4.25,"workers":[{"rank":0,"host":"quick","device":"gpu:0","samples":90,"share":0.9,"samples_per_second":100.0,"idle":0.3,"compute_s":2.5},{"rank":1,"host":"tardy","device":"cpu:0","samples":10,"share":0.1,"samples_per_second":15.0,"idle":0.0,"compute_s":3.5}],"ranks":[{"rank":0,"host":"quick","compute_s":2.5,"data_s":0.0,"exchange_s":0.3,"wait_s":1.35,"host_s":0.1},{"rank":1,"host":"tardy","compute_s":3.5,"data_s":0.0,"exchange_s":0.5,"wait_s":0.05,"host_s":0.2}]}
{"event":"end","update":3,"outcome":"stopped","seconds":5.0,"data_wait_s":0.0}
{"event":"start","version":"0.1.0","task":"bert-pretrain","seed":1,"world":2,"devices":2,"parameters":1000,"train_samples":90,"valid_samples":9,"updates_per_epoch":9,"total_updates":9,"resumed_at":3}
{"event":"plan","update":4,"predicted_s":1.25,"samples":[90,10],"factors":[1.0,1.0]}
{"event":"update","update":4,"epoch":1,"loss":2.0,"terms":{},"samples":100,"grad_norm":1.0,"lr":0.1,"seconds":1.25,"data_wait_s":0.0,"predicted_s":1.25}
{"event":"valid","update":4,"epoch":1,"loss":2.0,"terms":{},"samples":9,"seconds":0.25}
{"event":"checkpoint","update":4,"path":"checkpoints/step-4","best":true,"seconds":1.0,"paused_seconds":0.05}
{"event":"from a later version"}
{"event":"update","upd"#;

fn write_metrics(dir: &Path) {
    fs::write(dir.join("metrics.jsonl"), METRICS.trim_start()).unwrap();
}

#[test]
fn a_report_adds_up_all_resumes_and_gives_advice() {
    let dir = dir();
    write_metrics(dir.path());
    let output = json(&Job::new([Path::new("report"), dir.path(), Path::new("--json")]));
    assert_eq!((output["updates"].as_u64(), output["process_groups"].as_u64()), (Some(4), Some(2)));
    assert_eq!((number(&output["spent"]["wall_s"]), number(&output["spent"]["lost_until_replanned_s"])), (6.55, 1.0));
    assert_eq!((output["prediction"]["updates"].as_u64(), number(&output["prediction"]["error"])), (Some(4), 0.0));
    assert_eq!(output["outcome"], Value::Null);
    assert_eq!(output["ranks"][0]["host"].as_str(), Some("quick"));
    let ended = Job::new([Path::new("report"), &dir.path().join("metrics.jsonl")]).run().remove(0);
    assert!(ended.stderr.contains("skipped 2 lines that this version cannot read"), "{}", ended.stderr);
    for part in [
        "bert-pretrain, 2 ranks, 2 devices: running or killed, started 2 times",
        "updates    4 in",
        "quick",
        "[##################~~",
        "1.250 s",
        "37.5 %",
        "first: rank 0 (quick) waits 32 %",
        "not recorded: where the ranks' time went in 1 of the 4 updates",
    ] {
        assert!(ended.stdout.contains(part), "{part}:\n{}", ended.stdout);
    }
    fs::write(dir.path().join("config.toml"), "[batch]\nsplit = \"equal\"\n").unwrap();
    let text = Job::new([Path::new("report"), dir.path()]).succeed();
    assert!(text.contains("set batch.split = \"measured\""), "{text}");
}

#[test]
fn a_report_lists_lost_ranks_with_their_cost() {
    let dir = dir();
    write_metrics(dir.path());
    let later = [
        r#"{"event":"lead","update":4,"host":"tardy","total_updates":9}"#,
        r#"{"event":"lost","update":4,"rank":0,"host":"quick","reason":"it sent nothing for 12 s"}"#,
        r#"{"event":"regrouped","update":4,"regroups":1,"world":1,"devices":1,"seconds":0.25,"interrupted_s":12.5}"#,
        r#"{"event":"update","update":5,"epoch":1,"loss":2.0,"terms":{},"samples":100,"grad_norm":1.0,"lr":0.1,"seconds":6.5}"#,
    ];
    let path = dir.path().join("metrics.jsonl");
    fs::write(&path, format!("{}\n{}\n", fs::read_to_string(&path).unwrap(), later.join("\n"))).unwrap();
    let text = Job::new([Path::new("report"), &path]).succeed();
    for part in [
        "           4  lost rank 0 (quick): it sent nothing for 12 s",
        "              new lead: rank 1, tardy",
        "              1 rank and 1 device left; noticed after 12.5 s, regrouping: 0.250 s, repeated update: 6.500 s",
        "until a loss was noticed",
        "regrouping ",
    ] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    let output = json(&Job::new([Path::new("report"), &path, Path::new("--json")]));
    let change = &output["membership_changes"][0];
    assert_eq!((&change["update"], &change["lost"][0]["host"]), (&4.into(), &"quick".into()), "{change}");
    assert_eq!(number(&change["continued"]["repeated_update_s"]), 6.5);
    assert_eq!(number(&output["spent"]["regrouping_s"]), 0.25);
    assert_eq!(number(&output["spent"]["interrupted_s"]), 12.5);
}

#[test]
fn a_report_of_a_missing_or_empty_run_is_refused() {
    let dir = dir();
    let report = |path: &Path| Job::new([Path::new("report"), path]);
    assert_refused(&report(dir.path()), &["has no metrics.jsonl"]);
    fs::create_dir(dir.path().join("bert-base")).unwrap();
    write_metrics(&dir.path().join("bert-base"));
    let nearest = dir.path().join("bert-base").display().to_string();
    assert_refused(&report(&dir.path().join("bret-base")), &[&format!("did you mean {nearest}?")]);
    assert_refused(&report(&dir.path().join("zzzzzzz")), &["there is no run at"]);
    let path = dir.path().join("metrics.jsonl");
    fs::write(&path, "").unwrap();
    assert_refused(&report(&path), &["no update is complete yet"]);
    fs::write(&path, b"what is this\n\xff\xfe\n").unwrap();
    assert_refused(&report(&path), &["none of its 2 lines"]);
    // Earlier versions recorded less.
    let old = METRICS.lines().filter(|line| line.contains("\"update\",\"update\":1,"));
    fs::write(&path, old.map(|line| line.replace(",\"predicted_s\":1.0", "")).collect::<String>()).unwrap();
    let text = report(&path).succeed();
    assert!(text.contains("not recorded: how long updates were predicted to take"), "{text}");
}

#[test]
fn a_run_writes_what_the_three_commands_need() {
    let dir = RunDir::new();
    Job::mnist("train", dir.path()).set("run.max_updates", 12).set("batch.global", 64).ranks(2).succeed();
    let output = json(&Job::new([Path::new("report"), dir.path(), Path::new("--json")]));
    assert_eq!((output["updates"].as_u64(), output["ranks"].as_array().map(Vec::len)), (Some(12), Some(2)));
    assert!(number(&output["prediction"]["predicted_s"]) > 0.0, "{output}");
    assert_eq!(output["missing"], Value::Array(Vec::new()), "{output}");
    // The recorded parts cover at least half of each rank's time.
    for rank in output["ranks"].as_array().unwrap() {
        assert!(number(&rank["other_s"]) <= 0.5 * number(&rank["wall_s"]), "{rank}");
    }
    assert!(Job::new([Path::new("plan"), dir.path()]).succeed().contains("an update of 64 samples"));
    let profile = dir.path().join("profile.json");
    let simulate = Job::new(["simulate", "--global-batch", "64", "--updates", "10", "--json", "--profile"]);
    let output = json(&simulate.arg(profile));
    assert!(number(&output[0]["samples_per_s"]) > 0.0 && number(&output[0]["efficiency"]) > 0.0, "{output}");
}
