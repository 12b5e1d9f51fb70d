//! The notices by which processes that share a directory find each other: one file for each process that leads a
//! meeting, saying where it listens and, unless one was given to all, the secret.
//!
//! Files only: a notice appears whole and is replaced whole (`secret_file.rs`), only its owner can read it, and whether
//! anybody is still there cannot be told from it. What is made of them is in `directory.rs`.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

use crate::link::locked;
use crate::secret_file::{put, read_private};

/// More than this many addresses of one machine are not tried.
const ADDRESSES: usize = 12;

/// Which of several meetings all go to: the lowest. One led by a process that was told to be rank 0 comes before one led
/// by a process that may have any number.
pub(super) type Precedence = (bool, u64);

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Notice {
    /// Drawn for the meeting; also in the name of the file.
    pub(super) id: u64,
    /// Whether the leader was told to be rank 0.
    pub(super) is_rank_0: bool,
    pub(super) host: String,
    pub(super) addresses: Vec<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) secret: Option<String>,
}

impl Notice {
    pub(super) fn precedence(&self) -> Precedence {
        (!self.is_rank_0, self.id)
    }

    /// For messages.
    pub(super) fn shown(&self) -> String {
        let at: Vec<String> = self.addresses.iter().map(SocketAddr::to_string).collect();
        format!("{} ({})", super::talk::shown_name(&self.host), at.join(", "))
    }
}

/// Written by hand so that the secret never reaches a log.
impl std::fmt::Debug for Notice {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Notice({:016x}, {}, rank 0: {})", self.id, self.shown(), self.is_rank_0)
    }
}

fn path_of(dir: &Path, id: u64) -> PathBuf {
    dir.join(format!("meeting-{id:016x}.json"))
}

fn id_of(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_prefix("meeting-")?.strip_suffix(".json")?, 16).ok()
}

/// All that can be read, in order of precedence, and what is wrong with the others.
pub(super) fn list(dir: &Path) -> (Vec<Notice>, Vec<String>) {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) => return (Vec::new(), vec![error.to_string()]),
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let ids: BTreeSet<u64> = names.filter_map(|name| id_of(&name)).collect();
    let (mut notices, mut troubles) = (Vec::new(), Vec::new());
    for id in ids {
        let path = path_of(dir, id);
        match read_private(&path).and_then(|text| parse(&text, id)) {
            Ok(notice) => notices.push(notice),
            // Taken down just now.
            Err(_) if !path.exists() => {}
            Err(why) => troubles.push(format!("{}: {why}", path.display())),
        }
    }
    notices.sort_by_key(Notice::precedence);
    (notices, troubles)
}

fn parse(text: &str, id: u64) -> Result<Notice, String> {
    let mut notice: Notice = serde_json::from_str(text).map_err(|error| format!("it is not a notice: {error}"))?;
    if notice.id != id {
        return Err("its name and its content are of different meetings".to_owned());
    }
    notice.addresses.truncate(ADDRESSES);
    Ok(notice)
}

/// Removes the notice of a meeting that nobody leads any more. A leader that is there after all puts its own back.
pub(super) fn remove(dir: &Path, id: u64) {
    // Another rank may have been faster.
    _ = fs::remove_file(path_of(dir, id));
}

/// This process's own notice; taken down when dropped.
pub(super) struct Posted {
    path: PathBuf,
    content: Vec<u8>,
    /// Guards against putting it back while it is taken down.
    is_up: Mutex<bool>,
}

impl Posted {
    pub(super) fn post(dir: &Path, notice: &Notice) -> Result<Posted, String> {
        let mut notice = notice.clone();
        notice.addresses.truncate(ADDRESSES);
        let content = serde_json::to_vec_pretty(&notice).map_err(|error| error.to_string())?;
        let path = path_of(dir, notice.id);
        put(&path, &content)?;
        Ok(Posted { path, content, is_up: Mutex::new(true) })
    }

    /// Puts it back if somebody removed it, be it a rank that could not reach us or a person who cleaned up.
    pub(super) fn renew(&self) {
        let is_up = locked(&self.is_up);
        if *is_up && !self.path.exists() {
            // It is tried again soon.
            _ = put(&self.path, &self.content);
        }
    }
}

impl Drop for Posted {
    fn drop(&mut self) {
        *locked(&self.is_up) = false;
        _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use tempfile::TempDir;

    use super::*;

    fn notice(id: u64, is_rank_0: bool) -> Notice {
        let addresses = vec!["10.0.0.1:700".parse().unwrap(), "[fd00::1]:700".parse().unwrap()];
        Notice { id, is_rank_0, host: "alpha".to_owned(), addresses, secret: Some("squirrel".to_owned()) }
    }

    #[test]
    fn notices_are_found_in_order_and_gone_when_dropped() {
        let dir = TempDir::new().unwrap();
        let notices = [notice(7, false), notice(3, false), notice(9, true)];
        let posted: Vec<Posted> = notices.iter().map(|notice| Posted::post(dir.path(), notice).unwrap()).collect();
        let (found, troubles) = list(dir.path());
        assert_eq!(found, [notice(9, true), notice(3, false), notice(7, false)]);
        assert!(troubles.is_empty(), "{troubles:?}");
        assert!(!format!("{found:?}").contains("squirrel"), "{found:?}");
        // Removed by another rank, and put back by its owner.
        remove(dir.path(), 3);
        assert_eq!(list(dir.path()).0.len(), 2);
        posted.iter().for_each(Posted::renew);
        assert_eq!(list(dir.path()).0.len(), 3);
        drop(posted);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_not_a_notice_or_not_ours_is_left_out() {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("notes.txt"), "mine").unwrap();
        put(&path_of(dir.path(), 1), b"{").unwrap();
        put(&path_of(dir.path(), 2), &serde_json::to_vec(&notice(5, true)).unwrap()).unwrap();
        put(&path_of(dir.path(), 3), &serde_json::to_vec(&notice(3, true)).unwrap()).unwrap();
        fs::set_permissions(path_of(dir.path(), 3), fs::Permissions::from_mode(0o644)).unwrap();
        put(&path_of(dir.path(), 4), &serde_json::to_vec(&notice(4, true)).unwrap()).unwrap();
        let (found, troubles) = list(dir.path());
        assert_eq!(found, [notice(4, true)]);
        assert_eq!(troubles.len(), 3, "{troubles:?}");
        assert!(list(&dir.path().join("nowhere")).1.len() == 1);
    }
}
