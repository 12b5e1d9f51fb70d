//! A secret that rank 0 leaves in a shared directory lets all ranks in with no set-up, and nobody without it.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use hetseq_comm::{CommError, Options, Secret};
use tempfile::TempDir;

use crate::ranks::{free_port, join, on_each, options, place};

const HERE: &str = "127.0.0.1";

fn in_directory(rank: usize, dir: &Path) -> Options {
    Options { secret: Secret::InDirectory(dir.to_owned()), ..options(rank) }
}

fn impatient(options: Options) -> Options {
    Options { join: Duration::from_millis(900), ..options }
}

#[test]
fn ranks_that_share_a_directory_need_no_set_up() {
    let dir = TempDir::new().unwrap();
    let port = free_port();
    let path = dir.path().join(format!("run/.secret-{port}"));
    // In this order, so that the others wait for the file, and the directory.
    let ranks: Vec<_> = [2, 1, 0]
        .map(|rank| {
            sleep(Duration::from_millis(150));
            join(place(rank, 3, HERE, port), in_directory(rank, &dir.path().join("run")))
        })
        .into();
    let groups: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect();
    // It stays while the run goes on, so that one who comes late can be told so.
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
    let one = join(place(1, 2, HERE, port), in_directory(1, dir.path()));
    sleep(Duration::from_millis(300));
    let start = Instant::now();
    let zero = join(place(0, 2, HERE, port), in_directory(0, dir.path()));
    zero.join().unwrap().unwrap();
    one.join().unwrap().unwrap();
    assert!(start.elapsed() < Duration::from_secs(3));
}

#[test]
fn a_rank_that_does_not_see_the_directory_is_told_what_to_do() {
    let (dir, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let port = free_port();
    let zero = join(place(0, 2, HERE, port), Options { join: Duration::from_secs(2), ..in_directory(0, dir.path()) });
    let one = join(place(1, 2, HERE, port), impatient(in_directory(1, elsewhere.path())));
    let error = one.join().unwrap().unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, CommError::NoSecret { .. }), "{text}");
    let path = elsewhere.path().join(format!(".secret-{port}"));
    for part in [&path.display().to_string(), "it is not there", "set HETSEQ_SECRET to the same on all ranks"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // One that holds something else there, and one that others could have read.
    std::fs::write(&path, "of another run").unwrap();
    for (mode, expected) in [(0o600, "not the secret of that rank 0"), (0o644, "(mode 0644)")] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let one = join(
            place(1, 2, HERE, port),
            Options { join: Duration::from_millis(300), ..in_directory(1, elsewhere.path()) },
        );
        let text = one.join().unwrap().unwrap_err().to_string();
        assert!(text.contains(expected) && text.contains("HETSEQ_SECRET"), "{text}");
    }
    let text = zero.join().unwrap().unwrap_err().to_string();
    assert!(text.contains("rank 1 of 2 did not come") && text.contains("does not see the file"), "{text}");
}

#[test]
fn a_secret_set_on_some_ranks_only_is_named_at_once() {
    let given = |rank| Options { secret: Secret::Given("squirrel-of-the-park".to_owned()), ..options(rank) };
    let dir = TempDir::new().unwrap();
    let port = free_port();
    let zero = join(place(0, 2, HERE, port), impatient(in_directory(0, dir.path())));
    let text = join(place(1, 2, HERE, port), given(1)).join().unwrap().unwrap_err().to_string();
    assert!(text.contains("HETSEQ_SECRET is set on the newcomer but not on the rank it came to"), "{text}");
    let text = zero.join().unwrap().unwrap_err().to_string();
    assert!(text.contains("HETSEQ_SECRET is set on the newcomer"), "{text}");

    let port = free_port();
    let zero = join(place(0, 2, HERE, port), impatient(given(0)));
    let text = join(place(1, 2, HERE, port), in_directory(1, dir.path())).join().unwrap().unwrap_err().to_string();
    assert!(text.contains("HETSEQ_SECRET is set on the rank it came to but not on the newcomer"), "{text}");
    zero.join().unwrap().unwrap_err();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "a file was left");
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = join(place(0, 2, HERE, free_port()), in_directory(0, &file)).join().unwrap().unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, CommError::SecretFile { .. }), "{text}");
    assert!(text.contains("run.dir") && text.contains("HETSEQ_SECRET"), "{text}");
}
