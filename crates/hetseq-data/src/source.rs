//! Where samples come from. One file per kind of source; each yields plain bytes and counts, nothing trained or random.
//!
//! Tasks call these when a run starts, `picture` also while it goes on; [`text`] is read by [`prep`](crate::prep) before.

pub mod bytes;
pub mod checksum;
pub mod corpus;
pub mod digits;
pub mod folder;
pub mod hdf5;
pub mod idx;
pub mod pairs;
pub mod picture;
pub mod rows;
pub mod text;
pub mod tokens;
mod truncated;

/// Grey images of one size, one byte per pixel, row by row, one image after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Images {
    pub count: usize,
    pub height: usize,
    pub width: usize,
    /// `count * height * width` bytes.
    pub pixels: Vec<u8>,
}

impl Images {
    /// The pixels of image `index`; None if there is no such image.
    pub fn image(&self, index: usize) -> Option<&[u8]> {
        let size = self.height.checked_mul(self.width)?;
        let start = index.checked_mul(size)?;
        self.pixels.get(start..start.checked_add(size)?)
    }
}

/// Images, each with the number of its class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelledImages {
    pub images: Images,
    /// As many as images.
    pub labels: Vec<u8>,
}

impl LabelledImages {
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// 16 hexadecimal digits that differ between any two datasets: ranks compare them before they train together.
    pub fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for size in [self.images.count, self.images.height, self.images.width, self.labels.len()] {
            hasher.update(&(size as u64).to_le_bytes());
        }
        hasher.update(&self.images.pixels);
        hasher.update(&self.labels);
        let mut hex = hasher.finalize().to_hex().to_string();
        hex.truncate(16);
        hex
    }
}
