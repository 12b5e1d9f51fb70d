//! Keyed image augmentation on the host. This file: small shifts and rotations of greyscale images.
//! [`view`] and [`resample`]: crops, flips and scaling of colour images.
//!
//! A pure function of (key, image). A sample is augmented in the same way on every machine in a
//! given epoch, because only + - * / and `libm` are used. Called while a micro-batch is built.

pub mod resample;
pub mod view;

use hetseq_random::Key;
use serde::{Deserialize, Serialize};

/// The largest change in either direction; the actual change is uniform in that range. If both are
/// zero, images stay the same bit for bit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Augment {
    pub shift_pixels: f32,
    pub rotate_degrees: f32,
}

impl Augment {
    /// Refuses settings that are not finite numbers.
    pub fn check(&self) -> Result<(), String> {
        for (name, limit) in [("shift_pixels", self.shift_pixels), ("rotate_degrees", self.rotate_degrees)] {
            if !limit.is_finite() {
                return Err(format!("{name} = {limit} must be a finite number"));
            }
        }
        Ok(())
    }

    /// Writes the image, rotated around its centre and shifted, as values from 0 to 255. Pixels
    /// from outside the image are black.
    ///
    /// # Panics
    /// If `image` or `out` is not `height * width` long.
    pub fn apply(&self, key: Key, image: &[u8], height: usize, width: usize, out: &mut [f32]) {
        assert_eq!(image.len(), height * width, "the image must be {height} x {width}");
        assert_eq!(out.len(), image.len(), "the output must be as large as the image");

        let (shift, degrees) = (self.shift_pixels, self.rotate_degrees);
        if (shift == 0.0 && degrees == 0.0) || image.is_empty() {
            for (value, &pixel) in out.iter_mut().zip(image) {
                *value = f32::from(pixel);
            }
            return;
        }

        let dx = key.between(0, -shift, shift);
        let dy = key.between(1, -shift, shift);
        let radians = key.between(2, -degrees, degrees) * (std::f32::consts::PI / 180.0);
        let (sin, cos) = (libm::sinf(radians), libm::cosf(radians));
        let (centre_x, centre_y) = ((width as f32 - 1.0) * 0.5, (height as f32 - 1.0) * 0.5);
        let source = GreyImage { pixels: image, height, width };
        for (y, row) in out.chunks_exact_mut(width).enumerate() {
            for (x, value) in row.iter_mut().enumerate() {
                // Inverse transform: the source position of this pixel.
                let (from_x, from_y) = (x as f32 - centre_x - dx, y as f32 - centre_y - dy);
                *value =
                    source.bilinear(cos * from_x + sin * from_y + centre_x, cos * from_y - sin * from_x + centre_y);
            }
        }
    }
}

struct GreyImage<'a> {
    pixels: &'a [u8],
    height: usize,
    width: usize,
}

impl GreyImage<'_> {
    fn bilinear(&self, x: f32, y: f32) -> f32 {
        // Also false for NaN, which a huge angle or shift can produce.
        let touches = x > -1.0 && y > -1.0 && x < self.width as f32 && y < self.height as f32;
        if !touches {
            return 0.0;
        }
        let (left, top) = (x.floor(), y.floor());
        let (right_part, bottom_part) = (x - left, y - top);
        let (left, top) = (left as isize, top as isize);
        let upper = self.at(left, top) * (1.0 - right_part) + self.at(left + 1, top) * right_part;
        let lower = self.at(left, top + 1) * (1.0 - right_part) + self.at(left + 1, top + 1) * right_part;
        upper * (1.0 - bottom_part) + lower * bottom_part
    }

    fn at(&self, x: isize, y: isize) -> f32 {
        if x < 0 || y < 0 || x as usize >= self.width || y as usize >= self.height {
            return 0.0;
        }
        f32::from(self.pixels[y as usize * self.width + x as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> Vec<u8> {
        (0..28 * 20).map(|i| Key::root(1).bits(i) as u8).collect()
    }

    fn apply(augment: Augment, key: Key) -> Vec<f32> {
        let mut out = vec![-1.0; 28 * 20];
        augment.apply(key, &image(), 28, 20, &mut out);
        out
    }

    #[test]
    fn no_change_is_exact() {
        let expected: Vec<f32> = image().iter().map(|&p| f32::from(p)).collect();
        assert_eq!(apply(Augment::default(), Key::root(3)), expected);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let error = Augment { rotate_degrees: bad, ..Augment::default() }.check().unwrap_err();
            assert_eq!(error, format!("rotate_degrees = {bad} must be a finite number"));
            assert!(Augment { shift_pixels: bad, ..Augment::default() }.check().is_err());
        }
    }

    #[test]
    fn the_result_depends_on_the_key_only() {
        let augment = Augment { shift_pixels: 2.0, rotate_degrees: 10.0 };
        let out = apply(augment, Key::root(3));
        assert_eq!(out, apply(augment, Key::root(3)));
        assert_ne!(out, apply(augment, Key::root(4)));
        assert!(out.iter().all(|v| (0.0..=255.0).contains(v)));
    }

    #[test]
    fn a_dot_moves_at_most_by_the_shift_and_keeps_its_brightness() {
        let mut image = vec![0u8; 9 * 9];
        image[4 * 9 + 4] = 200;
        for seed in 0..100 {
            let mut out = vec![0.0; 81];
            Augment { shift_pixels: 2.0, rotate_degrees: 0.0 }.apply(Key::root(seed), &image, 9, 9, &mut out);
            let brightness: f32 = out.iter().sum();
            assert!((brightness - 200.0).abs() < 0.1);
            let x: f32 = out.iter().enumerate().map(|(i, v)| (i % 9) as f32 * v).sum::<f32>() / brightness;
            assert!((x - 4.0).abs() < 2.01);
        }
    }

    #[test]
    fn rotation_is_around_the_centre() {
        let mut image = vec![0u8; 9 * 9];
        image[4 * 9 + 4] = 200;
        image[4 * 9 + 8] = 100;
        let mut out = vec![0.0; 81];
        Augment { shift_pixels: 0.0, rotate_degrees: 45.0 }.apply(Key::root(8), &image, 9, 9, &mut out);
        assert!((out[4 * 9 + 4] - 200.0).abs() < 0.01);
        assert!(out[4 * 9 + 8] < 100.0);
    }

    #[test]
    fn huge_changes_give_a_black_image_and_do_not_panic() {
        let out = apply(Augment { shift_pixels: f32::MAX, rotate_degrees: f32::MAX }, Key::root(1));
        assert!(out.iter().all(|&v| v == 0.0));
        Augment { shift_pixels: 1.0, rotate_degrees: 1.0 }.apply(Key::root(1), &[], 0, 0, &mut []);
    }
}
