//! The small network against PyTorch: loss and gradients recorded by `scripts/fixtures/convnet.py`.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::Device;
use hetseq_data::Augment;
use hetseq_data::source::{Images, LabelledImages};
use hetseq_random::Key;
use serde::Deserialize;

use super::{Stream, config};
use crate::data::loader::{Job, MicroBatch};
use crate::devices::params;
use crate::devices::replica::Replica;
use crate::task::{Samples, Split, Task};
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
    ImageTask { config: config(""), dataset: Dataset::Idx(dataset) }
}

#[test]
fn loss_and_gradients_match_pytorch() {
    let recorded: Recorded = serde_json::from_str(include_str!("../../../../tests/fixtures/convnet.json")).unwrap();
    let mut stream = Stream(7);
    let task = Arc::new(task(&mut stream));
    let device = Device::flex().autodiff();
    let layout = Arc::new(params::layout_of(&task.model(&device)).unwrap());
    let mut parameters = vec![0.0; layout.len()];
    for entry in layout.entries() {
        parameters[entry.range.clone()].copy_from_slice(&stream.take(entry.range.len()));
    }
    let mut replica = Replica::new(task.clone(), layout.clone(), device);
    replica.load(&parameters).unwrap();

    // Two uneven micro-batches against PyTorch's mean over all six images.
    let jobs: Vec<Job<ImageTask>> = [vec![0, 1, 2, 3], vec![4, 5]]
        .into_iter()
        .map(|ids| {
            let batch = task.collate(&Samples::new(Split::Train, &ids, Key::root(0))).unwrap();
            Job { micro: MicroBatch { samples: ids, longest: 1 }, batch }
        })
        .collect();
    let flat = replica.gradients(&jobs, &[1.0 / IMAGES as f32], Key::root(0)).unwrap().flat;

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
