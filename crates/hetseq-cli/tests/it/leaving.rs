//! Ranks that are asked to leave while training: the others continue without them, and nothing is lost
//! or computed twice. If they cannot continue, all save and stop.

use std::thread::sleep;
use std::time::Duration;

use hetseq_metrics::{Event, ShareChange};

use crate::cluster::{Job, codes};
use crate::elastic::{UPDATES, assert_undisturbed, start, survivors};
use crate::reference::{Reference, shipped};
use crate::run_dir::RunDir;

const SOON: Duration = Duration::from_secs(90);

/// Slowed down, so that ranks leave long before the end. Checks after every update that all replicas
/// are equal.
fn job(dir: &RunDir, world: usize) -> Job {
    let slowdown = vec!["60"; world].join(", ");
    shipped(dir, UPDATES)
        .ranks(world)
        .set("emulate.slowdown", format!("[{slowdown}]"))
        .set("batch.probe_s", 0)
        .set("run.checksum_every", 1)
        .set("debug.audit", true)
}

/// Each rank that left, with the shares of all ranks before and after.
fn left(dir: &RunDir) -> Vec<(usize, Vec<ShareChange>)> {
    let left = |event| match event {
        Event::Left { rank, shares, .. } => Some((rank, shares)),
        _ => None,
    };
    dir.events().into_iter().filter_map(left).collect()
}

#[test]
fn a_rank_hands_its_share_back() {
    for leaver in [1, 0] {
        let dir = RunDir::new();
        let cluster = start(&job(&dir, 3), &dir, 5);
        cluster.signal(leaver, "TERM");
        let ended = cluster.wait(SOON);
        assert_eq!(survivors(&ended), (0..3).filter(|&rank| rank != leaver).collect::<Vec<_>>(), "{ended:#?}");
        assert_eq!(ended[leaver].code(), Some(75), "{ended:#?}");
        assert!(ended[leaver].stderr.contains("SIGTERM: leaving after the update in progress"), "{ended:#?}");
        assert!(ended[leaver].stderr.contains(": the other ranks continue"), "{ended:#?}");
        assert_undisturbed(&dir, 3, &format!("rank {leaver} left"));
        let name = format!("left {leaver}");
        let expected = if leaver == 0 { vec!["lead", &name, "regrouped 2"] } else { vec![&name[..], "regrouped 2"] };
        assert_eq!(dir.membership_events(), expected);
        let [(rank, shares)] = &left(&dir)[..] else { panic!("{:?}", left(&dir)) };
        assert_eq!((*rank, shares.len()), (leaver, 3));
        let sum = |part: fn(&ShareChange) -> f64| shares.iter().map(part).sum::<f64>();
        assert!((sum(|share| share.before) - 1.0).abs() < 1e-9, "{shares:?}");
        assert!((sum(|share| share.after) - 1.0).abs() < 1e-9, "{shares:?}");
        assert!(shares.iter().all(|share| share.before > 0.0 && (share.after > 0.0) == (share.rank != leaver)));
        let report = Job::new(["report".as_ref(), dir.path().as_os_str()]).succeed();
        assert!(
            report.contains(&format!("rank {leaver} (")) && report.contains(") left, asked by SIGTERM"),
            "{report}"
        );
        assert!(!report.contains("repeated update"), "{report}");
    }
}

/// Without a shared directory: also half of the ranks, and then half of those with the lead.
#[test]
fn any_part_of_a_group_may_leave() {
    let dirs = [RunDir::new(), RunDir::new(), RunDir::new(), RunDir::new()];
    let job = (0..4).fold(job(&dirs[0], 4), |job, rank| job.env_on(rank, "HETSEQ_SECRET", "hunter2-hunter2-2"));
    let job = (1..4).fold(job, |job, rank| job.set_on(rank, "run.dir", &dirs[rank].path().display().to_string()));
    let mut cluster = start(&job, &dirs[0], 4);
    cluster.signal(0, "HUP");
    cluster.signal(2, "USR1");
    cluster.wait_until_after_losses("update 20", || dirs[1].losses().contains_key(&20));
    cluster.signal(1, "TERM");
    let ended = cluster.wait(SOON);
    assert_eq!(codes(&ended), [Some(75), Some(75), Some(75), Some(0)], "{ended:#?}");
    assert_eq!(dirs[0].end().1, "left");
    assert_eq!(dirs[1].membership_events(), ["lead", "left 0", "left 2", "regrouped 2"]);
    assert_eq!(dirs[3].membership_events(), ["lead", "left 1", "regrouped 1"]);
    let mut losses = dirs[0].losses();
    losses.extend(dirs[1].losses());
    losses.extend(dirs[3].losses());
    assert!(losses.keys().copied().eq(1..=UPDATES), "{losses:?}");
    Reference::shipped().assert_some_losses(&losses, "three of four left");
}

#[test]
fn requests_to_all_ranks_are_one_stop() {
    let dir = RunDir::new();
    let cluster = start(&job(&dir, 3).set("checkpoint.every", "never"), &dir, 4);
    for rank in [2, 0, 1] {
        cluster.signal(rank, "TERM");
        sleep(Duration::from_millis(400));
    }
    let ended = cluster.wait(SOON);
    assert_eq!(codes(&ended), [Some(75); 3], "{ended:#?}");
    assert_eq!(dir.membership_events(), [""; 0]);
    let (last, outcome) = dir.end();
    assert_eq!((outcome.as_str(), dir.saved()), ("stopped", vec![last]));
    job(&dir, 2).set("emulate.slowdown", "[]").succeed();
    Reference::shipped().assert_losses(&dir, UPDATES, "all were asked to leave, resumed");
}

#[test]
fn too_few_ranks_stop_instead() {
    let dir = RunDir::new();
    let cluster = start(&job(&dir, 2).set("elastic.min_workers", 2), &dir, 4);
    cluster.signal(1, "TERM");
    let ended = cluster.wait(SOON);
    assert_eq!(codes(&ended), [Some(75); 2], "{ended:#?}");
    assert!(ended[0].stderr.contains(") was asked to stop by SIGTERM: saving after"), "{ended:#?}");
    let (last, outcome) = dir.end();
    assert_eq!((outcome.as_str(), dir.link("last")), ("stopped", format!("step-{last}")));
}

#[test]
fn a_rank_leaves_before_the_first_update() {
    let dir = RunDir::new();
    let mut cluster = shipped(&dir, 6).ranks(2).set("emulate.slowdown", "[60, 60]").start();
    cluster.wait_for_message("measuring what the devices can do");
    cluster.signal(0, "TERM");
    let ended = cluster.wait(SOON);
    assert_eq!(codes(&ended), [Some(75), Some(0)], "{ended:#?}");
    assert_eq!(dir.end(), (6, "finished".to_owned()));
    Reference::shipped().assert_losses(&dir, 6, "rank 0 left before the first update");
}

/// A leave does not wait for a validation. The others repeat it.
#[test]
fn a_rank_leaves_during_a_validation() {
    let dir = RunDir::new();
    let job = job(&dir, 2).set("valid.every", "4 updates").set("emulate.slowdown", "[60, 60]");
    let mut cluster = job.start();
    cluster.wait_for_update(&dir, 3);
    // Comes due somewhere around the validation after update 4.
    cluster.signal(1, "TERM");
    let ended = cluster.wait(SOON);
    assert_eq!(codes(&ended), [Some(0), Some(75)], "{ended:#?}");
    assert_undisturbed(&dir, 2, "left around a validation");
    let valid = |event| if let Event::Valid { update, .. } = event { Some(update) } else { None };
    let valids: Vec<u64> = dir.events().into_iter().filter_map(valid).collect();
    assert_eq!(valids, (1..=10).map(|n| 4 * n).collect::<Vec<_>>());
}

#[test]
fn hetseq_stop_ends_the_run() {
    let dir = RunDir::new();
    let stop = |timeout: &str| Job::new(["stop".as_ref(), dir.path().as_os_str()]).args(["--timeout", timeout]);
    let ended = stop("1").run();
    assert!(ended[0].code() == Some(2) && ended[0].stderr.contains("is no run directory"), "{ended:#?}");
    let cluster = start(&job(&dir, 3), &dir, 4);
    let said = stop("60").succeed();
    let ended = cluster.wait(SOON);
    assert_eq!(codes(&ended), [Some(75); 3], "{ended:#?}");
    let (last, outcome) = dir.end();
    assert_eq!((outcome.as_str(), dir.link("last"), dir.saved()), ("stopped", format!("step-{last}"), vec![last]));
    assert_eq!(said, format!("stopped after update {last}\n{}\n", dir.checkpoint(&format!("step-{last}")).display()));
    assert!(ended[1].stderr.contains(") was asked to stop by hetseq stop: saving"), "{ended:#?}");
    assert!(stop("1").succeed().contains(&format!("has ended already: stopped after update {last}")));
    // No process takes a request to a run that was killed, and the next start ignores it.
    start(&job(&dir, 2), &dir, last + 2).kill();
    let ended = stop("1").run();
    assert!(ended[0].code() == Some(1) && ended[0].stderr.contains("no process has taken the request"), "{ended:#?}");
    let mut request = stop("60").start();
    let file = dir.path().join("stop-request.json");
    request.wait_until("the request", || file.exists());
    request.kill();
    job(&dir, 2).set("emulate.slowdown", "[]").succeed();
    assert!(!file.exists());
    assert_eq!(dir.end(), (UPDATES, "finished".to_owned()));
    Reference::shipped().assert_losses(&dir, UPDATES, "stopped by hetseq stop, then killed");
}

fn leave_when(file: &std::path::Path) -> String {
    format!("{{ command = \"test -e {}\", after_s = 1, free_s = 1 }}", file.display())
}

#[test]
fn a_machine_that_is_needed_leaves() {
    let (dir, busy) = (RunDir::new(), RunDir::new());
    let file = busy.path().join("busy");
    let mut cluster = start(&job(&dir, 3).set_on(1, "elastic.leave_when", &leave_when(&file)), &dir, 4);
    fs_err::create_dir_all(busy.path()).unwrap();
    fs_err::write(&file, "").unwrap();
    // It waits with the same process number.
    cluster.wait_for_message("waiting until this machine is free for 1 s");
    let ended = cluster.wait_for(2, SOON);
    assert!(ended.iter().all(|(rank, ended)| *rank != 1 && ended.code() == Some(0)), "{ended:#?}");
    assert_undisturbed(&dir, 3, "a machine was needed");
    assert_eq!(dir.membership_events(), ["left 1", "regrouped 2"]);
    let is_asked = |event| matches!(event, Event::Left { reason, .. } if reason == "the command of elastic.leave_when");
    assert_eq!(dir.events().into_iter().filter(|event| is_asked(event.clone())).count(), 1);
    cluster.signal(1, "TERM");
    cluster.wait_for(3, SOON);
}

#[test]
fn a_machine_that_is_free_again_joins() {
    let (dir, busy) = (RunDir::new(), RunDir::new());
    fs_err::create_dir_all(busy.path()).unwrap();
    let file = busy.path().join("busy");
    let job = job(&dir, 2).set_on(1, "elastic.leave_when", &leave_when(&file)).set("emulate.slowdown", "[120, 120]");
    let mut cluster = start(&job, &dir, 2);
    fs_err::write(&file, "").unwrap();
    cluster.wait_for_message("waiting until this machine is free for 1 s");
    fs_err::remove_file(&file).unwrap();
    let ended = cluster.wait(SOON);
    assert_eq!(codes(&ended), [Some(0); 2], "{ended:#?}");
    assert_eq!(dir.membership_events(), ["left 1", "regrouped 1", "joined 1"], "{ended:#?}");
    assert_undisturbed(&dir, 2, "a machine left and returned");
}

#[test]
fn a_single_machine_pauses_and_continues() {
    let (dir, busy) = (RunDir::new(), RunDir::new());
    fs_err::create_dir_all(busy.path()).unwrap();
    let file = busy.path().join("busy");
    let job = job(&dir, 1).set("elastic.leave_when", leave_when(&file)).args(["--resume", "never"]);
    let mut cluster = start(&job, &dir, 4);
    fs_err::write(&file, "").unwrap();
    cluster.wait_for_message("waiting until this machine is free for 1 s");
    let (paused, outcome) = dir.end();
    assert_eq!((outcome.as_str(), dir.link("last")), ("stopped", format!("step-{paused}")));
    fs_err::remove_file(&file).unwrap();
    let ended = cluster.wait(SOON);
    assert_eq!(codes(&ended), [Some(0)], "{ended:#?}");
    assert_eq!(dir.starts(), [(1, 0), (1, paused)], "it neither starts over nor repeats anything");
    assert_undisturbed(&dir, 1, "paused");
}

#[test]
fn a_loaded_machine_leaves() {
    let dir = RunDir::new();
    let rules = "{ load = 0.02, after_s = 0 }";
    let mut cluster = start(&job(&dir, 1).set("elastic.leave_when", rules).set("emulate.slowdown", "[60]"), &dir, 1);
    let mut busy = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    cluster.wait_for_message("asked to leave by the load (elastic.leave_when)");
    busy.kill().unwrap();
    busy.wait().unwrap();
    cluster.wait_for_message("waiting until this machine is free for 300 s");
    assert_eq!(dir.end().1, "stopped");
    cluster.signal(0, "TERM");
    cluster.wait(SOON);
}
