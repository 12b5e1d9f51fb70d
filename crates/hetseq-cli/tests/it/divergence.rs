//! Values that are not finite: a run that produces them fails on all ranks without saving them, and
//! weights that contain them are not used.

use std::path::Path;

use fs_err as fs;
use hetseq_metrics::Event;

use crate::cluster::{Ended, Job, codes};
use crate::reference::shipped;
use crate::run_dir::RunDir;
use crate::translation;

/// Overwrites the last weight in `dir` with NaN.
fn put_nan(dir: &Path) {
    let path = dir.join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(path, bytes).unwrap();
}

fn assert_failed(ended: &Ended, parts: &[&str]) {
    assert_eq!(ended.code(), Some(1), "{ended:#?}");
    for part in parts {
        assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
    }
    assert_eq!(ended.stdout, "");
}

#[test]
fn a_run_that_diverges_fails_on_all_ranks_and_is_not_saved() {
    for (name, lr) in [("sgd", "1e39"), ("adam", "3e38")] {
        let dir = RunDir::new();
        let job =
            |updates| shipped(&dir, updates).set("optim.name", name).set("checkpoint.every", "1 updates").ranks(2);
        job(2).succeed();
        let ended = job(3).set("optim.lr", lr).set("optim.schedule", "constant").run();
        assert_eq!(codes(&ended), [Some(1); 2], "{name}: {ended:#?}");
        let last = dir.checkpoint("step-2").display().to_string();
        let message = "update 3 made a value that is not finite: ";
        for part in [message, "weight is ", "optim.lr", "optim.clip_norm", "warm-up", &last] {
            assert!(ended[0].stderr.contains(part), "{name}, {part}: {}", ended[0].stderr);
        }
        assert!(ended[1].stderr.contains(message), "{name}: {}", ended[1].stderr);
        assert_eq!(dir.checkpoints(), ["step-1", "step-2"], "{name}");
        assert_eq!(dir.end(), (2, "failed".to_owned()), "{name}");
        // The message advises to resume with other settings.
        job(3).succeed();
    }
}

/// Gradients of the device of rank 1 that are NaN in these updates.
fn bad(updates: impl IntoIterator<Item = u64>) -> String {
    let fault = |update| format!("{{ rank = 1, device = \"cpu:0\", update = {update} }}");
    format!("[{}]", updates.into_iter().map(fault).collect::<Vec<_>>().join(", "))
}

#[test]
fn updates_with_bad_gradients_are_skipped_and_named() {
    let dir = RunDir::new();
    let job = shipped(&dir, 8).ranks(2).set("run.checksum_every", 1).set("emulate.not_finite", bad([3, 4, 6]));
    let ended = job.run();
    assert_eq!(codes(&ended), [Some(0); 2], "{ended:#?}");
    let skipped = |event| match event {
        Event::NotFinite { update, ranks, samples, in_a_row } => Some((update, ranks, samples.len(), in_a_row)),
        _ => None,
    };
    let skipped: Vec<_> = dir.events().into_iter().filter_map(skipped).collect();
    assert_eq!(
        skipped.iter().map(|(update, _, _, in_a_row)| (*update, *in_a_row)).collect::<Vec<_>>(),
        [(3, 1), (4, 2), (6, 1)]
    );
    assert!(skipped.iter().all(|(_, ranks, samples, _)| *ranks == [1] && (1..100).contains(samples)), "{skipped:?}");
    assert!(ended[0].stderr.contains("skipped update 3: the gradient of rank 1 is not finite, 1 in a row (samples "));
    // The parameters did not change in these updates.
    let sums: Vec<String> = dir.checksums();
    assert!(sums[1] == sums[2] && sums[2] == sums[3] && sums[4] == sums[5] && sums[5] != sums[6], "{sums:?}");
}

#[test]
fn too_many_bad_gradients_in_a_row_stop_the_run_with_a_checkpoint() {
    let dir = RunDir::new();
    let job = shipped(&dir, 12).ranks(2).set("run.max_bad_updates", 2);
    let ended = job.clone().set("emulate.not_finite", bad(5..=12)).run();
    assert_eq!(codes(&ended), [Some(1); 2], "{ended:#?}");
    let message = "update 7: the gradient is not finite (norm NaN), 3 times in a row (run.max_bad_updates)";
    assert!(ended.iter().all(|rank| rank.stderr.contains(message)), "{ended:#?}");
    assert_eq!(dir.checkpoints(), ["step-6"]);
    job.succeed();
    assert_eq!(dir.end(), (12, "finished".to_owned()));
}

#[test]
fn a_run_with_a_validation_loss_that_is_not_finite_fails() {
    let dir = RunDir::new();
    // The weights grow to about 1e18: they are finite, but the loss is not.
    let ended = shipped(&dir, 2).set("optim.lr", "1e20").ranks(2).run();
    assert_eq!(codes(&ended), [Some(1); 2], "{ended:#?}");
    let message = "update 2 made a value that is not finite: the loss of the validation after it is ";
    assert!(ended.iter().all(|rank| rank.stderr.contains(message)), "{ended:#?}");
    assert_eq!((dir.checkpoints(), dir.end()), (Vec::new(), (2, "failed".to_owned())));
}

#[test]
fn weights_that_are_not_finite_are_neither_evaluated_nor_resumed() {
    let dir = RunDir::new();
    shipped(&dir, 2).succeed();
    let step = dir.checkpoint("step-2");
    put_nan(&step);
    // Older versions wrote no manifest.
    _ = fs::remove_file(step.join("trainer/manifest.json"));
    let before = dir.contents();
    let parts = ["step-2", " is NaN at element ", "the run that saved it diverged"];
    assert_failed(&Job::mnist("eval", dir.path()).run()[0], &parts);
    assert_failed(&shipped(&dir, 4).run()[0], &parts);
    let ended = Job::mnist("eval", dir.path()).arg("--checkpoint").arg(&step).ranks(2).run();
    assert_eq!(codes(&ended), [Some(1); 2], "{ended:#?}");
    assert_eq!(dir.contents(), before);
}

#[test]
fn weights_that_are_not_finite_are_neither_used_for_translation_nor_exported() {
    let dir = RunDir::new();
    translation::train(&dir, 1).succeed();
    let (copy, input) = (dir.path().join("copy"), dir.path().join("input.txt"));
    Job::new(["export"]).arg(dir.path()).arg("--out").arg(&copy).succeed();
    put_nan(&copy);
    fs::write(&input, "sao tau.\n").unwrap();
    let ended = Job::new(["generate"]).arg(&copy).arg("--input").arg(&input).run().remove(0);
    assert_failed(&ended, &["copy", " is NaN at element "]);
    let ended = Job::new(["export"]).arg(&copy).arg("--out").arg(dir.path().join("again")).run().remove(0);
    assert_failed(&ended, &[" is NaN at element "]);
    assert!(!dir.path().join("again").exists());
}
