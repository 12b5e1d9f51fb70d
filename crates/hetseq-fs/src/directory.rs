//! Creates directories and flushes their entries to disk. Called by the crates that write files,
//! and by `atomic_file.rs`.

use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Once;

use fs_err as fs;
use rustix::io::Errno;

/// Creates `dir` and its ancestors, and flushes their entries to disk. Every ancestor on the same
/// file system is flushed, whether it is new or not: another part of the program may have created
/// it.
pub fn create_dir_all(dir: &Path) -> io::Result<()> {
    create_with(dir, &mut sync_dir)
}

fn create_with(dir: &Path, sync: &mut dyn FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let dir = fs::canonicalize(dir)?;
    let device = fs::metadata(&dir)?.dev();
    let is_same_disk = |parent: &&Path| fs::metadata(parent).is_ok_and(|metadata| metadata.dev() == device);
    for parent in dir.ancestors().skip(1).take_while(is_same_disk) {
        match sync(parent) {
            // It belongs to another user, so it is not new.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => break,
            done => done?,
        }
    }
    Ok(())
}

/// Flushes the entries of `dir` to disk. Some file systems (FUSE, SMB) cannot do that for
/// directories; then it logs a warning once and returns `Ok`.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    sync_dir_with(dir, std::fs::File::sync_all)
}

fn sync_dir_with(dir: &Path, sync: impl FnOnce(&std::fs::File) -> io::Result<()>) -> io::Result<()> {
    static WARNING: Once = Once::new();
    match sync(fs::File::open(dir)?.file()) {
        Err(error) if cannot_sync_dirs(&error) => {
            WARNING.call_once(|| {
                tracing::warn!(
                    "the file system of {} cannot flush directories ({error}): after a power cut the newest checkpoint may be \
                     missing",
                    dir.display()
                );
            });
            Ok(())
        }
        Err(error) => Err(io::Error::new(error.kind(), format!("flushing {}: {error}", dir.display()))),
        Ok(()) => Ok(()),
    }
}

fn cannot_sync_dirs(error: &io::Error) -> bool {
    let code = Errno::from_io_error(error);
    code.is_some_and(|code| [Errno::INVAL, Errno::NOTSUP, Errno::OPNOTSUPP, Errno::BADF].contains(&code))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn every_directory_that_holds_a_new_one_is_flushed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let mut flushed: Vec<PathBuf> = Vec::new();
        let mut flush = |dir: &Path| {
            flushed.push(dir.to_owned());
            Ok(())
        };
        create_with(&root.join("runs/a/b"), &mut flush).unwrap();
        assert_eq!(flushed[..3], [root.join("runs/a"), root.join("runs"), root.clone()]);
        assert!(root.join("runs/a/b").is_dir());
        // A directory that this user may not read ends the loop; a disk error is an error.
        create_with(&root.join("runs/a/b"), &mut |_| Err(io::Error::from_raw_os_error(13))).unwrap();
        assert!(create_with(&root.join("runs/a/b"), &mut |_| Err(io::Error::from_raw_os_error(5))).is_err());
    }

    #[test]
    fn directories_that_cannot_be_flushed_count_as_flushed() {
        let dir = tempfile::tempdir().unwrap();
        // EINVAL, EOPNOTSUPP and EBADF as Linux numbers them.
        for code in [22, 95, 9] {
            sync_dir_with(dir.path(), |_| Err(io::Error::from_raw_os_error(code))).unwrap();
        }
        let failed = sync_dir_with(dir.path(), |_| Err(io::Error::from_raw_os_error(5))).unwrap_err().to_string();
        assert!(failed.contains("Input/output error") && failed.starts_with("flushing "), "{failed}");
        assert!(sync_dir(&dir.path().join("nowhere")).is_err());
    }
}
