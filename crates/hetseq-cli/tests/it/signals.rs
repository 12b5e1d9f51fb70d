//! Signals that stop a run: Ctrl-C on any rank, any signal to the only rank, or to one of several if
//! the others must not continue without it. All ranks stop after the same update, with a checkpoint
//! and exit code 75. More signals do not change that, except a second Ctrl-C after a while.

use std::io::pipe;
use std::thread::sleep;
use std::time::Duration;

use crate::cluster::{Ended, Job, codes};
use crate::reference::{Reference, shipped};
use crate::run_dir::RunDir;

const SOON: Duration = Duration::from_secs(30);

#[test]
fn a_signal_to_one_rank_stops_three_and_they_resume() {
    for (signal, name, key) in
        [("INT", "Ctrl-C (SIGINT)", "elastic.enabled=true"), ("TERM", "SIGTERM", "elastic.enabled=false")]
    {
        stop_three_and_resume(signal, name, key);
    }
}

fn stop_three_and_resume(signal: &str, name: &str, key: &str) {
    let dir = RunDir::new();
    let job = shipped(&dir, 40).ranks(3).set("debug.audit", true);
    // Slowed down, so that the signal comes long before the end.
    let mut cluster = job.clone().set("emulate.slowdown", "[15, 15, 15]").arg("--set").arg(key).start();
    cluster.wait_for_update(&dir, 5);
    cluster.signal(1, signal);
    let ended = cluster.wait(SOON);
    assert_eq!(codes(&ended), [Some(75); 3], "{ended:#?}");
    assert!(ended[1].stderr.contains(&format!("{name}: stopping")), "{ended:#?}");
    assert!(ended[0].stderr.contains(&format!(") was asked to stop by {name}: saving")), "{ended:#?}");
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
    Reference::shipped().assert_losses(&dir, 40, "stopped by a signal, resumed");
}

/// Updates take about a second and nothing is measured before them, so that the signals arrive
/// within one update.
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
fn every_signal_saves_and_repeated_signals_are_ignored() {
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
fn a_second_ctrl_c_after_a_while_quits() {
    let dir = RunDir::new();
    let mut cluster = slow(&dir).set("emulate.slowdown", "[400]").start();
    cluster.wait_for_update(&dir, 1);
    cluster.signal(0, "INT");
    cluster.wait_for_message("Press Ctrl-C again after 2 s to quit without saving");
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
fn a_run_saves_after_its_terminal_has_closed() {
    let dir = RunDir::new();
    let (reader, writer) = pipe().unwrap();
    let mut cluster = slow(&dir).start_with_stderr(writer);
    cluster.wait_for_update(&dir, 1);
    drop(reader);
    cluster.signal(0, "HUP");
    assert_saved(&dir, &cluster.wait(SOON), "HUP");
}

#[test]
fn a_run_stopped_while_it_measures_devices_can_resume() {
    let dir = RunDir::new();
    let job = shipped(&dir, 20);
    let mut cluster = job.clone().set("emulate.slowdown", "[10]").start();
    cluster.wait_for_message("measuring what the devices can do");
    cluster.signal(0, "TERM");
    let ended = cluster.wait(SOON);
    assert_eq!(codes(&ended), [Some(75)], "{ended:#?}");
    let (last, outcome) = dir.end();
    assert_eq!((dir.link("last"), outcome.as_str()), (format!("step-{last}"), "stopped"));
    assert!(!dir.path().join("probe.json").exists(), "an incomplete measurement was kept");
    job.succeed();
    assert_eq!(dir.starts(), [(1, 0), (1, last)]);
    Reference::shipped().assert_losses(&dir, 20, "stopped while devices were measured");
}
