//! Ranks that share a directory meet without an address, without numbers, and whatever earlier runs have left there.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use hetseq_comm::{CommError, Group, Identity, Options, Place, Rendezvous, Secret};
use tempfile::TempDir;

use crate::ranks::{join, join_as, on_each, options};

fn place(rank: Option<usize>, world: usize, dir: &Path) -> Place {
    Place { rank, world, rendezvous: Rendezvous::Directory(dir.to_owned()), source: "the test" }
}

/// Nothing is set but the directory.
fn arrive(rank: Option<usize>, world: usize, dir: &Path) -> JoinHandle<Result<Group, CommError>> {
    join(place(rank, world, dir), options(rank.unwrap_or(9)))
}

fn met(ranks: Vec<JoinHandle<Result<Group, CommError>>>) -> Vec<Group> {
    let mut groups: Vec<Group> = ranks.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect();
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

/// A notice as a killed run leaves it: private, well-formed, and of somebody who is no more.
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

/// An address at which nobody listens.
fn nobody() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[test]
fn ranks_without_numbers_get_them_whenever_they_come() {
    for pause in [0, 120] {
        let dir = TempDir::new().unwrap();
        let ranks = (0..4).map(|_| {
            sleep(Duration::from_millis(pause));
            arrive(None, 4, &dir.path().join("made/for/it"))
        });
        let groups = met(ranks.collect());
        assert_eq!(notices(&dir.path().join("made/for/it")).len(), 1, "one notice stays while the run goes on");
        on_each(groups, |mut group| {
            let all = group.agree(&[group.rank() as u8]).unwrap();
            assert_eq!(all, [[0], [1], [2], [3]]);
            group.close();
        });
        assert!(notices(&dir.path().join("made/for/it")).is_empty());
    }
}

#[test]
fn given_numbers_are_kept_and_the_others_fill_the_gaps() {
    let dir = TempDir::new().unwrap();
    // One without a number comes first and leads, until the one that was told to be rank 0 comes.
    let any: Vec<_> = [(); 2].map(|()| arrive(None, 5, dir.path())).into();
    sleep(Duration::from_millis(600));
    let told: Vec<_> = [3, 0, 1].map(|rank| (rank, arrive(Some(rank), 5, dir.path()))).into();
    let mut groups = Vec::new();
    for (rank, joined) in told {
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
fn what_killed_runs_left_is_passed_over_and_removed() {
    for told in [false, true] {
        let dir = TempDir::new().unwrap();
        // Nobody there, a program that speaks something else, one that says nothing, and no file of ours at all.
        leave_notice(dir.path(), 1, true, &[nobody(), nobody()]);
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = other.local_addr().unwrap().to_string();
        leave_notice(dir.path(), 2, false, &[address]);
        spawn(move || {
            other.incoming().map_while(Result::ok).for_each(|mut stream: TcpStream| {
                let _ = std::io::Write::write_all(&mut stream, b"220 mail.example.org ESMTP Postfix (Debian/GNU)\r\n");
            })
        });
        leave_notice(dir.path(), u64::MAX, false, &[nobody()]);
        std::fs::write(dir.path().join("meeting-0000000000000003.json"), "half a no").unwrap();
        std::fs::write(dir.path().join("notes.txt"), "mine").unwrap();
        let start = Instant::now();
        let numbers = if told { [Some(0), Some(1)] } else { [None, None] };
        let groups = met(numbers.map(|rank| arrive(rank, 2, dir.path())).into());
        assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
        // Its own notice, and what was never one.
        let start = Instant::now();
        while notices(dir.path()).len() > 3 && start.elapsed() < Duration::from_secs(30) {
            sleep(Duration::from_millis(20));
        }
        on_each(groups, Group::close);
        let mut left = notices(dir.path());
        left.sort();
        assert_eq!(left, ["meeting-0000000000000003.json", "notes.txt"], "told: {told}");
    }
}

#[test]
fn a_leader_that_says_nothing_is_passed_over() {
    let dir = TempDir::new().unwrap();
    // As if it had been stopped: the system takes connections for it, and nobody answers.
    let stopped = TcpListener::bind("127.0.0.1:0").unwrap();
    leave_notice(dir.path(), 1, true, &[stopped.local_addr().unwrap().to_string()]);
    let start = Instant::now();
    let groups = met(vec![arrive(None, 2, dir.path()), arrive(None, 2, dir.path())]);
    assert!(start.elapsed() < Duration::from_secs(9), "{:?}", start.elapsed());
    on_each(groups, Group::close);
}

#[test]
fn missing_ranks_are_named_to_all_who_waited() {
    let dir = TempDir::new().unwrap();
    let leader = join(place(Some(0), 4, dir.path()), Options { join: Duration::from_millis(700), ..options(0) });
    sleep(Duration::from_millis(100));
    let others = [None, Some(3)].map(|rank| arrive(rank, 4, dir.path()));
    for rank in others.into_iter().chain([leader]) {
        let error = rank.join().unwrap().unwrap_err();
        assert!(matches!(&error, CommError::Missing { ranks, .. } if *ranks == [2]), "{error}");
    }
}

#[test]
fn one_who_comes_late_does_not_disturb_and_is_told() {
    let dir = TempDir::new().unwrap();
    let groups = met(vec![arrive(None, 2, dir.path()), arrive(None, 2, dir.path())]);
    let late = join(place(Some(1), 2, dir.path()), Options { join: Duration::from_millis(900), ..options(1) });
    let text = late.join().unwrap().unwrap_err().to_string();
    assert!(text.contains("found no rank 0 at file://") && text.contains("this run is under way"), "{text}");
    let late = join(place(None, 2, dir.path()), Options { join: Duration::from_millis(900), ..options(9) });
    let text = late.join().unwrap().unwrap_err().to_string();
    assert!(text.contains("rank 1 of 2 did not come") && text.contains("this run is under way"), "{text}");
    on_each(groups, |mut group| {
        group.barrier().unwrap();
        group.close();
    });
}

#[test]
fn of_two_that_were_told_to_be_rank_0_one_is_told_so() {
    let dir = TempDir::new().unwrap();
    let mut zeros = vec![arrive(Some(0), 2, dir.path()), arrive(Some(0), 2, dir.path())];
    let start = Instant::now();
    while !zeros.iter().any(JoinHandle::is_finished) {
        assert!(start.elapsed() < Duration::from_secs(5), "both wait");
        sleep(Duration::from_millis(20));
    }
    let refused = zeros.iter().position(JoinHandle::is_finished).unwrap();
    let text = zeros.remove(refused).join().unwrap().unwrap_err().to_string();
    assert!(text.contains("rank 0 is already taken by host0"), "{text}");
    zeros.push(arrive(Some(1), 2, dir.path()));
    on_each(met(zeros), Group::close);
}

#[test]
fn without_a_leader_the_directory_is_named() {
    let dir = TempDir::new().unwrap();
    let impatient = |rank| Options { join: Duration::from_millis(500), ..options(rank) };
    let text = join(place(Some(1), 2, dir.path()), impatient(1)).join().unwrap().unwrap_err().to_string();
    assert!(text.contains("found no rank 0 at file://") && text.contains("nobody leads a meeting there"), "{text}");
    let error = join(place(None, 3, dir.path()), impatient(9)).join().unwrap().unwrap_err();
    assert!(matches!(&error, CommError::Missing { ranks, .. } if *ranks == [1, 2]), "{error}");
    assert!(notices(dir.path()).is_empty());
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = arrive(None, 2, &file).join().unwrap().unwrap_err();
    assert!(matches!(error, CommError::Directory { .. }), "{error}");
}

#[test]
fn what_must_be_equal_is_compared_as_everywhere() {
    let dir = TempDir::new().unwrap();
    let with = |lr: f32| Identity::new().with("optim.lr", lr);
    let first = join_as(place(Some(0), 2, dir.path()), with(0.1), options(0));
    let second = join_as(place(None, 2, dir.path()), with(0.2), options(7));
    let text = first.join().unwrap().unwrap_err().to_string();
    assert!(text.contains("optim.lr: 0.1 here, 0.2 on host7"), "{text}");
    let text = second.join().unwrap().unwrap_err().to_string();
    assert!(text.contains("optim.lr: 0.2 here, 0.1 on rank 0 (host0)"), "{text}");
}

#[test]
fn a_given_secret_counts_instead_of_the_notice_and_encryption_works_too() {
    let dir = TempDir::new().unwrap();
    let with = |secret: &str, encrypt| Options { secret: Secret::Given(secret.to_owned()), encrypt, ..options(9) };
    let ranks = [(); 2].map(|()| join(place(None, 2, dir.path()), with("squirrel-of-the-park", true)));
    on_each(met(ranks.into()), Group::close);
    let zero = join(
        place(Some(0), 2, dir.path()),
        Options { join: Duration::from_secs(1), ..with("squirrel-of-the-park", false) },
    );
    sleep(Duration::from_millis(200));
    for (other, expected) in [
        (with("badger-of-the-wood", false), "the shared secrets differ"),
        (with("squirrel-of-the-park", true), "comm.encrypt is true on the newcomer"),
        (options(1), "HETSEQ_SECRET is set on the rank it came to but not on the newcomer"),
    ] {
        let text = join(place(Some(1), 2, dir.path()), other).join().unwrap().unwrap_err().to_string();
        assert!(text.contains(expected), "{text}");
    }
    zero.join().unwrap().unwrap_err();
}
