//! The rendezvous succeeds despite unknown connections and bad timing; otherwise it fails with a
//! reason.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::thread::{sleep, spawn};
use std::time::Duration;

use hetseq_comm::{CommError, Group, Identity, Options, RankEnv, Rendezvous, Secret};

use crate::ranks::{HERE, Transport, connect, free_port, groups, join, join_as, on_each, options, rank_env, wait_all};

fn with_secret(rank: usize, secret: Option<&str>) -> Options {
    let secret = secret.map_or(Secret::None, |secret| Secret::Given(secret.to_owned()));
    Options { secret, ..options(rank) }
}

fn impatient(rank: usize, millis: u64) -> Options {
    Options { join: Duration::from_millis(millis), ..options(rank) }
}

#[test]
fn all_ranks_know_each_other() {
    let groups = groups(Transport::Tcp, 3, options);
    let generation = groups[0].generation();
    assert_ne!(generation, 0);
    for (rank, group) in groups.iter().enumerate() {
        assert_eq!((group.rank(), group.world(), group.generation()), (rank, 3, generation));
        assert_eq!([0, 1, 2].map(|rank| group.host(rank)), ["host0", "host1", "host2"]);
        assert_eq!(group.host(3), "unknown");
    }
    on_each(groups, Group::close);
}

#[test]
fn a_world_of_one_is_alone() {
    let group = Group::join(&rank_env(0, 1, "no.such.host.", 1), &Identity::new(), &options(0)).unwrap();
    assert_eq!(group.world(), 1);
    let nowhere = RankEnv { rank: Some(0), world: 2, rendezvous: Rendezvous::Alone, source: "the test" };
    assert!(matches!(Group::join(&nowhere, &Identity::new(), &options(0)), Err(CommError::RankEnv { .. })));
    let outside = rank_env(2, 2, HERE, 1);
    assert!(matches!(Group::join(&outside, &Identity::new(), &options(0)), Err(CommError::RankEnv { .. })));
}

#[test]
fn ranks_join_over_ipv6() {
    if TcpListener::bind("[::1]:0").is_err() {
        return; // Nothing to test on a machine without IPv6.
    }
    for interface in [None, Some("::1".to_owned())] {
        let port = free_port();
        let ranks: Vec<_> = (0..3)
            .map(|rank| {
                let options = Options { interface: interface.clone(), ..options(rank) };
                join(rank_env(rank, 3, "::1", port), options)
            })
            .collect();
        on_each(wait_all(ranks), |mut group: Group| {
            assert_eq!(group.all_gather_bytes(&[group.rank() as u8]).unwrap(), [[0], [1], [2]]);
            group.close();
        });
    }
}

#[test]
fn a_chosen_interface_and_port_range_are_used() {
    let port = free_port();
    let mesh_port = free_port();
    let chosen =
        |rank| Options { interface: Some(HERE.to_owned()), ports: Some(mesh_port..=mesh_port), ..options(rank) };
    let ranks: Vec<_> = (0..3).map(|rank| join(rank_env(rank, 3, HERE, port), chosen(rank))).collect();
    wait_all(ranks);
    let nowhere = Options { interface: Some("nonet7".to_owned()), ..options(1) };
    let error = Group::join(&rank_env(1, 2, HERE, port), &Identity::new(), &nowhere).unwrap_err();
    assert!(matches!(error, CommError::NoInterface { .. }), "{error}");
}

#[test]
fn rank_0_may_start_last() {
    let port = free_port();
    let one = join(rank_env(1, 2, "localhost", port), options(1));
    sleep(Duration::from_millis(250));
    let zero = join(rank_env(0, 2, "localhost", port), options(0));
    wait_all([zero, one]);
}

#[test]
fn unknown_connections_do_not_prevent_the_start() {
    let port = free_port();
    let zero = join(rank_env(0, 3, HERE, port), options(0));
    let silent: Vec<TcpStream> = (0..10).map(|_| connect(port)).collect();
    for garbage in [&b"GET / HTTP/1.1\r\nHost: example\r\nAccept: */*\r\n\r\n"[..], &[0; 100], b"x"] {
        let _ = connect(port).write_all(garbage);
    }
    let one = join(rank_env(1, 3, HERE, port), options(1));
    let two = join(rank_env(2, 3, HERE, port), options(2));
    wait_all([zero, one, two]);
    drop(silent);
}

fn identity(lr: f32) -> Identity {
    Identity::new().with("optim.lr", lr).with("seed", 1)
}

fn differences(refused: Result<Group, CommError>) -> Vec<String> {
    match refused {
        Err(CommError::Mismatch { differences }) => differences,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_rank_that_differs_is_refused_and_the_right_one_starts_the_run() {
    let port = free_port();
    let zero = join_as(rank_env(0, 4, HERE, port), identity(0.1), options(0));
    let two = join_as(rank_env(2, 4, HERE, port), identity(0.1), options(2));
    let wrong = join_as(rank_env(1, 4, HERE, port), identity(0.2).with("fp16", true), options(1));
    assert_eq!(
        differences(wrong.join().unwrap()),
        ["fp16: true here, absent on rank 0 (host0)", "optim.lr: 0.2 here, 0.1 on rank 0 (host0)"]
    );
    // A rank of another run that still has this address.
    let stale = join_as(rank_env(7, 8, HERE, port), identity(0.1), options(7));
    assert_eq!(differences(stale.join().unwrap()), ["world size: 8 here, 4 on rank 0 (host0)"]);
    let late = join_as(rank_env(3, 4, HERE, port), identity(0.1), options(3));
    sleep(Duration::from_millis(300));
    assert!(!zero.is_finished() && !two.is_finished() && !late.is_finished());
    let right = join_as(rank_env(1, 4, HERE, port), identity(0.1), options(1));
    on_each(wait_all([zero, right, two, late]), |mut group: Group| {
        group.barrier().unwrap();
        group.close();
    });
}

#[test]
fn the_error_about_a_missing_rank_names_all_differences_of_refused_ones() {
    let port = free_port();
    // More than fits into a log line.
    let with_keys = |value: usize| (0..60).fold(Identity::new(), |all, key| all.with(format!("key{key:02}"), value));
    let long = 10usize.pow(18);
    let zero = join_as(rank_env(0, 4, HERE, port), with_keys(long), impatient(0, 3_000));
    let two = join_as(rank_env(2, 4, HERE, port), with_keys(long), options(2));
    let wrong = join_as(rank_env(1, 4, HERE, port), with_keys(2 * long), options(1));
    assert_eq!(differences(wrong.join().unwrap()).len(), 60);
    // Rank 3 comes back with the right values, so its first attempt is not the cause.
    let refused = join_as(rank_env(3, 4, HERE, port), with_keys(3), options(3));
    assert_eq!(differences(refused.join().unwrap()).len(), 60);
    let three = join_as(rank_env(3, 4, HERE, port), with_keys(long), options(3));
    for (rank, on_rank0) in [(zero, "here"), (two, "on rank 0 (host0)"), (three, "on rank 0 (host0)")] {
        let error = rank.join().unwrap().unwrap_err();
        let text = error.to_string();
        let CommError::Missing { ranks, rejections, .. } = error else { panic!("{text}") };
        assert_eq!((ranks, rejections.differences.len()), (vec![1], 60), "{text}");
        assert!(text.starts_with("rank 1 of 4 did not join at tcp://127.0.0.1:"), "{text}");
        let last = format!("key59: {long} {on_rank0}, {} on rank 1 (host1)\nGive every rank the same", 2 * long);
        assert!(text.contains(&last) && !text.contains("host3") && !text.contains("firewall"), "{text}");
    }
}

#[test]
fn a_duplicate_rank_is_refused_and_the_run_starts() {
    let port = free_port();
    let zero = join(rank_env(0, 3, HERE, port), options(0));
    let one = join(rank_env(1, 3, HERE, port), options(1));
    sleep(Duration::from_millis(300));
    let duplicate = join(rank_env(1, 3, HERE, port), impatient(9, 1_000)).join().unwrap().unwrap_err();
    let text = duplicate.to_string();
    assert!(matches!(duplicate, CommError::Refused { .. }), "{text}");
    assert!(text.contains("rank 1 is already taken by host1 (127.0.0.1:"), "{text}");
    let two = join(rank_env(2, 3, HERE, port), options(2));
    wait_all([zero, one, two]);
}

#[test]
fn a_second_rank_0_finds_the_address_in_use() {
    let port = free_port();
    let zero = join(rank_env(0, 2, HERE, port), options(0));
    sleep(Duration::from_millis(200));
    let error = join(rank_env(0, 2, HERE, port), options(0)).join().unwrap().unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, CommError::AddressInUse { .. }), "{text}");
    assert!(text.contains(&port.to_string()) && text.contains("another rank 0"), "{text}");
    let one = join(rank_env(1, 2, HERE, port), options(1));
    wait_all([zero, one]);
}

#[test]
fn missing_ranks_are_named_on_all_waiting_ranks() {
    let port = free_port();
    let zero = join(rank_env(0, 4, HERE, port), impatient(0, 500));
    let two = join(rank_env(2, 4, HERE, port), options(2));
    for rank in [zero, two] {
        let error = rank.join().unwrap().unwrap_err();
        let text = error.to_string();
        assert!(matches!(&error, CommError::Missing { ranks, .. } if *ranks == [1, 3]), "{text}");
        assert!(text.starts_with("ranks 1, 3 of 4 did not join at tcp://127.0.0.1:"), "{text}");
    }
}

#[test]
fn no_process_at_the_address() {
    let port = free_port();
    let error = join(rank_env(1, 2, HERE, port), impatient(1, 300)).join().unwrap().unwrap_err();
    assert!(matches!(error, CommError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains(&format!("tcp://127.0.0.1:{port}")), "{error}");
}

#[test]
fn another_program_at_the_address() {
    let listener = TcpListener::bind((HERE, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let one = join(rank_env(1, 2, HERE, port), impatient(1, 1_500));
    // The program ends after two connections. The error still says what answered before.
    spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok).take(2) {
            stream.write_all(b"220 mail.example.org ESMTP Postfix (Debian/GNU)\r\n").unwrap();
        }
    });
    let error = one.join().unwrap().unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, CommError::Unreachable { .. }), "{text}");
    assert!(text.contains("within 1.5 s") && text.contains("not the hetseq protocol"), "{text}");
}

#[test]
fn a_rank_waits_until_an_earlier_run_leaves_the_address() {
    let new = |rank| with_secret(rank, Some("squirrel-of-the-park"));
    let short = |options| Options { join: Duration::from_millis(1_500), ..options };
    for old in [
        with_secret(0, Some("badger-of-the-wood")),
        with_secret(0, None),
        Options { encrypt: true, ..with_secret(0, Some("squirrel-of-the-park")) },
    ] {
        let port = free_port();
        let old = join(rank_env(0, 2, HERE, port), short(old));
        sleep(Duration::from_millis(200));
        let one = join(rank_env(1, 2, HERE, port), new(1));
        let text = old.join().unwrap().unwrap_err().to_string();
        assert!(text.contains("Rejected while waiting: 127.0.0.1:"), "{text}");
        let zero = join(rank_env(0, 2, HERE, port), new(0));
        wait_all([zero, one]);
    }
}

#[test]
fn ranks_with_the_same_secret_join() {
    let port = free_port();
    let ranks: Vec<_> = (0..4)
        .map(|rank| join(rank_env(rank, 4, HERE, port), with_secret(rank, Some("squirrel-of-the-park"))))
        .collect();
    on_each(wait_all(ranks), |mut group: Group| {
        group.barrier().unwrap();
        group.close();
    });
}

#[test]
fn a_wrong_or_missing_secret_is_refused_and_the_run_starts() {
    for (ours, theirs, expected) in [
        (Some("squirrel-of-the-park"), Some("badger-of-the-wood"), "the shared secrets differ"),
        (Some("squirrel-of-the-park"), None, "do not both have a secret"),
        (None, Some("squirrel-of-the-park"), "do not both have a secret"),
    ] {
        let port = free_port();
        let zero = join(rank_env(0, 2, HERE, port), with_secret(0, ours));
        let wrong = Options { join: Duration::from_secs(1), ..with_secret(1, theirs) };
        let wrong = join(rank_env(1, 2, HERE, port), wrong);
        let error = wrong.join().unwrap().unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, CommError::Refused { .. }), "{text}");
        assert!(text.contains(expected), "{text}");
        let right = join(rank_env(1, 2, HERE, port), with_secret(1, ours));
        wait_all([zero, right]);
    }
}

#[test]
fn encryption_on_one_side_only_is_named_on_both() {
    let within = |seconds, rank, encrypt| Options {
        encrypt,
        join: Duration::from_secs(seconds),
        ..with_secret(rank, Some("squirrel-of-the-park"))
    };
    for [zero, one] in [[true, false], [false, true]] {
        let port = free_port();
        let first = join(rank_env(0, 2, HERE, port), within(3, 0, zero));
        let text = join(rank_env(1, 2, HERE, port), within(1, 1, one)).join().unwrap().unwrap_err().to_string();
        let expected = format!("comm.encrypt is {one} on the connecting rank and {zero} on the rank it connects to");
        assert!(text.contains(&expected), "{text}");
        let text = first.join().unwrap().unwrap_err().to_string();
        assert!(text.contains(&expected), "{text}");
    }
    let alone = Options { encrypt: true, ..options(0) };
    let error = join(rank_env(0, 2, HERE, free_port()), alone).join().unwrap().unwrap_err();
    assert!(matches!(error, CommError::Misuse { .. }), "{error}");
}

#[test]
fn a_wrong_secret_is_refused_with_encryption() {
    let encrypted = |rank, secret| Options { encrypt: true, ..with_secret(rank, Some(secret)) };
    let port = free_port();
    let zero = join(rank_env(0, 2, HERE, port), encrypted(0, "squirrel-of-the-park"));
    let wrong = Options { join: Duration::from_secs(1), ..encrypted(1, "badger-of-the-wood") };
    let text = join(rank_env(1, 2, HERE, port), wrong).join().unwrap().unwrap_err().to_string();
    assert!(text.contains("the shared secrets differ"), "{text}");
    let one = join(rank_env(1, 2, HERE, port), encrypted(1, "squirrel-of-the-park"));
    wait_all([zero, one]);
}

#[test]
fn the_error_about_a_missing_rank_lists_rejected_connections() {
    let port = free_port();
    let zero_options = Options { secret: Secret::Given("squirrel-of-the-park".into()), ..impatient(0, 3_000) };
    let zero = join(rank_env(0, 2, HERE, port), zero_options);
    let wrong = Options { join: Duration::from_secs(1), ..with_secret(1, Some("badger-of-the-wood")) };
    join(rank_env(1, 2, HERE, port), wrong).join().unwrap().unwrap_err();
    let text = zero.join().unwrap().unwrap_err().to_string();
    assert!(text.contains("rank 1 of 2 did not join"), "{text}");
    assert!(text.contains("Rejected while waiting: ") && text.contains("secrets differ"), "{text}");
}
