//! Processes join a run while it trains, and return to it: the same losses, each update and each sample
//! once. Those that do not fit, or that die on the way, disturb nothing.

use std::thread::sleep;
use std::time::Duration;

use hetseq_metrics::Event;

use crate::cluster::{Cluster, Job, codes};
use crate::reference::{Reference, shipped};
use crate::run_dir::RunDir;

const SOON: Duration = Duration::from_secs(90);
const UPDATES: u64 = 60;
const SECRET: &str = "hunter2-hunter2-2";

/// Slowed down, so that there is time to join. Checks after every update that all replicas are equal.
fn settings(job: Job) -> Job {
    job.set("emulate.slowdown", "[16, 16, 16, 16]")
        .set("batch.probe_s", 0)
        .set("checkpoint.every", "10 updates")
        .set("run.checksum_every", 1)
        .set("debug.audit", true)
}

fn job(dir: &RunDir, world: usize) -> Job {
    let job = settings(shipped(dir, UPDATES)).ranks(world);
    (0..world).fold(job, |job, rank| job.env_on(rank, "HETSEQ_SECRET", SECRET))
}

/// A process without a rank, which joins at the port of rank 0.
fn newcomer(dir: &RunDir, port: u16) -> Job {
    settings(shipped(dir, UPDATES)).env_on(0, "HETSEQ_SECRET", SECRET).arg("--join").arg(format!("127.0.0.1:{port}"))
}

fn wait_for(cluster: &mut Cluster, dir: &RunDir, event: &str) {
    cluster.wait_until_after_losses(event, || dir.membership_events().iter().any(|found| found == event));
}

/// Requires a finished run with the losses of the undisturbed one, and each sample once.
fn assert_undisturbed(dir: &RunDir, numbers: usize, who: &str) {
    assert_eq!(dir.end(), (UPDATES, "finished".to_owned()), "{who}");
    Reference::shipped().assert_losses(dir, UPDATES, who);
    // One that has joined and died before the end of an update has none.
    let has_file = |number: &usize| dir.path().join(format!("audit-rank-{number}.jsonl")).exists();
    let lines = (0..numbers).filter(has_file).flat_map(|number| dir.audit(number));
    let mut samples: Vec<(u64, u32)> =
        lines.flat_map(|(_, epoch, ids)| ids.into_iter().map(move |id| (epoch, id))).collect();
    let count = samples.len();
    samples.sort_unstable();
    samples.dedup();
    assert_eq!((samples.len(), count), (count, dir.samples()), "{who}: each sample once");
}

#[test]
fn a_process_that_joins_changes_no_loss() {
    for shares_directory in [true, false] {
        let (dir, own) = (RunDir::new(), RunDir::new());
        let job = job(&dir, 2);
        let mut cluster = job.start();
        cluster.wait_for_update(&dir, 5);
        newcomer(if shares_directory { &dir } else { &own }, job.port()).start_rank(0, &mut cluster);
        let ended = cluster.wait(SOON);
        assert_eq!(codes(&ended), [Some(0); 3], "{ended:#?}");
        assert_eq!(dir.membership_events(), ["joined 2"], "{ended:#?}");
        assert_undisturbed(&dir, 3, "joined");
        assert!(!dir.audit(2).is_empty());
        let shares = |event| match event {
            Event::Joined { shares, .. } => Some(shares),
            _ => None,
        };
        let shares = dir.events().into_iter().find_map(shares).unwrap();
        assert!(shares.len() == 3 && shares[2].before == 0.0 && shares[2].after > 0.0, "{shares:?}");
    }
}

/// By the same command as before, with its number and the address of rank 0.
#[test]
fn a_killed_rank_returns_by_its_command() {
    for rank in [1, 0] {
        let dir = RunDir::new();
        let job = job(&dir, 3);
        let mut cluster = job.start();
        cluster.wait_for_update(&dir, 5);
        cluster.signal(rank, "KILL");
        wait_for(&mut cluster, &dir, &format!("lost {rank}"));
        job.start_rank(rank, &mut cluster);
        let ended = cluster.wait(SOON);
        let expected: Vec<_> = (0..4).map(|member| (member != rank).then_some(0)).collect();
        assert_eq!(codes(&ended), expected, "{ended:#?}");
        let events = dir.membership_events();
        assert_eq!(events.last().unwrap(), &format!("joined {rank}"), "{events:?}");
        assert_undisturbed(&dir, 3, "returned");
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let (dir, own) = (RunDir::new(), RunDir::new());
    let job = job(&dir, 2);
    let mut cluster = job.start();
    cluster.wait_for_update(&dir, 3);
    let other = newcomer(&own, job.port()).set("optim.lr", 0.77);
    let stranger = newcomer(&own, job.port()).env_on(0, "HETSEQ_SECRET", "another-secret-of-16");
    let refused: Vec<_> = [other, stranger].into_iter().map(|job| job.start()).collect();
    for (refused, reason) in refused.into_iter().zip(["optim.lr: 0.77 here", "the shared secrets differ"]) {
        let [ended] = &refused.wait(SOON)[..] else { panic!() };
        assert!(ended.code() != Some(0) && ended.stderr.contains(reason), "{ended:#?}");
    }
    newcomer(&own, job.port()).start_rank(0, &mut cluster);
    let ended = cluster.wait(SOON);
    assert_eq!(codes(&ended), [Some(0); 3], "{ended:#?}");
    assert!(ended[0].stderr.contains("optim.lr"), "{ended:#?}");
    assert_eq!(dir.membership_events(), ["joined 2"]);
    assert_undisturbed(&dir, 3, "two were refused");
}

/// Killed while it starts, connects, waits, gets the state, or computes.
#[test]
fn a_process_that_dies_on_the_way_disturbs_nothing() {
    let dir = RunDir::new();
    let job = job(&dir, 2);
    let mut cluster = job.start();
    cluster.wait_for_update(&dir, 3);
    for millis in [100, 200, 300, 400, 500, 700] {
        let dying = newcomer(&dir, job.port()).start();
        sleep(Duration::from_millis(millis));
        dying.signal(0, "KILL");
        dying.wait(SOON);
    }
    let dying = newcomer(&dir, job.port()).start();
    let joined = dir.membership_events().iter().filter(|event| *event == "joined 2").count();
    let has_joined = || dir.membership_events().iter().filter(|event| *event == "joined 2").count() > joined;
    cluster.wait_until("a process to join", has_joined);
    dying.signal(0, "KILL");
    dying.wait(SOON);
    let ended = cluster.wait(SOON);
    assert_eq!(codes(&ended), [Some(0); 2], "{ended:#?}");
    assert_undisturbed(&dir, 3, "processes died on the way");
}

/// The others come later, with the numbers of their commands.
#[test]
fn a_run_starts_with_fewer_ranks_and_the_others_join() {
    let dir = RunDir::new();
    let job = job(&dir, 3).set("elastic.start_with", 1);
    let mut cluster = job.start_ranks([0]);
    cluster.wait_for_update(&dir, 4);
    job.start_rank(2, &mut cluster);
    job.start_rank(1, &mut cluster);
    let ended = cluster.wait(SOON);
    assert_eq!(codes(&ended), [Some(0); 3], "{ended:#?}");
    assert_eq!(dir.membership_events(), ["joined 1", "joined 2"], "{ended:#?}");
    assert_undisturbed(&dir, 3, "started with one");
}

/// It computes nothing, and votes.
#[test]
fn a_process_without_devices_joins_too() {
    let dir = RunDir::new();
    let job = job(&dir, 2);
    let mut cluster = job.start();
    cluster.wait_for_update(&dir, 4);
    newcomer(&dir, job.port()).set("run.devices", "none").start_rank(0, &mut cluster);
    let ended = cluster.wait(SOON);
    assert_eq!(codes(&ended), [Some(0); 3], "{ended:#?}");
    assert_eq!(dir.membership_events(), ["joined 2"], "{ended:#?}");
    assert_undisturbed(&dir, 2, "a voter joined");
}
