//! Processes that join a group that trains: admitted, refused, gone before it. The group is never
//! disturbed.

use std::path::{Path, PathBuf};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use hetseq_comm::{
    Candidate, CommError, Group, Identity, Joining, Newcomers, Options, RankEnv, RegroupRules, Rendezvous, Secret,
};
use tempfile::TempDir;

use crate::ranks::{HERE, free_port, options, rank_env};

/// The number of rounds after the newcomer.
const ROUNDS_AFTER: usize = 5;
const SECRET: &str = "squirrel-of-the-park";

fn with_newcomers(rank: usize, dir: &Path, join: Vec<String>) -> Options {
    let newcomers = Some(Newcomers { members_file: dir.join("members.json"), join, ..Newcomers::default() });
    Options { newcomers, secret: Secret::Given(SECRET.to_owned()), ..options(rank) }
}

fn rules(directory: Option<&Path>) -> RegroupRules {
    RegroupRules { directory: directory.map(Path::to_owned), min_workers: 1 }
}

fn started(joining: Joining) -> Group {
    match joining {
        Joining::Started(group) => group,
        Joining::Running(running) => panic!("{running:?}"),
    }
}

/// What became of a rank: its group's size, and the numbers of ranks that it has seen per round.
type Seen = Result<Vec<usize>, CommError>;

/// Exchanges in rounds, as the trainer does. Ends some rounds after the group has `until` ranks.
fn train(mut group: Group, until: usize) -> Seen {
    let (mut sizes, mut left) = (Vec::new(), ROUNDS_AFTER);
    loop {
        let candidate = group.candidate().map(|candidate| (candidate.id, candidate.sees_directory));
        let bytes = candidate.map_or_else(Vec::new, |(id, sees)| [&id.to_le_bytes()[..], &[u8::from(sees)]].concat());
        let result = group.all_gather_bytes(&bytes).and_then(|all| {
            sizes.push(all.len());
            if all.len() == until {
                left -= 1;
            }
            match <[u8; 9]>::try_from(&all[0][..]) {
                Ok(bytes) => {
                    let id = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                    group.admit(Candidate { id, sees_directory: bytes[8] == 1 }).map(drop)
                }
                Err(_) => Ok(()),
            }
        });
        if left == 0 {
            group.close();
            return Ok(sizes);
        }
        if let Err(error) = result {
            if !error.is_lost_rank() {
                return Err(error);
            }
            group.regroup()?;
        }
        sleep(Duration::from_millis(5));
    }
}

/// The members of a group, in threads.
fn start(world: usize, dir: &Path, port: u16, directory: bool, until: usize) -> Vec<JoinHandle<Seen>> {
    let member = |rank: usize| {
        let (env, options) = (rank_env(rank, world, HERE, port), with_newcomers(rank, dir, Vec::new()));
        let directory = directory.then(|| dir.to_owned());
        move || {
            let mut group = started(Group::join_or_find(&env, &Identity::new(), &options)?);
            group.set_regroup_rules(rules(directory.as_deref()));
            train(group, until)
        }
    };
    (0..world).map(|rank| spawn(member(rank))).collect()
}

/// A process that joins: by the address of a member, or by `members.json`.
fn join(
    dir: &Path,
    at: Option<u16>,
    identity: Identity,
    options: impl Fn(Options) -> Options,
) -> Result<Group, CommError> {
    let at = at.map(|port| format!("{HERE}:{port}")).into_iter().collect();
    let env = RankEnv { rank: Some(0), world: 1, rendezvous: Rendezvous::Alone, source: "the test" };
    match Group::join_or_find(&env, &identity, &options(with_newcomers(9, dir, at)))? {
        Joining::Started(group) => Ok(group),
        Joining::Running(running) => Group::enter(running, rules(Some(dir)), dir.join("members.json"), &|| false),
    }
}

/// Waits until all doors are open: a rank may be ready before rank 0.
fn wait_for_members(dir: &Path) -> PathBuf {
    let path = dir.join("members.json");
    while !path.exists() {
        sleep(Duration::from_millis(10));
    }
    sleep(Duration::from_millis(500));
    path
}

#[test]
fn a_newcomer_becomes_the_last_rank() {
    for (directory, by_file) in [(false, false), (true, true)] {
        let (dir, port) = (TempDir::new().unwrap(), free_port());
        let members = start(2, dir.path(), port, directory, 3);
        let path = wait_for_members(dir.path());
        let group = join(dir.path(), (!by_file).then_some(port), Identity::new(), |options| options).unwrap();
        assert_eq!((group.rank(), group.world(), group.shares_directory()), (2, 3, directory));
        assert_eq!((group.host(0), group.host(2)), ("host0", "host9"));
        let sizes = train(group, 3).unwrap();
        assert_eq!(sizes, [3; ROUNDS_AFTER]);
        for member in members {
            let sizes = member.join().unwrap().unwrap();
            assert!(sizes.starts_with(&[2]) && sizes.ends_with(&[3; ROUNDS_AFTER]), "{sizes:?}");
        }
        assert!(std::fs::read_to_string(path).unwrap().contains("host9"));
    }
}

#[test]
fn several_newcomers_enter_one_after_the_other() {
    let (dir, port) = (TempDir::new().unwrap(), free_port());
    let members = start(2, dir.path(), port, true, 5);
    wait_for_members(dir.path());
    let path = dir.path().to_owned();
    let newcomers: Vec<_> = (0..3)
        .map(|_| path.clone())
        .map(|path| spawn(move || train(join(&path, Some(port), Identity::new(), |options| options)?, 5)))
        .collect();
    for rank in members.into_iter().chain(newcomers) {
        assert!(rank.join().unwrap().unwrap().ends_with(&[5; ROUNDS_AFTER]));
    }
}

#[test]
fn a_process_that_does_not_fit_is_refused_and_the_group_continues() {
    let (dir, port) = (TempDir::new().unwrap(), free_port());
    let members = start(2, dir.path(), port, false, 3);
    wait_for_members(dir.path());
    let other = Identity::new().with("optim.lr", 0.2);
    let error = join(dir.path(), Some(port), other, |options| options).unwrap_err().to_string();
    assert!(error.contains("optim.lr: 0.2 here, absent on rank 0 (host0)"), "{error}");
    let stranger = |options| Options { secret: Secret::Given("hedgehog-of-the-park".to_owned()), ..options };
    let error = join(dir.path(), Some(port), Identity::new(), stranger).unwrap_err().to_string();
    assert!(error.contains("the shared secrets differ"), "{error}");
    train(join(dir.path(), Some(port), Identity::new(), |options| options).unwrap(), 3).unwrap();
    members.into_iter().for_each(|member| drop(member.join().unwrap().unwrap()));
}

/// The group loses the newcomer, as any rank, and admits the next.
#[test]
fn a_newcomer_that_leaves_at_once_is_an_ordinary_loss() {
    let (dir, port) = (TempDir::new().unwrap(), free_port());
    let members = start(2, dir.path(), port, true, 3);
    wait_for_members(dir.path());
    for _ in 0..3 {
        let mut group = join(dir.path(), None, Identity::new(), |options| options).unwrap();
        group.fail("it has no time");
        drop(group);
    }
    train(join(dir.path(), None, Identity::new(), |options| options).unwrap(), 3).unwrap();
    members.into_iter().for_each(|member| drop(member.join().unwrap().unwrap()));
}

/// The others join later, by the same settings. Ranks are numbered without gaps.
#[test]
fn a_group_starts_with_fewer_ranks_than_its_world() {
    for (start_with, first) in [(1, vec![0]), (2, vec![2, 0])] {
        let (dir, port) = (TempDir::new().unwrap(), free_port());
        let member = |rank: usize| {
            let path = dir.path().to_owned();
            move || {
                let mut options = with_newcomers(rank, &path, Vec::new());
                options.newcomers.as_mut().unwrap().start_with = Some(start_with);
                match Group::join_or_find(&rank_env(rank, 3, HERE, port), &Identity::new(), &options)? {
                    Joining::Started(mut group) => {
                        assert_eq!(group.world(), start_with);
                        group.set_regroup_rules(rules(None));
                        train(group, 3)
                    }
                    Joining::Running(running) => {
                        train(Group::enter(running, rules(None), path.join("members.json"), &|| false)?, 3)
                    }
                }
            }
        };
        let mut ranks: Vec<_> = first.iter().map(|&rank| spawn(member(rank))).collect();
        wait_for_members(dir.path());
        ranks.extend((0..3).filter(|rank| !first.contains(rank)).map(|rank| spawn(member(rank))));
        for rank in ranks {
            assert!(rank.join().unwrap().unwrap().ends_with(&[3; ROUNDS_AFTER]));
        }
    }
}

/// The file of a group that has ended leads nowhere: the process starts as it would without it.
#[test]
fn an_old_file_leads_nowhere() {
    let (dir, port) = (TempDir::new().unwrap(), free_port());
    let members = start(2, dir.path(), port, true, 2);
    members.into_iter().for_each(|member| drop(member.join().unwrap().unwrap()));
    assert!(dir.path().join("members.json").exists());
    assert_eq!(join(dir.path(), None, Identity::new(), |options| options).unwrap().world(), 1);
    let soon = |options| Options { join: Duration::from_millis(300), ..options };
    let error = join(dir.path(), Some(port), Identity::new(), soon).unwrap_err().to_string();
    assert!(error.contains("cannot reach a run"), "{error}");
}
