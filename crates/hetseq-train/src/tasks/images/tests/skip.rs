//! A file that cannot be read: fatal, or skipped as if it did not exist.

use std::path::Path;
use std::sync::Arc;

use burn::tensor::Device;
use hetseq_data::source::folder::draw;
use hetseq_random::Key;
use tempfile::TempDir;

use super::config;
use crate::data::loader::{Job, MicroBatch};
use crate::devices::params;
use crate::devices::replica::Replica;
use crate::task::{Samples, Split, Task, Totals};
use crate::tasks::images::ImageTask;

/// Twelve images of ten classes. The second, a JPEG, is truncated after it was listed.
fn open(on_error: &str) -> (TempDir, ImageTask) {
    let dir = tempfile::tempdir().unwrap();
    draw::write(&dir.path().join("train"), 1, 12).unwrap();
    draw::write(&dir.path().join("valid"), 2, 12).unwrap();
    let mut config = config(&format!("image_size = 16\non_error = \"{on_error}\""));
    config.data = dir.path().to_owned();
    let task = ImageTask::open(&config).unwrap();
    for split in ["train", "valid"] {
        let path = dir.path().join(split).join(DAMAGED);
        let bytes = fs_err::read(&path).unwrap();
        fs_err::write(path, &bytes[..bytes.len() / 2]).unwrap();
    }
    (dir, task)
}

const DAMAGED: &str = "0/000010.jpg";

#[test]
fn a_fatal_error_names_the_file_and_the_skip_option() {
    let (dir, task) = open("fatal");
    let error = task.collate(&Samples::new(Split::Train, &[0, 1, 2], Key::root(1))).err().unwrap().to_string();
    let path = dir.path().join("train").join(DAMAGED);
    assert!(error.starts_with(&format!("{} is a truncated JPEG file", path.display())), "{error}");
    assert!(error.ends_with("task.on_error = \"skip\" continues without such files"), "{error}");
}

#[test]
fn a_skipped_sample_has_no_effect() {
    let (dir, task) = open("skip");
    let task = Arc::new(task);
    let device = Device::flex().autodiff();
    let layout = Arc::new(params::layout_of(&task.model(&device)).unwrap());
    let mut replica = Replica::new(task.clone(), layout.clone(), device);
    replica.load(&params::initial(&task.model(&Device::flex()), &layout, 1)).unwrap();
    let job = |split, ids: &[u32]| {
        let samples = Samples::new(split, ids, Key::root(1));
        let batch = task.collate(&samples).unwrap();
        (
            task.counts(&batch),
            samples.into_skipped(),
            vec![Job { micro: MicroBatch { samples: ids.to_vec(), longest: 1 }, batch }],
        )
    };
    let (counts, skipped, with) = job(Split::Train, &[0, 1, 2]);
    let (_, none, without) = job(Split::Train, &[0, 2]);
    assert_eq!((counts, skipped.len(), none.len()), (vec![2], 1, 0));
    let path = dir.path().join("train").join(DAMAGED);
    assert!(skipped[0].sample == 1 && skipped[0].reason.contains(&path.display().to_string()), "{skipped:?}");
    let gradient = |jobs: &[Job<ImageTask>]| replica.gradients(jobs, &[0.5], Key::root(2)).unwrap().flat;
    assert_close(&gradient(&with), &gradient(&without));

    let (_, _, with) = job(Split::Valid, &[0, 1, 2]);
    let (_, _, without) = job(Split::Valid, &[0, 2]);
    let (with, without) = (replica.evaluate(&with).unwrap().0, replica.evaluate(&without).unwrap().0);
    assert_eq!((with.samples, without.samples), (3, 2));
    assert_eq!(with.counts, without.counts);
    assert_eq!(with.scores, without.scores);
    assert_eq!(task.measure(&with), task.measure(&without));
}

#[test]
fn a_file_deleted_while_training_is_skipped() {
    let (dir, task) = open("skip");
    let gone = Path::new("valid/3/000003.png");
    fs_err::remove_file(dir.path().join(gone)).unwrap();
    let samples = Samples::new(Split::Valid, &[4, 5], Key::root(1));
    assert_eq!(task.counts(&task.collate(&samples).unwrap()), [1]);
    let skipped = samples.into_skipped();
    assert!(skipped.len() == 1 && skipped[0].reason.contains("3/000003.png"), "{skipped:?}");
}

#[test]
fn top_five_accuracy_of_ten_classes() {
    let (_dir, task) = open("skip");
    assert_eq!(task.metrics().iter().map(|metric| metric.name).collect::<Vec<_>>(), ["accuracy", "top5_accuracy"]);
    let totals = Totals { samples: 9, counts: vec![8], losses: vec![1.0], scores: vec![2.0, 6.0] };
    assert_eq!(task.measure(&totals), [0.25, 0.75]);
}

fn assert_close(a: &[f32], b: &[f32]) {
    let norm = b.iter().map(|b| b * b).sum::<f32>().sqrt();
    assert!(norm > 0.0 && a.len() == b.len());
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() <= 1e-6 * norm, "{a} and {b}");
    }
}
