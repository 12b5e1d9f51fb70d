//! A secret in a file that only its owner may read: written by rank 0, read by the ranks that share
//! the directory.
//!
//! So a run over machines with a shared file system needs no setup: every user who can read the
//! file may join. Safe on NFS: the file appears complete under its name (written under another
//! name, then renamed), and nothing depends on locks or clocks. A reader checks that the file is
//! what rank 0 writes and not something that another user put there. Called by `rendezvous/`; the
//! use of the secret is in `secret.rs`.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use hetseq_fs::AtomicFile;

use crate::lock::locked;
use crate::secret::random;

/// Longer files are not ours.
const LIMIT_BYTES: u64 = 4096;

/// A secret that this process wrote to a file; the file is removed when this is dropped.
pub(crate) struct SecretFile {
    path: PathBuf,
    secret: String,
    /// A directory created for it, removed if nothing else is in it.
    created_dir: Option<PathBuf>,
}

impl SecretFile {
    /// Draws a secret and writes it to `path`, replacing the file of an earlier run. The error is
    /// the reason only.
    pub(crate) fn create(path: &Path) -> Result<SecretFile, String> {
        let dir = directory_of(path);
        let is_new = !dir.exists();
        fs::create_dir_all(dir).map_err(|error| error.to_string())?;
        let bytes: [u8; 32] = random().map_err(|error| error.to_string())?;
        let secret = hex(&bytes);
        write_private(path, format!("{secret}\n").as_bytes())?;
        Ok(SecretFile { path: path.to_owned(), secret, created_dir: is_new.then(|| dir.to_owned()) })
    }

    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        // Another run may have replaced it.
        if read(&self.path).is_ok_and(|secret| secret == self.secret) {
            _ = fs::remove_file(&self.path);
        }
        if let Some(dir) = &self.created_dir {
            // Fails, as intended, if the directory is not empty.
            _ = fs::remove_dir(dir);
        }
    }
}

/// Returns the secret in the file at `path`, or why there is none that can be trusted.
pub(crate) fn read(path: &Path) -> Result<String, String> {
    // An NFS client caches that a file does not exist; listing the directory makes it ask again.
    _ = fs::read_dir(directory_of(path)).map(Iterator::count);
    let text = read_private(path)?;
    match text.trim() {
        "" => Err("it is empty".to_owned()),
        secret => Ok(secret.to_owned()),
    }
}

fn directory_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}

/// Returns the content of a file that is certain to belong to this user and to be readable by no
/// other. List its directory first.
pub(crate) fn read_private(path: &Path) -> Result<String, String> {
    let mut options = OpenOptions::new();
    // Do not follow a link, and do not wait for a pipe.
    options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path).map_err(|error| match (error.kind(), error.raw_os_error()) {
        (std::io::ErrorKind::NotFound, _) => "it does not exist".to_owned(),
        (_, Some(libc::ELOOP)) => "it is a symbolic link; remove it".to_owned(),
        _ => error.to_string(),
    })?;
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("it is not a file; remove it".to_owned());
    }
    let mode = metadata.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(format!("users other than its owner have access (mode {mode:04o}); remove it"));
    }
    // Only the owner can read it, so this matters for a process with more rights: an
    // administrator's process must not use the secret of another user.
    let own = own_id(directory_of(path))?;
    if metadata.uid() != own {
        return Err(format!("it belongs to another user (id {}, not {own}); remove it", metadata.uid()));
    }
    let mut text = String::new();
    file.take(LIMIT_BYTES + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > LIMIT_BYTES {
        return Err("it is too long to be a file written by hetseq; remove it".to_owned());
    }
    Ok(text)
}

/// Writes a file that only its owner can read, complete from the start, in place of an existing
/// one.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> Result<(), String> {
    let write = || {
        let mut file = AtomicFile::create_private(path)?;
        file.write_all(content)?;
        file.commit()
    };
    write().map_err(|error: std::io::Error| error.to_string())
}

fn create_new(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Returns the user id that owns new files of this process in `dir`. It may differ from the id of
/// the process if the file server maps users. Determined once per directory, because waiting ranks
/// check several times a second.
fn own_id(dir: &Path) -> Result<u32, String> {
    static KNOWN: Mutex<BTreeMap<PathBuf, u32>> = Mutex::new(BTreeMap::new());
    if let Some(id) = locked(&KNOWN).get(dir) {
        return Ok(*id);
    }
    let id = owner_of_new_file(dir)?;
    locked(&KNOWN).insert(dir.to_owned(), id);
    Ok(id)
}

fn owner_of_new_file(dir: &Path) -> Result<u32, String> {
    let cannot = |error: std::io::Error| format!("cannot determine its owner: {error}");
    let bytes: [u8; 8] = random().map_err(cannot)?;
    let path = dir.join(format!(".owner.{}", hex(&bytes)));
    let file = create_new(&path).map_err(cannot)?;
    let id = file.metadata().map(|metadata| metadata.uid());
    // Close it before it is removed: NFS would keep a renamed file as long as it is open.
    drop(file);
    _ = fs::remove_file(&path);
    id.map_err(cannot)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use tempfile::TempDir;

    use super::*;

    fn names(dir: &TempDir) -> Vec<String> {
        let entries = fs::read_dir(dir.path()).unwrap().map(Result::unwrap);
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_secret_is_written_found_and_removed() {
        let scratch = TempDir::new().unwrap();
        let path = scratch.path().join("run/.secret");
        assert_eq!(read(&path).unwrap_err(), "it does not exist");
        let first = SecretFile::create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(read(&path).unwrap(), first.secret());
        assert_eq!(first.secret().len(), 64);
        // The file of the next run replaces it and is not removed with the first.
        let second = SecretFile::create(&path).unwrap();
        assert_ne!(first.secret(), second.secret());
        drop(first);
        assert_eq!(read(&path).unwrap(), second.secret());
        drop(second);
        assert!(!path.exists());
        // For the second run the directory existed already; for the first it was not empty.
        assert_eq!(names(&scratch), ["run"]);
        fs::remove_dir(scratch.path().join("run")).unwrap();
        drop(SecretFile::create(&path).unwrap());
        assert!(names(&scratch).is_empty());
    }

    #[test]
    fn files_that_others_can_access_are_rejected() {
        let scratch = TempDir::new().unwrap();
        let path = scratch.path().join("secret");
        let rejected = |expected: &str| {
            let why = read(&path).unwrap_err();
            assert!(why.contains(expected), "{why}");
        };
        fs::write(&path, "squirrel\n").unwrap();
        for mode in [0o640, 0o604, 0o620, 0o777] {
            set_mode(&path, mode);
            rejected(&format!("(mode {mode:04o})"));
        }
        set_mode(&path, 0o600);
        assert_eq!(read(&path).unwrap(), "squirrel");
        // Only an administrator can change the owner of a file; other users have nothing to test.
        if std::os::unix::fs::chown(&path, Some(54_321), None).is_ok() {
            rejected("belongs to another user (id 54321");
        }
        let target = scratch.path().join("target");
        fs::rename(&path, &target).unwrap();
        symlink(&target, &path).unwrap();
        rejected("symbolic link");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        rejected("not a file");
        fs::remove_dir(&path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        rejected("not a file");
        fs::remove_file(&path).unwrap();
        for (content, expected) in [("", "empty"), (" \n", "empty"), (&"x".repeat(5000), "too long")] {
            write_private(&path, content.as_bytes()).unwrap();
            rejected(expected);
        }
    }

    #[test]
    fn reading_again_changes_nothing_in_the_directory() {
        let scratch = TempDir::new().unwrap();
        let path = scratch.path().join("secret");
        let created = SecretFile::create(&path).unwrap();
        assert_eq!(read(&path).unwrap(), created.secret());
        let changed = || fs::metadata(scratch.path()).unwrap().modified().unwrap();
        let before = changed();
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert_eq!(read(&path).unwrap(), created.secret());
        assert_eq!(changed(), before, "a file was created and removed");
    }

    #[test]
    fn a_planted_link_is_replaced_and_its_target_unchanged() {
        let scratch = TempDir::new().unwrap();
        let (path, target) = (scratch.path().join("secret"), scratch.path().join("precious"));
        fs::write(&target, "keep").unwrap();
        symlink(&target, &path).unwrap();
        let created = SecretFile::create(&path).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "keep");
        assert_eq!(read(&path).unwrap(), created.secret());
    }

    #[test]
    fn a_failed_write_is_an_error_and_leaves_nothing() {
        let scratch = TempDir::new().unwrap();
        let file = scratch.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(SecretFile::create(&file.join("secret")).is_err());
        // A directory has the name already: the temporary file is cleaned up.
        fs::create_dir(scratch.path().join("secret")).unwrap();
        assert!(SecretFile::create(&scratch.path().join("secret")).is_err());
        assert_eq!(names(&scratch), ["file", "secret"]);
    }
}
