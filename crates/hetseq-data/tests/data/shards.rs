//! Tests of token shards, intact and damaged, and of their verification.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use hetseq_data::source::tokens::{EncodedDocuments, ShardBuilder, TokenShard};
use hetseq_data::{DataError, Status, Verification};
use proptest::prelude::*;

/// Encodes documents, given as sentences of token ids.
fn encoded(documents: &[Vec<Vec<u32>>]) -> EncodedDocuments {
    let mut encoded = EncodedDocuments::default();
    for sentences in documents {
        for sentence in sentences {
            encoded.ids.extend_from_slice(sentence);
            encoded.sentence_ends.push(encoded.ids.len() as u32);
        }
        encoded.document_ends.push(encoded.sentence_ends.len() as u32);
    }
    encoded
}

fn written(documents: &[Vec<Vec<u32>>], vocabulary: usize) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("train-00000.tokens");
    let mut builder = ShardBuilder::new(vocabulary);
    documents.iter().for_each(|document| builder.append(&encoded(std::slice::from_ref(document))));
    let bytes = builder.write(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), bytes);
    (dir, path)
}

fn some() -> Vec<Vec<Vec<u32>>> {
    vec![vec![vec![5, 6, 7], vec![8]], vec![vec![9, 10]], vec![vec![11], vec![12, 13, 14, 15]]]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn shards_are_read_back(
        documents in prop::collection::vec(prop::collection::vec(prop::collection::vec(0u32..60_000, 1..9), 1..6), 1..6),
        vocabulary in prop::sample::select(vec![60_000usize, 65_536, 65_537, 200_000]),
    ) {
        let (_dir, path) = written(&documents, vocabulary);
        let shard = TokenShard::open(&path).unwrap();
        shard.verify().unwrap();
        prop_assert_eq!(shard.documents(), documents.len());
        prop_assert_eq!(shard.sentences(), documents.iter().map(Vec::len).sum::<usize>());
        let (mut token, mut sentence) = (0, 0);
        for (number, document) in documents.iter().enumerate() {
            for ids in document {
                let mut read = Vec::new();
                shard.ids(token..token + ids.len(), &mut read);
                prop_assert_eq!(&read, ids);
                for at in token..token + ids.len() {
                    prop_assert_eq!((shard.sentence_of(at), shard.document_of(at)), (sentence, number));
                }
                token += ids.len();
                prop_assert_eq!(shard.sentence_end(sentence), token);
                sentence += 1;
            }
            prop_assert_eq!(shard.document_end(number), sentence);
        }
        prop_assert_eq!(shard.tokens(), token);
        let width = if vocabulary <= 65_536 { 2 } else { 4 };
        let expected = 128 + (token * width).next_multiple_of(8) + 4 * (sentence + documents.len());
        prop_assert_eq!(std::fs::metadata(&path).unwrap().len() as usize, expected);
    }
}

#[test]
fn a_truncated_or_too_long_shard_is_refused() {
    let (_dir, path) = written(&some(), 100);
    let whole = std::fs::read(&path).unwrap();
    for length in 0..whole.len() {
        std::fs::write(&path, &whole[..length]).unwrap();
        let error = TokenShard::open(&path).unwrap_err();
        assert!(error.to_string().contains("train-00000.tokens"), "{error}");
    }
    let mut longer = whole.clone();
    longer.push(0);
    std::fs::write(&path, longer).unwrap();
    assert!(matches!(TokenShard::open(&path).unwrap_err(), DataError::TooLong { .. }));
}

#[test]
fn every_damaged_byte_is_found_by_opening_or_by_verifying() {
    let (_dir, path) = written(&some(), 100);
    let whole = std::fs::read(&path).unwrap();
    for position in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[position] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let found = TokenShard::open(&path).and_then(|shard| shard.verify());
        let error = found.expect_err(&format!("byte {position} was changed")).to_string();
        assert!(error.contains("train-00000.tokens"), "{error}");
    }
}

#[test]
fn errors_name_the_field() {
    let (_dir, path) = written(&some(), 100);
    let whole = std::fs::read(&path).unwrap();
    for (position, field) in [
        (0, "HETSEQTK"),
        (8, "version"),
        (30, "header"),
        (128 + 24, "sentence ends"),
        (whole.len() - 4, "document ends"),
    ] {
        let mut bytes = whole.clone();
        bytes[position] = 77;
        std::fs::write(&path, bytes).unwrap();
        let error = TokenShard::open(&path).unwrap_err().to_string();
        assert!(error.contains(field), "{field}: {error}");
    }
}

#[test]
fn an_id_beyond_the_vocabulary_is_refused() {
    let (_dir, path) = written(&some(), 15);
    let error = TokenShard::open(&path).unwrap_err().to_string();
    assert!(error.contains("the token 15, but the vocabulary has only 15"), "{error}");
}

#[test]
fn a_shard_truncated_while_in_use_is_named() {
    const PATH: &str = "HETSEQ_TEST_SHARD";
    if let Some(path) = std::env::var_os(PATH) {
        // The child process reads a page that no longer exists.
        let shard = TokenShard::open(path.as_ref()).unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
        _ = shard.verify();
        return;
    }
    let (_dir, path) = written(&[vec![(0..20_000).collect()]], 20_000);
    let this_test = ["shards::a_shard_truncated_while_in_use_is_named", "--exact", "--nocapture"];
    let child = std::process::Command::new(std::env::current_exe().unwrap()).args(this_test).env(PATH, &path).output();
    let child = child.unwrap();
    let stderr = String::from_utf8_lossy(&child.stderr).into_owned();
    assert_eq!(child.status.code(), Some(1), "{:?}: {stderr}", child.status);
    let named = format!("error: {} was truncated", path.display());
    assert!(stderr.contains(&named) && stderr.contains("hetseq prep verify"), "{stderr}");
}

/// Verifies the files that are not in the cache. Returns the status and the bytes to read.
fn verified(paths: &[&Path], cache: Option<&Path>, now: SystemTime) -> (Status, u64) {
    let files = paths.iter().map(|path| TokenShard::open(path).unwrap().checksummed_file()).collect();
    let verification = Verification::start(files, cache, now);
    let status = verification.wait(Duration::from_secs(60));
    (status, verification.total_bytes())
}

/// Changes a token and restores the modification time.
fn damage(path: &Path) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 130).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 130).unwrap();
    file.set_modified(modified).unwrap();
}

#[test]
fn content_is_compared_with_the_checksum_in_the_header() {
    let (_dir, whole) = written(&some(), 100);
    let (_other, damaged) = written(&some(), 100);
    let now = SystemTime::now();
    assert_eq!(verified(&[&whole, &damaged], None, now).0, Status::Passed);
    assert_eq!(verified(&[], None, now), (Status::Passed, 0));
    damage(&damaged);
    let Status::Failed(reason) = verified(&[&whole, &damaged], None, now).0 else { panic!("it passed") };
    assert!(reason.starts_with(&damaged.display().to_string()) && reason.contains("hetseq prep verify"), "{reason}");
}

#[test]
fn verified_files_are_not_read_again_until_they_change() {
    let (_dir, path) = written(&some(), 100);
    let (_other, second) = written(&[vec![vec![7; 50]]], 100);
    let caches = tempfile::tempdir().unwrap();
    let cache = Some(caches.path());
    let later = SystemTime::now() + Duration::from_secs(60);
    let (status, bytes) = verified(&[&path], cache, later);
    assert!(status == Status::Passed && bytes > 0);
    assert_eq!(verified(&[&path], cache, later), (Status::Passed, 0), "it is in the cache");
    let (status, added) = verified(&[&path, &second], cache, later);
    assert!(status == Status::Passed && added > 0 && added != bytes, "only the new file is read");
    assert_eq!(verified(&[&path, &second], cache, later), (Status::Passed, 0));
    // Another write may follow with the same timestamp.
    assert_eq!(verified(&[&path], cache, SystemTime::now()).1, bytes);

    damage(&path);
    assert!(matches!(verified(&[&path], cache, later), (Status::Failed(_), read) if read == bytes));
    // Failures are not cached, and an invalid cache counts as empty.
    assert!(matches!(verified(&[&path], cache, later), (Status::Failed(_), _)));
    damage(&path);
    let cache_file = std::fs::read_dir(caches.path()).unwrap().next().unwrap().unwrap().path();
    std::fs::write(&cache_file, b"\xff\xfe not a cache").unwrap();
    assert_eq!(verified(&[&path], cache, later), (Status::Passed, bytes));
    assert_eq!(verified(&[&path], Some(Path::new("/dev/null/nowhere")), later), (Status::Passed, bytes));
}

#[test]
fn verification_completes_with_one_thread_in_the_background() {
    let (_dir, path) = written(&[vec![(0..20_000).collect()]], 20_000);
    let files = (0..20).map(|_| TokenShard::open(&path).unwrap().checksummed_file()).collect();
    let verification = Verification::start(files, None, SystemTime::now());
    verification.continue_in_background();
    assert_eq!(verification.wait(Duration::from_secs(60)), Status::Passed);
    assert_eq!(verification.read_bytes(), verification.total_bytes());
}
