//! Scales a view of an image and normalises it: bytes in, one plane of `f32` per colour out.
//!
//! Bilinear with antialiasing: the filter widens as the image shrinks, as in Pillow and PyTorch.
//! Uses only + - * / in a fixed order, so that every machine gets the same bits. Rows come first:
//! adding whole rows is fastest on a CPU, and leaves one row per output row for the columns. Called
//! by the image task.

use super::view::{View, ViewAxis};
use crate::source::decoded_image::DecodedImage;

/// The normalisation of a value from 0 to 255, per colour: `value * factor + offset`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Normalize {
    factor: [f32; 3],
    offset: [f32; 3],
}

impl Normalize {
    /// `(value / 255 - mean) / std`.
    pub fn new(mean: [f32; 3], std: [f32; 3]) -> Self {
        let each = |of: fn(f64, f64) -> f64| std::array::from_fn(|c| of(f64::from(mean[c]), f64::from(std[c])) as f32);
        Normalize { factor: each(|_, std| 1.0 / (255.0 * std)), offset: each(|mean, std| -mean / std) }
    }

    /// No normalisation: values from 0 to 255.
    pub fn none() -> Self {
        Normalize { factor: [1.0; 3], offset: [0.0; 3] }
    }
}

/// Writes the view to `out`: three planes of `size` x `size`.
///
/// # Panics
/// If `out` has another length, or the view is not inside the image.
pub fn resample(image: &DecodedImage, view: &View, normalize: &Normalize, out: &mut [f32]) {
    let size = view.size;
    assert_eq!(out.len(), 3 * size * size, "the output must be three planes of {size} x {size}");
    let (columns, rows) = (Taps::new(view.x, size), Taps::new(view.y, size));
    // The part of each row that the columns read.
    let (first, end) = columns.reach();
    let mut sums = vec![0.0f32; 3 * (end - first)];
    for y in 0..size {
        sums.fill(0.0);
        let (top, weights) = rows.of(y);
        for (row, &weight) in (top..).zip(weights) {
            let start = 3 * (row * image.width + first);
            for (sum, &byte) in sums.iter_mut().zip(&image.rgb[start..start + 3 * (end - first)]) {
                *sum += weight * f32::from(byte);
            }
        }
        for x in 0..size {
            let (left, weights) = columns.of(x);
            let mut colour = [0.0f32; 3];
            for (pixel, &weight) in sums[3 * (left - first)..].chunks_exact(3).zip(weights) {
                for c in 0..3 {
                    colour[c] += weight * pixel[c];
                }
            }
            let at = y * size + if view.flip { size - 1 - x } else { x };
            for c in 0..3 {
                out[c * size * size + at] = colour[c] * normalize.factor[c] + normalize.offset[c];
            }
        }
    }
}

/// The filter of one axis: for each output position, the first source position that it reads and
/// the weights from there on.
struct Taps {
    first: Vec<usize>,
    /// The end of each position's weights in `weights`.
    ends: Vec<usize>,
    weights: Vec<f32>,
}

impl Taps {
    fn new(axis: ViewAxis, size: usize) -> Self {
        let mut taps = Taps { first: Vec::with_capacity(size), ends: Vec::with_capacity(size), weights: Vec::new() };
        let scale = axis.length as f64 / axis.scaled as f64;
        // A triangle as wide as an output pixel in the source, but at least as wide as a source
        // pixel.
        let width = scale.max(1.0);
        let mut triangle = Vec::new();
        for position in axis.skip..axis.skip + size {
            let centre = (position as f64 + 0.5) * scale;
            let low = (centre - width + 0.5).max(0.0) as usize;
            let high = ((centre + width + 0.5) as usize).clamp(low + 1, axis.length);
            let low = low.min(high - 1);
            triangle.clear();
            triangle.extend((low..high).map(|at| (1.0 - ((at as f64 + 0.5 - centre) / width).abs()).max(0.0)));
            let sum: f64 = triangle.iter().sum();
            // Zero weights are dropped, so that a view at its own size is copied bit for bit.
            let zeros = triangle.iter().take_while(|weight| **weight == 0.0).count();
            let end = triangle.iter().rposition(|weight| *weight > 0.0).map_or(zeros, |last| last + 1);
            taps.first.push(axis.start + low + zeros);
            taps.weights.extend(triangle[zeros..end].iter().map(|weight| (weight / sum) as f32));
            taps.ends.push(taps.weights.len());
        }
        taps
    }

    fn of(&self, position: usize) -> (usize, &[f32]) {
        let start = if position == 0 { 0 } else { self.ends[position - 1] };
        (self.first[position], &self.weights[start..self.ends[position]])
    }

    /// The range of source positions that any output position reads.
    fn reach(&self) -> (usize, usize) {
        let each = || (0..self.first.len()).map(|position| self.of(position));
        let first = each().map(|(first, _)| first).min().unwrap_or(0);
        (first, each().map(|(first, weights)| first + weights.len()).max().unwrap_or(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::augment::view::Crop;
    use hetseq_random::Key;

    fn picture(width: usize, height: usize) -> DecodedImage {
        let key = Key::root(3);
        DecodedImage { width, height, rgb: (0..3 * width * height).map(|i| key.bits(i as u32) as u8).collect() }
    }

    fn plain(picture: &DecodedImage, view: &View) -> Vec<f32> {
        let mut out = vec![f32::NAN; 3 * view.size * view.size];
        resample(picture, view, &Normalize::none(), &mut out);
        out
    }

    #[test]
    fn at_its_own_size_an_image_is_copied_and_a_flip_only_reverses_rows() {
        let picture = picture(9, 9);
        let mut view = View::middle(9, 9, 9, 9);
        let out = plain(&picture, &view);
        for (i, value) in out.iter().enumerate() {
            assert_eq!(*value, f32::from(picture.rgb[3 * (i % 81) + i / 81]));
        }
        view.flip = true;
        let flipped = plain(&picture, &view);
        for (row, flipped) in out.chunks_exact(9).zip(flipped.chunks_exact(9)) {
            assert!(row.iter().rev().eq(flipped));
        }
    }

    #[test]
    fn a_single_colour_stays_the_same_at_any_size() {
        for (width, height) in [(1, 1), (3, 700), (640, 480), (17, 5)] {
            let grey = DecodedImage { width, height, rgb: vec![77; 3 * width * height] };
            for seed in 0..20 {
                for view in
                    [Crop::default().view(Key::root(seed), width, height, 32), View::middle(width, height, 40, 32)]
                {
                    let out = plain(&grey, &view);
                    assert!(out.iter().all(|value| (value - 77.0).abs() < 1e-4), "{view:?}");
                }
            }
        }
    }

    #[test]
    fn mean_and_deviation_are_applied() {
        let picture = picture(8, 8);
        let view = View::middle(8, 8, 8, 8);
        let (mean, std) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
        let mut out = vec![0.0; 192];
        resample(&picture, &view, &Normalize::new(mean, std), &mut out);
        for (i, (value, byte)) in out.iter().zip(plain(&picture, &view)).enumerate() {
            let c = i / 64;
            let expected = (byte / 255.0 - mean[c]) / std[c];
            assert!((value - expected).abs() < 1e-5, "{value} and {expected}");
        }
    }

    #[test]
    fn the_bits_match_the_recorded_ones() {
        let picture = picture(50, 37);
        let view = Crop::default().view(Key::root(5), 50, 37, 24);
        let mut out = vec![0.0; 3 * 24 * 24];
        resample(&picture, &view, &Normalize::new([0.5; 3], [0.25; 3]), &mut out);
        let bytes: Vec<u8> = out.iter().flat_map(|value| value.to_le_bytes()).collect();
        // Recorded once on x86-64. Other machines must give the same.
        assert_eq!(&blake3::hash(&bytes).to_hex()[..16], RECORDED);
    }
    const RECORDED: &str = "5845fd4bf6140116";
}
