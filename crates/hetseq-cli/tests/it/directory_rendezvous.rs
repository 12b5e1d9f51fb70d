//! Rendezvous in a shared directory, whatever files an earlier run has left in it.

use std::time::Duration;

use crate::cluster::{Job, codes};
use crate::reference::{Reference, shipped};
use crate::run_dir::RunDir;

/// Enough for a start and a few updates.
const SOON: Duration = Duration::from_secs(30);

fn notices(dir: &RunDir) -> usize {
    let names = dir.contents().into_keys().filter_map(|path| path.file_name()?.to_str().map(str::to_owned));
    names.filter(|name| name.starts_with("meeting-")).count()
}

fn train(dir: &RunDir, rendezvous: &RunDir, updates: u64) -> Job {
    shipped(dir, updates).set("batch.split", "equal").ranks(2).rendezvous_in(rendezvous.path())
}

#[test]
fn files_of_a_killed_run_do_not_disturb_the_next() {
    let (dir, rendezvous) = (RunDir::new(), RunDir::new());
    let job = train(&dir, &rendezvous, 40).set("checkpoint.every", "2 updates");
    let mut cluster = job.clone().set("emulate.slowdown", "[10, 10]").start();
    cluster.wait_for_update(&dir, 5);
    cluster.kill();
    assert_eq!(notices(&rendezvous), 1, "the notice of the killed run");
    job.succeed();
    assert_eq!(dir.end(), (40, "finished".to_owned()));
    Reference::shipped().assert_losses(&dir, 40, "two ranks with a rendezvous directory, killed and resumed");
    assert_eq!(notices(&rendezvous), 0);
    assert_eq!(dir.checkpoints().last().map(String::as_str), Some("step-40"));
}

#[test]
fn when_the_leader_is_killed_another_rank_leads() {
    let (dir, rendezvous) = (RunDir::new(), RunDir::new());
    let job = train(&dir, &rendezvous, 2).ranks(3);
    let mut cluster = job.start_ranks([0]);
    cluster.wait_for_message("waiting for ranks 1, 2 of 3");
    job.start_rank(1, &mut cluster);
    cluster.wait_for_message("reached rank 0");
    cluster.signal(0, "KILL");
    // The second process leads now. With two more, all ranks have joined.
    job.start_rank(2, &mut cluster);
    job.start_rank(0, &mut cluster);
    let ended = cluster.wait(SOON);
    assert_eq!(codes(&ended), [None, Some(0), Some(0), Some(0)], "{ended:#?}");
    assert_eq!(dir.end(), (2, "finished".to_owned()));
}
