//! Settings of the gradient exchange: another algorithm or other shard weights do not change the
//! result, and bf16 on the wire only changes it by rounding.

use hetseq_metrics::Event;

use crate::cluster::{Job, codes};
use crate::reference::{Reference, shipped};
use crate::run_dir::RunDir;

const UPDATES: u64 = 200;

/// Trains on three ranks. They compare their replicas bit by bit after every update, so a run that
/// succeeds had equal ones.
fn train(wire_dtype: &str) -> RunDir {
    let dir = RunDir::new();
    let job = Job::mnist("train", dir.path()).set("run.max_updates", UPDATES).set("run.max_epochs", 100);
    job.weights(&[3, 2, 1]).set("comm.wire_dtype", wire_dtype).set("run.checksum_every", 1).succeed();
    let compared = |event: &Event| matches!(event, Event::Update { checksum: Some(_), .. });
    assert_eq!(dir.events().iter().filter(|event| compared(event)).count() as u64, UPDATES);
    dir
}

#[test]
fn bf16_trains_like_f32_with_equal_replicas() {
    let [exact, rounded] = ["f32", "bf16"].map(train);
    let last = |dir: &RunDir| dir.validations()[&UPDATES];
    let ((exact_loss, _), (rounded_loss, _)) = (last(&exact), last(&rounded));
    let deviation = (rounded_loss / exact_loss - 1.0).abs();
    eprintln!("loss after {UPDATES} updates: f32 {exact_loss:.5}, bf16 {rounded_loss:.5}, deviation {deviation:.1e}");
    assert!(deviation < 0.01, "{rounded_loss} instead of {exact_loss}");
    // It rounds the gradients and nothing else: the first loss is computed before the first
    // exchange.
    let (exact, rounded) = (exact.losses(), rounded.losses());
    assert!((rounded[&1] / exact[&1] - 1.0).abs() < 1e-6, "{} instead of {}", rounded[&1], exact[&1]);
    assert!((2..=UPDATES).any(|update| rounded[&update] != exact[&update]));
}

#[test]
fn algorithm_and_shard_weights_do_not_change_the_result() {
    type Variant = (&'static str, fn(Job) -> Job);
    let variants: [Variant; 2] = [
        ("ring", |job| job.ranks(3).set("comm.algorithm", "ring")),
        ("rank 1 has no shard", |job| {
            job.ranks(3).set_on(1, "comm.shard_weight", "0").set_on(2, "comm.shard_weight", "2.5")
        }),
    ];
    for (name, set_up) in variants {
        let dir = RunDir::new();
        set_up(shipped(&dir, 30)).succeed();
        Reference::shipped().assert_losses(&dir, 30, name);
    }
}

#[test]
fn ranks_with_different_wire_dtypes_are_refused() {
    let dir = RunDir::new();
    let job = shipped(&dir, 3).ranks(2).set("comm.join_s", 3).set_on(1, "comm.wire_dtype", "bf16");
    let ended = job.run();
    assert_eq!(codes(&ended), [Some(1), Some(2)], "{ended:#?}");
    assert!(ended.iter().all(|rank| rank.stderr.contains("comm.wire_dtype")), "{ended:#?}");
    let wrong = shipped(&dir, 3).set("comm.wire_dtype", "bf16").set("comm.algorithm", "ring").run();
    assert!(codes(&wrong) == [Some(2)] && wrong[0].stderr.contains("round at every hop"), "{wrong:#?}");
}
