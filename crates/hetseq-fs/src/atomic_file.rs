//! A file that appears under its name only when it is complete. Until then it is a temporary file
//! with a random name in the same directory. Several processes, also on several machines, may write
//! the same file at once: the last to commit wins.

use std::ffi::OsString;
use std::fs::Permissions;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

use crate::directory::sync_dir;

/// A file being written. If it is dropped without [`AtomicFile::commit`], nothing remains.
#[derive(Debug)]
pub struct AtomicFile {
    out: BufWriter<NamedTempFile>,
    path: PathBuf,
}

impl AtomicFile {
    /// Starts writing the file at `path`, with the default permissions of a new file.
    pub fn create(path: &Path) -> io::Result<Self> {
        Self::with_mode(path, 0o666)
    }

    /// Like [`AtomicFile::create`], for a file that only its owner can read. Fails if the file
    /// system cannot do that.
    pub fn create_private(path: &Path) -> io::Result<Self> {
        let file = Self::with_mode(path, 0o600)?;
        let mode = file.out.get_ref().as_file().metadata()?.permissions().mode() & 0o777;
        match mode & 0o077 {
            0 => Ok(file),
            _ => Err(io::Error::other(format!("this file system does not support private files (mode {mode:04o})"))),
        }
    }

    fn with_mode(path: &Path, mode: u32) -> io::Result<Self> {
        let mut prefix = OsString::from(".");
        prefix.push(path.file_name().unwrap_or_default());
        prefix.push(".");
        let mut builder = Builder::new();
        // The umask of the process applies to it.
        builder.prefix(&prefix).suffix(".tmp").permissions(Permissions::from_mode(mode));
        Ok(AtomicFile { out: BufWriter::new(builder.tempfile_in(directory_of(path))?), path: path.to_owned() })
    }

    /// Flushes the content to disk and renames the file to its name. A link at `path` is replaced,
    /// not followed.
    pub fn commit(self) -> io::Result<()> {
        self.commit_with(std::fs::File::sync_all)
    }

    fn commit_with(self, sync: impl FnOnce(&std::fs::File) -> io::Result<()>) -> io::Result<()> {
        let file = self.out.into_inner().map_err(io::IntoInnerError::into_error)?;
        // Before the rename, because file systems may write the new name before the content.
        sync(file.as_file())?;
        file.persist(&self.path).map_err(|error| error.error)?;
        sync_dir(directory_of(&self.path))
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Writes the file at `path` with `write`; on failure the old file stays.
pub fn write_atomic(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut file = AtomicFile::create(path)?;
    write(&mut file)?;
    file.commit()
}

/// Replaces the content of the file at `path` by `bytes`.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_atomic(path, |file| file.write_all(bytes))
}

/// Creates the file at `path`, and its directory, with `bytes`. Fails if the file exists: of several
/// processes, also on several machines, one succeeds.
pub fn create_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    crate::create_dir_all(directory_of(path))?;
    let mut file = AtomicFile::create(path)?;
    file.write_all(bytes)?;
    let file = file.out.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.as_file().sync_all()?;
    file.persist_noclobber(path).map_err(|error| error.error)?;
    sync_dir(directory_of(path))
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// A directory, and the path of a file in it.
    fn scratch() -> (TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        (dir, path)
    }

    fn names(dir: &Path) -> usize {
        std::fs::read_dir(dir).unwrap().count()
    }

    #[test]
    fn the_new_file_replaces_the_old_one_and_nothing_else_remains() {
        let (dir, path) = scratch();
        replace(&path, b"old").unwrap();
        replace(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(names(dir.path()), 1);
    }

    #[test]
    fn a_failed_write_keeps_the_old_file() {
        let (dir, path) = scratch();
        replace(&path, b"before").unwrap();
        let full = write_atomic(&path, |file| {
            file.write_all(b"half")?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        });
        assert_eq!(full.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!((std::fs::read(&path).unwrap(), names(dir.path())), (b"before".to_vec(), 1));
        // The target is a directory, so the rename fails.
        std::fs::create_dir(dir.path().join("taken")).unwrap();
        assert!(replace(&dir.path().join("taken"), b"x").is_err());
        assert_eq!(names(dir.path()), 2);
    }

    #[test]
    fn content_is_flushed_before_the_file_gets_its_name() {
        let (dir, path) = scratch();
        replace(&path, b"old").unwrap();
        let write = || {
            let mut file = AtomicFile::create(&path).unwrap();
            file.write_all(b"new").unwrap();
            file
        };
        let mut seen = None;
        let flush = |file: &std::fs::File| {
            seen = Some((file.metadata()?.len(), std::fs::read(&path)?));
            Ok(())
        };
        write().commit_with(flush).unwrap();
        assert_eq!(seen, Some((3, b"old".to_vec())));
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        // A file that could not be flushed is not renamed.
        assert!(write().commit_with(|_| Err(io::Error::from_raw_os_error(5))).is_err());
        assert_eq!(names(dir.path()), 1);
    }

    #[test]
    fn two_writers_at_once_do_not_mix() {
        let (dir, path) = scratch();
        // As with equal process ids on two machines: the second writer starts and ends while the
        // first writes.
        write_atomic(&path, |slow| {
            slow.write_all(b"slow, ")?;
            replace(&path, b"quick").unwrap();
            assert_eq!(std::fs::read(&path)?, b"quick");
            slow.write_all(b"but whole")
        })
        .unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"slow, but whole");
        assert_eq!(names(dir.path()), 1, "nothing is left behind");
    }

    #[test]
    fn permissions() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |name: &str| std::fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o777;
        std::fs::write(dir.path().join("usual"), b"").unwrap();
        replace(&dir.path().join("ours"), b"").unwrap();
        AtomicFile::create_private(&dir.path().join("private")).unwrap().commit().unwrap();
        assert_eq!((mode("ours"), mode("private")), (mode("usual"), 0o600));
    }
}
