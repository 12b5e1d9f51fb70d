//! `hetseq selftest` on the CPU: a report, exit codes, and a device that computes wrongly, is lost,
//! crashes or hangs. `gpu` tests it on the software renderer.

use std::path::Path;

use fs_err as fs;

use crate::cluster::{Ended, Job};
use crate::run_dir::RunDir;

/// A self-test of two CPU devices with only these checks, without looking for GPUs.
fn selftest(out: &Path, only: &[&str]) -> Job {
    let job = Job::new(["selftest", "--devices", "cpu:2", "--out"]).arg(out);
    only.iter().fold(job, |job, text| job.args(["--only", text]))
}

/// The checks and figures of the report with this result.
fn with_result<'a>(report: &'a str, result: &str) -> Vec<&'a str> {
    let start = format!("| {result} | ");
    report.lines().filter_map(|line| line.strip_prefix(start.as_str())).collect()
}

/// Runs a self-test with an emulated fault and returns how it ended, with its report.
fn with_fault(fault: &str, more: &[&str]) -> (Ended, String) {
    let dir = RunDir::new();
    fs::create_dir_all(dir.path()).unwrap();
    let out = dir.path().join("report.md");
    let job = selftest(&out, &["gelu", "training of images (convnet)"]).args(["--emulate", fault]).args(more);
    let ended = job.run().remove(0);
    let report = fs::read_to_string(out).unwrap();
    (ended, report)
}

#[test]
fn the_cpu_is_exact_and_a_report_is_written() {
    let dir = RunDir::new();
    fs::create_dir_all(dir.path()).unwrap();
    let out = dir.path().join("report.md");
    let only = ["product", "dropout mask", "training of images (convnet)", "training of bert-pretrain", "memory"];
    let printed = selftest(&out, &only).succeed();
    for expected in [
        "cpu:2 against one CPU core",
        "opening the device                           multiplies matrices in f32, f16, bf16",
        "matrix product of odd sizes, bf16 ",
        "gradients of bert-pretrain ",
        "training of bert-pretrain, f16 ",
        "repeated training of images (convnet)        the same bits",
        "cpu:2: ok, ",
        "report: ",
    ] {
        assert!(printed.contains(expected), "{expected} in {printed}");
    }
    let report = fs::read_to_string(&out).unwrap();
    let ok = with_result(&report, "ok");
    assert!(ok.len() > 15 && with_result(&report, "differs").is_empty(), "{report}");
    assert!(ok.contains(&"dropout mask | the same bits |"), "{report}");
    for expected in ["# HetSeq self-test\n\n- cpu:2: ok, ", "| hetseq | 0.", "| system | ", "## Devices", "cores"] {
        assert!(report.contains(expected), "{expected} in {report}");
    }
    // Neither this machine's paths nor its name.
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    assert!(!report.contains("/tmp") && !report.contains("/root") && !report.contains("/home"), "{report}");
    assert!(host.trim().is_empty() || !report.contains(host.trim()), "{report}");
}

#[test]
fn without_a_gpu_the_cpu_is_tested() {
    let dir = RunDir::new();
    fs::create_dir_all(dir.path()).unwrap();
    let job = Job::new(["selftest", "--only", "gelu"]).in_dir(dir.path());
    let job = job.env_on(0, "VK_DRIVER_FILES", "").env_on(0, "VK_LOADER_DRIVERS_DISABLE", "*");
    let printed = job.env_on(0, "__EGL_VENDOR_LIBRARY_FILENAMES", "/nowhere").succeed();
    assert!(printed.contains("no GPU found: testing the CPU") && printed.contains("cpu: ok, 2 checks"), "{printed}");
    let files: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let name = files.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    assert!(files.len() == 1 && name.starts_with("hetseq-selftest-") && name.ends_with(".md"), "{files:?}");
}

#[test]
fn a_device_that_computes_wrongly_fails() {
    for (fault, figures) in [
        ("wrong", ["gradients of images (convnet) | at most ", "training of images (convnet) | 20 updates, "]),
        ("not-finite", ["gradients of images (convnet) | at most not finite", "differs by at most not finite"]),
        ("lost", ["training of images (convnet) | cpu:0 failed while computing gradients: device lost", ""]),
    ] {
        let (ended, report) = with_fault(fault, &[]);
        assert_eq!(ended.code(), Some(1), "{fault}: {ended:#?}");
        let failed = with_result(&report, "failed").join("\n");
        assert!(figures.iter().all(|text| failed.contains(text)), "{fault}: {report}");
        assert!(report.contains("- cpu:2: FAILED, ") && report.contains("Do not train on it"), "{fault}: {report}");
        // Other checks are not affected.
        assert!(with_result(&report, "ok").iter().any(|line| line.starts_with("gelu | output ")), "{fault}: {report}");
    }
}

/// The check in progress fails, and another process continues with the next one.
#[test]
fn a_driver_that_crashes_or_hangs_is_reported() {
    for (fault, more, reason) in [
        ("crash", &[][..], "| training of images (convnet) | the process that tests the device crashed (signal: 6"),
        ("hang", &["--timeout", "20"][..], "| training of images (convnet) | timed out after 20 s |"),
    ] {
        let (ended, report) = with_fault(fault, more);
        assert_eq!(ended.code(), Some(1), "{fault}: {ended:#?}");
        assert!(report.contains(reason), "{fault}: {report}");
        assert!(report.contains("| ok | repeated training of images (convnet) | the same bits |"), "{fault}: {report}");
        assert_eq!(with_result(&report, "failed").len(), 1, "{fault}: {report}");
    }
}

#[test]
fn wrong_arguments_are_refused_before_anything_is_computed() {
    let wrong: [(&[&str], &str); 5] = [
        (&["--devices", "torch:cuda:0"], "torch:cuda:0 is another program"),
        (&["--devices", "gpu:0@f16"], "every precision of a device is tested"),
        (&["--devices", "tpu:0"], "tpu:0"),
        (&["--devices", "cpu", "--only", "gelo"], "no check has such a name"),
        (&["--devices", "cpu", "--out", "/nowhere/report.md"], "/nowhere/report.md"),
    ];
    let dir = RunDir::new();
    fs::create_dir_all(dir.path()).unwrap();
    for (args, part) in wrong {
        let ended = Job::new(["selftest"].iter().chain(args)).in_dir(dir.path()).run().remove(0);
        assert!(ended.code() == Some(2) && ended.stderr.contains(part), "{args:?}: {ended:#?}");
        assert!(ended.stdout.is_empty(), "{args:?}: {ended:#?}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "a refused test leaves a report");
}
