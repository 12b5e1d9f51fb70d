//! The header of token shards and of blocks of rows. All numbers are little-endian:
//!
//! | bytes | header |
//! |---|---|
//! | 0..8 | the kind of file |
//! | 8..12, 12..16 | version, bytes per id (2 or 4) |
//! | 16..24 | two numbers |
//! | 24..48 | three counts |
//! | 48..80 | BLAKE3 of the tables that follow |
//! | 80..96 | the first half of the BLAKE3 of bytes 0..80 |

use super::bytes::u32_at;

pub(super) const HEADER_BYTES: usize = 96;
const HASHED_BYTES: usize = 80;

/// The fields of a header, except kind and version.
pub(super) struct FileHeader {
    pub(super) id_bytes: u32,
    pub(super) numbers: [u32; 2],
    pub(super) counts: [usize; 3],
    /// Of the tables.
    pub(super) hash: [u8; 32],
}

impl FileHeader {
    pub(super) fn to_bytes(&self, kind: [u8; 8], version: u32) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend_from_slice(&kind);
        for number in [version, self.id_bytes, self.numbers[0], self.numbers[1]] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for count in self.counts {
            bytes.extend_from_slice(&(count as u64).to_le_bytes());
        }
        bytes.extend_from_slice(&self.hash);
        let checksum = blake3::hash(&bytes);
        bytes.extend_from_slice(&checksum.as_bytes()[..16]);
        bytes
    }

    /// The version in a header.
    pub(super) fn version(header: &[u8]) -> u32 {
        u32_at(header, 2)
    }

    /// Reads a header of this version. `None` if its checksum is wrong.
    pub(super) fn read(header: &[u8]) -> Option<Self> {
        let (hashed, checksum) = header.get(..HEADER_BYTES)?.split_at(HASHED_BYTES);
        if blake3::hash(hashed).as_bytes()[..16] != *checksum {
            return None;
        }
        let number = |at| u32_at(hashed, at);
        let count = |at| (u64::from(number(at)) | u64::from(number(at + 1)) << 32) as usize;
        let mut hash = [0; 32];
        hash.copy_from_slice(&hashed[48..]);
        let (numbers, counts) = ([number(4), number(5)], [count(6), count(8), count(10)]);
        Some(FileHeader { id_bytes: number(3), numbers, counts, hash })
    }
}
