//! Reads and writes idx files, the format of MNIST and similar datasets, and finds the two files of
//! a split.
//!
//! Gzip is detected from the first bytes of a file, not from its name, because users decompress and
//! rename files. Memory is allocated as data is read, never from the header alone, so a damaged
//! header gives an error instead of exhausting memory. The image task checks the labels and calls
//! this module.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use fs_err as fs;

use super::bytes::write_atomic;
use super::{Images, LabelledImages};
use crate::error::DataError;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// The only supported element type.
const UNSIGNED_BYTE: u8 = 0x08;
/// Size of the magic: two zeros, the element type, the number of dimensions.
const MAGIC_BYTES: usize = 4;

/// Reads images: an idx file of unsigned bytes with three dimensions.
pub fn read_images(path: &Path) -> Result<Images, DataError> {
    let (size, pixels) = read::<3>(path)?;
    let [count, height, width] = size;
    Ok(Images { count, height, width, pixels })
}

/// Reads labels: an idx file of unsigned bytes with one dimension.
pub fn read_labels(path: &Path) -> Result<Vec<u8>, DataError> {
    Ok(read::<1>(path)?.1)
}

/// Writes images atomically.
pub fn write_images(path: &Path, images: &Images, gzip: bool) -> Result<(), DataError> {
    let size = [images.count, images.height, images.width];
    let expected_bytes = size.iter().fold(1u128, |bytes, &n| bytes.saturating_mul(n as u128));
    match size.map(|n| u32::try_from(n).ok()) {
        [Some(count), Some(height), Some(width)] if expected_bytes == images.pixels.len() as u128 => {
            write(path, &[count, height, width], &images.pixels, gzip)
        }
        _ => Err(DataError::UnwritableImages {
            path: path.to_owned(),
            images: images.count,
            height: images.height,
            width: images.width,
            expected_bytes,
            found_bytes: images.pixels.len(),
        }),
    }
}

/// Writes labels atomically.
pub fn write_labels(path: &Path, labels: &[u8], gzip: bool) -> Result<(), DataError> {
    let count = u32::try_from(labels.len())
        .map_err(|_| DataError::TooManyLabels { path: path.to_owned(), labels: labels.len() })?;
    write(path, &[count], labels, gzip)
}

/// Finds and reads the images and labels of a split, `train` or `t10k`, under any of the common
/// file names.
pub fn open_pair(dir: &Path, split: &str) -> Result<LabelledImages, DataError> {
    if !dir.is_dir() {
        return Err(DataError::MissingDirectory { dir: dir.to_owned() });
    }
    let images_path = find(dir, split, "images", 3)?;
    let labels_path = find(dir, split, "labels", 1)?;
    let images = read_images(&images_path)?;
    let labels = read_labels(&labels_path)?;
    if images.count != labels.len() {
        let (images, labels) = (images.count, labels.len());
        return Err(DataError::CountMismatch { images_path, images, labels_path, labels });
    }
    Ok(LabelledImages { images, labels })
}

/// Finds a file under the names that MNIST, its mirrors and its archives use.
fn find(dir: &Path, split: &str, what: &str, dimensions: usize) -> Result<PathBuf, DataError> {
    let mut looked_for = Vec::new();
    for separator in ['-', '.'] {
        for extension in ["", ".gz"] {
            let name = format!("{split}-{what}{separator}idx{dimensions}-ubyte{extension}");
            let path = dir.join(&name);
            if path.is_file() {
                return Ok(path);
            }
            looked_for.push(name);
        }
    }
    Err(DataError::MissingFile { dir: dir.to_owned(), looked_for })
}

/// Reads the sizes and elements of an idx file of unsigned bytes with `D` dimensions.
fn read<const D: usize>(path: &Path) -> Result<([usize; D], Vec<u8>), DataError> {
    let unreadable = |reason| DataError::Io { path: path.to_owned(), reason };
    let mut file = fs::File::open(path).map_err(unreadable)?;
    let mut first = Vec::with_capacity(MAGIC_BYTES);
    (&mut file).take(MAGIC_BYTES as u64).read_to_end(&mut first).map_err(unreadable)?;
    if first.starts_with(&GZIP_MAGIC) {
        // Read completely before decompressing, so that a disk error is not reported as a damaged
        // archive.
        let mut compressed = first;
        file.read_to_end(&mut compressed).map_err(unreadable)?;
        let damaged = |reason| DataError::DamagedGzip { path: path.to_owned(), reason };
        parse(path, MultiGzDecoder::new(compressed.as_slice()), damaged)
    } else {
        parse(path, first.chain(file), unreadable)
    }
}

fn parse<const D: usize>(
    path: &Path,
    mut stream: impl Read,
    failed: impl Fn(io::Error) -> DataError,
) -> Result<([usize; D], Vec<u8>), DataError> {
    let header_bytes = MAGIC_BYTES + 4 * D;
    let mut header = Vec::with_capacity(header_bytes);
    (&mut stream).take(MAGIC_BYTES as u64).read_to_end(&mut header).map_err(&failed)?;
    if header.len() == MAGIC_BYTES && header != [0, 0, UNSIGNED_BYTE, D as u8] {
        return Err(DataError::WrongKind {
            path: path.to_owned(),
            expected: kind(&[0, 0, UNSIGNED_BYTE, D as u8]),
            found: kind(&header),
        });
    }
    (&mut stream).take(4 * D as u64).read_to_end(&mut header).map_err(&failed)?;
    if header.len() < header_bytes {
        return Err(DataError::ShortHeader { path: path.to_owned(), header_bytes, found_bytes: header.len() });
    }

    let mut size = [0usize; D];
    for (n, bytes) in size.iter_mut().zip(header[MAGIC_BYTES..].chunks_exact(4)) {
        *n = bytes.iter().fold(0, |n, &byte| n << 8 | usize::from(byte));
    }
    let shape = || size.map(|n| n.to_string()).join(" x ");
    // Three 32-bit sizes can need 96 bits.
    let expected_bytes: u128 = size.iter().map(|&n| n as u128).product();
    if expected_bytes == 0 {
        return Err(DataError::NoSamples { path: path.to_owned(), shape: shape() });
    }

    // One byte more than declared: it shows whether more data follows, and makes the gzip decoder
    // check its checksum at the end. The buffer grows with the data read.
    let mut data = Vec::new();
    let limit = u64::try_from(expected_bytes).unwrap_or(u64::MAX).saturating_add(1);
    stream.take(limit).read_to_end(&mut data).map_err(failed)?;
    let found_bytes = data.len() as u64;
    if u128::from(found_bytes) < expected_bytes {
        return Err(DataError::TooShort { path: path.to_owned(), shape: shape(), expected_bytes, found_bytes });
    }
    if u128::from(found_bytes) > expected_bytes {
        return Err(DataError::TooLong { path: path.to_owned(), shape: shape(), expected_bytes });
    }
    data.shrink_to_fit();
    Ok((size, data))
}

/// Describes the kind of a file from its first four bytes, for an error message.
fn kind(first: &[u8]) -> String {
    match first {
        [0, 0, UNSIGNED_BYTE, 1] => "an idx file of labels (unsigned bytes, 1 dimension)".into(),
        [0, 0, UNSIGNED_BYTE, 3] => "an idx file of grey images (unsigned bytes, 3 dimensions)".into(),
        [0, 0, element @ (0x08 | 0x09 | 0x0b..=0x0e), dimensions] => {
            let element = match element {
                0x08 => "unsigned bytes",
                0x09 => "signed bytes",
                0x0b => "16-bit integers",
                0x0c => "32-bit integers",
                0x0d => "32-bit floats",
                _ => "64-bit floats",
            };
            format!("an idx file of {element} in {dimensions} dimensions")
        }
        [b'P', b'K', ..] => "a zip archive".into(),
        [0x89, b'P', b'N', b'G'] => "a PNG image".into(),
        [b'<', ..] => "a web page, probably from a failed download".into(),
        [GZIP_0, GZIP_1, ..] => "gzip inside gzip".into(),
        other => {
            let bytes: Vec<String> = other.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("not an idx file (it begins with {})", bytes.join(" "))
        }
    }
}
const GZIP_0: u8 = GZIP_MAGIC[0];
const GZIP_1: u8 = GZIP_MAGIC[1];

fn write(path: &Path, size: &[u32], data: &[u8], gzip: bool) -> Result<(), DataError> {
    let mut header = vec![0, 0, UNSIGNED_BYTE, size.len() as u8];
    header.extend(size.iter().flat_map(|n| n.to_be_bytes()));
    write_atomic(path, |file| {
        if !gzip {
            file.write_all(&header)?;
            return file.write_all(data);
        }
        // No name and no time in the gzip header: the same data gives the same file.
        let mut encoder = GzEncoder::new(file, Compression::default());
        encoder.write_all(&header)?;
        encoder.write_all(data)?;
        encoder.finish().map(drop)
    })
}
