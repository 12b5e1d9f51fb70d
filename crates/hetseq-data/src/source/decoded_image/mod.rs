//! Decodes a PNG or JPEG file into RGB bytes: greyscale, palette, alpha (dropped), 16 bits, CMYK,
//! progressive. Orientation tags are ignored, as in torchvision.
//!
//! The format is detected from the content, not from the file extension. A header that declares
//! more pixels than [`LIMIT_PIXELS`] is rejected before memory is allocated. Called by the image
//! task from the loader's threads.

mod jpeg;

use std::io::{Cursor, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use fs_err as fs;
use image::error::ImageError;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};

use crate::error::DataError;

/// Maximum pixels of an image: 8,192 x 8,192, which is 192 MB as RGB.
pub const LIMIT_PIXELS: u64 = 1 << 26;
/// Maximum bytes of a file. No image of that size needs more, compressed or not.
const LIMIT_FILE_BYTES: u64 = 8 * LIMIT_PIXELS + (1 << 20);

/// An image as RGB bytes, in row-major order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodedImage {
    pub width: usize,
    pub height: usize,
    /// `3 * width * height` bytes.
    pub rgb: Vec<u8>,
}

impl DecodedImage {
    pub fn read(path: &Path) -> Result<Self, DataError> {
        let unreadable = |reason| DataError::Io { path: path.to_owned(), reason };
        let file = fs::File::open(path).map_err(unreadable)?;
        let mut bytes =
            Vec::with_capacity(file.metadata().map_err(unreadable)?.len().min(LIMIT_FILE_BYTES) as usize + 1);
        file.take(LIMIT_FILE_BYTES).read_to_end(&mut bytes).map_err(unreadable)?;
        Self::decode(path, &bytes)
    }

    /// Decodes the image in `bytes`, read from `path`.
    pub fn decode(path: &Path, bytes: &[u8]) -> Result<Self, DataError> {
        // A panic of the decoder means one damaged image and must not end the run.
        catch_unwind(AssertUnwindSafe(|| decode(path, bytes))).unwrap_or_else(|_| {
            Err(DataError::NotAnImage { path: path.to_owned(), reason: "the decoder failed".to_owned() })
        })
    }
}

fn decode(path: &Path, bytes: &[u8]) -> Result<DecodedImage, DataError> {
    let not_an_image = |reason: String| DataError::NotAnImage { path: path.to_owned(), reason };
    let truncated = |format| DataError::TruncatedImage { path: path.to_owned(), format, bytes: bytes.len() };
    let (format, name) = match image::guess_format(bytes) {
        Ok(ImageFormat::Png) => (ImageFormat::Png, "PNG"),
        Ok(ImageFormat::Jpeg) => (ImageFormat::Jpeg, "JPEG"),
        _ if bytes.is_empty() => return Err(not_an_image("it is empty".to_owned())),
        _ => return Err(not_an_image("it is neither a PNG nor a JPEG file".to_owned())),
    };
    // The decoder silently fills missing data with grey.
    if format == ImageFormat::Jpeg && !jpeg::is_complete(bytes) {
        return Err(truncated(name));
    }
    let failed = |error: ImageError| match error {
        ImageError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => truncated(name),
        error => not_an_image(error.to_string()),
    };
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    // Bounds the decoder's other allocations. The image size is checked below, with a separate
    // message.
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(8 * LIMIT_PIXELS + (1 << 24));
    reader.limits(limits);
    let decoder = reader.into_decoder().map_err(failed)?;
    let (width, height) = decoder.dimensions();
    if u64::from(width) * u64::from(height) > LIMIT_PIXELS {
        return Err(DataError::ImageTooLarge { path: path.to_owned(), width, height, limit_pixels: LIMIT_PIXELS });
    }
    if width == 0 || height == 0 {
        return Err(not_an_image(format!("it is {width} x {height} pixels")));
    }
    let rgb = DynamicImage::from_decoder(decoder).map_err(failed)?.into_rgb8();
    Ok(DecodedImage { width: width as usize, height: height as usize, rgb: rgb.into_raw() })
}

#[cfg(test)]
mod tests;
