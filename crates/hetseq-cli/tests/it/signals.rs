//! A signal on any rank ends the run on all ranks after the same update, saved, with exit code 75. More signals do not
//! change that, unless Ctrl-C is pressed again on purpose.

use std::io::pipe;
use std::thread::sleep;
use std::time::Duration;

use crate::cluster::{Ended, Job, codes};
use crate::reference::{Reference, shipped};
use crate::run_dir::RunDir;

const SOON: Duration = Duration::from_secs(30);

#[test]
fn sigterm_to_one_rank_stops_three_and_they_resume() {
    let dir = RunDir::new();
    let job = shipped(&dir, 40).ranks(3).set("debug.audit", true);
    // Slower than it need be, so that the signal comes long before the end.
    let mut cluster = job.clone().set("emulate.slowdown", "[15, 15, 15]").start();
    cluster.wait_for_update(&dir, 5);
    cluster.signal(1, "TERM");
    let ended = cluster.wait(SOON);
    assert_eq!(codes(&ended), [Some(75); 3], "{ended:#?}");
    assert!(ended[1].stderr.contains("SIGTERM: stopping") && ended[0].stderr.contains("rank 1 ("), "{ended:#?}");
    let (last, outcome) = dir.end();
    assert!((5..40).contains(&last) && outcome == "stopped", "{outcome} after {last}");
    assert_eq!(dir.losses().len() as u64, last);
    assert_eq!(dir.link("last"), format!("step-{last}"));
    for rank in 0..3 {
        assert_eq!(dir.audit(rank).last().unwrap().0, last, "rank {rank}");
    }
    job.succeed();
    assert_eq!(dir.starts(), [(3, 0), (3, last)]);
    assert_eq!(dir.end(), (40, "finished".to_owned()));
    Reference::shipped().assert_losses(&dir, 40, "stopped by SIGTERM, resumed");
}

/// Updates that take about a second and nothing to measure before them, so that signals arrive within one.
fn slow(dir: &RunDir) -> Job {
    shipped(dir, 150).set("emulate.slowdown", "[40]").set("batch.probe_s", 0)
}

fn assert_saved(dir: &RunDir, ended: &[Ended], signals: &str) {
    assert_eq!(codes(ended), [Some(75)], "{signals}: {ended:#?}");
    let (last, outcome) = dir.end();
    assert!((1..150).contains(&last) && outcome == "stopped", "{signals}: {outcome} after {last}");
    assert_eq!(dir.link("last"), format!("step-{last}"), "{signals}");
    assert_eq!(dir.losses().len() as u64, last, "{signals}");
}

#[test]
fn every_signal_saves_and_repeats_are_ignored() {
    let pause = Duration::from_millis(100);
    for signals in [&["TERM", "TERM"][..], &["USR1", "TERM"], &["HUP"], &["INT", "INT"], &["USR1"]] {
        let dir = RunDir::new();
        let mut cluster = slow(&dir).start();
        cluster.wait_for_update(&dir, 1);
        for signal in signals {
            cluster.signal(0, signal);
            sleep(pause);
        }
        let ended = cluster.wait(SOON);
        assert_saved(&dir, &ended, &signals.join(", "));
        assert_eq!(ended[0].stderr.matches("stopping").count(), 1, "{ended:#?}");
    }
}

#[test]
fn ctrl_c_again_after_a_while_quits() {
    let dir = RunDir::new();
    let mut cluster = slow(&dir).set("emulate.slowdown", "[400]").start();
    cluster.wait_for_update(&dir, 1);
    cluster.signal(0, "INT");
    cluster.wait_for_words("Press Ctrl-C again after 2 s to quit without saving");
    sleep(Duration::from_millis(2200));
    cluster.signal(0, "INT");
    let ended = cluster.wait(SOON);
    assert_eq!(codes(&ended), [Some(130)], "{ended:#?}");
    assert!(ended[0].stderr.contains("quitting without saving"), "{ended:#?}");
    assert!(dir.checkpoints().iter().all(|name| !name.starts_with("step-")), "{:?}", dir.checkpoints());
}

#[test]
fn nohup_is_respected() {
    let dir = RunDir::new();
    let job = shipped(&dir, 8).set("emulate.slowdown", "[10]").set("batch.probe_s", 0);
    let mut cluster = job.under(&["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"]).start();
    cluster.wait_for_update(&dir, 1);
    cluster.signal(0, "HUP");
    let ended = cluster.wait(SOON);
    assert_eq!(codes(&ended), [Some(0)], "{ended:#?}");
    assert_eq!(dir.end(), (8, "finished".to_owned()));
}

#[test]
fn a_terminal_that_is_gone_does_not_keep_a_run_from_saving() {
    let dir = RunDir::new();
    let (reader, writer) = pipe().unwrap();
    let mut cluster = slow(&dir).start_unread(writer);
    cluster.wait_for_update(&dir, 1);
    drop(reader);
    cluster.signal(0, "HUP");
    assert_saved(&dir, &cluster.wait(SOON), "HUP");
}

#[test]
fn a_stop_while_devices_are_measured_leaves_a_checkpoint_to_resume_from() {
    let dir = RunDir::new();
    let job = shipped(&dir, 20);
    let mut cluster = job.clone().set("emulate.slowdown", "[10]").start();
    cluster.wait_for_words("measuring what the devices can do");
    cluster.signal(0, "TERM");
    let ended = cluster.wait(SOON);
    assert_eq!(codes(&ended), [Some(75)], "{ended:#?}");
    let (last, outcome) = dir.end();
    assert_eq!((dir.link("last"), outcome.as_str()), (format!("step-{last}"), "stopped"));
    assert!(!dir.path().join("probe.json").exists(), "a measurement that was cut short is not kept");
    job.succeed();
    assert_eq!(dir.starts(), [(1, 0), (1, last)]);
    Reference::shipped().assert_losses(&dir, 20, "stopped while devices were measured");
}
