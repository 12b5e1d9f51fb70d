//! Devices are measured before they train, memory that runs out is no end, and what was learnt is kept: whatever the shares,
//! the losses are those of one undisturbed device.

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

/// What each rank said on standard error.
fn said(job: &Job) -> Vec<String> {
    let ended = job.run();
    assert!(ended.iter().all(|rank| rank.code() == Some(0)), "{ended:#?}");
    ended.into_iter().map(|rank| rank.stderr).collect()
}

#[test]
fn what_was_measured_is_planned_with_and_kept_for_the_next_start() {
    let dir = RunDir::new();
    let first = said(&shipped(&dir, UPDATES / 2).ranks(2));
    assert!(first.iter().all(|rank| rank.contains("samples/s of 1 tokens in micro-batches of")), "{first:?}");
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
    let kept = profile(dir.path());
    assert_eq!((kept.ranks.len(), kept.task.as_str(), kept.parameters), (2, "images", 206_922));
    assert!(kept.ranks.iter().all(|rank| rank.line.bytes_per_s > 1e6 && rank.line.bytes_per_s.is_finite()));
    assert!(kept.ranks.iter().all(|rank| rank.devices[0].table.points().len() > 3));
    // Whether it is still true is measured, and on a busy machine it may not be at the first try.
    let is_known = |rank: &String| rank.contains(", as measured at an earlier start");
    let is_found =
        (UPDATES / 2 + 1..=UPDATES).any(|updates| said(&shipped(&dir, updates).ranks(2)).iter().all(is_known));
    assert!(is_found, "ten starts have all measured anew");
    shipped(&dir, UPDATES).ranks(2).succeed();
    Reference::shipped().assert_losses(&dir, UPDATES, "measured, and resumed");
}

#[test]
fn a_probe_is_kept_for_the_same_batch_only() {
    let dir = RunDir::new();
    let start = |batch: u32| {
        let job = shipped(&dir, 2).arg("--resume").arg("never").set("batch.global", batch);
        said(&job).remove(0)
    };
    let is_measured = |said: &str| said.lines().any(|line| line.trim_end().ends_with(", measured"));
    assert!(is_measured(&start(1)));
    // With one sample per update nothing is known of larger micro-batches.
    assert!(is_measured(&start(256)));
}

#[test]
fn a_damaged_probe_is_not_used() {
    let dir = RunDir::new();
    said(&shipped(&dir, 2));
    let path = dir.path().join("probe.json");
    let mut kept: Value = serde_json::from_slice(&fs_err::read(&path).unwrap()).unwrap();
    kept[0]["devices"][0]["table"][0]["samples"] = 1_000_000_000.into();
    fs_err::write(&path, kept.to_string()).unwrap();
    let said = said(&shipped(&dir, 4)).remove(0);
    assert!(said.lines().any(|line| line.trim_end().ends_with(", measured")), "{said}");
}

#[test]
fn ranks_may_differ_in_what_is_measured_of_their_machines() {
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
fn new_plans_are_events_and_shown_only_on_demand() {
    for is_verbose in [false, true] {
        let dir = RunDir::new();
        // Nothing is measured beforehand, so that the first plan is certainly wrong.
        let job = shipped(&dir, 3 * UPDATES).ranks(2).set("batch.probe_s", 0).set("emulate.slowdown", "[1, 10]");
        let job = if is_verbose { job.arg("-v") } else { job };
        let said = said(&job);
        let is_new = |event: &Event| matches!(event, Event::Plan { gain: Some(_), .. });
        assert!(dir.events().iter().any(is_new), "{said:?}");
        assert_eq!(said[0].contains("re-planned"), is_verbose, "{said:?}");
    }
}

#[test]
fn a_limit_of_memory_counts_whatever_the_split() {
    let dir = RunDir::new();
    let ended = shipped(&dir, UPDATES).set("batch.split", "equal").set("run.memory_mib", 1).run();
    assert!(codes(&ended) == [Some(1)] && ended[0].stderr.contains("a single sample of 1 tokens needs"), "{ended:#?}");
    let ended = shipped(&dir, UPDATES).set("batch.probe_s", 0).set("run.memory_mib", 900).run();
    assert!(codes(&ended) == [Some(2)] && ended[0].stderr.contains("run.memory_mib needs batch.probe_s"), "{ended:#?}");
}

#[test]
fn a_device_that_runs_out_of_memory_gets_by_with_less() {
    let dir = RunDir::new();
    // Nothing is measured before, so that it happens in the first update.
    let job = |updates| {
        let job = shipped(&dir, updates).ranks(3).set("batch.probe_s", 0);
        job.set("batch.split", "equal").set("emulate.memory_tokens", "[0, 5, 0]")
    };
    job(UPDATES).succeed();
    let told: Vec<String> = dir.warnings().into_iter().filter(|warning| warning.contains("memory")).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with("cpu:0 of rank 1 (") && told[0].contains("have at most 4 tokens"), "{told:?}");
    Reference::shipped().assert_losses(&dir, UPDATES, "out of memory on one of three");
}

#[test]
fn what_does_not_fit_is_found_before_training() {
    let dir = RunDir::new();
    let job = shipped(&dir, UPDATES).ranks(2).set("emulate.memory_tokens", "[0, 5]");
    said(&job);
    assert!(dir.warnings().iter().all(|warning| !warning.contains("memory")), "{:?}", dir.warnings());
    let known = profile(dir.path());
    assert_eq!(known.ranks[1].devices[0].max_tokens, Some(4));
    assert!(known.ranks[0].devices[0].max_tokens.is_none_or(|most| most > 100));
    Reference::shipped().assert_losses(&dir, UPDATES, "memory found before");
}

#[test]
fn too_little_memory_for_a_single_sample_is_told_with_what_to_do() {
    let dir = RunDir::new();
    let ended = shipped(&dir, UPDATES).set("run.memory_mib", 1).run();
    assert_eq!(codes(&ended), [Some(1)], "{ended:#?}");
    assert!(ended[0].stderr.contains("a single sample of 1 tokens needs"), "{ended:#?}");
    assert!(ended[0].stderr.contains("run.memory_mib"), "{ended:#?}");
    assert!(!dir.path().join("metrics.jsonl").exists(), "a run that did not begin left something");
}
