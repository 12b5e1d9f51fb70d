//! The part of an image that a sample shows: random crops and flips for training, the centre for
//! validation.
//!
//! Pure geometry with the conventions of torchvision; [`super::resample`] computes the pixels.
//! Called by the image task.

use hetseq_random::Key;
use serde::{Deserialize, Serialize};

/// Random crops and flips of training images: `RandomResizedCrop` and `RandomHorizontalFlip` of
/// torchvision, with their defaults.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Crop {
    /// The smallest and the largest fraction of the image's area.
    pub scale: [f64; 2],
    /// The smallest and the largest ratio of width to height, before scaling to a square.
    pub ratio: [f64; 2],
    /// The probability of a horizontal flip.
    pub flip: f64,
}

impl Default for Crop {
    fn default() -> Self {
        Crop { scale: [0.08, 1.0], ratio: [3.0 / 4.0, 4.0 / 3.0], flip: 0.5 }
    }
}

/// A view of an image: `size` x `size` pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    pub x: ViewAxis,
    pub y: ViewAxis,
    pub flip: bool,
    pub size: usize,
}

/// One axis of a view: `length` source pixels from `start` on are scaled to `scaled` pixels, and
/// the view begins at pixel `skip` of those.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViewAxis {
    pub start: usize,
    pub length: usize,
    pub scaled: usize,
    pub skip: usize,
}

/// Attempts to find a crop that fits, before the centre is used.
const ATTEMPTS: u64 = 10;

impl Crop {
    /// Refuses settings that are out of range.
    pub fn check(&self) -> Result<(), String> {
        let [min, max] = self.scale;
        if !(0.0 < min && min <= max && max <= 1.0) {
            return Err(format!("scale = [{min}, {max}] must be two fractions of the area, such as [0.08, 1.0]"));
        }
        let [min, max] = self.ratio;
        if !(0.01..=100.0).contains(&min) || !(min..=100.0).contains(&max) {
            return Err(format!("ratio = [{min}, {max}] must be two ratios of width to height, such as [0.75, 1.33]"));
        }
        if !(0.0..=1.0).contains(&self.flip) {
            return Err(format!("flip = {} must be a probability from 0 to 1", self.flip));
        }
        Ok(())
    }

    /// A random view of a `width` x `height` image. The same key gives the same view on every
    /// machine.
    pub fn view(&self, key: Key, width: usize, height: usize, size: usize) -> View {
        let (x, y) = self.area(key.name("crop"), width, height);
        let axis = |(start, length)| ViewAxis { start, length, scaled: size, skip: 0 };
        View { x: axis(x), y: axis(y), flip: unit(key.name("flip"), 0) < self.flip, size }
    }

    /// (start, length) of the columns and of the rows.
    fn area(&self, key: Key, width: usize, height: usize) -> ((usize, usize), (usize, usize)) {
        let area = width as f64 * height as f64;
        let between = |i, [low, high]: [f64; 2]| low + (high - low) * unit(key, i);
        let logarithms = self.ratio.map(libm::log);
        for attempt in 0..ATTEMPTS {
            let target = area * between(4 * attempt, self.scale);
            let ratio = libm::exp(between(4 * attempt + 1, logarithms));
            let columns = libm::rint((target * ratio).sqrt()) as usize;
            let rows = libm::rint((target / ratio).sqrt()) as usize;
            if (1..=width).contains(&columns) && (1..=height).contains(&rows) {
                let offset = |i, max: usize| key.below(i, max as u64 + 1) as usize;
                let left = offset(4 * attempt + 2, width - columns);
                let top = offset(4 * attempt + 3, height - rows);
                return ((left, columns), (top, rows));
            }
        }
        // The largest part of the centre with an allowed ratio.
        let ratio = width as f64 / height as f64;
        let (columns, rows) = if ratio < self.ratio[0] {
            (width, libm::rint(width as f64 / self.ratio[0]) as usize)
        } else if ratio > self.ratio[1] {
            (libm::rint(height as f64 * self.ratio[1]) as usize, height)
        } else {
            (width, height)
        };
        let (columns, rows) = (columns.clamp(1, width), rows.clamp(1, height));
        (((width - columns) / 2, columns), ((height - rows) / 2, rows))
    }
}

impl View {
    /// Scales the shorter side to `resize` pixels and takes `size` x `size` from the centre.
    /// `resize` is at least `size`.
    pub fn middle(width: usize, height: usize, resize: usize, size: usize) -> View {
        let shorter = width.min(height).max(1);
        let axis = |length: usize| {
            let scaled = (resize as u128 * length as u128 / shorter as u128) as usize;
            // Rounds half to even, as Python does.
            let skip = libm::rint(scaled.saturating_sub(size) as f64 / 2.0) as usize;
            ViewAxis { start: 0, length, scaled: scaled.max(size), skip }
        };
        View { x: axis(width), y: axis(height), flip: false, size }
    }
}

/// Uniform in [0, 1).
fn unit(key: Key, i: u64) -> f64 {
    (key.bits64(i) >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_view_is_inside_the_image(
            seed in 0u64..1_000_000, width in 1usize..3000, height in 1usize..3000, size in 1usize..300, more in 0usize..100,
        ) {
            let views = [
                Crop::default().view(Key::root(seed), width, height, size),
                View::middle(width, height, size + more, size),
            ];
            for view in views {
                for (axis, side) in [(view.x, width), (view.y, height)] {
                    prop_assert!(axis.length >= 1 && axis.start + axis.length <= side, "{view:?}");
                    prop_assert!(axis.skip + size <= axis.scaled, "{view:?}");
                }
            }
        }
    }

    #[test]
    fn crops_have_the_configured_areas_and_ratios() {
        let crop = Crop { scale: [0.2, 0.5], ..Crop::default() };
        let (mut flips, mut areas) = (0, 0.0);
        for seed in 0..4000 {
            let view = crop.view(Key::root(seed), 400, 300, 224);
            let (columns, rows) = (view.x.length as f64, view.y.length as f64);
            let part = columns * rows / 120_000.0;
            assert!((0.195..0.505).contains(&part) && (0.74..1.35).contains(&(columns / rows)), "{view:?}");
            flips += u32::from(view.flip);
            areas += part;
        }
        assert!((1850..2150).contains(&flips), "{flips}");
        assert!((areas / 4000.0 - 0.35).abs() < 0.01, "{areas}");
    }

    #[test]
    fn an_image_that_fits_no_crop_gives_its_centre() {
        let crop = Crop { scale: [1.0, 1.0], ratio: [1.0, 1.0], flip: 0.0 };
        let view = crop.view(Key::root(1), 300, 100, 64);
        assert_eq!(view.x, ViewAxis { start: 100, length: 100, scaled: 64, skip: 0 });
        assert_eq!(view.y, ViewAxis { start: 0, length: 100, scaled: 64, skip: 0 });
        assert!(!view.flip);
    }

    #[test]
    fn a_key_gives_the_recorded_view() {
        let view = |seed| Crop::default().view(Key::root(seed), 500, 375, 224);
        assert_ne!(view(1), view(2));
        // Recorded once. A change here changes every run on image folders.
        let View { x, y, flip, .. } = view(7);
        assert_eq!((x.start, x.length, y.start, y.length, flip), RECORDED);
    }
    const RECORDED: (usize, usize, usize, usize, bool) = (150, 330, 0, 319, true);

    #[test]
    fn settings_out_of_range_are_refused() {
        let wrong = [
            Crop { scale: [0.0, 1.0], ..Crop::default() },
            Crop { scale: [0.5, 0.2], ..Crop::default() },
            Crop { scale: [f64::NAN, 1.0], ..Crop::default() },
            Crop { ratio: [0.0, 1.0], ..Crop::default() },
            Crop { ratio: [2.0, 1.0], ..Crop::default() },
            Crop { flip: 1.5, ..Crop::default() },
        ];
        assert!(wrong.iter().all(|crop| crop.check().is_err()));
        assert_eq!(Crop::default().check(), Ok(()));
    }
}
