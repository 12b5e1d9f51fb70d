//! Scales a view of a picture, bilinear with antialiasing (the filter widens as the picture shrinks, as in Pillow and
//! PyTorch), and normalises it: bytes in, one plane of `f32` per colour out.
//!
//! Only + - * / in a fixed order, so that every machine gets the same bits. Rows first: adding whole rows is what a CPU
//! does fastest, and what is left for the columns is one row per output row.

use super::view::{Span, View};
use crate::source::picture::Picture;

/// What is done to a value from 0 to 255 of each colour: `value * factor + offset`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Normal {
    factor: [f32; 3],
    offset: [f32; 3],
}

impl Normal {
    /// `(value / 255 - mean) / std`.
    pub fn new(mean: [f32; 3], std: [f32; 3]) -> Self {
        let each = |of: fn(f64, f64) -> f64| std::array::from_fn(|c| of(f64::from(mean[c]), f64::from(std[c])) as f32);
        Normal { factor: each(|_, std| 1.0 / (255.0 * std)), offset: each(|mean, std| -mean / std) }
    }

    /// Values from 0 to 255, as they are.
    pub fn none() -> Self {
        Normal { factor: [1.0; 3], offset: [0.0; 3] }
    }
}

/// Writes the view to `out`: three planes of `size` x `size`.
///
/// # Panics
/// If `out` is not that long, or the view does not lie in the picture.
pub fn resample(picture: &Picture, view: &View, normal: &Normal, out: &mut [f32]) {
    let size = view.size;
    assert_eq!(out.len(), 3 * size * size, "the output must be three planes of {size} x {size}");
    let (columns, rows) = (Taps::new(view.x, size), Taps::new(view.y, size));
    // Of each row, the part that the columns look at.
    let (first, end) = columns.reach();
    let mut line = vec![0.0f32; 3 * (end - first)];
    for y in 0..size {
        line.fill(0.0);
        let (top, weights) = rows.of(y);
        for (row, &weight) in (top..).zip(weights) {
            let start = 3 * (row * picture.width + first);
            for (sum, &byte) in line.iter_mut().zip(&picture.rgb[start..start + 3 * (end - first)]) {
                *sum += weight * f32::from(byte);
            }
        }
        for x in 0..size {
            let (left, weights) = columns.of(x);
            let mut colour = [0.0f32; 3];
            for (pixel, &weight) in line[3 * (left - first)..].chunks_exact(3).zip(weights) {
                for c in 0..3 {
                    colour[c] += weight * pixel[c];
                }
            }
            let at = y * size + if view.flip { size - 1 - x } else { x };
            for c in 0..3 {
                out[c * size * size + at] = colour[c] * normal.factor[c] + normal.offset[c];
            }
        }
    }
}

/// For each output position of one direction: the first source position it looks at, and the weights from there on.
struct Taps {
    first: Vec<usize>,
    /// Where the weights of each position end.
    ends: Vec<usize>,
    weights: Vec<f32>,
}

impl Taps {
    fn new(span: Span, size: usize) -> Self {
        let mut taps = Taps { first: Vec::with_capacity(size), ends: Vec::with_capacity(size), weights: Vec::new() };
        let scale = span.length as f64 / span.scaled as f64;
        // A triangle as wide as an output pixel is in the source, and never narrower than a source pixel.
        let width = scale.max(1.0);
        let mut triangle = Vec::new();
        for position in span.skip..span.skip + size {
            let centre = (position as f64 + 0.5) * scale;
            let low = (centre - width + 0.5).max(0.0) as usize;
            let high = ((centre + width + 0.5) as usize).clamp(low + 1, span.length);
            let low = low.min(high - 1);
            triangle.clear();
            triangle.extend((low..high).map(|at| (1.0 - ((at as f64 + 0.5 - centre) / width).abs()).max(0.0)));
            let sum: f64 = triangle.iter().sum();
            // What weighs nothing is left out: a view at its own size is then copied bit for bit.
            let zeros = triangle.iter().take_while(|weight| **weight == 0.0).count();
            let some = triangle.iter().rposition(|weight| *weight > 0.0).map_or(zeros, |last| last + 1);
            taps.first.push(span.start + low + zeros);
            taps.weights.extend(triangle[zeros..some].iter().map(|weight| (weight / sum) as f32));
            taps.ends.push(taps.weights.len());
        }
        taps
    }

    fn of(&self, position: usize) -> (usize, &[f32]) {
        let start = if position == 0 { 0 } else { self.ends[position - 1] };
        (self.first[position], &self.weights[start..self.ends[position]])
    }

    /// The source positions that any output position looks at.
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

    fn picture(width: usize, height: usize) -> Picture {
        let key = Key::root(3);
        Picture { width, height, rgb: (0..3 * width * height).map(|i| key.bits(i as u32) as u8).collect() }
    }

    fn plain(picture: &Picture, view: &View) -> Vec<f32> {
        let mut out = vec![f32::NAN; 3 * view.size * view.size];
        resample(picture, view, &Normal::none(), &mut out);
        out
    }

    #[test]
    fn at_its_own_size_nothing_changes_and_a_flip_only_swaps() {
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
    fn one_colour_stays_that_colour_at_any_size() {
        for (width, height) in [(1, 1), (3, 700), (640, 480), (17, 5)] {
            let grey = Picture { width, height, rgb: vec![77; 3 * width * height] };
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
    fn normalised_as_asked() {
        let picture = picture(8, 8);
        let view = View::middle(8, 8, 8, 8);
        let (mean, std) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
        let mut out = vec![0.0; 192];
        resample(&picture, &view, &Normal::new(mean, std), &mut out);
        for (i, (value, byte)) in out.iter().zip(plain(&picture, &view)).enumerate() {
            let c = i / 64;
            let expected = (byte / 255.0 - mean[c]) / std[c];
            assert!((value - expected).abs() < 1e-5, "{value} and {expected}");
        }
    }

    #[test]
    fn the_same_bits_for_ever() {
        let picture = picture(50, 37);
        let view = Crop::default().view(Key::root(5), 50, 37, 24);
        let mut out = vec![0.0; 3 * 24 * 24];
        resample(&picture, &view, &Normal::new([0.5; 3], [0.25; 3]), &mut out);
        let bytes: Vec<u8> = out.iter().flat_map(|value| value.to_le_bytes()).collect();
        // Recorded once, on x86-64; other machines must agree.
        assert_eq!(&blake3::hash(&bytes).to_hex()[..16], RECORDED);
    }
    const RECORDED: &str = "5845fd4bf6140116";
}
