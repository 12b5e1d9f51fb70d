//! With a secret that rank 0 writes to a shared directory, all ranks join without any setup, and no
//! other process can.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use hetseq_comm::{CommError, Options, Secret};
use tempfile::TempDir;

use crate::ranks::{HERE, free_port, join, on_each, options, rank_env, wait_all};

fn in_directory(rank: usize, dir: &Path) -> Options {
    Options { secret: Secret::InDirectory(dir.to_owned()), ..options(rank) }
}

fn impatient(options: Options) -> Options {
    Options { join: Duration::from_millis(900), ..options }
}

#[test]
fn ranks_that_share_a_directory_need_no_setup() {
    let dir = TempDir::new().unwrap();
    let port = free_port();
    let path = dir.path().join(format!("run/.secret-{port}"));
    // In this order, so that the peers wait for the file and its directory.
    let ranks = [2, 1, 0].map(|rank| {
        sleep(Duration::from_millis(150));
        join(rank_env(rank, 3, HERE, port), in_directory(rank, &dir.path().join("run")))
    });
    let groups = wait_all(ranks);
    // The file stays during the run, so that a late rank can be refused with the reason.
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    on_each(groups, |mut group| {
        group.barrier().unwrap();
        group.close();
    });
    assert!(!path.exists());
}

#[test]
fn the_secret_of_an_earlier_start_is_replaced_and_read_again() {
    let dir = TempDir::new().unwrap();
    let port = free_port();
    let path = dir.path().join(format!(".secret-{port}"));
    std::fs::write(&path, "left by a run that was killed").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let one = join(rank_env(1, 2, HERE, port), in_directory(1, dir.path()));
    sleep(Duration::from_millis(300));
    let zero = join(rank_env(0, 2, HERE, port), in_directory(0, dir.path()));
    wait_all([zero, one]);
}

#[test]
fn a_rank_that_does_not_see_the_directory_gets_advice() {
    let (dir, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let port = free_port();
    let zero =
        join(rank_env(0, 2, HERE, port), Options { join: Duration::from_secs(2), ..in_directory(0, dir.path()) });
    let one = join(rank_env(1, 2, HERE, port), impatient(in_directory(1, elsewhere.path())));
    let error = one.join().unwrap().unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, CommError::NoSecret { .. }), "{text}");
    let path = elsewhere.path().join(format!(".secret-{port}"));
    for part in [&path.display().to_string(), "it does not exist", "set HETSEQ_SECRET to the same value on all ranks"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // A file with another secret, and a file that other users could have read.
    std::fs::write(&path, "of another run").unwrap();
    for (mode, expected) in [(0o600, "not the secret of that rank 0"), (0o644, "(mode 0644)")] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let one = join(
            rank_env(1, 2, HERE, port),
            Options { join: Duration::from_millis(300), ..in_directory(1, elsewhere.path()) },
        );
        let text = one.join().unwrap().unwrap_err().to_string();
        assert!(text.contains(expected) && text.contains("HETSEQ_SECRET"), "{text}");
    }
    let text = zero.join().unwrap().unwrap_err().to_string();
    assert!(text.contains("rank 1 of 2 did not join") && text.contains("does not see the file"), "{text}");
}

#[test]
fn a_secret_set_on_some_ranks_only_is_reported() {
    let given = |rank| Options { secret: Secret::Given("squirrel-of-the-park".to_owned()), ..options(rank) };
    let dir = TempDir::new().unwrap();
    let port = free_port();
    let patient = |options| Options { join: Duration::from_secs(3), ..options };
    let zero = join(rank_env(0, 2, HERE, port), patient(in_directory(0, dir.path())));
    let text = join(rank_env(1, 2, HERE, port), impatient(given(1))).join().unwrap().unwrap_err().to_string();
    assert!(text.contains("HETSEQ_SECRET is set on the connecting rank but not on the rank it connects to"), "{text}");
    let text = zero.join().unwrap().unwrap_err().to_string();
    assert!(text.contains("HETSEQ_SECRET is set on the connecting rank"), "{text}");

    let port = free_port();
    let zero = join(rank_env(0, 2, HERE, port), patient(given(0)));
    let one = join(rank_env(1, 2, HERE, port), impatient(in_directory(1, dir.path())));
    let text = one.join().unwrap().unwrap_err().to_string();
    assert!(text.contains("HETSEQ_SECRET is set on the rank it connects to but not on the connecting rank"), "{text}");
    zero.join().unwrap().unwrap_err();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "a file was left");
}

#[test]
fn an_unwritable_directory_is_reported() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = join(rank_env(0, 2, HERE, free_port()), in_directory(0, &file)).join().unwrap().unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, CommError::SecretFile { .. }), "{text}");
    assert!(text.contains("run.dir") && text.contains("HETSEQ_SECRET"), "{text}");
}
