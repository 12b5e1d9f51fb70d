//! Sources of samples, one file per kind. Each yields plain bytes and counts, nothing trained or
//! random.
//!
//! Tasks call these when a run starts, and [`decoded_image`] also during the run. Training never
//! reads [`text`]: [`prep`](crate::prep) turns it into shards before. Labelled text, [`conll`] and
//! [`table`], is small, so [`finetune`](crate::finetune) reads it when a run starts, as well as an
//! [`entity_table`].

pub mod bytes;
pub mod checksum;
pub mod conll;
pub mod corpus;
pub mod data_kind;
pub mod decoded_image;
pub mod digits;
pub mod entity_table;
mod file_header;
pub mod folder;
pub mod hdf5;
pub mod idx;
pub mod parallel_corpus;
pub mod rows;
mod sigbus;
pub mod table;
pub mod text;
pub mod tokens;

/// Greyscale images of one size, one byte per pixel, in row-major order, one image after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Images {
    pub count: usize,
    pub height: usize,
    pub width: usize,
    /// `count * height * width` bytes.
    pub pixels: Vec<u8>,
}

impl Images {
    /// Returns the pixels of image `index`, or `None` if it does not exist.
    pub fn image(&self, index: usize) -> Option<&[u8]> {
        let size = self.height.checked_mul(self.width)?;
        let start = index.checked_mul(size)?;
        self.pixels.get(start..start.checked_add(size)?)
    }
}

/// Images with their class numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelledImages {
    pub images: Images,
    /// One per image.
    pub labels: Vec<u8>,
}

impl LabelledImages {
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// 16 hexadecimal digits that differ between datasets. Ranks compare them before training.
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
