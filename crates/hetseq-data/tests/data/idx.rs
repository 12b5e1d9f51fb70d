//! Tests of idx files: compressed, renamed, truncated, mislabelled.

use std::io::Write;
use std::path::Path;

use hetseq_data::source::idx::{open_pair, read_images, read_labels, write_images, write_labels};
use hetseq_data::{DataError, Images};
use proptest::prelude::*;

fn images(count: usize) -> Images {
    Images { count, height: 3, width: 2, pixels: (0..count * 6).map(|i| i as u8).collect() }
}

fn header(kind: u8, size: &[u32]) -> Vec<u8> {
    let mut bytes = vec![0, 0, kind, size.len() as u8];
    bytes.extend(size.iter().flat_map(|n| n.to_be_bytes()));
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Returns the error of reading `bytes` as images, and checks that it names the file.
fn refused(bytes: &[u8]) -> DataError {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("some-images");
    std::fs::write(&path, bytes).unwrap();
    let error = read_images(&path).unwrap_err();
    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    error
}

#[test]
fn files_are_read_back_compressed_or_not_under_any_name() {
    let dir = tempfile::tempdir().unwrap();
    for (name, compressed) in [("plain", false), ("plain.gz", false), ("compressed", true), ("compressed.gz", true)] {
        let path = dir.path().join(name);
        write_images(&path, &images(5), compressed).unwrap();
        assert_eq!(std::fs::read(&path).unwrap().starts_with(&[0x1f, 0x8b]), compressed);
        assert_eq!(read_images(&path).unwrap(), images(5));
        write_labels(&path, &[3, 1, 4], compressed).unwrap();
        assert_eq!(read_labels(&path).unwrap(), [3, 1, 4]);
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 4, "no temporary file is left");
}

#[test]
fn a_pair_is_found_under_each_of_its_names() {
    for (images_name, labels_name) in [
        ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
        ("train-images-idx3-ubyte.gz", "train-labels.idx1-ubyte"),
        ("train-images.idx3-ubyte", "train-labels.idx1-ubyte.gz"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        write_images(&dir.path().join(images_name), &images(4), images_name.ends_with("gz")).unwrap();
        write_labels(&dir.path().join(labels_name), &[0, 1, 2, 3], false).unwrap();
        let pair = open_pair(dir.path(), "train").unwrap();
        assert_eq!((pair.len(), pair.images.count), (4, 4));
        assert_eq!(pair.images.image(1), Some(&[6, 7, 8, 9, 10, 11][..]));
        assert_eq!(pair.images.image(4), None);
        assert_eq!(pair.images.image(usize::MAX), None);
        assert_eq!(pair.fingerprint().len(), 16);
    }
}

#[test]
fn the_fingerprint_covers_pixels_labels_and_shape() {
    let dir = tempfile::tempdir().unwrap();
    write_images(&dir.path().join("t10k-images-idx3-ubyte"), &images(2), false).unwrap();
    write_labels(&dir.path().join("t10k-labels-idx1-ubyte"), &[1, 2], false).unwrap();
    let pair = open_pair(dir.path(), "t10k").unwrap();
    let mut others = [pair.clone(), pair.clone(), pair.clone()];
    others[0].images.pixels[3] ^= 1;
    others[1].labels[0] = 2;
    (others[2].images.height, others[2].images.width) = (2, 3);
    for other in others {
        assert_ne!(other.fingerprint(), pair.fingerprint());
    }
}

#[test]
fn missing_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = open_pair(&dir.path().join("nowhere"), "train").unwrap_err();
    assert!(matches!(&error, DataError::MissingDirectory { .. }), "{error}");

    write_images(&dir.path().join("train-images-idx3-ubyte"), &images(4), false).unwrap();
    let error = open_pair(dir.path(), "train").unwrap_err().to_string();
    for name in ["train-labels-idx1-ubyte", "train-labels-idx1-ubyte.gz", "train-labels.idx1-ubyte"] {
        assert!(error.contains(name), "{error}");
    }

    write_labels(&dir.path().join("train-labels-idx1-ubyte"), &[1, 2, 3], false).unwrap();
    let error = open_pair(dir.path(), "train").unwrap_err().to_string();
    for part in ["train-images-idx3-ubyte", "4 images", "train-labels-idx1-ubyte", "3 labels"] {
        assert!(error.contains(part), "{error}");
    }

    let error = read_labels(&dir.path().join("gone")).unwrap_err().to_string();
    assert!(error.contains("gone"), "{error}");
    assert!(matches!(read_labels(dir.path()), Err(DataError::Io { .. })), "a directory is not a file");
}

#[test]
fn the_wrong_kind_of_file_is_recognised() {
    for (bytes, found) in [
        (header(8, &[3]), "labels"),
        (header(8, &[3, 1]), "unsigned bytes in 2 dimensions"),
        (header(0x0d, &[3, 1, 1]), "32-bit floats"),
        (b"<!DOCTYPE html>".to_vec(), "web page"),
        (b"PK\x03\x04....".to_vec(), "zip"),
        (b"\x89PNG\r\n".to_vec(), "PNG"),
        (b"hello there".to_vec(), "68 65 6c 6c"),
        (gzip(&header(8, &[3])), "labels"),
        (gzip(&gzip(&header(8, &[3, 3, 3]))), "gzip inside gzip"),
    ] {
        let error = refused(&bytes);
        assert!(matches!(&error, DataError::WrongKind { .. }), "{error}");
        assert!(error.to_string().contains(found), "{error}");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("labels");
    write_images(&path, &images(1), false).unwrap();
    assert!(read_labels(&path).unwrap_err().to_string().contains("grey images"));
}

#[test]
fn sizes_that_disagree_with_the_data_are_refused() {
    let whole = [header(8, &[4, 3, 2]), vec![7; 24]].concat();
    for compressed in [false, true] {
        let file = |bytes: &[u8]| if compressed { gzip(bytes) } else { bytes.to_vec() };
        assert!(matches!(refused(&file(&whole[..39])), DataError::TooShort { found_bytes: 23, .. }));
        assert!(matches!(refused(&file(&[&whole[..], &[0]].concat())), DataError::TooLong { .. }));
        assert!(matches!(refused(&file(&whole[..9])), DataError::ShortHeader { found_bytes: 9, .. }));
        assert!(matches!(refused(&file(&whole[..3])), DataError::ShortHeader { found_bytes: 3, .. }));
        assert!(matches!(refused(&file(&header(8, &[0, 28, 28]))), DataError::NoSamples { .. }));
        assert!(matches!(refused(&file(&header(8, &[5, 0, 28]))), DataError::NoSamples { .. }));
        // 2^96 bytes are declared, one is present.
        let absurd = [header(8, &[u32::MAX; 3]), vec![1]].concat();
        assert!(matches!(refused(&file(&absurd)), DataError::TooShort { found_bytes: 1, .. }));
    }
    assert!(matches!(refused(b""), DataError::ShortHeader { found_bytes: 0, .. }));
}

#[test]
fn damaged_gzip_is_recognised() {
    let whole = gzip(&[header(8, &[40, 3, 2]), (0..240).collect()].concat());
    for length in [2, 11, whole.len() / 2, whole.len() - 8, whole.len() - 1] {
        assert!(matches!(refused(&whole[..length]), DataError::DamagedGzip { .. }), "cut to {length}");
    }
    let mut wrong_sum = whole.clone();
    wrong_sum[whole.len() - 5] ^= 1;
    assert!(matches!(refused(&wrong_sum), DataError::DamagedGzip { .. }));
}

#[test]
fn invalid_images_are_refused_and_the_old_file_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("images");
    write_images(&path, &images(2), false).unwrap();
    let inconsistent = Images { count: 3, ..images(2) };
    assert!(matches!(write_images(&path, &inconsistent, false), Err(DataError::UnwritableImages { .. })));
    let too_large = Images { count: usize::MAX, height: usize::MAX, width: usize::MAX, pixels: vec![] };
    assert!(matches!(write_images(&path, &too_large, false), Err(DataError::UnwritableImages { .. })));
    assert_eq!(read_images(&path).unwrap(), images(2));
    assert!(matches!(write_labels(Path::new("/nonexistent/labels"), &[1], true), Err(DataError::Io { .. })));
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic(
        start in prop_oneof![Just(vec![]), Just(vec![0, 0, 8, 3]), Just(vec![0x1f, 0x8b, 8, 0])],
        rest in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, [start, rest].concat()).unwrap();
        let _ = (read_images(&path), read_labels(&path));
    }
}
