//! Writes synthetic digits as class folders, half PNG and half JPEG, in colour and in many sizes,
//! for trying out image folders. Every file is a pure function of (seed, index). Used by `hetseq
//! prep image-folder` and by tests.

use std::io::Cursor;
use std::path::Path;

use fs_err as fs;
use hetseq_random::Key;
use image::codecs::jpeg::JpegEncoder;
use image::{ImageFormat, RgbImage};
use rayon::prelude::*;

use crate::error::DataError;
use crate::source::digits;

/// Number of classes.
pub const CLASSES: usize = 10;
const DIGIT_SIZE: usize = 40;
/// Maximum number of background pixels around the digit, per axis.
const MARGIN: u64 = 24;
const JPEG_QUALITY: u8 = 90;

/// Writes `count` images into `dir/<digit>/`, round-robin over the classes.
pub fn write(dir: &Path, seed: u64, count: usize) -> Result<(), DataError> {
    let unwritable = |path: &Path| {
        let path = path.to_owned();
        move |reason| DataError::Io { path, reason }
    };
    for class in 0..CLASSES.min(count) {
        let dir = dir.join(class.to_string());
        fs::create_dir_all(&dir).map_err(unwritable(&dir))?;
    }
    let labels: Vec<u8> = (0..count).map(|index| (index % CLASSES) as u8).collect();
    let digits = digits::draw_labels(seed, &labels, DIGIT_SIZE)?;
    let key = Key::root(seed).name("image folder");
    (0..count).into_par_iter().try_for_each(|index| {
        let image = colour(key.index(index as u64), digits.image(index).unwrap_or_default());
        // Every class gets both formats.
        let is_png = (index / CLASSES).is_multiple_of(2);
        let extension = if is_png { "png" } else { "jpg" };
        let path = dir.join(labels[index].to_string()).join(format!("{index:06}.{extension}"));
        let bytes = encode(&image, is_png).map_err(|error| std::io::Error::other(error.to_string()));
        bytes.and_then(|bytes| fs::write(&path, bytes)).map_err(unwritable(&path))
    })
}

/// Draws a digit in random colours, at a random position on a larger background.
fn colour(key: Key, digit: &[u8]) -> RgbImage {
    let extra = |i: u64| key.name("size").below(i, MARGIN + 1) as usize;
    let (width, height) = (DIGIT_SIZE + extra(0), DIGIT_SIZE + extra(1));
    let offset = |i: u64, length: usize| key.name("place").below(i, (length - DIGIT_SIZE) as u64 + 1) as usize;
    let (left, top) = (offset(0, width), offset(1, height));
    let (paper, ink) = (key.name("paper"), key.name("ink"));
    RgbImage::from_fn(width as u32, height as u32, |x, y| {
        let (column, row) = ((x as usize).checked_sub(left), (y as usize).checked_sub(top));
        let coverage = match (column, row) {
            (Some(column), Some(row)) if column < DIGIT_SIZE => digit.get(row * DIGIT_SIZE + column).copied(),
            _ => None,
        };
        let coverage = f32::from(coverage.unwrap_or(0)) / 255.0;
        let channel = |i| {
            let (dark, light) = (paper.between(i, 0.0, 110.0), ink.between(i, 140.0, 255.0));
            (dark + (light - dark) * coverage) as u8
        };
        image::Rgb([channel(0), channel(1), channel(2)])
    })
}

fn encode(image: &RgbImage, is_png: bool) -> image::ImageResult<Vec<u8>> {
    let mut bytes = Cursor::new(Vec::new());
    if is_png {
        image.write_to(&mut bytes, ImageFormat::Png)?;
    } else {
        JpegEncoder::new_with_quality(&mut bytes, JPEG_QUALITY).encode_image(image)?;
    }
    Ok(bytes.into_inner())
}
