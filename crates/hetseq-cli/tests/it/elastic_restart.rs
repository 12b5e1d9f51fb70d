//! A start after rank 0 was lost, where each rank has its own run directory: it continues from the
//! newest checkpoint of any rank, if that is of the same run.

use std::time::Duration;

use fs_err as fs;

use crate::cluster::{Job, codes};
use crate::reference::{Reference, shipped};
use crate::run_dir::RunDir;

const SOON: Duration = Duration::from_secs(60);
const UPDATES: u64 = 30;

/// A job of three ranks with a run directory each.
fn job(dirs: &[RunDir; 3], updates: u64) -> Job {
    let job = shipped(&dirs[0], updates).ranks(3).set("batch.probe_s", 0);
    let job = (0..3).fold(job, |job, rank| job.env_on(rank, "HETSEQ_SECRET", "hunter2-hunter2-2"));
    (1..3).fold(job, |job, rank| job.set_on(rank, "run.dir", &dirs[rank].path().display().to_string()))
}

/// Kills rank 0 and stops the others after that. Returns the directories and the update of the
/// checkpoint that the new rank 0 has saved in its own.
fn lose_rank_0() -> ([RunDir; 3], u64) {
    let dirs = [RunDir::new(), RunDir::new(), RunDir::new()];
    let slow = job(&dirs, UPDATES).set("emulate.slowdown", "[8, 8, 8]").set("checkpoint.every", "4 updates");
    let mut cluster = slow.start();
    cluster.wait_for_update(&dirs[0], 6);
    cluster.signal(0, "KILL");
    cluster.wait_until_after_losses("update 10", || dirs[1].losses().contains_key(&10));
    cluster.signal(2, "INT");
    let ended = cluster.wait(SOON);
    assert_eq!(codes(&ended)[1..], [Some(75), Some(75)], "{ended:#?}");
    let saved = dirs[1].saved().into_iter().max().unwrap();
    assert!((10..UPDATES).contains(&saved), "{saved}");
    assert!(!dirs[0].losses().contains_key(&saved));
    assert!(!dirs[2].checkpoint("").exists());
    (dirs, saved)
}

#[test]
fn the_newest_checkpoint_of_any_rank_is_used() {
    let (dirs, saved) = lose_rank_0();
    let before = dirs[0].losses();
    let ended = job(&dirs, UPDATES).run();
    assert_eq!(codes(&ended), [Some(0); 3], "{ended:#?}");
    let stderr = &ended[0].stderr;
    let path = dirs[1].checkpoint(&format!("step-{saved}"));
    assert!(stderr.contains(&format!("resuming from {} of rank 1 (", path.display())), "{stderr}");
    assert!(stderr.contains(&format!("has done up to update {saved}: they are in the metrics.jsonl")), "{stderr}");
    // Rank 0 leads again, and its files continue.
    assert_eq!(dirs[0].starts().last().map(|(_, resumed_at)| *resumed_at), Some(saved));
    assert_eq!(dirs[0].end(), (UPDATES, "finished".to_owned()));
    assert_eq!(dirs[0].link("last"), format!("step-{UPDATES}"));
    let losses = dirs[0].losses();
    assert!(losses.keys().copied().eq(before.into_keys().chain(saved + 1..=UPDATES)), "{losses:?}");
    Reference::shipped().assert_some_losses(&losses, "continued from rank 1's checkpoint");
    // Now rank 0's is the newest.
    let ended = job(&dirs, UPDATES + 2).run();
    assert!(ended[0].stderr.contains(&format!("resuming from {}", dirs[0].checkpoint("").display())), "{ended:#?}");
    assert_eq!(dirs[0].starts().last().map(|(_, resumed_at)| *resumed_at), Some(UPDATES));
}

#[test]
fn a_rank_0_that_has_lost_its_disk_continues_too() {
    let (dirs, saved) = lose_rank_0();
    fs::remove_dir_all(dirs[0].path()).unwrap();
    job(&dirs, UPDATES).succeed();
    let losses = dirs[0].losses();
    assert!(losses.keys().copied().eq(saved + 1..=UPDATES), "{losses:?}");
    Reference::shipped().assert_some_losses(&losses, "continued on a new disk");
}

#[test]
fn a_checkpoint_of_another_run_or_a_damaged_one_is_not_used() {
    let (dirs, saved) = lose_rank_0();
    // A new run by the user's decision.
    job(&dirs, 4).args(["--resume", "never"]).succeed();
    assert_eq!(dirs[0].starts(), [(3, 0)]);
    let ended = job(&dirs, 6).run();
    let stderr = &ended[0].stderr;
    assert_eq!(codes(&ended), [Some(0); 3], "{ended:#?}");
    assert_eq!(dirs[0].starts().last().map(|(_, resumed_at)| *resumed_at), Some(4), "{stderr}");
    let path = dirs[1].checkpoint(&format!("step-{saved}"));
    assert!(stderr.contains(&format!("the newer checkpoint {} of rank 1 (", path.display())), "{stderr}");
    assert!(stderr.contains("is not used: it belongs to another run than rank 0's"), "{stderr}");
    // Rank 0 has no run any more, but the newest checkpoint of rank 1 is damaged.
    fs::remove_dir_all(dirs[0].path()).unwrap();
    fs::write(path.join("model.safetensors"), "").unwrap();
    let older: u64 = dirs[1]
        .checkpoints()
        .iter()
        .filter_map(|name| name.strip_prefix("step-")?.parse().ok())
        .filter(|&step| step < saved)
        .max()
        .unwrap();
    job(&dirs, UPDATES).succeed();
    assert_eq!(dirs[0].starts().last().map(|(_, resumed_at)| *resumed_at), Some(older));
}
