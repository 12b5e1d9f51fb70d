//! A file that cannot be read: fatal, or skipped as if it did not exist.

use std::path::Path;

use hetseq_data::source::folder::draw;
use hetseq_random::Key;
use tempfile::TempDir;

use super::{OnCpu, config};
use crate::task::{Metric, Samples, Split, Task, TaskData, Totals};
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
    let samples = Samples::new(Split::Train, &[0, 1, 2], Key::root(1));
    assert_eq!(task.collate(&samples).unwrap().counts(), [2]);
    let (skipped, path) = (samples.into_skipped(), dir.path().join("train").join(DAMAGED));
    assert_eq!(skipped.len(), 1);
    assert!(skipped[0].sample == 1 && skipped[0].reason.contains(&path.display().to_string()), "{skipped:?}");

    let mut cpu = OnCpu::new(task);
    let parameters = cpu.task.compute.initial(&cpu.layout, 1).unwrap();
    cpu.replica.load(&parameters.into(), cpu.layout.len()).unwrap();
    let (with, without) = (cpu.job(Split::Train, &[0, 1, 2]), cpu.job(Split::Train, &[0, 2]));
    assert_close(&cpu.gradients(&[with], 0.5), &cpu.gradients(&[without], 0.5));

    let (with, without) = (cpu.job(Split::Valid, &[0, 1, 2]), cpu.job(Split::Valid, &[0, 2]));
    let mut totals = |job| cpu.replica.evaluate(&[job]).unwrap().0;
    let (with, without) = (totals(with), totals(without));
    assert_eq!((with.samples, without.samples), (3, 2));
    assert_eq!(with.counts, without.counts);
    assert_eq!(with.scores, without.scores);
    let metrics = |totals| cpu.task.compute.metrics(totals).unwrap();
    assert_eq!(metrics(&with), metrics(&without));
}

#[test]
fn a_file_deleted_while_training_is_skipped() {
    let (dir, task) = open("skip");
    let gone = Path::new("valid/3/000003.png");
    fs_err::remove_file(dir.path().join(gone)).unwrap();
    let samples = Samples::new(Split::Valid, &[4, 5], Key::root(1));
    assert_eq!(task.collate(&samples).unwrap().counts(), [1]);
    let skipped = samples.into_skipped();
    assert!(skipped.len() == 1 && skipped[0].reason.contains("3/000003.png"), "{skipped:?}");
}

#[test]
fn top_five_accuracy_of_ten_classes() {
    let (_dir, task) = open("skip");
    let totals = Totals { samples: 9, counts: vec![8], losses: vec![1.0], scores: vec![2.0, 6.0], ..Totals::default() };
    let expected = [Metric::higher("accuracy", 0.25), Metric::higher("top5_accuracy", 0.75)];
    assert_eq!(task.metrics(&totals), expected);
    let names: Vec<String> = task.metrics(&Totals::default()).into_iter().map(|metric| metric.name).collect();
    assert_eq!(names, ["accuracy", "top5_accuracy"], "also without any sample");
}

fn assert_close(a: &[f32], b: &[f32]) {
    let norm = b.iter().map(|b| b * b).sum::<f32>().sqrt();
    assert!(norm > 0.0 && a.len() == b.len());
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() <= 1e-6 * norm, "{a} and {b}");
    }
}
