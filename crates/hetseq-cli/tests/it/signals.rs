//! A signal on any rank ends the run on all ranks after the same update, saved, with exit code 75.

use std::time::Duration;

use crate::cluster::codes;
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

#[test]
fn usr1_and_int_save_too() {
    for signal in ["USR1", "INT"] {
        let dir = RunDir::new();
        let mut cluster = shipped(&dir, 150).set("emulate.slowdown", "[5]").start();
        cluster.wait_for_update(&dir, 2);
        cluster.signal(0, signal);
        let ended = cluster.wait(SOON);
        assert_eq!(codes(&ended), [Some(75)], "{signal}: {ended:#?}");
        let (last, outcome) = dir.end();
        assert!((2..150).contains(&last) && outcome == "stopped", "{signal}: {outcome} after {last}");
        assert_eq!(dir.link("last"), format!("step-{last}"));
    }
}
