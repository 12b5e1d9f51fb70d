//! A GPU together with the CPU: in one process and over TCP, the losses are those of the CPU alone.
//! These tests need a Vulkan driver; Mesa's software renderer is enough (Debian:
//! mesa-vulkan-drivers libvulkan1). `./test` runs them if it is installed.

use std::path::Path;
use std::time::Duration;

use hetseq_metrics::Event;
use serde_json::Value;

use crate::cluster::{Job, codes};
use crate::data::scratch;
use crate::reference::{Reference, shipped};
use crate::run_dir::RunDir;
use crate::{bert, translation};

const UPDATES: u64 = 20;
/// A software renderer compiles and computes slowly.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Makes the software renderer the only GPU of every rank.
fn with_driver(job: Job, ranks: usize) -> Job {
    let driver = Path::new("/usr/share/vulkan/icd.d")
        .read_dir()
        .ok()
        .into_iter()
        .flatten()
        .flatten()
        .find(|file| file.file_name().to_string_lossy().starts_with("lvp_icd"))
        .unwrap_or_else(|| panic!("no software renderer is installed: apt-get install mesa-vulkan-drivers libvulkan1"));
    // All tests share the cache of compiled shaders.
    let (driver, cache) = (driver.path().display().to_string(), scratch().join("shaders").display().to_string());
    let job = (0..ranks).fold(job, |job, rank| {
        [
            ("VK_DRIVER_FILES", driver.as_str()),
            ("XDG_RUNTIME_DIR", cache.as_str()),
            ("XDG_CACHE_HOME", cache.as_str()),
            ("MESA_SHADER_CACHE_DIR", cache.as_str()),
            ("LP_NUM_THREADS", "1"),
            ("CUBECL_AUTOTUNE_LEVEL", "minimal"),
        ]
        .into_iter()
        .fold(job, |job, (name, value)| job.env_on(rank, name, value))
    });
    job.within(TIMEOUT)
}

/// Relative tolerance 1e-4, because the kernels round differently.
fn assert_close(reference: &Reference, dir: &RunDir, updates: u64, who: &str) {
    reference.assert_losses_within(&[(1..=updates, 1e-4)], dir, updates, who);
}

/// Trains with CPU and GPU in one process and in two over TCP, and compares both with the CPU
/// alone.
fn assert_like_the_cpu(name: &str, train: impl Fn(&RunDir) -> Job) {
    let alone = RunDir::new();
    train(&alone).succeed();
    let reference = Reference::of(alone, UPDATES);
    let equal =
        |dir: &RunDir| train(dir).set("run.checksum_every", 1).set("batch.split", "equal").set("debug.audit", true);
    let one = RunDir::new();
    with_driver(equal(&one).set("run.devices", "cpu:1,gpu:0"), 1).succeed();
    assert_close(&reference, &one, UPDATES, &format!("{name}: one process"));
    let two = RunDir::new();
    let job = equal(&two).ranks(2).set_on(1, "run.devices", "gpu:0");
    with_driver(job, 2).succeed();
    assert_close(&reference, &two, UPDATES, &format!("{name}: two processes"));
    // The parameters were compared bit for bit after every update.
    let compared = |event: &Event| matches!(event, Event::Update { checksum: Some(_), .. });
    assert_eq!(two.events().iter().filter(|event| compared(event)).count() as u64, UPDATES);
    for dir in [&one, &two] {
        let gpu_samples: u64 = dir
            .events()
            .iter()
            .filter_map(|event| match event {
                Event::Workers { workers, .. } => Some(
                    workers.iter().filter(|worker| worker.device == "gpu:0").map(|worker| worker.samples).sum::<u64>(),
                ),
                _ => None,
            })
            .sum();
        assert!(gpu_samples > 0, "the GPU computed no samples");
    }
}

#[test]
#[ignore = "needs a Vulkan driver"]
fn bert_on_both_matches_the_cpu() {
    assert_like_the_cpu("bert", |dir| bert::train(dir, UPDATES));
}

#[test]
#[ignore = "needs a Vulkan driver"]
fn digits_on_both_match_the_cpu() {
    assert_like_the_cpu("digits", |dir| shipped(dir, UPDATES));
}

#[test]
#[ignore = "needs a Vulkan driver"]
fn translation_on_both_matches_the_cpu() {
    assert_like_the_cpu("translation", |dir| translation::train(dir, UPDATES));
}

#[test]
#[ignore = "needs a Vulkan driver"]
fn a_slow_gpu_gets_few_samples_and_the_reason_is_reported() {
    let dir = RunDir::new();
    let job = with_driver(bert::train(&dir, 3 * UPDATES).set("run.devices", "cpu:1,gpu:0"), 1);
    let ended = job.run();
    assert_eq!(codes(&ended), [Some(0)], "{ended:#?}");
    let stderr = &ended[0].stderr;
    assert!(stderr.contains("cpu:0: ") && stderr.contains("gpu:0: ") && stderr.contains("samples/s"), "{stderr}");
    let events = dir.events();
    let plan = events.iter().find_map(|event| match event {
        Event::Plan { samples, .. } => Some(samples.clone()),
        _ => None,
    });
    let plan = plan.unwrap();
    assert!(plan[1] * 4 <= plan[0], "the software renderer got {plan:?}");
    if plan[1] == 0 {
        assert!(
            dir.warnings()
                .iter()
                .any(|warning| warning.starts_with("gpu:0 of rank 0") && warning.contains("would take longer with it")),
            "{:?}",
            dir.warnings()
        );
    }
}

#[test]
#[ignore = "needs a Vulkan driver"]
fn a_failed_gpu_is_replaced() {
    let alone = RunDir::new();
    bert::train(&alone, UPDATES).succeed();
    let reference = Reference::of(alone, UPDATES);
    let lost = |rank: usize| format!("[{{ rank = {rank}, device = \"gpu:0\", update = 7 }}]");
    let combined = RunDir::new();
    let job = bert::train(&combined, UPDATES).set("run.devices", "cpu:1,gpu:0").set("batch.split", "equal");
    with_driver(job.set("emulate.lost", lost(0)), 1).succeed();
    assert_close(&reference, &combined, UPDATES, "together with a CPU");
    let alone = RunDir::new();
    let job = bert::train(&alone, UPDATES).ranks(2).set_on(1, "run.devices", "gpu:0").set("batch.split", "equal");
    with_driver(job.set("emulate.lost", lost(1)), 2).succeed();
    assert_close(&reference, &alone, UPDATES, "alone in its process");
    let warned = |dir: &RunDir, text: &str| dir.warnings().iter().any(|warning| warning.contains(text));
    assert!(
        warned(&combined, "gpu:0 of rank 0") && warned(&combined, "others compute its samples"),
        "{:?}",
        combined.warnings()
    );
    assert!(
        warned(&alone, "gpu:0 of rank 1") && warned(&alone, "the CPU of its rank replaces it"),
        "{:?}",
        alone.warnings()
    );
}

#[test]
#[ignore = "needs a Vulkan driver"]
fn the_software_renderer_is_listed_as_such() {
    let output = with_driver(Job::new(["devices"]), 1).succeed();
    assert!(output.contains("gpu:0   llvmpipe") && output.contains("a software renderer"), "{output}");
    let listed = with_driver(Job::new(["devices", "--json"]), 1).succeed();
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let gpu = &listed["devices"][1];
    assert_eq!((gpu["name"].as_str(), gpu["is_software"].as_bool()), (Some("gpu:0"), Some(true)), "{gpu}");
    assert!(gpu["memory_bytes"].as_u64() > Some(1 << 28), "{gpu}");
    assert!(gpu["gflops"][0].as_f64() > Some(0.01) && gpu["gigabytes_per_s"].as_f64() > Some(0.01), "{gpu}");
    assert!(gpu["launch_us"].as_f64() > Some(0.1), "{gpu}");
    // `all` does not include it.
    let dir = RunDir::new();
    with_driver(shipped(&dir, 2).set("run.devices", "all"), 1).succeed();
    let gpus = |event: &Event| matches!(event, Event::Workers { workers, .. } if workers.iter().any(|worker| worker.device.starts_with("gpu")));
    assert!(!dir.events().iter().any(gpus));
    let ended = with_driver(shipped(&dir, 2).set("run.devices", "gpu:1"), 1).run();
    assert!(codes(&ended) == [Some(1)] && ended[0].stderr.contains("there is only gpu:0"), "{ended:#?}");
}

#[test]
#[ignore = "needs a Vulkan driver"]
fn f16_on_the_gpu_is_close_to_f32() {
    let alone = RunDir::new();
    bert::train(&alone, UPDATES).succeed();
    let dir = RunDir::new();
    let job = bert::train(&dir, UPDATES).set("run.devices", "cpu:1,gpu:0").set("run.precision", "auto");
    let ended = with_driver(job.set("batch.split", "equal"), 1).run();
    assert_eq!(codes(&ended), [Some(0)], "{ended:#?}");
    let (full, half) = (alone.losses(), dir.losses());
    let worst = half.iter().map(|(update, loss)| (loss / full[update] - 1.0).abs()).fold(0.0, f64::max);
    eprintln!("the CPU in f32, the GPU in f16: losses deviate by up to {worst:.1e}");
    assert!((1e-7..0.02).contains(&worst), "{worst}");
    let ended = with_driver(bert::train(&dir, UPDATES).set("run.devices", "gpu:0@bf16"), 1).run();
    assert_eq!(codes(&ended), [Some(1)]);
    let expected = "gpu:0 failed while starting: it cannot compute in bf16. Use gpu:0@f32 in run.devices";
    assert!(ended[0].stderr.contains(expected), "{}", ended[0].stderr);
}

#[test]
#[ignore = "needs a Vulkan driver"]
fn the_software_renderer_passes_the_self_test() {
    let dir = RunDir::new();
    fs_err::create_dir_all(dir.path()).unwrap();
    let out = dir.path().join("report.md");
    // One model: all of them take some minutes, and the tests above train others.
    let only = ["(convnet)", "odd sizes", "gelu", "dropout"].map(|text| format!("--only={text}"));
    let job = Job::new(["selftest", "--devices", "gpu:0", "--out"]).arg(&out).args(only);
    let printed = with_driver(job, 1).succeed();
    for expected in [
        "gpu:0 against one CPU core",
        "dropout mask                                 the same bits",
        "matrix product of odd sizes, f16 ",
        "training of images (convnet) with the CPU ",
        "repeated training of images (convnet) ",
    ] {
        assert!(printed.contains(expected), "{expected} in {printed}");
    }
    let report = fs_err::read_to_string(&out).unwrap();
    assert!(report.contains("- gpu:0: ok, ") && report.contains("llvmpipe") && report.contains("driver: "), "{report}");
    assert!(report.contains("| ok | training of images (convnet), f16 |"), "{report}");
    // It is not tested unless it is named.
    let job = with_driver(Job::new(["selftest", "--only", "gelu"]).in_dir(dir.path()), 1);
    let printed = job.succeed();
    assert!(printed.contains("no GPU found: testing the CPU") && printed.contains("a software renderer"), "{printed}");
}

/// A single sample needs more than this limit.
#[test]
#[ignore = "needs a Vulkan driver"]
fn the_memory_limit_of_gpus_is_enforced() {
    let dir = RunDir::new();
    let ended = with_driver(bert::train(&dir, 2).set("run.devices", "gpu:0").set("run.gpu_memory_mib", 1), 1).run();
    assert_eq!(codes(&ended), [Some(1)], "{ended:#?}");
    let expected = ["gpu:0 failed while measuring", "and 1.0 MB is allowed: raise run.gpu_memory_mib"];
    assert!(expected.iter().all(|words| ended[0].stderr.contains(words)), "{}", ended[0].stderr);
    let ended = bert::train(&dir, 2).set("batch.probe_s", 0).set("run.gpu_memory_mib", 1).run();
    let expected = "run.gpu_memory_mib needs batch.probe_s above 0";
    assert!(codes(&ended) == [Some(2)] && ended[0].stderr.contains(expected), "{}", ended[0].stderr);
}
