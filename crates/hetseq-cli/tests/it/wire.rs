//! How gradients travel changes what a run computes only as much as it says: not at all by another route or other owners,
//! and by the rounding of bf16 if that is asked for.

use hetseq_metrics::Event;

use crate::cluster::{Job, codes};
use crate::reference::{Reference, shipped};
use crate::run_dir::RunDir;

const UPDATES: u64 = 200;

/// Three ranks whose replicas are compared bit for bit after every update: a run that ends well had equal ones.
fn train(wire: &str) -> RunDir {
    let dir = RunDir::new();
    let job = Job::mnist("train", dir.path()).set("run.max_updates", UPDATES).set("run.max_epochs", 100);
    job.weights(&[3, 2, 1]).set("comm.wire", wire).set("run.checksum_every", 1).succeed();
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
    // It did round, and only the gradients: the loss of the first update is computed before any of them.
    let (exact, rounded) = (exact.losses(), rounded.losses());
    assert!((rounded[&1] / exact[&1] - 1.0).abs() < 1e-6, "{} instead of {}", rounded[&1], exact[&1]);
    assert!((2..=UPDATES).any(|update| rounded[&update] != exact[&update]));
}

#[test]
fn another_route_or_other_owners_change_nothing() {
    type Way = (&'static str, fn(Job) -> Job);
    let ways: [Way; 2] = [
        ("ring", |job| job.ranks(3).set("comm.route", "ring")),
        ("rank 1 owns nothing", |job| job.ranks(3).set_on(1, "comm.own", "0").set_on(2, "comm.own", "2.5")),
    ];
    for (name, set_up) in ways {
        let dir = RunDir::new();
        set_up(shipped(&dir, 30)).succeed();
        Reference::shipped().assert_losses(&dir, 30, name);
    }
}

#[test]
fn ranks_that_would_travel_differently_are_refused() {
    let dir = RunDir::new();
    let job = shipped(&dir, 3).ranks(2).set_on(1, "comm.wire", "bf16");
    let ended = job.run();
    assert_eq!(codes(&ended), [Some(2); 2], "{ended:#?}");
    assert!(ended[1].stderr.contains("comm.wire"), "{ended:#?}");
    let wrong = shipped(&dir, 3).set("comm.wire", "bf16").set("comm.route", "ring").run();
    assert!(codes(&wrong) == [Some(2)] && wrong[0].stderr.contains("round at every hop"), "{wrong:#?}");
}
