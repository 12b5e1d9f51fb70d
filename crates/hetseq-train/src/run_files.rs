//! Writes that survive a power cut: a small file (the config, what was measured) is replaced as a whole, and new
//! directories stay. Checkpoints flush their directories with [`sync_dir`] too.

use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Once;

use fs_err as fs;
use rustix::io::Errno;

/// Replaces `dir/name` by `bytes`: after a crash it holds the old content or the new, never a part.
pub(crate) fn replace(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    replace_with(dir, name, bytes, std::fs::File::sync_all)
}

fn replace_with(
    dir: &Path,
    name: &str,
    bytes: &[u8],
    sync: impl FnOnce(&std::fs::File) -> io::Result<()>,
) -> io::Result<()> {
    let temporary = dir.join(format!(".{name}"));
    let write = || {
        let mut file = fs::File::create(&temporary)?;
        file.write_all(bytes)?;
        // Before the rename: file systems may write the new name before the content.
        sync(file.file())?;
        fs::rename(&temporary, dir.join(name))
    };
    write().inspect_err(|_| _ = fs::remove_file(&temporary))?;
    sync_dir(dir)
}

/// Makes `dir` and its ancestors, and flushes their names to the disk. Every ancestor on the same file system is flushed,
/// whether it is new or not: another part of the program may have made it.
pub(crate) fn create_dir_all(dir: &Path) -> io::Result<()> {
    create_with(dir, &mut sync_dir)
}

fn create_with(dir: &Path, sync: &mut dyn FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let dir = fs::canonicalize(dir)?;
    let device = fs::metadata(&dir)?.dev();
    let is_same_disk = |parent: &&Path| fs::metadata(parent).is_ok_and(|metadata| metadata.dev() == device);
    for parent in dir.ancestors().skip(1).take_while(is_same_disk) {
        match sync(parent) {
            // A directory of others, so it is not new.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => break,
            done => done?,
        }
    }
    Ok(())
}

/// Flushes the names in `dir` to the disk. Some file systems (FUSE, SMB) cannot do that for directories; a warning says so
/// once, and it counts as done.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
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
    fn the_old_file_stays_until_the_new_one_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        replace(dir.path(), "a.json", b"old").unwrap();
        replace(dir.path(), "a.json", b"new").unwrap();
        assert_eq!(std::fs::read(dir.path().join("a.json")).unwrap(), b"new");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        std::fs::create_dir(dir.path().join(".b.json")).unwrap();
        assert!(replace(dir.path(), "b.json", b"x").is_err());
        assert!(!dir.path().join("b.json").exists());
    }

    #[test]
    fn content_is_flushed_before_it_gets_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let read = |name: &str| std::fs::read(dir.path().join(name)).ok();
        replace(dir.path(), "a.json", b"old").unwrap();
        let mut seen = None;
        let flush = |_: &std::fs::File| {
            seen = Some((read(".a.json"), read("a.json")));
            Ok(())
        };
        replace_with(dir.path(), "a.json", b"new", flush).unwrap();
        assert_eq!(seen, Some((Some(b"new".to_vec()), Some(b"old".to_vec()))));
        assert_eq!(read("a.json").unwrap(), b"new");
        // What could not be flushed does not get its name.
        let failing = |_: &std::fs::File| Err(io::Error::from_raw_os_error(5));
        assert!(replace_with(dir.path(), "a.json", b"newer", failing).is_err());
        assert_eq!((read("a.json").unwrap(), read(".a.json")), (b"new".to_vec(), None));
    }

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
        // A directory that this user may not read ends it; a disk that fails is an error.
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
