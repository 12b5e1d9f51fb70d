//! Devices that fail during a run, devices on selected cores, and `hetseq devices` without a GPU.
//! Tests that need a driver are in `gpu`.

use serde_json::Value;

use crate::cluster::{Job, codes};
use crate::reference::{Reference, shipped};
use crate::run_dir::RunDir;

const UPDATES: u64 = 30;

fn lost(rank: usize, device: &str, update: u64) -> String {
    format!("[{{ rank = {rank}, device = \"{device}\", update = {update} }}]")
}

#[test]
fn a_run_continues_without_a_failed_device() {
    for (who, ranks, rank, split) in
        [("one process", 1, 0, "measured"), ("the second of two", 2, 1, "measured"), ("an even split", 2, 0, "equal")]
    {
        let dir = RunDir::new();
        let job = shipped(&dir, UPDATES).ranks(ranks).set("run.devices", "cpu:2").set("batch.split", split);
        job.set("emulate.lost", lost(rank, "cpu:1", 7)).succeed();
        Reference::shipped().assert_losses(&dir, UPDATES, who);
        let warnings = dir.warnings();
        let failures: Vec<&String> =
            warnings.iter().filter(|warning| warning.contains("failed and is not used")).collect();
        assert_eq!(failures.len(), 1, "{who}: {warnings:?}");
        assert!(failures[0].starts_with(&format!("cpu:1 of rank {rank}")), "{}", failures[0]);
        assert!(failures[0].contains("others compute its samples: device lost"), "{}", failures[0]);
    }
}

#[test]
fn a_device_that_hangs_is_dropped_before_the_other_ranks_time_out() {
    let dir = RunDir::new();
    let job = shipped(&dir, UPDATES).ranks(2).set("run.devices", "cpu:2").set("comm.progress_s", 30);
    job.set("emulate.hung", lost(1, "cpu:1", 7)).succeed();
    Reference::shipped().assert_losses(&dir, UPDATES, "one of four hangs");
    let warnings = dir.warnings();
    let is_reported = |warning: &&String| warning.contains("failed and is not used") && warning.contains("it hangs");
    assert_eq!(warnings.iter().filter(is_reported).count(), 1, "{warnings:?}");
}

#[test]
fn a_rank_fails_with_its_last_device() {
    let dir = RunDir::new();
    let ended = shipped(&dir, UPDATES).set("emulate.lost", lost(0, "cpu:0", 7)).run();
    assert_eq!(codes(&ended), [Some(1)]);
    assert!(ended[0].stderr.contains("cpu:0 failed while computing gradients: device lost"), "{ended:#?}");
}

#[test]
fn a_device_can_be_pinned_to_cores() {
    let dir = RunDir::new();
    shipped(&dir, UPDATES).set("run.devices", "cpu:0-0").succeed();
    Reference::shipped().assert_losses(&dir, UPDATES, "on core 0");
    let ended = shipped(&RunDir::new(), UPDATES).set("run.devices", "cpu:5000-5001").run();
    assert!(codes(&ended) == [Some(1)] && ended[0].stderr.contains("there is no core 500"), "{ended:#?}");
}

/// Hides the installed drivers for Vulkan and OpenGL.
fn without_drivers(job: Job, vulkan: &str) -> Job {
    let job = job.env_on(0, "VK_DRIVER_FILES", vulkan).env_on(0, "VK_LOADER_DRIVERS_DISABLE", "*");
    job.env_on(0, "__EGL_VENDOR_LIBRARY_FILENAMES", "/nowhere")
}

#[test]
fn without_a_driver_only_the_cpu_is_listed() {
    for (files, who) in [("", "no driver"), ("/nowhere/broken_icd.json", "a broken setting")] {
        let job = |args: &[&str]| without_drivers(Job::new(["devices"]).args(args), files);
        let output = job(&[]).succeed();
        assert!(
            output.contains("cores") && output.contains("gpu     none found; if this machine has one, install"),
            "{who}: {output}"
        );
        let listed: Value = serde_json::from_str(&job(&["--json"]).succeed()).unwrap();
        let devices = listed["devices"].as_array().unwrap();
        assert_eq!((devices.len(), devices[0]["name"].as_str()), (1, Some("cpu")), "{who}");
        assert!(
            devices[0]["precisions"].as_array().unwrap().len() == 3
                && devices[0]["gigabytes_per_s"].as_f64() > Some(0.1)
        );
        let dir = RunDir::new();
        let train = |devices: &str| without_drivers(shipped(&dir, 2).set("run.devices", devices), files).run();
        let ended = train("gpu:0");
        assert_eq!(codes(&ended), [Some(1)], "{who}: {ended:#?}");
        let expected = "gpu:0 failed while starting: no driver offers one: install the driver of your card";
        assert!(ended[0].stderr.contains(expected), "{who}: {}", ended[0].stderr);
        let ended = train("gpu");
        assert!(
            codes(&ended) == [Some(2)] && ended[0].stderr.contains("there is no GPU on this machine"),
            "{ended:#?}"
        );
        let ended = train("cuda:0");
        assert!(codes(&ended) == [Some(1)] && ended[0].stderr.contains("built without cuda"), "{ended:#?}");
        assert_eq!(codes(&train("all")), [Some(0)]);
    }
}
