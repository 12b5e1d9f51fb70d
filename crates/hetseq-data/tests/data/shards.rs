//! Shards of tokens, whole and damaged.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use hetseq_data::source::tokens::{EncodedDocuments, ShardBuilder, TokenShard};
use hetseq_data::{DataError, Status, Verification};
use proptest::prelude::*;

/// Documents of sentences of tokens.
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
    fn what_is_written_is_read_back(
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
                for place in token..token + ids.len() {
                    prop_assert_eq!((shard.sentence_of(place), shard.document_of(place)), (sentence, number));
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
fn a_shard_cut_short_or_with_more_behind_it_is_refused() {
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
    for place in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[place] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let found = TokenShard::open(&path).and_then(|shard| shard.verify());
        let error = found.expect_err(&format!("byte {place} was changed")).to_string();
        assert!(error.contains("train-00000.tokens"), "{error}");
    }
}

#[test]
fn errors_name_the_field() {
    let (_dir, path) = written(&some(), 100);
    let whole = std::fs::read(&path).unwrap();
    for (place, field) in [
        (0, "HETSEQTK"),
        (8, "version"),
        (30, "header"),
        (128 + 24, "sentence ends"),
        (whole.len() - 4, "document ends"),
    ] {
        let mut bytes = whole.clone();
        bytes[place] = 77;
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
fn a_shard_cut_short_while_it_is_read_is_named() {
    const PATH: &str = "HETSEQ_TEST_SHARD";
    if let Some(path) = std::env::var_os(PATH) {
        // The child: it reads a page that is no longer there.
        let shard = TokenShard::open(path.as_ref()).unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
        _ = shard.verify();
        return;
    }
    let (_dir, path) = written(&[vec![(0..20_000).collect()]], 20_000);
    let this_test = ["shards::a_shard_cut_short_while_it_is_read_is_named", "--exact", "--nocapture"];
    let child = std::process::Command::new(std::env::current_exe().unwrap()).args(this_test).env(PATH, &path).output();
    let child = child.unwrap();
    let said = String::from_utf8_lossy(&child.stderr).into_owned();
    assert_eq!(child.status.code(), Some(1), "{:?}: {said}", child.status);
    let named = format!("error: {} was cut short", path.display());
    assert!(said.contains(&named) && said.contains("hetseq prep verify"), "{said}");
}

/// Reads what the cache does not know, and says how much that was.
fn verified(paths: &[&Path], cache: Option<&Path>, now: SystemTime) -> (Status, u64) {
    let files = paths.iter().map(|path| TokenShard::open(path).unwrap().sealed()).collect();
    let verification = Verification::start(files, cache, now);
    let status = verification.wait(Duration::from_secs(60));
    (status, verification.total_bytes())
}

/// Another token, with the time of the last write as it was.
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
fn what_has_passed_is_not_read_again_until_it_changes() {
    let (_dir, path) = written(&some(), 100);
    let (_other, second) = written(&[vec![vec![7; 50]]], 100);
    let caches = tempfile::tempdir().unwrap();
    let cache = Some(caches.path());
    let later = SystemTime::now() + Duration::from_secs(60);
    let (status, bytes) = verified(&[&path], cache, later);
    assert!(status == Status::Passed && bytes > 0);
    assert_eq!(verified(&[&path], cache, later), (Status::Passed, 0), "it is noted");
    let (status, added) = verified(&[&path, &second], cache, later);
    assert!(status == Status::Passed && added > 0 && added != bytes, "only what is new is read");
    assert_eq!(verified(&[&path, &second], cache, later), (Status::Passed, 0));
    // A write may follow within the same tick of the clock.
    assert_eq!(verified(&[&path], cache, SystemTime::now()).1, bytes);

    damage(&path);
    assert!(matches!(verified(&[&path], cache, later), (Status::Failed(_), read) if read == bytes));
    // Damage is not noted, and a cache that is none of ours knows nothing.
    assert!(matches!(verified(&[&path], cache, later), (Status::Failed(_), _)));
    damage(&path);
    let note = std::fs::read_dir(caches.path()).unwrap().next().unwrap().unwrap().path();
    std::fs::write(&note, b"\xff\xfe not a note").unwrap();
    assert_eq!(verified(&[&path], cache, later), (Status::Passed, bytes));
    assert_eq!(verified(&[&path], Some(Path::new("/dev/null/nowhere")), later), (Status::Passed, bytes));
}

#[test]
fn one_thread_is_enough_in_the_background() {
    let (_dir, path) = written(&[vec![(0..20_000).collect()]], 20_000);
    let files = (0..20).map(|_| TokenShard::open(&path).unwrap().sealed()).collect();
    let verification = Verification::start(files, None, SystemTime::now());
    verification.continue_in_background();
    assert_eq!(verification.wait(Duration::from_secs(60)), Status::Passed);
    assert_eq!(verification.read_bytes(), verification.total_bytes());
}
