//! Synthetic digits: a dataset that needs no download. Used by the demo, the tests and the first
//! run.
//!
//! Each image is a pure function of (seed, index, size), computed with + - * /, square roots and
//! `libm` only: every machine draws the same bits, and image `i` does not depend on the number of
//! images. The task is hard enough that one update does not learn it, and easy enough that a small
//! convolutional network classifies nearly all images.

mod pen;
mod shapes;

use hetseq_random::Key;

use super::{Images, LabelledImages};
use crate::error::DataError;
use pen::{Canvas, PenPoint};

/// Maximum size of all images, which are in memory on every rank.
const LIMIT_BYTES: u64 = 8 << 30;

/// Ranges of the random style parameters. A single number is the limit in both directions.
const ROTATE_RADIANS: f32 = 0.30;
const SLANT: f32 = 0.36;
const WIDTH: (f32, f32) = (0.40, 0.66);
const HEIGHT: (f32, f32) = (0.56, 0.80);
const SHIFT: f32 = 0.10;
const WOBBLE: f32 = 0.05;
const PEN_RADIUS: (f32, f32) = (0.022, 0.062);
const INK: (f32, f32) = (150.0, 255.0);
const PAPER_NOISE: f32 = 34.0;

/// Draws `count` square digits with their labels, uniform in 0 to 9.
pub fn draw(seed: u64, count: usize, size: usize) -> Result<LabelledImages, DataError> {
    // Checked before the labels are allocated.
    check_area(count, size)?;
    let digits = Key::root(seed).name("digits");
    let labels: Vec<u8> = (0..count).map(|index| digits.index(index as u64).name("label").below(0, 10) as u8).collect();
    Ok(LabelledImages { images: draw_labels(seed, &labels, size)?, labels })
}

/// Draws one square digit for each label.
pub fn draw_labels(seed: u64, labels: &[u8], size: usize) -> Result<Images, DataError> {
    let count = labels.len();
    let area = check_area(count, size)?;
    let mut pixels = Vec::new();
    pixels.try_reserve_exact(count * area).map_err(|_| DataError::UndrawableDigits {
        count,
        size,
        limit_bytes: LIMIT_BYTES,
    })?;
    pixels.resize(count * area, 0);

    let digits = Key::root(seed).name("digits");
    let mut canvas = Canvas::new(size);
    for (index, (image, &label)) in pixels.chunks_exact_mut(area).zip(labels).enumerate() {
        draw_one(digits.index(index as u64), label, &mut canvas, image);
    }
    Ok(Images { count, height: size, width: size, pixels })
}

/// Returns the number of pixels per digit, or an error if all digits exceed the limit.
fn check_area(count: usize, size: usize) -> Result<usize, DataError> {
    let area = size.checked_mul(size).filter(|&area| area > 0);
    let fits = |&area: &usize| count.checked_mul(area).is_some_and(|bytes| bytes as u64 <= LIMIT_BYTES);
    area.filter(fits).ok_or(DataError::UndrawableDigits { count, size, limit_bytes: LIMIT_BYTES })
}

fn draw_one(key: Key, label: u8, canvas: &mut Canvas, image: &mut [u8]) {
    let style = key.name("style");
    let transform = HandTransform::new(style);
    let radius = style.between(10, PEN_RADIUS.0, PEN_RADIUS.1);
    let ink = style.between(11, INK.0, INK.1);
    let strokes = shapes::strokes(label, style.bits(12));

    canvas.clear();
    let wobble = key.name("wobble");
    let mut drawn = 0;
    for stroke in strokes {
        let mut last = None;
        for point in stroke {
            let moved = transform.apply(wobbled(wobble, drawn, point));
            canvas.line(last.unwrap_or(moved), moved, radius);
            last = Some(moved);
            drawn += 1;
        }
    }

    let noise = key.name("noise");
    for (i, (pixel, coverage)) in image.iter_mut().zip(canvas.coverage(radius)).enumerate() {
        // The sum of two uniform numbers has a triangular distribution: cheap, and mostly small.
        let (a, b) = (noise.unit(2 * i as u32), noise.unit(2 * i as u32 + 1));
        let value = coverage * ink + (a + b - 1.0) * PAPER_NOISE;
        *pixel = value.clamp(0.0, 255.0) as u8;
    }
}

/// Adds the wobble of a hand: a slow wave along the stroke instead of independent noise per point.
fn wobbled(key: Key, drawn: u32, point: PenPoint) -> PenPoint {
    const POINTS_PER_WAVE: u32 = 4;
    let (step, part) = (drawn / POINTS_PER_WAVE, (drawn % POINTS_PER_WAVE) as f32 / POINTS_PER_WAVE as f32);
    let wave = |axis: u32| {
        let at = |step: u32| key.between(2 * step + axis, -WOBBLE, WOBBLE);
        at(step) * (1.0 - part) + at(step + 1) * part
    };
    PenPoint { x: point.x + wave(0), y: point.y + wave(1) }
}

/// Affine transform from the unit square of a shape to the unit square of the image.
struct HandTransform {
    xx: f32,
    xy: f32,
    yx: f32,
    yy: f32,
    middle: PenPoint,
}

impl HandTransform {
    fn new(style: Key) -> Self {
        let symmetric = |i, limit: f32| style.between(i, -limit, limit);
        let (width, height) = (style.between(0, WIDTH.0, WIDTH.1), style.between(1, HEIGHT.0, HEIGHT.1));
        let (slant, radians) = (symmetric(2, SLANT), symmetric(3, ROTATE_RADIANS));
        let (sin, cos) = (libm::sinf(radians), libm::cosf(radians));
        let middle = PenPoint { x: 0.5 + symmetric(4, SHIFT), y: 0.5 + symmetric(5, SHIFT) };
        // Scale, then slant, then rotate. y points down, so a positive slant leans to the right at
        // the top.
        let (xx, xy) = (width, -slant * height);
        HandTransform { xx: cos * xx, xy: cos * xy - sin * height, yx: sin * xx, yy: sin * xy + cos * height, middle }
    }

    fn apply(&self, point: PenPoint) -> PenPoint {
        let (x, y) = (point.x - 0.5, point.y - 0.5);
        PenPoint { x: self.xx * x + self.xy * y + self.middle.x, y: self.yx * x + self.yy * y + self.middle.y }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_always_draws_the_same_bits() {
        // Recorded once. A change of this value changes every run on synthetic digits.
        assert_eq!(draw(7, 64, 28).unwrap().fingerprint(), "d0e0514b1f2622b9");
        assert_ne!(draw(7, 64, 28).unwrap(), draw(8, 64, 28).unwrap());
    }

    #[test]
    fn a_digit_does_not_depend_on_the_count() {
        let (few, many) = (draw(1, 5, 28).unwrap(), draw(1, 50, 28).unwrap());
        assert_eq!(few.images.pixels, many.images.pixels[..5 * 784]);
        assert_eq!(few.labels, many.labels[..5]);
    }

    #[test]
    fn labels_are_uniform() {
        let mut counts = [0; 10];
        for label in draw(3, 10_000, 1).unwrap().labels {
            counts[usize::from(label)] += 1;
        }
        assert!(counts.iter().all(|n| (880..1120).contains(n)), "{counts:?}");
    }

    #[test]
    fn every_digit_has_ink_and_paper() {
        let drawn = draw(2, 500, 28).unwrap();
        for i in 0..500 {
            let image = drawn.images.image(i).unwrap();
            let dark = image.iter().filter(|&&p| p > 110).count();
            assert!((15..400).contains(&dark), "digit {} at {i} has {dark} pixels of ink", drawn.labels[i]);
        }
    }

    #[test]
    fn odd_sizes_are_drawn_or_refused() {
        for size in [1, 2, 7, 200] {
            assert_eq!(draw(1, 3, size).unwrap().images.pixels.len(), 3 * size * size);
        }
        assert!(draw(1, 0, 28).unwrap().is_empty());
        for (count, size) in [(1, 0), (usize::MAX, 28), (1, usize::MAX), (1 << 40, 28)] {
            let error = draw(1, count, size).unwrap_err();
            assert!(matches!(error, DataError::UndrawableDigits { .. }), "{error}");
        }
    }
}
