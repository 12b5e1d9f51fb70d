//! Every optimizer in real runs: two ranks agree after every update, and an interrupted run ends
//! with the same bits as an uninterrupted one, including the optimizer state.

use fs_err as fs;

use crate::cluster::Job;
use crate::reference::shipped;
use crate::run_dir::RunDir;

/// With a constant schedule, because the shipped one is tuned for Adam.
fn job(dir: &RunDir, updates: u64, settings: &[(&str, &str)]) -> Job {
    let job = shipped(dir, updates).ranks(2).set("batch.split", "equal").set("optim.schedule", "constant");
    settings.iter().fold(job, |job, (key, value)| job.set(&format!("optim.{key}"), value))
}

#[test]
fn an_interrupted_run_gives_the_same_bits() {
    let optimizers: [&[(&str, &str)]; 4] = [
        &[("name", "sgd"), ("lr", "0.05")],
        &[("name", "adadelta"), ("lr", "1"), ("weight_decay", "0.01")],
        &[("name", "lamb"), ("weight_decay", "0.01")],
        &[("name", "adafactor"), ("lr", "0.05"), ("beta1", "0.9"), ("weight_decay", "0.01")],
    ];
    for settings in optimizers {
        let (uninterrupted, interrupted) = (RunDir::new(), RunDir::new());
        job(&uninterrupted, 8, settings).succeed();
        job(&interrupted, 3, settings).succeed();
        job(&interrupted, 8, settings).succeed();
        assert_eq!(interrupted.starts(), [(2, 0), (2, 3)]);
        for file in ["model.safetensors", "trainer/optimizer.safetensors"] {
            let read = |dir: &RunDir| fs::read(dir.checkpoint("step-8").join(file)).unwrap();
            assert!(read(&uninterrupted) == read(&interrupted), "{settings:?}: {file}");
        }
        let losses: Vec<f64> = uninterrupted.losses().into_values().collect();
        assert!(losses[7] < losses[0], "{settings:?} does not learn: {losses:?}");
    }
}

#[test]
fn adafactor_needs_no_learning_rate() {
    let dir = RunDir::new();
    let config = dir.path().join("own-rate.toml");
    let shipped = fs::read_to_string(crate::cluster::MNIST).unwrap();
    let without =
        shipped.replace("\nlr = 0.005", "").replace("\nschedule = ", "\n# ").replace("\"adam\"", "\"adafactor\"");
    fs::write(&config, without).unwrap();
    let data = crate::data::digits().display();
    let job = Job::new(["train"]).arg(&config).set("run.devices", "cpu:1").set("task.data", data);
    job.set("run.dir", dir.path().join("run").display()).set("run.max_updates", 3).succeed();
    let metrics = fs::read_to_string(dir.path().join("run/metrics.jsonl")).unwrap();
    assert_eq!(metrics.matches("\"lr\":0.01,").count(), 3, "{metrics}");
}
