//! Devices are measured before training, running out of memory does not end a run, and measurements
//! are kept. Whatever the shares, the losses are those of one undisturbed device.

use std::path::Path;

use hetseq_balance::Profile;
use hetseq_metrics::Event;
use serde_json::Value;

use crate::cluster::{Job, codes};
use crate::reference::{Reference, shipped};
use crate::run_dir::RunDir;

const UPDATES: u64 = 20;

fn profile(dir: &Path) -> Profile {
    serde_json::from_slice(&fs_err::read(dir.join("profile.json")).unwrap()).unwrap()
}

/// The standard error of each rank.
fn stderr(job: &Job) -> Vec<String> {
    let ended = job.run();
    assert!(ended.iter().all(|rank| rank.code() == Some(0)), "{ended:#?}");
    ended.into_iter().map(|rank| rank.stderr).collect()
}

#[test]
fn measurements_are_used_for_planning_and_kept_for_the_next_start() {
    let dir = RunDir::new();
    let first = stderr(&shipped(&dir, UPDATES / 2).ranks(2));
    assert!(first.iter().all(|rank| rank.contains("samples/s in micro-batches of")), "{first:?}");
    assert!(first.iter().all(|rank| rank.trim_end().lines().any(|line| line.ends_with(", measured"))), "{first:?}");
    let events = dir.events();
    let plan = events.iter().find_map(|event| match event {
        Event::Plan { update, samples, gain: None, predicted_s, .. } => Some((*update, samples.clone(), *predicted_s)),
        _ => None,
    });
    let (update, samples, predicted_s) = plan.unwrap();
    assert_eq!((update, samples.len(), samples.iter().sum::<u64>()), (1, 2, 100));
    assert!(predicted_s > 0.0);
    assert!(events.iter().any(|event| matches!(event, Event::Update { predicted_s: Some(_), .. })));
    let profile = profile(dir.path());
    assert_eq!((profile.ranks.len(), profile.task.as_str(), profile.parameters), (2, "images", 206_922));
    assert!(profile.ranks.iter().all(|rank| rank.link.bytes_per_s > 1e6 && rank.link.bytes_per_s.is_finite()));
    assert!(profile.ranks.iter().all(|rank| rank.devices[0].table.points().len() > 3));
    // A start checks whether the kept measurements are still valid. On a busy machine the first
    // checks may fail.
    let is_reused = |rank: &String| rank.contains(", as measured at an earlier start");
    let is_found =
        (UPDATES / 2 + 1..=UPDATES).any(|updates| stderr(&shipped(&dir, updates).ranks(2)).iter().all(is_reused));
    assert!(is_found, "all ten starts have measured again");
    shipped(&dir, UPDATES).ranks(2).succeed();
    Reference::shipped().assert_losses(&dir, UPDATES, "measured, and resumed");
}

#[test]
fn a_probe_is_kept_for_the_same_batch_only() {
    let dir = RunDir::new();
    let start = |batch: u32| {
        let job = shipped(&dir, 2).arg("--resume").arg("never").set("batch.global", batch);
        stderr(&job).remove(0)
    };
    let is_measured = |stderr: &str| stderr.lines().any(|line| line.trim_end().ends_with(", measured"));
    assert!(is_measured(&start(1)));
    // A probe with one sample per update has not measured larger micro-batches.
    assert!(is_measured(&start(256)));
}

#[test]
fn a_damaged_probe_is_not_used() {
    let dir = RunDir::new();
    stderr(&shipped(&dir, 2));
    let path = dir.path().join("probe.json");
    let mut probe: Value = serde_json::from_slice(&fs_err::read(&path).unwrap()).unwrap();
    probe[0]["devices"][0]["table"][0]["samples"] = 1_000_000_000.into();
    fs_err::write(&path, probe.to_string()).unwrap();
    let stderr = stderr(&shipped(&dir, 4)).remove(0);
    assert!(stderr.lines().any(|line| line.trim_end().ends_with(", measured")), "{stderr}");
}

#[test]
fn ranks_may_differ_in_settings_of_their_machines() {
    for (split, key, value) in
        [("equal", "run.memory_mib", "8000"), ("measured", "batch.probe_s", "0"), ("equal", "run.gpu_memory_mib", "64")]
    {
        for rank in [0, 1] {
            let dir = RunDir::new();
            let job = shipped(&dir, 4).ranks(2).set("batch.split", split).set_on(rank, key, value);
            job.succeed();
            Reference::shipped().assert_losses(&dir, 4, &format!("{key} on rank {rank}"));
        }
    }
}

#[test]
fn new_plans_are_events_and_logged_only_if_verbose() {
    for is_verbose in [false, true] {
        let dir = RunDir::new();
        // Without measurements the first plan is certainly wrong.
        let job = shipped(&dir, 3 * UPDATES).ranks(2).set("batch.probe_s", 0).set("emulate.slowdown", "[1, 10]");
        let job = if is_verbose { job.arg("-v") } else { job };
        let stderr = stderr(&job);
        let is_new = |event: &Event| matches!(event, Event::Plan { gain: Some(_), .. });
        assert!(dir.events().iter().any(is_new), "{stderr:?}");
        assert_eq!(stderr[0].contains("re-planned"), is_verbose, "{stderr:?}");
    }
}

#[test]
fn a_memory_limit_applies_to_every_split() {
    let dir = RunDir::new();
    let ended = shipped(&dir, UPDATES).set("batch.split", "equal").set("run.memory_mib", 1).run();
    assert!(codes(&ended) == [Some(1)] && ended[0].stderr.contains("a single sample of 1 tokens needs"), "{ended:#?}");
    let ended = shipped(&dir, UPDATES).set("batch.probe_s", 0).set("run.memory_mib", 900).run();
    assert!(codes(&ended) == [Some(2)] && ended[0].stderr.contains("run.memory_mib needs batch.probe_s"), "{ended:#?}");
}

#[test]
fn a_device_that_runs_out_of_memory_uses_smaller_micro_batches() {
    let dir = RunDir::new();
    // Without measurements it happens in the first update.
    let job = |updates| {
        let job = shipped(&dir, updates).ranks(3).set("batch.probe_s", 0);
        job.set("batch.split", "equal").set("emulate.memory_tokens", "[0, 5, 0]")
    };
    job(UPDATES).succeed();
    let warnings: Vec<String> = dir.warnings().into_iter().filter(|warning| warning.contains("memory")).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].starts_with("cpu:0 of rank 1 (") && warnings[0].contains("have at most 4 tokens"),
        "{warnings:?}"
    );
    Reference::shipped().assert_losses(&dir, UPDATES, "out of memory on one of three");
}

#[test]
fn the_probe_finds_what_fits_in_memory() {
    let dir = RunDir::new();
    let job = shipped(&dir, UPDATES).ranks(2).set("emulate.memory_tokens", "[0, 5]");
    stderr(&job);
    assert!(dir.warnings().iter().all(|warning| !warning.contains("memory")), "{:?}", dir.warnings());
    let profile = profile(dir.path());
    assert_eq!(profile.ranks[1].devices[0].max_tokens, Some(4));
    assert!(profile.ranks[0].devices[0].max_tokens.is_none_or(|most| most > 100));
    Reference::shipped().assert_losses(&dir, UPDATES, "memory limit found by the probe");
}

#[test]
fn too_little_memory_for_a_single_sample_is_an_error_with_advice() {
    let dir = RunDir::new();
    let ended = shipped(&dir, UPDATES).set("run.memory_mib", 1).run();
    assert_eq!(codes(&ended), [Some(1)], "{ended:#?}");
    assert!(ended[0].stderr.contains("a single sample of 1 tokens needs"), "{ended:#?}");
    assert!(ended[0].stderr.contains("run.memory_mib"), "{ended:#?}");
    assert!(!dir.path().join("metrics.jsonl").exists(), "a run that did not start has left files");
}
