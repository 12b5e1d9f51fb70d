//! The bytes of a file, memory-mapped or owned, and atomic file writes.
//!
//! Token shards are mapped: the operating system caches the pages in use, and processes on one
//! machine share them. [`tokens`](super::tokens) and [`rows`](super::rows) interpret the bytes.

use std::fmt;
use std::fs::Metadata;
use std::io::{self, Write};
use std::ops::Deref;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use fs_err as fs;
use memmap2::Mmap;

use super::sigbus;
use crate::error::DataError;

/// Immutable bytes.
#[derive(Debug)]
pub enum Bytes {
    Mapped(MappedFile),
    Owned(Vec<u8>),
}

/// A mapped file, and its metadata when it was mapped.
#[derive(Debug)]
pub struct MappedFile {
    map: Mmap,
    pub(super) stat: FileStat,
}

/// File metadata that differs if a file was replaced or written to.
///
/// The change time is part of it because only the kernel sets it: programs that copy files restore
/// the modification time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileStat {
    device: u64,
    inode: u64,
    bytes: u64,
    mtime_ns: i128,
    ctime_ns: i128,
}

impl FileStat {
    fn of(file: &Metadata) -> Self {
        let nanoseconds = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
        FileStat {
            device: file.dev(),
            inode: file.ino(),
            bytes: file.size(),
            mtime_ns: nanoseconds(file.mtime(), file.mtime_nsec()),
            ctime_ns: nanoseconds(file.ctime(), file.ctime_nsec()),
        }
    }

    /// Whether the last change was long enough before `now` that a later one would get a different
    /// timestamp.
    pub(super) fn is_settled(&self, now: SystemTime) -> bool {
        const TIMESTAMP_STEP_NS: i128 = 2_000_000_000;
        let now = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i128);
        now - self.mtime_ns.max(self.ctime_ns) > TIMESTAMP_STEP_NS
    }
}

impl fmt::Display for FileStat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FileStat { device, inode, bytes, mtime_ns, ctime_ns } = self;
        write!(f, "{device} {inode} {bytes} {mtime_ns} {ctime_ns}")
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Mapped(file) => &file.map,
            Bytes::Owned(bytes) => bytes,
        }
    }
}

impl Bytes {
    /// Maps a file. If it is truncated while in use, the process exits with a message that names
    /// it.
    pub fn map(path: &Path) -> Result<Bytes, DataError> {
        let failed = |reason| DataError::Io { path: path.to_owned(), reason };
        let file = fs::File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.len() == 0 {
            return Ok(Bytes::Owned(Vec::new()));
        }
        let map = map_file(file.file()).map_err(failed)?;
        sigbus::register(path, &map);
        Ok(Bytes::Mapped(MappedFile { map, stat: FileStat::of(&metadata) }))
    }
}

#[allow(unsafe_code)]
fn map_file(file: &std::fs::File) -> io::Result<Mmap> {
    // SAFETY: the map is read-only, and our files are never changed in place: `write_atomic`
    // renames new ones over them, and the map keeps the old one alive. If another program writes
    // into the file, we read different numbers, and every number read from a map is checked before
    // it is used as an index.
    unsafe { Mmap::map(file) }
}

/// Writes a file atomically, see [`hetseq_fs::write_atomic`].
pub fn write_atomic(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), DataError> {
    hetseq_fs::write_atomic(path, write).map_err(|reason| DataError::Io { path: path.to_owned(), reason })
}

/// Returns the slice of `bytes` at `start` with `count` numbers of `width` bytes each, or `None` if
/// `bytes` is too short.
pub(crate) fn part(bytes: &[u8], start: usize, count: usize, width: usize) -> Option<&[u8]> {
    bytes.get(start..start.checked_add(count.checked_mul(width)?)?)
}

/// Returns number `at` of little-endian 32-bit numbers; zero past the end.
#[inline]
pub(crate) fn u32_at(part: &[u8], at: usize) -> u32 {
    match part.get(4 * at..4 * at + 4) {
        Some(&[a, b, c, d]) => u32::from_le_bytes([a, b, c, d]),
        _ => 0,
    }
}

/// Returns number `at` of little-endian 16-bit numbers; zero past the end.
#[inline]
pub(crate) fn u16_at(part: &[u8], at: usize) -> u16 {
    match part.get(2 * at..2 * at + 2) {
        Some(&[a, b]) => u16::from_le_bytes([a, b]),
        _ => 0,
    }
}

/// Bytes per token id: two if the vocabulary fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdWidth {
    Two,
    Four,
}

impl IdWidth {
    pub fn for_vocabulary(tokens: usize) -> Self {
        if tokens <= 1 << 16 { IdWidth::Two } else { IdWidth::Four }
    }

    pub fn from_bytes(bytes: u32) -> Option<Self> {
        match bytes {
            2 => Some(IdWidth::Two),
            4 => Some(IdWidth::Four),
            _ => None,
        }
    }

    pub fn bytes(self) -> usize {
        match self {
            IdWidth::Two => 2,
            IdWidth::Four => 4,
        }
    }

    /// Appends ids to `out`. Ids must fit into the width.
    pub(crate) fn pack(self, ids: &[u32], out: &mut Vec<u8>) {
        match self {
            IdWidth::Two => ids.iter().for_each(|&id| out.extend_from_slice(&(id as u16).to_le_bytes())),
            IdWidth::Four => ids.iter().for_each(|&id| out.extend_from_slice(&id.to_le_bytes())),
        }
    }

    /// Iterates over packed ids.
    pub(crate) fn iter(self, packed: &[u8]) -> impl Iterator<Item = u32> {
        packed.chunks_exact(self.bytes()).map(|id| match id {
            &[a, b] => u32::from(u16::from_le_bytes([a, b])),
            _ => u32_at(id, 0),
        })
    }

    /// Appends packed ids to `out`.
    pub(crate) fn unpack(self, packed: &[u8], out: &mut Vec<u32>) {
        match self {
            IdWidth::Two => out.extend(packed.chunks_exact(2).map(|id| u32::from(u16::from_le_bytes([id[0], id[1]])))),
            IdWidth::Four => {
                out.extend(packed.chunks_exact(4).map(|id| u32::from_le_bytes([id[0], id[1], id[2], id[3]])));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_names_the_file() {
        let path = Path::new("/nowhere/x.rows");
        let error = write_atomic(path, |file| file.write_all(b"x")).unwrap_err();
        assert!(matches!(error, DataError::Io { path: named, .. } if named == path));
    }
}
