//! A secret in a file that only its owner may read: made by rank 0, read by the ranks that see the same directory.
//!
//! So a run over machines with a shared file system needs no set-up: who can read the file is who may join. Safe on NFS:
//! the file appears whole under its name (written under another one, then renamed), and nothing depends on locks or on
//! clocks. Whoever reads it checks that it is what rank 0 makes and not something that another user put there. Called by
//! `rendezvous/`; what the secret is used for is in `secret.rs`.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::link::locked;
use crate::secret::random;

/// Longer ones are not ours.
const LIMIT_BYTES: u64 = 4096;

/// A secret that this process left in a file; the file goes when this is dropped.
pub(crate) struct SecretFile {
    path: PathBuf,
    secret: String,
    /// A directory that was made for it, to be removed if nothing else comes into it.
    made_dir: Option<PathBuf>,
}

impl SecretFile {
    /// Draws a secret and puts it at `path`, in place of what an earlier run left there. The error is the reason only.
    pub(crate) fn make(path: &Path) -> Result<SecretFile, String> {
        let dir = directory_of(path);
        let is_new = !dir.exists();
        fs::create_dir_all(dir).map_err(|error| error.to_string())?;
        let drawn: [u8; 32] = random().map_err(|error| error.to_string())?;
        let secret = hex(&drawn);
        put(path, format!("{secret}\n").as_bytes())?;
        Ok(SecretFile { path: path.to_owned(), secret, made_dir: is_new.then(|| dir.to_owned()) })
    }

    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        // Another run may have put its own there meanwhile.
        if read(&self.path).is_ok_and(|secret| secret == self.secret) {
            _ = fs::remove_file(&self.path);
        }
        if let Some(dir) = &self.made_dir {
            // Fails if something is in it, as it should.
            _ = fs::remove_dir(dir);
        }
    }
}

/// The secret in the file at `path`, or why there is none that can be trusted.
pub(crate) fn read(path: &Path) -> Result<String, String> {
    // An NFS client that once found no such file remembers that for a while; listing the directory makes it ask again.
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

/// What is in a file that is certain to be this user's and nobody else's to read. List its directory first.
pub(crate) fn read_private(path: &Path) -> Result<String, String> {
    let mut options = OpenOptions::new();
    // No link is followed, and no pipe waited for.
    options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path).map_err(|error| match (error.kind(), error.raw_os_error()) {
        (std::io::ErrorKind::NotFound, _) => "it is not there".to_owned(),
        (_, Some(libc::ELOOP)) => "it is a symbolic link; remove it".to_owned(),
        _ => error.to_string(),
    })?;
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("it is not a file; remove it".to_owned());
    }
    let mode = metadata.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(format!("others than its owner may use it (mode {mode:04o}); remove it"));
    }
    // Only the owner can read it, so this asks whether this process has more rights than that: an administrator's must
    // not take a stranger's secret for its own.
    let own = own_id(directory_of(path))?;
    if metadata.uid() != own {
        return Err(format!("it belongs to another user (id {}, not {own}); remove it", metadata.uid()));
    }
    let mut text = String::new();
    file.take(LIMIT_BYTES + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > LIMIT_BYTES {
        return Err("it is too long to be what rank 0 makes; remove it".to_owned());
    }
    Ok(text)
}

/// Puts a file that only its owner may read at `path`, whole from the first moment on, in place of whatever is there.
pub(crate) fn put(path: &Path, content: &[u8]) -> Result<(), String> {
    let drawn: [u8; 8] = random().map_err(|error| error.to_string())?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{}.{}", name.trim_start_matches('.'), hex(&drawn)));
    let done = create(&temporary).and_then(|mut file| {
        file.write_all(content)?;
        file.sync_all()?;
        let mode = file.metadata()?.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(std::io::Error::other(format!("this file system keeps no file private (mode {mode:04o})")));
        }
        // Replaces a link as such, not what it leads to.
        fs::rename(&temporary, path)
    });
    if done.is_err() {
        _ = fs::remove_file(&temporary);
    }
    done.map_err(|error| error.to_string())
}

fn create(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// As whom this process makes files in `dir`, which is also what its own files there belong to if the server of the
/// file system maps users. Found out once: ranks that wait look several times a second.
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
    let cannot = |error: std::io::Error| format!("whose it is cannot be told: {error}");
    let drawn: [u8; 8] = random().map_err(cannot)?;
    let path = dir.join(format!(".owner.{}", hex(&drawn)));
    let file = create(&path).map_err(cannot)?;
    let id = file.metadata().map(|metadata| metadata.uid());
    // Before it is removed, or NFS would leave another file in its place for as long.
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
    fn a_secret_is_left_and_found_and_goes() {
        let scratch = TempDir::new().unwrap();
        let path = scratch.path().join("run/.secret");
        assert_eq!(read(&path).unwrap_err(), "it is not there");
        let first = SecretFile::make(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(read(&path).unwrap(), first.secret());
        assert_eq!(first.secret().len(), 64);
        // The next run's replaces it and is not taken along by the end of the first.
        let second = SecretFile::make(&path).unwrap();
        assert_ne!(first.secret(), second.secret());
        drop(first);
        assert_eq!(read(&path).unwrap(), second.secret());
        drop(second);
        assert!(!path.exists());
        // The directory was there already for the second; for the first it was not empty.
        assert_eq!(names(&scratch), ["run"]);
        fs::remove_dir(scratch.path().join("run")).unwrap();
        drop(SecretFile::make(&path).unwrap());
        assert!(names(&scratch).is_empty());
    }

    #[test]
    fn what_others_could_read_or_have_put_there_is_not_taken() {
        let scratch = TempDir::new().unwrap();
        let path = scratch.path().join("secret");
        let refused = |expected: &str| {
            let why = read(&path).unwrap_err();
            assert!(why.contains(expected), "{why}");
        };
        fs::write(&path, "squirrel\n").unwrap();
        for mode in [0o640, 0o604, 0o620, 0o777] {
            set_mode(&path, mode);
            refused(&format!("(mode {mode:04o})"));
        }
        set_mode(&path, 0o600);
        assert_eq!(read(&path).unwrap(), "squirrel");
        // Only an administrator can give a file away; for others there is nothing to test.
        if std::os::unix::fs::chown(&path, Some(54_321), None).is_ok() {
            refused("belongs to another user (id 54321");
        }
        let target = scratch.path().join("target");
        fs::rename(&path, &target).unwrap();
        symlink(&target, &path).unwrap();
        refused("symbolic link");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        refused("not a file");
        fs::remove_dir(&path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        refused("not a file");
        fs::remove_file(&path).unwrap();
        for (content, expected) in [("", "empty"), (" \n", "empty"), (&"x".repeat(5000), "too long")] {
            put(&path, content.as_bytes()).unwrap();
            refused(expected);
        }
    }

    #[test]
    fn looking_again_changes_nothing_in_the_directory() {
        let scratch = TempDir::new().unwrap();
        let path = scratch.path().join("secret");
        let made = SecretFile::make(&path).unwrap();
        assert_eq!(read(&path).unwrap(), made.secret());
        let changed = || fs::metadata(scratch.path()).unwrap().modified().unwrap();
        let before = changed();
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert_eq!(read(&path).unwrap(), made.secret());
        assert_eq!(changed(), before, "a file came and went");
    }

    #[test]
    fn a_planted_link_is_replaced_and_its_target_left_alone() {
        let scratch = TempDir::new().unwrap();
        let (path, target) = (scratch.path().join("secret"), scratch.path().join("precious"));
        fs::write(&target, "keep").unwrap();
        symlink(&target, &path).unwrap();
        let made = SecretFile::make(&path).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "keep");
        assert_eq!(read(&path).unwrap(), made.secret());
    }

    #[test]
    fn a_place_that_cannot_be_written_is_an_error_and_leaves_nothing() {
        let scratch = TempDir::new().unwrap();
        let file = scratch.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(SecretFile::make(&file.join("secret")).is_err());
        // A directory in the way of the name: the temporary file is cleaned up.
        fs::create_dir(scratch.path().join("secret")).unwrap();
        assert!(SecretFile::make(&scratch.path().join("secret")).is_err());
        assert_eq!(names(&scratch), ["file", "secret"]);
    }
}
