//! Tests of image decoding: all formats, truncated files, damaged files.

use image::codecs::jpeg::JpegEncoder;
use image::{ExtendedColorType, GrayAlphaImage, ImageBuffer, Luma, Rgb, RgbImage, Rgba};

use super::*;
use hetseq_random::Key;

fn noise(width: u32, height: u32) -> RgbImage {
    let key = Key::root(4);
    RgbImage::from_fn(width, height, |x, y| {
        let smooth = (8 * x + 3 * y) as u8;
        Rgb([smooth, smooth.wrapping_add(40), (key.bits(y * width + x) >> 29) as u8])
    })
}

fn encoded(image: &DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    image.write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

fn decode(bytes: &[u8]) -> Result<DecodedImage, DataError> {
    DecodedImage::decode(Path::new("some.jpg"), bytes)
}

#[test]
fn every_pixel_format_becomes_rgb() {
    let rgb = noise(20, 10);
    let expected = DecodedImage { width: 20, height: 10, rgb: rgb.as_raw().clone() };
    assert_eq!(decode(&encoded(&rgb.clone().into(), ImageFormat::Png)).unwrap(), expected);
    let alpha = ImageBuffer::from_fn(20, 10, |x, y| {
        let Rgb([r, g, b]) = *rgb.get_pixel(x, y);
        Rgba([r, g, b, 7])
    });
    assert_eq!(decode(&encoded(&DynamicImage::ImageRgba8(alpha), ImageFormat::Png)).unwrap(), expected);
    let deep = ImageBuffer::from_fn(20, 10, |x, y| Rgb(rgb.get_pixel(x, y).0.map(|value| u16::from(value) * 257)));
    assert_eq!(decode(&encoded(&DynamicImage::ImageRgb16(deep), ImageFormat::Png)).unwrap(), expected);

    let grey: Vec<u8> = (0..200).collect();
    let expected: Vec<u8> = grey.iter().flat_map(|&value| [value; 3]).collect();
    let plain = ImageBuffer::<Luma<u8>, _>::from_raw(20, 10, grey.clone()).unwrap();
    assert_eq!(decode(&encoded(&DynamicImage::ImageLuma8(plain), ImageFormat::Png)).unwrap().rgb, expected);
    let with_alpha = grey.iter().flat_map(|&value| [value, 9]).collect();
    let with_alpha = GrayAlphaImage::from_raw(20, 10, with_alpha).unwrap();
    assert_eq!(decode(&encoded(&DynamicImage::ImageLumaA8(with_alpha), ImageFormat::Png)).unwrap().rgb, expected);
}

/// One bit per pixel with a palette: 9 x 2 pixels, the first of each row red, the others blue.
#[test]
fn palettes_are_looked_up() {
    let mut bytes = Vec::new();
    {
        use std::io::Write;
        bytes.extend(b"\x89PNG\r\n\x1a\n");
        let mut chunk = |kind: &[u8; 4], data: &[u8]| {
            bytes.extend((data.len() as u32).to_be_bytes());
            let start = bytes.len();
            bytes.extend(kind);
            bytes.extend(data);
            let mut crc = flate2::Crc::new();
            crc.update(&bytes[start..]);
            bytes.extend(crc.sum().to_be_bytes());
        };
        chunk(b"IHDR", &[0, 0, 0, 9, 0, 0, 0, 2, 1, 3, 0, 0, 0]);
        chunk(b"PLTE", &[0, 0, 255, 255, 0, 0]);
        let mut rows = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        rows.write_all(&[0, 0x80, 0, 0, 0x80, 0]).unwrap();
        chunk(b"IDAT", &rows.finish().unwrap());
        chunk(b"IEND", &[]);
    }
    let image = decode(&bytes).unwrap();
    let row: Vec<u8> = [255, 0, 0].into_iter().chain([0, 0, 255].repeat(8)).collect();
    assert_eq!((image.width, image.height, image.rgb), (9, 2, row.repeat(2)));
}

#[test]
fn jpeg_is_decoded_with_a_small_error() {
    let rgb = noise(37, 21);
    let mut bytes = Vec::new();
    JpegEncoder::new_with_quality(&mut bytes, 95).encode_image(&rgb).unwrap();
    let image = decode(&bytes).unwrap();
    assert_eq!((image.width, image.height), (37, 21));
    let error: u32 = image.rgb.iter().zip(rgb.as_raw()).map(|(a, b)| u32::from(a.abs_diff(*b))).sum();
    assert!(f64::from(error) / (image.rgb.len() as f64) < 16.0, "mean error {error}");
    let mut grey = Vec::new();
    JpegEncoder::new(&mut grey).encode(&[128; 64], 8, 8, ExtendedColorType::L8).unwrap();
    assert_eq!(decode(&grey).unwrap().rgb.len(), 3 * 64);
}

/// Files written by libjpeg-turbo: one progressive, one CMYK, 8 x 8 pixels of one colour.
#[test]
fn progressive_and_cmyk_jpeg() {
    for (bytes, colour) in [
        (&include_bytes!("../../../tests/fixtures/progressive.jpg")[..], [200, 30, 60]),
        (&include_bytes!("../../../tests/fixtures/cmyk.jpg")[..], [200, 30, 60]),
    ] {
        let image = decode(bytes).unwrap();
        assert_eq!((image.width, image.height), (8, 8));
        for pixel in image.rgb.chunks_exact(3) {
            assert!(pixel.iter().zip(colour).all(|(&a, b): (&u8, u8)| a.abs_diff(b) <= 4), "{pixel:?}");
        }
    }
}

#[test]
fn a_truncated_file_is_named() {
    let rgb = noise(40, 30);
    let mut jpeg = Vec::new();
    JpegEncoder::new(&mut jpeg).encode_image(&rgb).unwrap();
    let png = encoded(&rgb.into(), ImageFormat::Png);
    for (bytes, shortest) in [(&jpeg, 3), (&png, 8)] {
        for cut in (shortest..bytes.len() - 12).step_by(7) {
            let error = decode(&bytes[..cut]).unwrap_err();
            assert!(matches!(error, DataError::TruncatedImage { .. }), "cut at {cut}: {error}");
            assert!(error.to_string().starts_with("some.jpg is a truncated"), "{error}");
        }
    }
}

#[test]
fn other_and_damaged_files_are_named_without_a_panic() {
    for (bytes, reason) in [(&b""[..], "it is empty"), (b"GIF89a", "neither a PNG nor a JPEG"), (b"<html>", "neither")]
    {
        let error = decode(bytes).unwrap_err().to_string();
        assert!(error.starts_with("some.jpg is not a readable image") && error.contains(reason), "{error}");
    }
    let png = encoded(&noise(16, 16).into(), ImageFormat::Png);
    let mut jpeg = Vec::new();
    JpegEncoder::new(&mut jpeg).encode_image(&noise(16, 16)).unwrap();
    let key = Key::root(1);
    for bytes in [png, jpeg] {
        for i in 0..400 {
            let mut damaged = bytes.clone();
            let at = key.below(i, damaged.len() as u64) as usize;
            damaged[at] = key.bits(i as u32) as u8;
            // Either the image is still valid or this is an error, but never a panic.
            _ = decode(&damaged);
        }
    }
}

#[test]
fn a_decompression_bomb_is_rejected() {
    let mut bytes = encoded(&noise(4, 4).into(), ImageFormat::Png);
    bytes[16..24].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
    let mut crc = flate2::Crc::new();
    crc.update(&bytes[12..29]);
    bytes[29..33].copy_from_slice(&crc.sum().to_be_bytes());
    let error = decode(&bytes).unwrap_err();
    assert!(matches!(error, DataError::ImageTooLarge { width: 65536, height: 65536, .. }), "{error}");
}

#[test]
fn a_missing_file_is_named() {
    let error = DecodedImage::read(Path::new("/nowhere/x.png")).unwrap_err().to_string();
    assert!(error.contains("/nowhere/x.png"), "{error}");
}
