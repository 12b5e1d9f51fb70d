//! The small network against PyTorch: loss and gradients recorded by `scripts/fixtures/convnet.py`.

use std::collections::BTreeMap;

use hetseq_data::Augment;
use hetseq_data::source::{Images, LabelledImages};
use serde::Deserialize;

use super::{OnCpu, Stream, config};
use crate::task::Split;
use crate::tasks::images::ImageTask;
use crate::tasks::images::dataset::{Dataset, IdxImages};

const SIDE: usize = 8;
const CLASSES: usize = 3;
const IMAGES: usize = 6;

#[derive(Deserialize)]
struct Recorded {
    loss: f64,
    gradients: BTreeMap<String, Gradient>,
}

#[derive(Deserialize)]
struct Gradient {
    norm: f64,
    head: Vec<f32>,
}

fn task(stream: &mut Stream) -> ImageTask {
    let pixels = stream.bytes(IMAGES * SIDE * SIDE);
    let labels = stream.bytes(IMAGES).into_iter().map(|byte| byte % CLASSES as u8).collect();
    let images = LabelledImages { images: Images { count: IMAGES, height: SIDE, width: SIDE, pixels }, labels };
    let (mean, std, augment) = (0.25, 0.5, Augment::default());
    let dataset = IdxImages { train: images.clone(), valid: images, classes: CLASSES, mean, std, augment };
    ImageTask::new(config(""), Dataset::Idx(dataset))
}

#[test]
fn loss_and_gradients_match_pytorch() {
    let recorded: Recorded = serde_json::from_str(include_str!("../../../../tests/fixtures/convnet.json")).unwrap();
    let mut stream = Stream(7);
    let mut cpu = OnCpu::new(task(&mut stream));
    let layout = cpu.layout.clone();
    let mut parameters = vec![0.0; layout.len()];
    for entry in layout.entries() {
        parameters[entry.range.clone()].copy_from_slice(&stream.take(entry.range.len()));
    }
    cpu.replica.load(&parameters.into(), layout.len()).unwrap();

    // Two uneven micro-batches against PyTorch's mean over all six images.
    let jobs = [&[0, 1, 2, 3][..], &[4, 5]].map(|ids| cpu.job(Split::Train, ids));
    let flat = cpu.gradients(&jobs, 1.0 / IMAGES as f32);

    let loss = f64::from(flat[layout.len()]) / IMAGES as f64;
    assert!((loss - recorded.loss).abs() < 1e-6 * recorded.loss, "{loss} and {}", recorded.loss);
    assert_eq!(recorded.gradients.len(), layout.entries().len());
    for entry in layout.entries() {
        let ours = &flat[entry.range.clone()];
        let theirs = &recorded.gradients[&entry.name];
        let norm = ours.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        assert!((norm - theirs.norm).abs() < 2e-6 * theirs.norm, "{}: {norm} and {}", entry.name, theirs.norm);
        // Single values have the rounding error of sums of many terms, so the tolerance is relative
        // to the norm of the whole gradient.
        for (a, b) in ours.iter().zip(&theirs.head) {
            assert!(f64::from((a - b).abs()) < 1e-6 * theirs.norm, "{}: {a} and {b}", entry.name);
        }
    }
}
