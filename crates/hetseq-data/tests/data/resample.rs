//! Compares resampled images with torchvision's, recorded by `scripts/fixtures/pictures.py`.

use hetseq_data::augment::view::ViewAxis;
use hetseq_data::{DecodedImage, Normalize, View, resample};
use serde::Deserialize;

#[derive(Deserialize)]
struct Recorded {
    crops: Vec<CropCase>,
    middles: Vec<CentreCropCase>,
}

#[derive(Deserialize)]
struct CropCase {
    picture: [usize; 2],
    /// Left, top, columns, rows.
    crop: [usize; 4],
    size: usize,
    values: Vec<f32>,
}

#[derive(Deserialize)]
struct CentreCropCase {
    picture: [usize; 2],
    resize: usize,
    size: usize,
    values: Vec<f32>,
}

/// The same bytes as `bytes` of `scripts/fixtures/stream.py`.
fn image([width, height]: [usize; 2]) -> DecodedImage {
    let mut state = 7u32;
    let byte = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    DecodedImage { width, height, rgb: (0..3 * width * height).map(byte).collect() }
}

fn assert_close(image: &DecodedImage, view: &View, expected: &[f32]) {
    let mut out = vec![0.0; expected.len()];
    resample(image, view, &Normalize::none(), &mut out);
    for (i, (value, expected)) in out.iter().zip(expected).enumerate() {
        assert!((value - expected).abs() < 1e-3, "{view:?}, value {i}: {value}, expected {expected}");
    }
}

#[test]
fn resampling_equals_torchvision() {
    let recorded: Recorded = serde_json::from_str(include_str!("../fixtures/resample.json")).unwrap();
    for case in recorded.crops {
        let [left, top, columns, rows] = case.crop;
        let span = |start, length| ViewAxis { start, length, scaled: case.size, skip: 0 };
        let view = View { x: span(left, columns), y: span(top, rows), flip: false, size: case.size };
        assert_close(&image(case.picture), &view, &case.values);
    }
    for case in recorded.middles {
        let [width, height] = case.picture;
        let view = View::middle(width, height, case.resize, case.size);
        assert_close(&image(case.picture), &view, &case.values);
    }
}
