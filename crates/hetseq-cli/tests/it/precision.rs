//! Training in `f16` and `bf16`: the result is that of `f32` except for rounding, ranks may use
//! different precisions, and all ranks skip an update whose gradients overflow.

use crate::bert;
use crate::cluster::{Job, codes};
use crate::reference::Reference;
use crate::run_dir::RunDir;

const UPDATES: u64 = 100;

/// Split evenly, so that every device computes in every update.
fn train(dir: &RunDir) -> Job {
    bert::train(dir, UPDATES).set("run.checksum_every", 1).set("batch.split", "equal")
}

/// The mean of the last ten losses.
fn last(dir: &RunDir) -> f64 {
    dir.losses().range(UPDATES - 9..).map(|(_, loss)| loss).sum::<f64>() / 10.0
}

#[test]
fn half_precision_trains_as_well() {
    let full = RunDir::new();
    train(&full).succeed();
    for (who, job) in [
        ("f16", (|job| job.set("run.precision", "f16")) as fn(Job) -> Job),
        ("bf16", |job| job.set("run.precision", "bf16")),
        ("one rank f32, one bf16", |job| job.ranks(2).set_on(1, "run.devices", "cpu:1@bf16")),
        ("devices f16 and bf16", |job| job.set("run.devices", "cpu:1@f16,cpu:1@bf16")),
    ] {
        let dir = RunDir::new();
        job(train(&dir)).succeed();
        let (expected, found) = (last(&full), last(&dir));
        eprintln!("{who}: {found:.4} where f32 has {expected:.4}");
        assert!((found / expected - 1.0).abs() < 0.02, "{who}: {found} where f32 has {expected}");
        assert_ne!(dir.losses()[&UPDATES], full.losses()[&UPDATES], "{who}: nothing was rounded");
    }
}

#[test]
fn all_ranks_skip_an_overflow_and_the_loss_scale_adapts() {
    let dir = RunDir::new();
    let job = train(&dir).ranks(2).set_on(1, "run.precision", "f16").set("emulate.overflow", "[5, 6, 40]");
    job.set("checkpoint.every", "30 updates").set("checkpoint.keep", 10).succeed();
    let skipped: Vec<String> = dir.warnings().into_iter().filter(|warning| warning.contains("was skipped")).collect();
    let message = |update: u64, scale: u64| {
        format!("update {update} was skipped: gradients overflowed in f16; the loss scale is {scale} from now on")
    };
    for (update, halvings) in [(5, 1), (6, 2), (40, 3)] {
        assert!(skipped.contains(&message(update, 65_536 >> halvings)), "{skipped:?}");
    }
    assert_eq!(skipped.len(), 3, "{skipped:?}");
    let losses = dir.losses();
    assert!(losses[&UPDATES] < losses[&1] * 0.95, "nothing was learned");

    // A resume uses the loss scale of the checkpoint, and computes what the uninterrupted run did.
    let again = RunDir::new();
    let from = dir.checkpoint("step-30");
    let job = train(&again).ranks(2).set_on(1, "run.precision", "f16").set("emulate.overflow", "[40]");
    job.arg("--resume").arg(&from).succeed();
    assert!(again.warnings().contains(&message(40, 65_536 >> 3)), "{:?}", again.warnings());
    for (update, loss) in again.losses() {
        assert!(
            (loss / losses[&update] - 1.0).abs() < 1e-4,
            "update {update}: {loss} after the resume, {} before",
            losses[&update]
        );
    }
}

#[test]
fn updates_in_full_precision_are_not_skipped() {
    let (with, without) = (RunDir::new(), RunDir::new());
    bert::train(&without, 10).succeed();
    bert::train(&with, 10).set("emulate.overflow", "[5]").succeed();
    Reference::of(without, 10).assert_losses(&with, 10, "without f16");
}

#[test]
fn an_unknown_precision_is_refused() {
    let ended = bert::train(&RunDir::new(), 1).set("run.precision", "f8").run();
    assert!(codes(&ended) == [Some(2)] && ended[0].stderr.contains("f8"), "{ended:#?}");
    let ended = bert::train(&RunDir::new(), 1).set("run.devices", "cpu:1@f8").run();
    assert!(codes(&ended) == [Some(2)] && ended[0].stderr.contains("use f32, f16 or bf16"), "{ended:#?}");
}
