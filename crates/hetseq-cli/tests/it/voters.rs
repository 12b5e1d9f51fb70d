//! Ranks without devices: they compute nothing, hold the state, and vote on who continues.

use std::time::Duration;

use crate::cluster::{Job, codes};
use crate::reference::{Reference, shipped};
use crate::run_dir::RunDir;

const SOON: Duration = Duration::from_secs(60);
const UPDATES: u64 = 24;

fn job(dir: &RunDir, world: usize) -> Job {
    let slowdown = vec!["8"; world].join(", ");
    shipped(dir, UPDATES).ranks(world).set("emulate.slowdown", format!("[{slowdown}]")).set("run.checksum_every", 1)
}

#[test]
fn a_lead_without_devices_trains_like_any_other() {
    let dir = RunDir::new();
    let job = shipped(&dir, UPDATES).ranks(3).set_on(0, "run.devices", "none").set("valid.every", "6 updates");
    let ended = job.run();
    assert_eq!(codes(&ended), [Some(0); 3], "{ended:#?}");
    assert_eq!(dir.end(), (UPDATES, "finished".to_owned()));
    Reference::shipped().assert_losses(&dir, UPDATES, "a voter leads");
}

/// Two machines that share no directory cannot tell a lost peer from a split network. A third vote
/// can.
#[test]
fn two_machines_and_a_voter_survive_the_loss_of_either() {
    let dirs = [RunDir::new(), RunDir::new(), RunDir::new()];
    let job = (0..3).fold(job(&dirs[0], 3), |job, rank| job.env_on(rank, "HETSEQ_SECRET", "hunter2-hunter2-2"));
    let job = (1..3).fold(job, |job, rank| job.set_on(rank, "run.dir", &dirs[rank].path().display().to_string()));
    let mut cluster = job.set_on(2, "run.devices", "none").start();
    cluster.wait_for_update(&dirs[0], 5);
    cluster.signal(0, "KILL");
    let ended = cluster.wait(SOON);
    assert_eq!(codes(&ended)[1..], [Some(0), Some(0)], "{ended:#?}");
    let losses = dirs[1].losses();
    assert_eq!(losses.keys().last(), Some(&UPDATES), "{ended:#?}");
    Reference::shipped().assert_some_losses(&losses, "the lead was killed");
}

#[test]
fn voters_that_are_left_alone_save_and_stop() {
    let dir = RunDir::new();
    let mut cluster = job(&dir, 3).set_on(0, "run.devices", "none").set_on(1, "run.devices", "none").start();
    cluster.wait_for_update(&dir, 5);
    cluster.signal(2, "KILL");
    let ended = cluster.wait(SOON);
    assert_eq!(codes(&ended)[..2], [Some(75), Some(75)], "{ended:#?}");
    assert!(ended[0].stderr.contains("all ranks with devices are lost"), "{ended:#?}");
    job(&dir, 2).succeed();
    assert_eq!(dir.end(), (UPDATES, "finished".to_owned()));
    Reference::shipped().assert_losses(&dir, UPDATES, "resumed after that");
}

#[test]
fn someone_has_to_compute() {
    let dir = RunDir::new();
    let ended = job(&dir, 2).set("run.devices", "none").run();
    assert!(ended.iter().all(|rank| rank.code() == Some(2)), "{ended:#?}");
    assert!(ended[0].stderr.contains("run.devices = \"none\" on all ranks: at least one has to compute"), "{ended:#?}");
}
