//! The bytes of a file, mapped or in memory, and files that are whole or absent.
//!
//! Shards of tokens are mapped: the system keeps in memory what is used, and processes on one machine share it. What the
//! bytes mean is the business of [`tokens`](super::tokens) and [`rows`](super::rows).

use std::ffi::OsString;
use std::fmt;
use std::fs::Metadata;
use std::io::{self, BufWriter, Write};
use std::ops::Deref;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use fs_err as fs;
use memmap2::Mmap;

use super::truncated;
use crate::error::DataError;

/// Bytes that do not change.
#[derive(Debug)]
pub enum Bytes {
    Mapped(MappedFile),
    Owned(Vec<u8>),
}

/// A file in the state that `stamp` says.
#[derive(Debug)]
pub struct MappedFile {
    map: Mmap,
    pub(super) stamp: Stamp,
}

/// What differs if a file is another one or was written to: also what only the system sets, since programs that copy files
/// set the time of the last write back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    /// In nanoseconds since 1970.
    written: i128,
    changed: i128,
}

impl Stamp {
    fn of(file: &Metadata) -> Self {
        let nanoseconds = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
        Stamp {
            device: file.dev(),
            inode: file.ino(),
            bytes: file.size(),
            written: nanoseconds(file.mtime(), file.mtime_nsec()),
            changed: nanoseconds(file.ctime(), file.ctime_nsec()),
        }
    }

    /// Whether the last change was so long before `now` that another one would have another time.
    pub(super) fn is_settled(&self, now: SystemTime) -> bool {
        const CLOCK_STEP_NS: i128 = 2_000_000_000;
        let now = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i128);
        now - self.written.max(self.changed) > CLOCK_STEP_NS
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stamp { device, inode, bytes, written, changed } = self;
        write!(f, "{device} {inode} {bytes} {written} {changed}")
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
    /// Maps a file. If it is cut short while it is in use, the process ends with a message that names it.
    pub fn map(path: &Path) -> Result<Bytes, DataError> {
        let failed = |reason| DataError::Io { path: path.to_owned(), reason };
        let file = fs::File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.len() == 0 {
            return Ok(Bytes::Owned(Vec::new()));
        }
        let map = map_file(file.file()).map_err(failed)?;
        truncated::watch(path, &map);
        Ok(Bytes::Mapped(MappedFile { map, stamp: Stamp::of(&metadata) }))
    }
}

#[allow(unsafe_code)]
fn map_file(file: &std::fs::File) -> io::Result<Mmap> {
    // SAFETY: the map is read-only, and files of ours are never changed in place: `write_whole` renames new ones over
    // them, and the map keeps the old one alive. Should somebody else write into the file, we read other numbers, and
    // every number read from a map is checked before it is used as an index.
    unsafe { Mmap::map(file) }
}

/// Writes beside the target and renames, so that nobody ever reads half a file, also after a power cut. Several may write
/// the same file at once, on several machines too: each has a temporary file of its own, and the last one to finish wins.
pub fn write_whole(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), DataError> {
    let failed = |reason| DataError::Io { path: path.to_owned(), reason };
    let temporary = temporary_name(path).map_err(failed)?;
    let file = fs::OpenOptions::new().write(true).create_new(true).open(&temporary).map_err(failed)?;
    let written = (|| {
        let mut file = BufWriter::new(file);
        write(&mut file)?;
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        fs::rename(&temporary, path)
    })();
    if let Err(reason) = written {
        // The first failure is the one to report; that the rest of it stays behind is not.
        let _ = fs::remove_file(&temporary);
        return Err(failed(reason));
    }
    flush_directory(path).map_err(failed)
}

/// A name that nobody else has. Process ids are not enough: in containers they are the same on many machines.
fn temporary_name(path: &Path) -> io::Result<PathBuf> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
    let mut name = OsString::from(path.as_os_str());
    name.push(format!(".{:016x}.tmp", u64::from_le_bytes(random)));
    Ok(PathBuf::from(name))
}

/// A new name is safe only once its directory is.
fn flush_directory(path: &Path) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match fs::File::open(dir)?.sync_all() {
        // Some network file systems know no such thing; the file itself is there and whole.
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => Ok(()),
        flushed => flushed,
    }
}

/// The part of `bytes` from `start` that holds `count` numbers of `width` bytes, if it is there.
pub(crate) fn part(bytes: &[u8], start: usize, count: usize, width: usize) -> Option<&[u8]> {
    bytes.get(start..start.checked_add(count.checked_mul(width)?)?)
}

/// Number `at` of a part of little-endian 32-bit numbers; zero past the end.
#[inline]
pub(crate) fn u32_at(part: &[u8], at: usize) -> u32 {
    match part.get(4 * at..4 * at + 4) {
        Some(&[a, b, c, d]) => u32::from_le_bytes([a, b, c, d]),
        _ => 0,
    }
}

/// Number `at` of a part of little-endian 16-bit numbers; zero past the end.
#[inline]
pub(crate) fn u16_at(part: &[u8], at: usize) -> u16 {
    match part.get(2 * at..2 * at + 2) {
        Some(&[a, b]) => u16::from_le_bytes([a, b]),
        _ => 0,
    }
}

/// How many bytes an id takes: two where they suffice.
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

    /// Appends ids to `out`; they must fit.
    pub(crate) fn pack(self, ids: &[u32], out: &mut Vec<u8>) {
        match self {
            IdWidth::Two => ids.iter().for_each(|&id| out.extend_from_slice(&(id as u16).to_le_bytes())),
            IdWidth::Four => ids.iter().for_each(|&id| out.extend_from_slice(&id.to_le_bytes())),
        }
    }

    /// The ids of a packed part.
    pub(crate) fn iter(self, packed: &[u8]) -> impl Iterator<Item = u32> {
        packed.chunks_exact(self.bytes()).map(|id| match id {
            &[a, b] => u32::from(u16::from_le_bytes([a, b])),
            _ => u32_at(id, 0),
        })
    }

    /// Appends the ids of a packed part to `out`.
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
    fn two_writers_of_one_file_do_not_meet() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.rows");
        // As on two machines whose processes have the same number: the second begins and ends while the first writes.
        write_whole(&path, |slow| {
            slow.write_all(b"slow, ")?;
            write_whole(&path, |quick| quick.write_all(b"quick")).unwrap();
            assert_eq!(fs::read(&path)?, b"quick");
            slow.write_all(b"but whole")
        })
        .unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"slow, but whole");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left behind");
    }

    #[test]
    fn a_failed_write_leaves_nothing_behind_and_what_was_there_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.rows");
        write_whole(&path, |file| file.write_all(b"before")).unwrap();
        let full = write_whole(&path, |file| {
            file.write_all(b"half")?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        });
        assert!(matches!(full.unwrap_err(), DataError::Io { path: named, .. } if named == path));
        assert_eq!(fs::read(&path).unwrap(), b"before");
        // A directory is in the way: the rename fails.
        fs::create_dir(dir.path().join("taken")).unwrap();
        assert!(write_whole(&dir.path().join("taken"), |file| file.write_all(b"x")).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
