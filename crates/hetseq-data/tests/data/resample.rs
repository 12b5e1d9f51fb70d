//! Views of pictures as torchvision makes them: recorded by `scripts/fixtures/pictures.py`.

use hetseq_data::augment::view::Span;
use hetseq_data::{Normal, Picture, View, resample};
use serde::Deserialize;

#[derive(Deserialize)]
struct Recorded {
    crops: Vec<CropOf>,
    middles: Vec<MiddleOf>,
}

#[derive(Deserialize)]
struct CropOf {
    picture: [usize; 2],
    /// Left, top, columns, rows.
    crop: [usize; 4],
    size: usize,
    values: Vec<f32>,
}

#[derive(Deserialize)]
struct MiddleOf {
    picture: [usize; 2],
    resize: usize,
    size: usize,
    values: Vec<f32>,
}

/// As `bytes` of `scripts/fixtures/stream.py`.
fn picture([width, height]: [usize; 2]) -> Picture {
    let mut state = 7u32;
    let byte = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    Picture { width, height, rgb: (0..3 * width * height).map(byte).collect() }
}

fn assert_like(picture: &Picture, view: &View, expected: &[f32]) {
    let mut out = vec![0.0; expected.len()];
    resample(picture, view, &Normal::none(), &mut out);
    for (i, (ours, theirs)) in out.iter().zip(expected).enumerate() {
        assert!((ours - theirs).abs() < 1e-3, "{view:?}, value {i}: {ours} and {theirs}");
    }
}

#[test]
fn as_torchvision_scales() {
    let recorded: Recorded = serde_json::from_str(include_str!("../fixtures/resample.json")).unwrap();
    for case in recorded.crops {
        let [left, top, columns, rows] = case.crop;
        let span = |start, length| Span { start, length, scaled: case.size, skip: 0 };
        let view = View { x: span(left, columns), y: span(top, rows), flip: false, size: case.size };
        assert_like(&picture(case.picture), &view, &case.values);
    }
    for case in recorded.middles {
        let [width, height] = case.picture;
        let view = View::middle(width, height, case.resize, case.size);
        assert_like(&picture(case.picture), &view, &case.values);
    }
}
