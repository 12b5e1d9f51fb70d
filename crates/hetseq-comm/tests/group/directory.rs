//! Rendezvous in a shared directory: without an address, without ranks, and with files of earlier
//! runs.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use hetseq_comm::{CommError, Group, Identity, Options, RankEnv, Rendezvous, Secret};
use tempfile::TempDir;

use crate::ranks::{Joining, join, join_as, on_each, options, wait_all};

fn rank_env(rank: Option<usize>, world: usize, dir: &Path) -> RankEnv {
    RankEnv { rank, world, rendezvous: Rendezvous::Directory(dir.to_owned()), source: "the test" }
}

/// Joins with only the directory set.
fn join_in(rank: Option<usize>, world: usize, dir: &Path) -> Joining {
    join(rank_env(rank, world, dir), options(rank.unwrap_or(9)))
}

fn all_joined(ranks: Vec<Joining>) -> Vec<Group> {
    let mut groups = wait_all(ranks);
    groups.sort_by_key(Group::rank);
    let world = groups.len();
    assert!(groups.iter().map(Group::rank).eq(0..world));
    assert!(groups.iter().all(|group| group.generation() == groups[0].generation()));
    groups
}

fn notices(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

/// Writes a notice as a killed run leaves it: private and valid, but its process is gone.
fn leave_notice(dir: &Path, id: u64, is_rank_0: bool, addresses: &[String]) {
    use std::os::unix::fs::PermissionsExt;
    let addresses: Vec<String> = addresses.iter().map(|address| format!("{address:?}")).collect();
    let text = format!(
        "{{\"id\":{id},\"is_rank_0\":{is_rank_0},\"host\":\"ghost\",\"addresses\":[{}],\"secret\":\"boo\"}}",
        addresses.join(",")
    );
    let path = dir.join(format!("meeting-{id:016x}.json"));
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// An address where no process listens.
fn dead_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[test]
fn processes_without_a_rank_get_one_whenever_they_join() {
    for pause in [0, 120] {
        let dir = TempDir::new().unwrap();
        let ranks = (0..4).map(|_| {
            sleep(Duration::from_millis(pause));
            join_in(None, 4, &dir.path().join("made/for/it"))
        });
        let groups = all_joined(ranks.collect());
        assert_eq!(notices(&dir.path().join("made/for/it")).len(), 1, "one notice stays during the run");
        on_each(groups, |mut group| {
            let all = group.all_gather_bytes(&[group.rank() as u8]).unwrap();
            assert_eq!(all, [[0], [1], [2], [3]]);
            group.close();
        });
        assert!(notices(&dir.path().join("made/for/it")).is_empty());
    }
}

#[test]
fn given_ranks_are_kept_and_the_others_are_assigned() {
    let dir = TempDir::new().unwrap();
    // A process without a rank starts first and leads, until rank 0 starts.
    let any: Vec<_> = [(); 2].map(|()| join_in(None, 5, dir.path())).into();
    sleep(Duration::from_millis(600));
    let numbered: Vec<_> = [3, 0, 1].map(|rank| (rank, join_in(Some(rank), 5, dir.path()))).into();
    let mut groups = Vec::new();
    for (rank, joined) in numbered {
        let group = joined.join().unwrap().unwrap();
        assert_eq!(group.rank(), rank);
        groups.push(group);
    }
    let mut rest: Vec<usize> = any
        .into_iter()
        .map(|joined| {
            let group = joined.join().unwrap().unwrap();
            let rank = group.rank();
            groups.push(group);
            rank
        })
        .collect();
    rest.sort_unstable();
    assert_eq!(rest, [2, 4]);
    on_each(groups, Group::close);
}

#[test]
fn notices_of_killed_runs_are_skipped_and_removed() {
    for has_ranks in [false, true] {
        let dir = TempDir::new().unwrap();
        // No process at the address, a program with another protocol, and files that are no
        // notices.
        leave_notice(dir.path(), 1, true, &[dead_address(), dead_address()]);
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = other.local_addr().unwrap().to_string();
        leave_notice(dir.path(), 2, false, &[address]);
        spawn(move || {
            other.incoming().map_while(Result::ok).for_each(|mut stream: TcpStream| {
                let _ = std::io::Write::write_all(&mut stream, b"220 mail.example.org ESMTP Postfix (Debian/GNU)\r\n");
            })
        });
        leave_notice(dir.path(), u64::MAX, false, &[dead_address()]);
        std::fs::write(dir.path().join("meeting-0000000000000003.json"), "half a no").unwrap();
        std::fs::write(dir.path().join("notes.txt"), "mine").unwrap();
        let ranks = if has_ranks { [Some(0), Some(1)] } else { [None, None] };
        let groups = all_joined(ranks.map(|rank| join_in(rank, 2, dir.path())).into());
        // What remains: this run's notice, and the files that are no notices.
        let start = Instant::now();
        while notices(dir.path()).len() > 3 && start.elapsed() < Duration::from_secs(30) {
            sleep(Duration::from_millis(20));
        }
        on_each(groups, Group::close);
        let mut left = notices(dir.path());
        left.sort();
        assert_eq!(left, ["meeting-0000000000000003.json", "notes.txt"], "has_ranks: {has_ranks}");
    }
}

#[test]
fn a_silent_leader_is_skipped() {
    let dir = TempDir::new().unwrap();
    // Like a suspended process: the system accepts connections for it, but nothing answers.
    let stopped = TcpListener::bind("127.0.0.1:0").unwrap();
    leave_notice(dir.path(), 1, true, &[stopped.local_addr().unwrap().to_string()]);
    let groups = all_joined(vec![join_in(None, 2, dir.path()), join_in(None, 2, dir.path())]);
    on_each(groups, Group::close);
}

#[test]
fn missing_ranks_are_named_on_all_waiting_ranks() {
    let dir = TempDir::new().unwrap();
    let leader = join(rank_env(Some(0), 4, dir.path()), Options { join: Duration::from_millis(700), ..options(0) });
    sleep(Duration::from_millis(100));
    let others = [None, Some(3)].map(|rank| join_in(rank, 4, dir.path()));
    for rank in others.into_iter().chain([leader]) {
        let error = rank.join().unwrap().unwrap_err();
        assert!(matches!(&error, CommError::Missing { ranks, .. } if *ranks == [2]), "{error}");
    }
}

#[test]
fn a_late_rank_is_refused_and_does_not_disturb_the_run() {
    let dir = TempDir::new().unwrap();
    let groups = all_joined(vec![join_in(None, 2, dir.path()), join_in(None, 2, dir.path())]);
    let late = join(rank_env(Some(1), 2, dir.path()), Options { join: Duration::from_millis(900), ..options(1) });
    let text = late.join().unwrap().unwrap_err().to_string();
    assert!(text.contains("found no rank 0 at file://") && text.contains("this run has already started"), "{text}");
    let late = join(rank_env(None, 2, dir.path()), Options { join: Duration::from_millis(900), ..options(9) });
    let text = late.join().unwrap().unwrap_err().to_string();
    assert!(text.contains("rank 1 of 2 did not join") && text.contains("this run has already started"), "{text}");
    on_each(groups, |mut group| {
        group.barrier().unwrap();
        group.close();
    });
}

#[test]
fn a_second_rank_0_is_refused() {
    let dir = TempDir::new().unwrap();
    let mut rank0s = vec![join_in(Some(0), 2, dir.path()), join_in(Some(0), 2, dir.path())];
    let start = Instant::now();
    while !rank0s.iter().any(JoinHandle::is_finished) {
        assert!(start.elapsed() < Duration::from_secs(60), "both still wait");
        sleep(Duration::from_millis(20));
    }
    let refused = rank0s.iter().position(JoinHandle::is_finished).unwrap();
    let text = rank0s.remove(refused).join().unwrap().unwrap_err().to_string();
    assert!(text.contains("rank 0 is already taken by host0"), "{text}");
    rank0s.push(join_in(Some(1), 2, dir.path()));
    on_each(all_joined(rank0s), Group::close);
}

#[test]
fn an_error_without_a_leader_names_the_directory() {
    let dir = TempDir::new().unwrap();
    let impatient = |rank| Options { join: Duration::from_millis(500), ..options(rank) };
    let text = join(rank_env(Some(1), 2, dir.path()), impatient(1)).join().unwrap().unwrap_err().to_string();
    assert!(
        text.contains("found no rank 0 at file://") && text.contains("no rank 0 has posted a notice there"),
        "{text}"
    );
    let error = join(rank_env(None, 3, dir.path()), impatient(9)).join().unwrap().unwrap_err();
    assert!(matches!(&error, CommError::Missing { ranks, .. } if *ranks == [1, 2]), "{error}");
    assert!(notices(dir.path()).is_empty());
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = join_in(None, 2, &file).join().unwrap().unwrap_err();
    assert!(matches!(error, CommError::Directory { .. }), "{error}");
}

#[test]
fn identities_are_compared() {
    let dir = TempDir::new().unwrap();
    let with = |lr: f32| Identity::new().with("optim.lr", lr);
    for has_right_one in [false, true] {
        let join_s = Duration::from_secs(if has_right_one { 10 } else { 2 });
        let first = Options { join: join_s, ..options(0) };
        let first = join_as(rank_env(Some(0), 2, dir.path()), with(0.1), first);
        let wrong = join_as(rank_env(Some(1), 2, dir.path()), with(0.2), options(7)).join().unwrap().unwrap_err();
        let text = wrong.to_string();
        assert!(matches!(wrong, CommError::Mismatch { .. }), "{text}");
        assert!(text.contains("optim.lr: 0.2 here, 0.1 on rank 0 (host0)"), "{text}");
        if has_right_one {
            let right = join_as(rank_env(None, 2, dir.path()), with(0.1), options(7));
            on_each(all_joined(vec![first, right]), Group::close);
        } else {
            let text = first.join().unwrap().unwrap_err().to_string();
            assert!(text.contains("optim.lr: 0.1 here, 0.2 on rank 1 (host7)"), "{text}");
        }
    }
}

#[test]
fn a_process_with_another_secret_does_not_stop_the_others() {
    let dir = TempDir::new().unwrap();
    let with = |secret: &str| Options { secret: Secret::Given(secret.to_owned()), ..options(9) };
    let wrong = Options { join: Duration::from_secs(3), ..with("badger-of-the-wood") };
    // As rank 0 it has priority over all that have no rank.
    let wrong = [Some(0), None].map(|rank| join(rank_env(rank, 3, dir.path()), wrong.clone()));
    sleep(Duration::from_millis(300));
    let right = [(); 2].map(|()| join(rank_env(None, 2, dir.path()), with("squirrel-of-the-park")));
    on_each(all_joined(right.into()), Group::close);
    for rank in wrong {
        let text = rank.join().unwrap().unwrap_err().to_string();
        assert!(text.contains("of 3 did not join"), "{text}");
    }
}

#[test]
fn a_given_secret_replaces_that_of_the_notice_and_encryption_works() {
    let dir = TempDir::new().unwrap();
    let with = |secret: &str, encrypt| Options { secret: Secret::Given(secret.to_owned()), encrypt, ..options(9) };
    let impatient = |options| Options { join: Duration::from_secs(1), ..options };
    let ranks = [(); 2].map(|()| join(rank_env(None, 2, dir.path()), with("squirrel-of-the-park", true)));
    on_each(all_joined(ranks.into()), Group::close);
    let zero = join(
        rank_env(Some(0), 2, dir.path()),
        Options { join: Duration::from_secs(6), ..with("squirrel-of-the-park", false) },
    );
    sleep(Duration::from_millis(200));
    for (other, expected) in [
        (with("badger-of-the-wood", false), "the shared secrets differ"),
        (with("squirrel-of-the-park", true), "comm.encrypt is true on the connecting rank"),
        (options(1), "HETSEQ_SECRET is set on the rank it connects to but not on the connecting rank"),
    ] {
        let text = join(rank_env(Some(1), 2, dir.path()), impatient(other)).join().unwrap().unwrap_err().to_string();
        assert!(text.contains(expected), "{text}");
    }
    zero.join().unwrap().unwrap_err();
}
