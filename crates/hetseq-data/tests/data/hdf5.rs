//! Tests of shards in NVIDIA's layout, written by us and by h5py, intact and damaged.
//! scripts/fixtures/hdf5.py records the fixtures.

use std::path::{Path, PathBuf};

use hdf5_pure::FileBuilder;
use hetseq_data::pretrain::{PretrainConfig, PretrainData, StoredSamples};
use hetseq_data::source::bytes::Bytes;
use hetseq_data::source::corpus::CorpusSplit;
use hetseq_data::source::hdf5::{Hdf5Rows, read_rows, read_shape};
use hetseq_data::source::rows::{Row, Rows};
use hetseq_random::Key;
use serde::Deserialize;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

#[derive(Deserialize)]
struct RecordedRow {
    ids: Vec<u32>,
    first: usize,
    positions: Vec<u32>,
    masked: Vec<u32>,
    label: u32,
}

fn recorded() -> Vec<Row> {
    let rows: Vec<RecordedRow> = serde_json::from_str(include_str!("../fixtures/hdf5_rows.json")).unwrap();
    rows.into_iter()
        .map(|row| Row {
            ids: row.ids,
            first_segment: row.first,
            masked_positions: row.positions,
            masked_ids: row.masked,
            is_random_next: row.label == 1,
        })
        .collect()
}

fn decoded(path: &Path) -> Vec<Row> {
    let rows = Rows::new(path, Bytes::Owned(read_rows(path, None).unwrap())).unwrap();
    let read = |at| {
        let mut row = Row::default();
        rows.read(at, &mut row).unwrap();
        assert_eq!(rows.row_tokens(at), row.ids.len());
        row
    };
    (0..rows.len()).map(read).collect()
}

/// Writes a shard with these rows under `name` in a new directory.
fn written(rows: &[Row], name: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    let mut shard = Hdf5Rows::new(32, 6);
    rows.iter().for_each(|row| shard.push(row));
    shard.write(&path).unwrap();
    (dir, path)
}

#[test]
fn files_of_h5py_are_read_with_any_types_and_filters() {
    for name in ["nvidia_training.hdf5", "newer_training.hdf5", "plain_test.hdf5"] {
        assert_eq!(decoded(&fixture(name)), recorded(), "{name}");
        let shape = read_shape(&fixture(name)).unwrap();
        assert_eq!((shape.rows, shape.length, shape.predictions), (40, 32, 6));
    }
}

#[test]
fn our_files_are_read_back_and_are_reproducible() {
    let rows: Vec<Row> = recorded().into_iter().cycle().take(700).collect();
    let (_dir, path) = written(&rows, "training.hdf5");
    assert_eq!(decoded(&path), rows);
    let (_other, again) = written(&rows, "training.hdf5");
    assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(again).unwrap());
}

#[test]
fn samples_are_rows_in_file_name_order_with_stored_masks() {
    let rows = recorded();
    let dir = tempfile::tempdir().unwrap();
    for (name, range) in [("a_training_1.hdf5", 0..10), ("b_training_0.h5", 10..11), ("c_test_0.hdf5", 11..40)] {
        let mut shard = Hdf5Rows::new(32, 6);
        rows[range].iter().for_each(|row| shard.push(row));
        shard.write(&dir.path().join(name)).unwrap();
    }
    std::fs::write(dir.path().join("notes.txt"), "not a shard").unwrap();
    let config = PretrainConfig { vocabulary: Some(1000), ..PretrainConfig::default() };
    let train = PretrainData::open(dir.path(), CorpusSplit::Train, &config).unwrap();
    let valid = PretrainData::open(dir.path(), CorpusSplit::Valid, &config).unwrap();
    assert_eq!((train.len(), valid.len()), (11, 29));
    assert_ne!(train.fingerprint(), valid.fingerprint());

    let ids = [10, 3, 3, 0];
    let batch = train.collate(&ids, &|_| Key::root(1)).unwrap();
    let longest = ids.iter().map(|&id| rows[id as usize].ids.len()).max().unwrap();
    assert_eq!((batch.batch, batch.seq), (4, longest.next_multiple_of(8)));
    for (at, &id) in ids.iter().enumerate() {
        let (row, cells) = (&rows[id as usize], at * batch.seq..(at + 1) * batch.seq);
        assert_eq!(train.lengths().tokens(id) as usize, row.ids.len().next_multiple_of(8));
        assert_eq!(batch.lengths[at] as usize, row.ids.len());
        let mut padded: Vec<i32> = row.ids.iter().map(|&id| id as i32).collect();
        padded.resize(batch.seq, 0);
        assert_eq!(batch.input_ids[cells.clone()], padded);
        assert_eq!(batch.next_sentence.as_ref().unwrap()[at], i32::from(row.is_random_next));
        let second: usize = batch.segment_ids[cells.clone()].iter().map(|&s| s as usize).sum();
        assert_eq!(second, row.ids.len() - row.first_segment);
        for (position, id) in row.masked_positions.iter().zip(&row.masked_ids) {
            let in_batch = (cells.start as u32 + position) as i32;
            let found = batch.masked_positions.iter().position(|&p| p == in_batch).unwrap();
            assert_eq!(batch.masked_ids[found], *id as i32);
        }
    }
    assert!(train.collate(&[11], &|_| Key::root(1)).unwrap_err().to_string().contains("no sample 11"));
}

#[test]
fn shards_larger_than_memory_are_unpacked_once_with_the_same_result() {
    let rows: Vec<Row> = recorded().into_iter().cycle().take(300).collect();
    let (dir, path) = written(&rows, "training.hdf5");
    let in_memory = StoredSamples::open(dir.path(), CorpusSplit::Train, &PretrainConfig::default()).unwrap();
    let small = PretrainConfig { memory_mib: 0, ..PretrainConfig::default() };
    let unpacked = StoredSamples::open(dir.path(), CorpusSplit::Train, &small).unwrap();
    let ids: Vec<u32> = (0..300).collect();
    assert_eq!(unpacked.collate(&ids).unwrap(), in_memory.collate(&ids).unwrap());
    assert_eq!(unpacked.fingerprint(), in_memory.fingerprint());

    let files =
        || std::fs::read_dir(dir.path().join(".unpacked")).unwrap().map(|f| f.unwrap().path()).collect::<Vec<_>>();
    let made = std::fs::metadata(&files()[0]).unwrap().modified().unwrap();
    StoredSamples::open(dir.path(), CorpusSplit::Train, &small).unwrap();
    assert_eq!(std::fs::metadata(&files()[0]).unwrap().modified().unwrap(), made, "the file is reused");

    // A truncated file is created again. Below, another shard of the same name does not reuse this
    // one.
    let whole = std::fs::read(&files()[0]).unwrap();
    std::fs::write(&files()[0], &whole[..whole.len() / 2]).unwrap();
    assert_eq!(
        StoredSamples::open(dir.path(), CorpusSplit::Train, &small).unwrap().fingerprint(),
        in_memory.fingerprint()
    );
    // A file changed in place is detected when an invalid id is read.
    let mut changed = whole.clone();
    let end = changed.len();
    changed[end - 1] = 0xff;
    std::fs::write(&files()[0], changed).unwrap();
    let mapped = StoredSamples::open(dir.path(), CorpusSplit::Train, &small).unwrap();
    let error = mapped.collate(&ids).unwrap_err().to_string();
    assert!(error.contains(".rows") && error.contains("larger than the largest"), "{error}");
    let mut shard = Hdf5Rows::new(32, 6);
    rows[..5].iter().for_each(|row| shard.push(row));
    shard.write(&path).unwrap();
    assert_eq!(StoredSamples::open(dir.path(), CorpusSplit::Train, &small).unwrap().len(), 5);
}

#[test]
fn both_splits_share_the_memory() {
    // 6,000 rows of 99 bytes are within a MiB, 12,000 are not.
    let rows: Vec<Row> = recorded().into_iter().cycle().take(6000).collect();
    let (dir, path) = written(&rows, "training.hdf5");
    let config = PretrainConfig { memory_mib: 1, ..PretrainConfig::default() };
    let unpacked = || std::fs::read_dir(dir.path().join(".unpacked")).map_or(0, |files| files.count());
    StoredSamples::open(dir.path(), CorpusSplit::Train, &config).unwrap();
    assert_eq!(unpacked(), 0);
    std::fs::copy(&path, dir.path().join("valid.hdf5")).unwrap();
    for (split, files) in [(CorpusSplit::Train, 1), (CorpusSplit::Valid, 2)] {
        assert_eq!(StoredSamples::open(dir.path(), split, &config).unwrap().len(), 6000);
        assert_eq!(unpacked(), files);
    }
    // A damaged shard only fails its split.
    std::fs::write(dir.path().join("valid.hdf5"), "damaged").unwrap();
    assert_eq!(StoredSamples::open(dir.path(), CorpusSplit::Train, &config).unwrap().len(), 6000);
    let error = StoredSamples::open(dir.path(), CorpusSplit::Valid, &config).unwrap_err().to_string();
    assert!(error.contains("valid.hdf5"), "{error}");
}

#[test]
fn a_truncated_or_overwritten_file_is_a_named_error_and_never_a_panic() {
    for name in ["nvidia_training.hdf5", "newer_training.hdf5"] {
        let whole = std::fs::read(fixture(name)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("some_training.hdf5");
        for part in 0..20 {
            std::fs::write(&path, &whole[..whole.len() * part / 20]).unwrap();
            let error = read_rows(&path, None).unwrap_err().to_string();
            assert!(error.contains("some_training.hdf5"), "{error}");
        }
        for position in (0..whole.len()).step_by(97) {
            let mut bytes = whole.clone();
            bytes[position] ^= 0xff;
            bytes[(position + 1) % whole.len()] ^= 17;
            std::fs::write(&path, bytes).unwrap();
            // The byte may be one that is not read.
            if let Err(error) = read_rows(&path, None) {
                assert!(error.to_string().contains("some_training.hdf5"), "{error}");
            }
        }
    }
}

#[test]
fn other_files_and_missing_splits_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("some_training.hdf5");
    std::fs::write(&path, "this is not an HDF5 file").unwrap();
    let error = read_rows(&path, None).unwrap_err().to_string();
    assert!(error.contains("expected an HDF5 file"), "{error}");
    assert!(read_rows(&dir.path().join("none.hdf5"), None).unwrap_err().to_string().contains("none.hdf5"));
    for (split, word) in [(CorpusSplit::Train, "train"), (CorpusSplit::Valid, "valid")] {
        let empty = tempfile::tempdir().unwrap();
        let error = StoredSamples::open(empty.path(), split, &PretrainConfig::default()).unwrap_err().to_string();
        assert!(error.contains(&format!("no {word} split")), "{error}");
    }
}

/// As h5py 3.16 with HDF5 2.0 writes it with `libver="latest"`. The command of the message was tried
/// with the same version: its output is read.
#[test]
fn a_newer_format_is_refused_with_a_way_to_convert_it() {
    let error = read_rows(&fixture("latest_training.hdf5"), None).unwrap_err().to_string();
    for part in ["has a newer HDF5 format", "(layout version 5)", "libver='latest'", "python3 -c \"import h5py, sys;"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

/// Writes a valid shard of two rows, in which `change` removes or replaces datasets. Returns the
/// error or "fine".
fn with_change(change: impl Fn(&str) -> Change) -> String {
    let mut file = FileBuilder::new();
    let valid: [(&str, [u64; 2], Vec<i32>); 6] = [
        ("input_ids", [2, 4], vec![2, 9, 3, 3, 2, 8, 3, 0]),
        ("input_mask", [2, 4], vec![1, 1, 1, 1, 1, 1, 1, 0]),
        ("segment_ids", [2, 4], vec![0, 0, 0, 1, 0, 0, 1, 0]),
        ("masked_lm_positions", [2, 2], vec![1, 0, 1, 0]),
        ("masked_lm_ids", [2, 2], vec![7, 0, 6, 0]),
        ("next_sentence_labels", [2, 1], vec![0, 1]),
    ];
    for (name, shape, values) in valid {
        match change(name) {
            Change::Nothing => file.create_dataset(name).with_i32_data(&values).with_shape(&shape),
            Change::Missing => continue,
            Change::Values(values, shape) => file.create_dataset(name).with_i32_data(&values).with_shape(&shape),
            Change::Floats => file.create_dataset(name).with_f32_data(&vec![0.0; values.len()]).with_shape(&shape),
        };
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("odd_training.hdf5");
    file.write(&path).unwrap();
    match read_rows(&path, Some(100)) {
        Ok(_) => "fine".to_owned(),
        Err(error) => error.to_string(),
    }
}

enum Change {
    Nothing,
    Missing,
    Values(Vec<i32>, Vec<u64>),
    Floats,
}

#[test]
fn a_missing_or_wrong_field_is_named() {
    assert_eq!(with_change(|_| Change::Nothing), "fine");
    let fields =
        ["input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids", "next_sentence_labels"];
    for field in fields {
        for change in [|| Change::Missing, || Change::Floats, || Change::Values(vec![0; 15], vec![3, 5])] {
            let error = with_change(|name| if name == field { change() } else { Change::Nothing });
            assert!(error.contains("odd_training.hdf5") && error.contains('`'), "{field}: {error}");
        }
    }
    let wrong: [(&str, Vec<i32>, &str); 7] = [
        ("input_mask", vec![1, 0, 1, 1, 1, 1, 1, 0], "padding between"),
        ("input_mask", vec![1, 1, 1, 2, 1, 1, 1, 0], "neither 0 nor 1"),
        ("segment_ids", vec![0, 1, 0, 1, 0, 0, 1, 0], "zeros, then ones"),
        ("input_ids", vec![2, -9, 3, 3, 2, 8, 3, 0], "the id -9"),
        ("input_ids", vec![2, 100, 3, 3, 2, 8, 3, 0], "the token 100, but the vocabulary has only 100"),
        ("masked_lm_positions", vec![1, 0, 3, 0], "masks position 3 of 3"),
        ("masked_lm_ids", vec![7, 0, 100, 0], "the token 100"),
    ];
    for (field, values, part) in wrong {
        let width = values.len() as u64 / 2;
        let error = with_change(|name| match name == field {
            true => Change::Values(values.clone(), vec![2, width]),
            false => Change::Nothing,
        });
        assert!(error.contains(part) && error.contains("odd_training.hdf5"), "{field}: {error}");
    }
}
