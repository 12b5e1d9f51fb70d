//! Free disk space where checkpoints are written. Queried at the start and after a failed save.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// A hanging network file system must not block the caller for longer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Bytes that this user can still write below `dir`. `None` if the file system does not report it,
/// or not within the timeout.
pub(crate) fn free_bytes(dir: &Path) -> Option<u64> {
    let (send, receive) = mpsc::channel();
    let dir: PathBuf = dir.to_owned();
    let query = move || {
        let free = rustix::fs::statvfs(&dir).ok().and_then(|stat| stat.f_bavail.checked_mul(stat.f_frsize));
        // The caller may have timed out.
        _ = send.send(free);
    };
    thread::Builder::new().name("free-space".to_owned()).spawn(query).ok()?;
    receive.recv_timeout(TIMEOUT).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_existing_directory_reports_free_space() {
        let dir = tempfile::tempdir().unwrap();
        assert!(free_bytes(dir.path()).is_some());
        assert_eq!(free_bytes(&dir.path().join("nowhere")), None);
    }
}
