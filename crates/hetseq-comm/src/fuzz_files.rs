//! Fuzzing of the files through which ranks find each other and decide who continues: a damaged
//! file is an error or a valid file, and never more memory than its limit. `hetseq-fuzz` sets seed
//! and time.

use std::path::Path;

use fs_err as fs;
use hetseq_fuzz::{Rng, bounded, damage, fuzz};

use crate::membership_file::MembershipFile;
use crate::rendezvous::fuzz_handshake::count_notices;
use crate::secret_file;

/// Writes `content` with some damage, or makes the file longer than any that this program writes.
fn write_damaged(path: &Path, content: &[u8], rng: &mut Rng) {
    let mut bytes = content.to_vec();
    let kind = rng.below(64);
    match kind {
        0 => bytes = bytes.repeat(1 + rng.below(1_000)),
        _ => damage(&mut bytes, rng),
    }
    fs::write(path, bytes).unwrap();
    if kind == 1 {
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(1 << 40).unwrap();
    }
}

#[test]
fn damaged_membership_files_are_errors_or_decisions() {
    let dir = tempfile::tempdir().unwrap();
    let hosts = ["alpha", "beta", "gamma"].map(str::to_owned);
    let file = MembershipFile::of(dir.path(), 7, 8);
    file.decide(&[0, 2].into(), &hosts).unwrap();
    let content = fs::read(file.path()).unwrap();
    fuzz("membership files", |rng| {
        write_damaged(file.path(), &content, rng);
        let bytes = fs::metadata(file.path()).unwrap().len().min(MembershipFile::LIMIT_BYTES) as usize;
        if let Err(error) = bounded(16 * bytes + (64 << 10), || file.decided()) {
            assert!(!error.to_string().is_empty());
        }
    });
}

#[test]
fn damaged_notices_and_secrets_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let (notice, secret) = (dir.path().join("meeting-0000000000000007.json"), dir.path().join("secret"));
    let content = br#"{"id": 7, "is_rank_0": true, "host": "alpha", "addresses": ["10.0.0.1:700", "[fd00::1]:700"],
        "secret": "squirrel"}"#;
    secret_file::write_private(&notice, content).unwrap();
    secret_file::write_private(&secret, b"squirrel\n").unwrap();
    fuzz("notices and secrets", |rng| {
        write_damaged(&notice, content, rng);
        write_damaged(&secret, b"squirrel\n", rng);
        bounded(64 << 10, || {
            assert_eq!(count_notices(dir.path()), 1, "read as a notice, or reported");
            let secret = secret_file::read(&secret);
            assert!(secret.is_err() || secret.is_ok_and(|secret| secret.trim() == secret && !secret.is_empty()));
        });
    });
}
