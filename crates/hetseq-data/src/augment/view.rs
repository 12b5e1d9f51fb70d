//! Which part of a picture is looked at, and how large: random crops and flips for training, the middle for validation.
//! Geometry only, pure, with the conventions of torchvision; [`super::resample`] makes the pixels.

use hetseq_random::Key;
use serde::{Deserialize, Serialize};

/// How training views vary (`RandomResizedCrop` and `RandomHorizontalFlip` of torchvision, with their defaults).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Crop {
    /// The least and the largest part of the picture's area.
    pub scale: [f64; 2],
    /// The least and the largest ratio of width to height, before both are brought to the same size.
    pub ratio: [f64; 2],
    /// The chance that left and right are swapped.
    pub flip: f64,
}

impl Default for Crop {
    fn default() -> Self {
        Crop { scale: [0.08, 1.0], ratio: [3.0 / 4.0, 4.0 / 3.0], flip: 0.5 }
    }
}

/// A view of a picture: `size` x `size` pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    pub x: Span,
    pub y: Span,
    pub flip: bool,
    pub size: usize,
}

/// One direction of a view: `length` source pixels from `start` on are scaled to `scaled` pixels, of which those from
/// `skip` on are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub start: usize,
    pub length: usize,
    pub scaled: usize,
    pub skip: usize,
}

/// Tries to find a crop that fits, before the middle is taken.
const ATTEMPTS: u64 = 10;

impl Crop {
    /// What is wrong with these settings, if anything is.
    pub fn check(&self) -> Result<(), String> {
        let [least, most] = self.scale;
        if !(0.0 < least && least <= most && most <= 1.0) {
            return Err(format!("scale = [{least}, {most}] must be two parts of the area, such as [0.08, 1.0]"));
        }
        let [least, most] = self.ratio;
        if !(0.01..=100.0).contains(&least) || !(least..=100.0).contains(&most) {
            return Err(format!(
                "ratio = [{least}, {most}] must be two ratios of width to height, such as [0.75, 1.33]"
            ));
        }
        if !(0.0..=1.0).contains(&self.flip) {
            return Err(format!("flip = {} must be a chance from 0 to 1", self.flip));
        }
        Ok(())
    }

    /// A random view of a `width` x `height` picture. The same key gives the same view on every machine.
    pub fn view(&self, key: Key, width: usize, height: usize, size: usize) -> View {
        let (x, y) = self.area(key.name("crop"), width, height);
        let span = |(start, length)| Span { start, length, scaled: size, skip: 0 };
        View { x: span(x), y: span(y), flip: unit(key.name("flip"), 0) < self.flip, size }
    }

    /// (start, length) of columns and of rows.
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
                let place = |i, room: usize| key.below(i, room as u64 + 1) as usize;
                let left = place(4 * attempt + 2, width - columns);
                let top = place(4 * attempt + 3, height - rows);
                return ((left, columns), (top, rows));
            }
        }
        // As much of the middle as has an allowed ratio.
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
    /// The shorter side becomes `resize` pixels, then `size` x `size` from the middle. `resize` is at least `size`.
    pub fn middle(width: usize, height: usize, resize: usize, size: usize) -> View {
        let shorter = width.min(height).max(1);
        let span = |length: usize| {
            let scaled = (resize as u128 * length as u128 / shorter as u128) as usize;
            // Halves to even, as Python rounds.
            let skip = libm::rint(scaled.saturating_sub(size) as f64 / 2.0) as usize;
            Span { start: 0, length, scaled: scaled.max(size), skip }
        };
        View { x: span(width), y: span(height), flip: false, size }
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
        fn a_view_lies_in_the_picture(
            seed in 0u64..1_000_000, width in 1usize..3000, height in 1usize..3000, size in 1usize..300, more in 0usize..100,
        ) {
            let views = [
                Crop::default().view(Key::root(seed), width, height, size),
                View::middle(width, height, size + more, size),
            ];
            for view in views {
                for (span, side) in [(view.x, width), (view.y, height)] {
                    prop_assert!(span.length >= 1 && span.start + span.length <= side, "{view:?}");
                    prop_assert!(span.skip + size <= span.scaled, "{view:?}");
                }
            }
        }
    }

    #[test]
    fn crops_have_the_areas_and_ratios_asked_for() {
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
    fn what_cannot_be_cropped_gives_its_middle() {
        let crop = Crop { scale: [1.0, 1.0], ratio: [1.0, 1.0], flip: 0.0 };
        let view = crop.view(Key::root(1), 300, 100, 64);
        assert_eq!(view.x, Span { start: 100, length: 100, scaled: 64, skip: 0 });
        assert_eq!(view.y, Span { start: 0, length: 100, scaled: 64, skip: 0 });
        assert!(!view.flip);
    }

    #[test]
    fn the_key_decides_for_ever() {
        let view = |seed| Crop::default().view(Key::root(seed), 500, 375, 224);
        assert_ne!(view(1), view(2));
        // Recorded once. A change here changes every run on image folders.
        let View { x, y, flip, .. } = view(7);
        assert_eq!((x.start, x.length, y.start, y.length, flip), RECORDED);
    }
    const RECORDED: (usize, usize, usize, usize, bool) = (150, 330, 0, 319, true);

    #[test]
    fn settings_that_cannot_be_meant() {
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
