//! ResNets against torchvision, from image files to gradients. Recorded by
//! `scripts/fixtures/resnet.py`.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::Device;
use hetseq_models::{Init, Network};
use serde::Deserialize;

use super::{OnCpu, Stream, config};
use crate::task::{Split, Task};
use crate::tasks::images::ImageTask;

const IMAGES: usize = 3;
const CLASSES: usize = 7;

#[derive(Deserialize)]
struct Recorded {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    model: String,
    stem: String,
    side: usize,
    seed: u32,
    loss: f64,
    gradients: BTreeMap<String, Gradient>,
}

#[derive(Deserialize)]
struct Gradient {
    shape: Vec<usize>,
    norm: f64,
    /// Dot products with vectors of signs.
    products: Vec<f64>,
}

fn recorded() -> Vec<Case> {
    serde_json::from_str::<Recorded>(include_str!("../../../../tests/fixtures/resnet.json")).unwrap().cases
}

#[test]
fn eighteen_layers() {
    check(&recorded()[0]);
}

#[test]
fn thirty_four_layers_with_the_small_stem() {
    check(&recorded()[1]);
}

#[test]
fn fifty_layers() {
    check(&recorded()[2]);
}

fn check(case: &Case) {
    let dir = tempfile::tempdir().unwrap();
    let mut stream = Stream(case.seed);
    write_images(dir.path(), &mut stream, case.side);
    let mut cpu = OnCpu::new(open(dir.path(), case));
    let layout = cpu.layout.clone();
    let mut parameters = vec![0.0; layout.len()];
    for entry in layout.entries() {
        let values = parameter(&mut stream, &entry.name, &entry.shape);
        parameters[entry.range.clone()].copy_from_slice(&values);
    }
    cpu.replica.load(&parameters.into(), layout.len()).unwrap();
    // Uneven micro-batches against the mean over all. Uses validation images, which are not cropped
    // at random.
    let jobs = [&[0, 1][..], &[2]].map(|ids| cpu.job(Split::Valid, ids));
    let flat = cpu.gradients(&jobs, 1.0 / IMAGES as f32);

    let loss = f64::from(flat[layout.len()]) / IMAGES as f64;
    assert!((loss - case.loss).abs() < 1e-6 * case.loss, "{loss} and {}", case.loss);
    let names: Vec<&String> = layout.entries().iter().map(|entry| &entry.name).collect();
    assert_eq!(names.len(), case.gradients.len());
    let (mut squared_distance, mut squared_norm) = (0.0, 0.0);
    for entry in layout.entries() {
        let (ours, theirs) = (&flat[entry.range.clone()], &case.gradients[&entry.name]);
        assert_eq!(entry.shape, theirs.shape, "{}", entry.name);
        let difference = |(k, theirs): (usize, &f64)| (product(ours, k as u32) - theirs).powi(2);
        let squared: f64 = theirs.products.iter().enumerate().map(difference).sum();
        let distance = (squared / theirs.products.len() as f64).sqrt();
        assert!(distance < 2e-5 * theirs.norm, "{}: {distance} of {}", entry.name, theirs.norm);
        squared_distance += distance.powi(2);
        squared_norm += theirs.norm.powi(2);
    }
    let relative = (squared_distance / squared_norm).sqrt();
    eprintln!("{}: relative gradient error {relative:.1e}", case.model);
    assert!(relative < 1e-5, "{}: {relative:e}", case.model);
}

/// The sum of the elements with pseudo-random signs.
fn product(values: &[f32], k: u32) -> f64 {
    let sign = |i: u32| {
        let mut x = i.wrapping_add(k.wrapping_mul(0x9e37_79b9));
        x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
        x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
        if (x ^ (x >> 16)) >> 31 == 0 { 1.0 } else { -1.0 }
    };
    values.iter().zip(0..).map(|(&value, i)| f64::from(value) * sign(i)).sum()
}

fn parameter(stream: &mut Stream, name: &str, shape: &[usize]) -> Vec<f32> {
    let values = stream.take(shape.iter().product());
    let map = |f: &dyn Fn(f32) -> f32| values.iter().map(|&value| f(value)).collect();
    match shape {
        [_, rest @ ..] if !rest.is_empty() => {
            let fan_in: usize = rest.iter().product();
            let halvings = (0..).find(|&n| 4usize.pow(n) >= fan_in).unwrap();
            map(&|value| value / f32::powi(2.0, halvings.saturating_sub(2) as i32))
        }
        _ if name.ends_with("weight") => map(&|value| 1.0 + value / 4.0),
        _ => map(&|value| value / 4.0),
    }
}

/// Writes PNG files, which are lossless, one per class, so that labels count up.
fn write_images(dir: &Path, stream: &mut Stream, side: usize) {
    for class in 0..CLASSES {
        for split in ["train", "valid"] {
            let folder = dir.join(split).join(class.to_string());
            if split == "train" || class < IMAGES {
                fs_err::create_dir_all(&folder).unwrap();
                let bytes = if split == "valid" { stream.bytes(3 * side * side) } else { vec![0; 3 * side * side] };
                let image = image::RgbImage::from_raw(side as u32, side as u32, bytes).unwrap();
                image.save(folder.join("1.png")).unwrap();
            }
        }
    }
}

fn open(dir: &Path, case: &Case) -> ImageTask {
    let Case { model, stem, side, .. } = case;
    let mut config = config(&format!(
        "model = \"{model}\"\nstem = \"{stem}\"\nimage_size = {side}\nresize = {side}\nmean = 0.25\nstd = [0.5, 0.5, 0.5]"
    ));
    config.data = dir.to_owned();
    ImageTask::open(&config).unwrap()
}

#[test]
fn initialisation_matches_torchvision() {
    let dir = tempfile::tempdir().unwrap();
    write_images(dir.path(), &mut Stream(1), 8);
    let task = open(dir.path(), &Case { side: 8, ..recorded().remove(0) });
    let model = task.model(&Device::flex());
    let normal = |fan_out: f64| Init::Normal { std: (2.0 / fan_out).sqrt() };
    assert_eq!(model.init("conv1.weight", &[64, 3, 7, 7]), normal(64.0 * 49.0));
    assert_eq!(model.init("layer2.0.downsample.0.weight", &[128, 64, 1, 1]), normal(128.0));
    assert_eq!(model.init("layer1.0.bn2.weight", &[64]), Init::Constant(1.0));
    assert_eq!(model.init("layer1.0.bn2.bias", &[64]), Init::Constant(0.0));
    let bound = (1.0 / 512f64.sqrt()) as f32;
    assert_eq!(model.init("fc.weight", &[7, 512]), Init::Uniform { bound });
    assert_eq!(model.init("fc.bias", &[7]), Init::Uniform { bound });
}
